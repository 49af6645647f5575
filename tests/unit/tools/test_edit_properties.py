"""Edit against a naive reference that walks over the file's units (contract.md 6, 9).

A unit is a CRLF or any other byte. The reference never folds a whole file and never
translates a position, which is what the code does.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sandboxd.guest.matching import TooLarge, folded, needle, replaced
from sandboxd.tools.edit import EditTool
from tests.unit.strategies import BROKEN, PIECES, pieces, text_files, wide_files
from tests.unit.tools.direct_channel import DirectChannel, reason_of

# A failure must show itself, however large its example is.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

EDIT = EditTool()
WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
NO_MATCH = "Could not find oldText in f. Check whitespace and indentation: it must match exactly."
_UNIT = re.compile(rb"\r\n|.", re.DOTALL)


@dataclass
class Expected:
    """What an edit that replaces every match makes of a file."""

    data: bytes
    lines: list[int]
    starts: list[int]
    """Line of every place at which the text begins, also inside of another match."""


def units(data: bytes) -> list[bytes]:
    return _UNIT.findall(data)


def reference(data: bytes, old: bytes, new: bytes) -> Expected:
    mark = codecs.BOM_UTF8
    if data.startswith(mark):
        # The file's own mark is no part of what is searched.
        found = among(data[len(mark) :], old, new)
        return Expected(mark + found.data, found.lines, found.starts)
    return among(data, old, new)


def among(data: bytes, old: bytes, new: bytes) -> Expected:
    mark = codecs.BOM_UTF8
    found = unmarked(data, old, new)
    if not found.lines and old.startswith(mark) and old != mark:
        return unmarked(data, old[len(mark) :], new.removeprefix(mark))
    return found


def unmarked(data: bytes, old: bytes, new: bytes) -> Expected:
    content, sought = units(data), units(old)
    plain = [b"\n" if unit == b"\r\n" else unit for unit in content]
    wanted = [b"\n" if unit == b"\r\n" else unit for unit in sought]
    file_crlf, file_every = content.count(b"\r\n"), plain.count(b"\n")
    out, lines, at, line, replacement = [], [], 0, 1, units(new)
    while at < len(content):
        if plain[at : at + len(wanted)] != wanted:
            line += plain[at] == b"\n"
            out.append(content[at])
            at += 1
            continue
        own = [unit for unit in content[at : at + len(wanted)] if unit in (b"\n", b"\r\n")]
        if own:
            # The more frequent one of the match, its first where both are as frequent.
            balance = 2 * own.count(b"\r\n") - len(own)
            ending = own[0] if balance == 0 else b"\r\n" if balance > 0 else b"\n"
        else:
            ending = b"\r\n" if file_crlf * 2 > file_every else b"\n"
        if file_every:
            out += [ending if unit in (b"\n", b"\r\n") else unit for unit in replacement]
        else:
            out.append(new)
        lines.append(line)
        line += len(own)
        at += len(wanted)
    starts = [
        plain[:at].count(b"\n") + 1
        for at in (range(len(plain)) if len(lines) == 1 else ())
        if plain[at] == wanted[0] and plain[at : at + len(wanted)] == wanted
    ]
    return Expected(b"".join(out), lines, starts)


def named(lines: list[int]) -> str:
    rest = f" and {len(lines) - 10} more" if len(lines) > 10 else ""
    numbers = ", ".join(map(str, lines[:10]))
    return f"{'line' if len(lines) == 1 else 'lines'} {numbers}{rest}"


@pytest.fixture(scope="module")
def place() -> Iterator[DirectChannel]:
    with tempfile.TemporaryDirectory() as folder:
        yield DirectChannel(Path(folder))


TOKENS = pieces([*PIECES, b"\n", b"\r\n", codecs.BOM_UTF8, b"%s", b"\\g<0>", b"$&"], 5).map(
    bytes.decode
)
MIXED = pieces([b"a", b"b", b"\n", b"\r\n", b"\r", *BROKEN, b"\0", codecs.BOM_UTF8], 30)


@st.composite
def edits(draw: st.DrawFn) -> tuple[bytes, str, str]:
    """A file, and two texts of which the first is often in it, in some line-ending style."""
    files = text_files(long=False, repeats_max=300) | wide_files() | st.binary(max_size=300)
    data = draw(files | MIXED | MIXED)
    old = draw(TOKENS)
    if draw(st.booleans()):
        start = draw(st.integers(0, min(len(data), 2_000)))
        old = data[start : start + draw(st.integers(1, 12))].decode("utf-8", "ignore")
        old = draw(st.sampled_from([old, old.replace("\r\n", "\n"), old.replace("\n", "\r\n")]))
    return data, old, draw(TOKENS)


@given(edits(), st.booleans())
@example((b"\r\n\r\r\n\n", "\n", "x\n"), True)
@example((b"a\r\r\nb\n", "\r", "\r\n"), False)
@example((b"a\n\n\nb", "\n\n", "x"), False)
@example((b"\xef\xbb\xbf\xef\xbb\xbfa", "\ufeffa", "x"), False)
@example((b"a", "a", "x\r\ny\n"), False)
@example((b"\xef\xbb\xbfa\r\na", "\ufeffa\n", "\ufeffb\nc"), False)
def test_edit_changes_its_matches_and_no_other_byte(
    place: DirectChannel, case: tuple[bytes, str, str], replace_all: bool
) -> None:
    data, old, new = case
    assume(old and old != new and not data.startswith(WIDE))
    path = place.work / "f"
    path.write_bytes(data)
    os.utime(path, ns=(1_000_000_000, 1_234_567_891))
    expected = reference(data, old.encode(), new.encode())
    count = len(expected.lines)

    result = asyncio.run(
        place.call(EDIT, path="f", oldText=old, newText=new, replaceAll=replace_all)
    )

    if not replace_all and count == 1:
        # One match that can begin at several places is none that is meant for sure.
        count, expected.lines = len(expected.starts), expected.starts

    if not result.is_error:
        assert count == 1 or (replace_all and count > 1)
        replacements = "1 replacement" if count == 1 else f"{count} replacements"
        assert result.text == f"Edited f: {replacements} at {named(expected.lines)}."
        assert result.edit.replacements == count
        assert list(result.edit.lines) == expected.lines[:100]
        assert path.read_bytes() == expected.data
        return
    reason = reason_of(result)
    if count == 0:
        assert reason == "NO_MATCH"
        assert result.text.startswith(NO_MATCH)
    elif count > 1 and not replace_all:
        assert reason == "SEVERAL_MATCHES"
        assert result.text == (
            f"oldText matches {count} places in f ({named(expected.lines)}). Add more surrounding "
            "context to make it unique, or set replaceAll."
        )
        assert (result.edit.replacements, list(result.edit.lines)) == (count, expected.lines[:100])
    else:
        assert reason == "IDENTICAL_TEXT"
        assert expected.data == reference(data, old.encode(), old.encode()).data
    assert path.read_bytes() == data
    assert path.stat().st_mtime_ns == 1_234_567_891


@given(MIXED, MIXED.filter(bool), MIXED, st.integers(0, 60))
def test_replacing_builds_nothing_over_its_bound(
    data: bytes, old: bytes, new: bytes, bytes_max: int
) -> None:
    expected = unmarked(data, old, new).data
    sought, content = needle(old, new), folded(data)
    count = content.count(sought.old)
    if len(expected) > bytes_max:
        with pytest.raises(TooLarge):
            replaced(data, content, count, sought, bytes_max, lambda: None)
    else:
        assert replaced(data, content, count, sought, bytes_max, lambda: None) == expected
