"""Reading what a POSIX grep prints, and finding the place of a match in a long line."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from .search_child import Budget
from .search_rows import PREVIEW_BYTES

_PIECE_BYTES_MAX: Final = 256
"""Of a match that is looked for in its line."""
_CHUNK_BYTES: Final = 256 * 1024


class LineReader:
    """Splits output into lines, of each keeping the beginning. Bounded in memory."""

    def __init__(self, on_line: Callable[[bytes], bool], bytes_max: int = PREVIEW_BYTES + 32):
        """`on_line` returns false when it has enough."""
        self._on_line = on_line
        self._bytes_max = bytes_max
        self._line = bytearray()

    def feed(self, data: bytes) -> bool:
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            self._keep(data, at, end)
            line, self._line = bytes(self._line), bytearray()
            if not self._on_line(line):
                return False
            at = end + 1
        self._keep(data, at, len(data))
        return True

    def end(self) -> None:
        """A last line without its line feed."""
        if self._line:
            self._on_line(bytes(self._line))

    def _keep(self, data: bytes, start: int, end: int) -> None:
        room = self._bytes_max - len(self._line)
        if room > 0:
            self._line += data[start : min(end, start + room)]


class FirstMatches:
    """The first match of each wanted line, from rows `line:offset:text` or `line:text`."""

    def __init__(self, wanted: set[int], with_offset: bool) -> None:
        self.found: dict[int, tuple[int | None, bytes]] = {}
        """By line: the match's byte in the file where grep says it, and its beginning."""
        self._wanted = wanted
        self._last = max(wanted)
        self._with_offset = with_offset
        self.reader = LineReader(self._on_line, _PIECE_BYTES_MAX + 48)

    def _on_line(self, row: bytes) -> bool:
        number, _, rest = row.partition(b":")
        if not number.isdigit():
            return True
        line = int(number)
        if line > self._last:
            return False
        if line in self._wanted and line not in self.found:
            offset: int | None = None
            if self._with_offset:
                digits, _, rest = rest.partition(b":")
                offset = int(digits) if digits.isdigit() else None
            self.found[line] = (offset, rest[:_PIECE_BYTES_MAX])
        return True


def line_starts(fd: int, base: int, lines: list[int], budget: Budget) -> dict[int, int]:
    """The bytes at which lines start; `lines` counts from 1 and is in order."""
    starts: dict[int, int] = {}
    waiting = list(lines)
    number, at = 1, base
    if waiting and waiting[0] == 1:
        starts[waiting.pop(0)] = base
    while waiting and not budget.over and (data := os.pread(fd, _CHUNK_BYTES, at)):
        here = data.count(b"\n")
        if number + here < waiting[0]:
            number += here
            at += len(data)
            continue
        place = 0
        while waiting and (end := data.find(b"\n", place)) >= 0:
            number += 1
            place = end + 1
            if number == waiting[0]:
                starts[waiting.pop(0)] = at + place
        # What is left of the chunk holds no line feed, or nothing is waited for.
        at += len(data)
    return starts


def place_of(fd: int, start: int, piece: bytes, budget: Budget) -> int | None:
    """The first byte, from the line's start, at which `piece` stands in the line."""
    at = start
    while not budget.over:
        data = os.pread(fd, _CHUNK_BYTES, at)
        line = data.partition(b"\n")[0]
        found = line.find(piece)
        if found >= 0:
            return at + found - start
        if len(line) < len(data) or len(data) < _CHUNK_BYTES:
            return None
        at += len(data) - len(piece) + 1
    return None
