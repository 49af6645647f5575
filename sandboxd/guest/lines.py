"""A window of lines out of a stream, in flat memory.

Lines end at LF and nowhere else; one CR before it is hidden (contract.md 6).
The body is UTF-8 with the lines' own newlines, so a file without CR, mark or
broken bytes that fits is its own body. The budget counts the body's bytes,
newlines included; only a first line that fills it exactly goes without its own.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

NUL_SHOWN = "\u2400"
"""Stands for NUL, which no result may hold."""


@dataclass
class Window:
    """Takes chunks in order and keeps lines `offset` to `offset + lines_max - 1`.

    Lines before the window and after it are only counted, whole chunks at a
    time. After the last chunk `finish` must be called.
    """

    offset: int
    lines_max: int
    bytes_max: int

    def __post_init__(self) -> None:
        self.newlines: int = 0
        """Newlines seen so far."""
        self.last_line = 0
        """Last line in the body; 0 where there is none."""
        self.long_line = False
        """The only line shown is over the budget and cut."""
        self.replaced = False
        self.nul = False
        self._parts: list[bytes] = []
        self._used = 0
        self._pending = b""
        self._collecting = True
        self._open = False

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    @property
    def filled(self) -> bool:
        """Whether the body is complete and the rest is only counted."""
        return not self._collecting

    @property
    def total(self) -> int:
        """Lines so far; a last one without a newline counts."""
        return self.newlines + (1 if self._open else 0)

    def feed(self, chunk: bytes) -> None:
        if not chunk:
            return
        self._open = not chunk.endswith(b"\n")
        if not self._collecting:
            self.newlines += chunk.count(b"\n")
            return
        position = 0
        to_skip = self.offset - 1 - self.newlines
        if to_skip > 0:
            count = chunk.count(b"\n")
            if count < to_skip:
                self.newlines += count
                return
            position = _after_newline(chunk, to_skip)
            self.newlines += to_skip
        while not self.filled and position < len(chunk):
            position = self._take(chunk, position)
        if position < len(chunk):
            self.newlines += chunk.count(b"\n", position)

    def finish(self, *, complete: bool) -> None:
        """Takes the last line where it has no newline, if this is the stream's end."""
        if complete and self._collecting and self._pending:
            self._add(self._pending, b"")
        self._collecting = False
        self._pending = b""

    def _take(self, chunk: bytes, position: int) -> int:
        """Takes one line, or what there is of it; gives the position behind it."""
        end = chunk.find(b"\n", position)
        if end < 0:
            # Two more than can be shown decide whether the line is too long: a
            # hidden CR, and one byte.
            room = self.bytes_max + 8 - len(self._pending)
            self._pending += chunk[position : position + max(room, 0)]
            if len(self._pending) > self.bytes_max + 1:
                self._overflow(self._pending)
            return len(chunk)
        line = self._pending + chunk[position : min(end, position + self.bytes_max + 8)]
        self._pending = b""
        self._add(line, b"\n")
        self.newlines += 1
        return end + 1

    def _add(self, line: bytes, newline: bytes) -> None:
        if len(line) > self.bytes_max + 1:
            self._overflow(line)
            return
        text, replaced, nul = _decode(line.removesuffix(b"\r"), final=True)
        size = len(text)
        fills = size == self.bytes_max and not self._parts
        if fills:
            newline = b""
        if self._used + size + len(newline) > self.bytes_max:
            self._overflow(line)
            return
        self._parts.append(text + newline)
        self._used += size + len(newline)
        self.replaced |= replaced
        self.nul |= nul
        self.last_line = self.newlines + 1
        # An empty line after one that fills the budget needs the newline that is missing.
        if fills or self.last_line >= self.offset + self.lines_max - 1:
            self._collecting = False

    def _overflow(self, line: bytes) -> None:
        """The line does not fit: the body ends before it, or is its beginning."""
        self._collecting = False
        self._pending = b""
        if self._parts:
            return
        text, self.replaced, self.nul = _decode(line[: self.bytes_max + 4], final=False)
        end = min(self.bytes_max, len(text))
        while end < len(text) and text[end] & 0xC0 == 0x80:
            end -= 1
        self._parts.append(text[:end])
        self.last_line = self.newlines + 1
        self.long_line = True


def _after_newline(chunk: bytes, count: int) -> int:
    """Position behind the `count`-th newline of a chunk that has that many."""
    low, high = 0, len(chunk)
    # Halving costs twenty counts at most, whatever the number of lines.
    while low < high:
        middle = (low + high) // 2
        if chunk.count(b"\n", 0, middle) < count:
            low = middle + 1
        else:
            high = middle
    return low


def _decode(raw: bytes, *, final: bool) -> tuple[bytes, bool, bool]:
    """UTF-8 without broken bytes and NUL, and whether there were any of either.

    With `final=False` an unfinished character at the end is left out.
    """
    nul = b"\0" in raw
    try:
        text = codecs.utf_8_decode(raw, "strict", final)[0]
        replaced = False
    except UnicodeDecodeError:
        text = codecs.utf_8_decode(raw, "replace", final)[0]
        replaced = True
    if nul:
        text = text.replace("\0", NUL_SHOWN)
    return text.encode("utf-8"), replaced, nul
