"""What a model sees of a command's output: cleaned, and the tail of it.

Cleaning happens as the bytes come, with bounded state, because it can shrink any
amount of output to little. Removed are escape sequences (CSI, OSC, DCS and their
kin, lone ESC), BEL, what a carriage return overwrote, and what a backspace took
back. What only changes shape (control characters, bytes that are not UTF-8) waits
for the end: it never shrinks, so the last BYTES_MAX bytes before it suffice.

Pieces without any of those bytes cost a few searches each: output of gigabytes is
only counted.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass
from typing import Final

LINES_MAX: Final = 2_000
BYTES_MAX: Final = 50 * 1024
KEPT_BYTES: Final = BYTES_MAX + 4
"""What is kept at least: the cut may fall into a character of four bytes."""
SEQUENCE_BYTES_MAX: Final = 4096
"""Longest part of an escape sequence; what is longer is text, however it arrived."""
BINARY_SHARE: Final = 0.3

_ESCAPE: Final = re.compile(
    rb"\x1b\[[0-?]{0,%(most)d}[ -/]{0,%(most)d}[@-~]"  # CSI
    rb"|\x1b[\]PX^_][^\x07\x1b\n]{0,%(most)d}(?:\x07|\x1b\\)"  # OSC, DCS, SOS, PM, APC
    rb"|\x1b[ -/]{1,%(most)d}[0-~]"  # character sets and the like
    rb"|\x1b[0-OQ-WYZ\\`-~]" % {b"most": SEQUENCE_BYTES_MAX}  # two bytes
)
# Exactly what can still become a match of the above: a piece ends anywhere.
_ESCAPE_BEGUN: Final = re.compile(
    rb"\x1b(?:\[[0-?]{0,%(most)d}[ -/]{0,%(most)d}|[\]PX^_][^\x07\x1b\n]{0,%(most)d}\x1b?"
    rb"|[ -/]{0,%(most)d})\Z" % {b"most": SEQUENCE_BYTES_MAX}
)
_HELD_BYTES_MAX: Final = 2 * SEQUENCE_BYTES_MAX + 3
_MOVES: Final = re.compile(rb"[\r\n\b]")
_NO_TEXT: Final = bytes({*range(0x20), 0x7F} - {0x09, 0x0A, 0x0D})
_VISIBLE: Final = {
    code: f"\\x{code:02x}" for code in {*range(0x20), *range(0x7F, 0xA0)} - {0x09, 0x0A}
}


@dataclass(frozen=True)
class Tail:
    """The end of the output as it is shown."""

    text: bytes
    """Valid UTF-8, at most BYTES_MAX bytes and LINES_MAX lines; whole lines, unless
    the last one that is not blank is longer."""
    lines: int
    cut: bool
    """Whether there was more before it."""
    binary: bool
    """Whether more than BINARY_SHARE of it is no text; then `text` is empty."""


class Output:
    """Takes a command's output piece by piece, in constant memory."""

    def __init__(self) -> None:
        self.bytes_total = 0
        self._newlines = 0
        self._ends_line = True
        # Finished lines, and apart from them the one that is being written: a
        # carriage return discards it whole, however long it has become.
        self._done = bytearray()
        self._done_cut = False
        self._partial = bytearray()
        self._partial_cut = False
        # A carriage return that may belong to the newline to come.
        self._returned = False
        self._held = b""

    @property
    def lines_total(self) -> int:
        """Lines before cleaning; a last one without its newline counts."""
        return self._newlines + (0 if self._ends_line else 1)

    def copy(self) -> Output:
        """One of its own, to look at what would be shown while more is coming."""
        other = copy(self)
        other._done, other._partial = bytearray(self._done), bytearray(self._partial)
        return other

    def feed(self, data: bytes) -> None:
        """Takes the next piece, which is not empty."""
        self.bytes_total += len(data)
        self._newlines += data.count(b"\n")
        self._ends_line = data.endswith(b"\n")
        if self._held:
            data = self._held + data
            self._held = b""
        if b"\x1b" in data:
            data = self._without_escapes(data)
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Appends what holds no escape sequences."""
        if b"\x07" in data:
            data = data.replace(b"\x07", b"")
        if b"\r\n" in data:
            # Says what `_play` would find out line by line.
            data = data.replace(b"\r\n", b"\n")
        if self._returned or b"\r" in data or b"\b" in data:
            self._play(data)
        else:
            self._append(data)

    def tail(self) -> Tail:
        """What is shown, once everything was fed."""
        # A sequence that nobody finished is text.
        held, self._held = self._held, b""
        self._take(held.replace(b"\x1b", b""))
        kept = bytes(self._partial) if self._partial_cut else bytes(self._done + self._partial)
        # How much more is still here depends on how the output arrived.
        cut = self._partial_cut or self._done_cut or len(kept) > KEPT_BYTES
        kept = kept[-KEPT_BYTES:]
        decoded = kept.decode("utf-8", "replace")
        if _is_binary(kept, decoded):
            return Tail(b"", 0, True, True)
        text = decoded.translate(_VISIBLE).encode("utf-8")
        start = _tail_start(text)
        shown = text[start:]
        return Tail(shown, _line_count(shown), cut or start > 0, False)

    def _without_escapes(self, data: bytes) -> bytes:
        begun = _ESCAPE_BEGUN.search(data, max(0, len(data) - _HELD_BYTES_MAX))
        if begun is not None:
            self._held = data[begun.start() :]
            data = data[: begun.start()]
        return _ESCAPE.sub(b"", data).replace(b"\x1b", b"")

    def _play(self, data: bytes) -> None:
        """Does what carriage returns and backspaces say."""
        position = 0
        for move in _MOVES.finditer(data):
            self._overwrite(data[position : move.start()])
            position = move.end()
            mark = move.group()
            if mark == b"\r":
                self._returned = True
            elif mark == b"\n":
                self._returned = False
                self._append(b"\n")
            else:
                self._take_back()
        self._overwrite(data[position:])

    def _overwrite(self, text: bytes) -> None:
        if not text:
            return
        if self._returned:
            self._returned = False
            self._partial.clear()
            self._partial_cut = False
        self._append(text)

    def _take_back(self) -> None:
        """Removes the last character of the line."""
        while self._partial:
            if self._partial.pop() & 0xC0 != 0x80:
                return

    def _append(self, text: bytes) -> None:
        end = text.rfind(b"\n") + 1
        if end:
            if self._partial_cut:
                self._done.clear()
            self._done += self._partial
            self._done_cut = self._done_cut or self._partial_cut
            self._partial.clear()
            self._partial_cut = False
            self._done_cut = _extend(self._done, text[:end]) or self._done_cut
            text = text[end:]
        self._partial_cut = _extend(self._partial, text) or self._partial_cut


def _extend(kept: bytearray, text: bytes) -> bool:
    """Appends and keeps at least the last KEPT_BYTES; whether anything was dropped."""
    if len(text) > KEPT_BYTES:
        kept[:] = text[-KEPT_BYTES:]
        return True
    kept += text
    # Cut at twice the size, so that a byte is moved once and not with every piece.
    if len(kept) > 2 * KEPT_BYTES:
        del kept[:-KEPT_BYTES]
        return True
    return False


def _is_binary(kept: bytes, decoded: str) -> bool:
    if not kept:
        return False
    replaced = decoded.count("\ufffd") - kept.count(b"\xef\xbf\xbd")
    controls = len(kept) - len(kept.translate(None, _NO_TEXT))
    return replaced + controls > BINARY_SHARE * len(kept)


def _tail_start(text: bytes) -> int:
    """Where the part begins that is shown."""
    start = max(0, len(text) - BYTES_MAX)
    if start > 0 and text[start - 1] != 0x0A:
        line = text.find(b"\n", start) + 1
        if line > 0 and text[line:].strip():
            start = line
        else:
            # One line is longer than all that may be shown, and nothing but blank lines
            # follows: its end, from a whole character.
            while start < len(text) and text[start] & 0xC0 == 0x80:
                start += 1
    excess = _line_count(text[start:]) - LINES_MAX
    for _ in range(excess):
        start = text.index(b"\n", start) + 1
    return start


def _line_count(text: bytes) -> int:
    return text.count(b"\n") + (1 if text and not text.endswith(b"\n") else 0)
