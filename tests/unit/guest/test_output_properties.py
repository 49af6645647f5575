"""A command's output against a naive reference that sees all of it at once (contract.md 6).

The reference works on the whole output, character by character; the code works piece
by piece in constant memory, and must not show how it was cut.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandboxd.guest.output import (
    BINARY_SHARE,
    BYTES_MAX,
    KEPT_BYTES,
    LINES_MAX,
    SEQUENCE_BYTES_MAX,
    Output,
    Tail,
)
from tests.unit.strategies import BROKEN, CUTS, PIECES, cut, long_lines, pieces

# A failure must show itself, however large its example is.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

ESCAPES = [b"\x1b[31m", b"\x1b[2K", b"\x1b]0;t\x07", b"\x1b]8;;x\x1b\\", b"\x1bP1$r\x1b\\"]
ESCAPES += [b"\x1b(B", b"\x1b", b"\x1bc", b"\x1b[", b"\x1b]", b"\x1b[?25", b"\x1b]0;no end"]
MOVES = [b"\r", b"\b", b"\x07", b"\n", b"\r\n"]
CONTROLS = [b"\0", b"\x01", b"\x7f", "\x85".encode(), b"\x0c"]

_SEQUENCE = re.compile(
    rb"\x1b\[([0-?]*)([ -/]*)[@-~]"
    rb"|\x1b[\]PX^_]([^\x07\x1b\n]*)(?:\x07|\x1b\\)"
    rb"|\x1b([ -/]+)[0-~]"
    rb"|\x1b[0-OQ-WYZ\\`-~]"
)


def without_sequences(raw: bytes) -> bytes:
    """Whole sequences of which no part is too long are gone, and every other ESC."""
    out, at = bytearray(), 0
    while at < len(raw):
        if raw[at] != 0x1B:
            after = raw.find(b"\x1b", at)
            after = len(raw) if after < 0 else after
            out += raw[at:after]
            at = after
            continue
        found = _SEQUENCE.match(raw, at)
        parts = found.groups(b"") if found is not None else ()
        fits = found is not None and max(map(len, parts), default=0) <= SEQUENCE_BYTES_MAX
        at = found.end() if found is not None and fits else at + 1
    return bytes(out)


def cleaned(raw: bytes) -> bytes:
    """The whole output as a terminal would leave it, still with broken bytes and controls."""
    done, line, returned = bytearray(), bytearray(), False
    for char in re.findall(rb"[\xc0-\xff][\x80-\xbf]*|.", without_sequences(raw), re.DOTALL):
        if char == b"\n":
            done += line + b"\n"
            line, returned = bytearray(), False
        elif char == b"\r":
            returned = True
        elif char == b"\b":
            while line and line.pop() & 0xC0 == 0x80:
                pass
        elif char != b"\x07":
            line = bytearray(char) if returned else line + char
            returned = False
    return bytes(done + line)


def naive(raw: bytes) -> Tail:
    clean = cleaned(raw)
    # What is no text is judged, and shown, only as far as it can be seen.
    kept = clean[-KEPT_BYTES:]
    decoded = kept.decode("utf-8", "replace")
    odd = decoded.count("\ufffd") - kept.count("\ufffd".encode())
    odd += sum((byte < 0x20 and byte not in b"\t\n\r") or byte == 0x7F for byte in kept)
    if kept and odd > BINARY_SHARE * len(kept):
        return Tail(b"", 0, True, True)
    text = "".join(
        f"\\x{ord(char):02x}"
        if (ord(char) < 0x20 and char not in "\t\n") or 0x7F <= ord(char) < 0xA0
        else char
        for char in decoded
    )
    lines = text.split("\n")
    lines = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    tail: list[str] = []
    size = 0
    while lines and size + len(lines[-1].encode()) <= BYTES_MAX:
        tail.insert(0, lines.pop())
        size += len(tail[0].encode())
    if lines and not "".join(tail).strip():
        # The last line that says anything is too long: its end, at a whole character.
        tail.insert(0, lines.pop().encode()[size - BYTES_MAX :].decode("utf-8", "ignore"))
    tail = tail[-LINES_MAX:]
    shown = "".join(tail).encode()
    whole = len(clean) <= KEPT_BYTES and shown == text.encode()
    return Tail(shown, len(tail), not whole, False)


def fed(parts: list[bytes]) -> Output:
    output = Output()
    for part in parts:
        output.feed(part)
    return output


SHORT = pieces([*PIECES, *BROKEN, *ESCAPES, *MOVES, *CONTROLS], 40)
TEXT = pieces([*PIECES, *ESCAPES, *MOVES], 60)


@st.composite
def outputs(draw: st.DrawFn) -> bytes:
    """Output around the bounds: long lines, thousands of lines, floods of what is no text."""
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        unit = draw(SHORT | TEXT | long_lines())
        times = 1
        if 0 < len(unit) < 60:
            times = draw(st.sampled_from([1, 1, 700, 2_001, KEPT_BYTES // len(unit) + 1]))
        parts.append(unit * times + draw(st.sampled_from([b"", b"\n", b"\r\n"])))
    return b"".join(parts)


@given(SHORT | TEXT, CUTS)
@example(b"\x1b]0;" + b"t" * 5_000 + b"\x07|", [1])
@example(b"\x1b[" + b"1" * SEQUENCE_BYTES_MAX + b"m|", [7])
@example(b"\x1b[" + b"1" * (SEQUENCE_BYTES_MAX + 1) + b"m|", [7])
@example(b"\x1b[" + b"1" * SEQUENCE_BYTES_MAX + b" " * SEQUENCE_BYTES_MAX + b"m|", [3])
@example(b"\x1b]" + b"t" * SEQUENCE_BYTES_MAX + b"\x1b\\|", [1])
def test_short_output_is_cleaned_alike_however_it_is_cut(raw: bytes, sizes: list[int]) -> None:
    output = fed(cut(raw, sizes))
    assert output.tail() == naive(raw)
    assert output.bytes_total == len(raw)
    assert output.lines_total == len(raw.split(b"\n")) - (raw.endswith(b"\n") or not raw)


@settings(max_examples=30)
@given(outputs(), CUTS)
@example(b"\0" * 60_000 + b"and then text\n" * 3_000, [4_096])
@example(b"\0" * 60_000 + b"and then text\n" * 3_000, [200_000])
def test_long_output_is_cut_alike_however_it_came(raw: bytes, sizes: list[int]) -> None:
    output = fed(cut(raw, [max(size, 64) for size in sizes]))
    tail = output.tail()
    assert tail == naive(raw)
    assert len(tail.text) <= BYTES_MAX
    assert output.bytes_total == len(raw)
    assert output.lines_total == len(raw.split(b"\n")) - (raw.endswith(b"\n") or not raw)
