"""What grep shows of a line, over real ripgrep, against the line itself (contract.md 6)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.guest.search_place import SearchPlace, engines, search_place
from tests.unit.strategies import BROKEN, PIECES, pieces

# A failure must show itself, however large its example is.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

CHARS_MAX = 500
MATCH = "NEEDLE"


def shown(line: bytes) -> str:
    """A whole line as it is printed: broken bytes and controls made visible."""
    text = line.removesuffix(b"\r").decode("utf-8", "replace").replace("\ufeff", "")
    return "".join(
        f"\\x{ord(char):02x}"
        if char != "\t" and (ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0)
        else char
        for char in text
    )


FILLS = st.builds(
    lambda unit, times, end: unit * times + end,
    pieces([*PIECES, *BROKEN, b"\x1b", b"\x07"], 4),
    st.sampled_from([0, 1, 1, 40, 130, 260, 2_000]),
    pieces([*PIECES, *BROKEN], 3),
)
LINES = st.builds(
    lambda before, after, ending: before + MATCH.encode() + after + ending,
    FILLS,
    FILLS,
    st.sampled_from([b"", b"", b"\r"]),
)


RIPGREPS = {name: setup for name, setup in engines().items() if setup.is_ripgrep}


@pytest.fixture(scope="module", params=RIPGREPS)
def place(request: pytest.FixtureRequest) -> Iterator[SearchPlace]:
    with search_place(RIPGREPS[request.param]) as made:
        yield made


@settings(max_examples=60)
@given(st.lists(LINES, min_size=1, max_size=6), st.booleans())
@example([b"x" * 600 + b"NEEDLE" + "é".encode() * 494], False)
@example([b"x" * 200 + b"NEEDLE" + b"y" * 294, b"x" * 201 + b"NEEDLE" + b"y" * 294], True)
@example([b"\xff" * 5_000 + b"NEEDLE" + b"\xf0\x9f\x98" * 400], True)
def test_line_is_whole_or_cut_around_its_match(
    place: SearchPlace, lines: list[bytes], ended: bool
) -> None:
    if not ended:
        # What a CR is that nothing follows, the engine does not tell.
        lines = [*lines[:-1], lines[-1].rstrip(b"\r")]
    place.empty()
    place.write("f", b"\n".join(lines) + (b"\n" if ended else b""))
    facts, rows = place.grep(MATCH, literal=True)
    assert [(path, line) for path, line, _ in rows] == [("f", n + 1) for n in range(len(lines))]
    cut = 0
    for raw, (_, _, text) in zip(lines, rows, strict=True):
        whole = shown(raw)
        if len(whole) <= CHARS_MAX:
            assert text == whole
            continue
        cut += 1
        kept = re.fullmatch("(…?)(.*?)(…?)", text)
        assert kept is not None
        left, part, right = kept.groups()
        assert len(part) == CHARS_MAX
        assert MATCH in part
        # At the place of the first match, and marked where something is missing.
        up_to = raw[: raw.index(MATCH.encode())] + MATCH.encode()
        before = len(shown(up_to)) - len(MATCH) - part.index(MATCH)
        assert whole[before : before + CHARS_MAX] == part
        assert bool(left) == (before > 0)
        assert bool(right) == (before + CHARS_MAX < len(whole))
    assert facts["cut"] == cut
