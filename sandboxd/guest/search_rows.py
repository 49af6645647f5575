"""The first rows of a search: collecting, ordering and cutting them.

The order is that of the printed path as bytes, then of the line. Only the first
rows are kept, however many come by, so it does not matter in which order a
parallel search finds them.
"""

from __future__ import annotations

import bisect
import codecs
import os
import stat
from dataclasses import dataclass, field
from typing import Final

from .search_child import Budget

PREVIEW_BYTES: Final = 4_000
"""Of a longer line the engine gives about so much of its beginning."""
_WHOLE_BYTES: Final = PREVIEW_BYTES - 100
"""A row that is shorter is certainly the whole line."""
_DECODED_CHARS_MAX: Final = 4 * 1024 * 1024
"""Longest line of a UTF-16 file that is looked into for the match."""
_BOM: Final = codecs.BOM_UTF8
_VISIBLE: Final = {
    code: f"\\x{code:02x}" for code in {*range(0x20), *range(0x7F, 0xA0)} - {0x09}
} | {0xFEFF: ""}


@dataclass(frozen=True, order=True)
class Row:
    """A line that matches."""

    printed: bytes
    line: int
    raw: bytes
    """Path as the engine gave it."""
    column: int | None = field(compare=False)
    """Byte of the line at which the match starts, from 0. None: at its end, where the file ends."""
    offset: int = field(compare=False)
    """Byte of the (decoded) file at which the line starts."""
    text: bytes = field(compare=False)
    """The line, or the beginning of it."""


class FirstRows:
    """The smallest `rows_max` rows of all that are added, and whether there were more."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._rows: list[Row] = []
        self.seen = 0

    def add(self, row: Row) -> None:
        self.seen += 1
        rows = self._rows
        if len(rows) > self._rows_max and not row < rows[-1]:
            return
        at = bisect.bisect_left(rows, row)
        if at < len(rows) and rows[at] == row:
            return
        rows.insert(at, row)
        if len(rows) > self._rows_max + 1:
            rows.pop()

    def wants(self, printed: bytes) -> bool:
        """Whether a row of this path could be among the first."""
        return len(self._rows) <= self._rows_max or printed <= self._rows[-1].printed

    @property
    def last_wanted(self) -> bytes | None:
        """The greatest path whose rows can be among the first; None: any."""
        return self._rows[-1].printed if len(self._rows) > self._rows_max else None

    @property
    def capped(self) -> bool:
        return len(self._rows) > self._rows_max

    @property
    def first(self) -> list[Row]:
        return self._rows[: self._rows_max]


def line_text(row: Row, path: str, chars_max: int, budget: Budget) -> tuple[str, bool]:
    """The row's line as it is shown, and whether it was cut.

    `path` is the file, where the rest of a long line is fetched from.
    """
    if len(row.text) <= _WHOLE_BYTES:
        return _whole(row, chars_max)
    window = _window(row, path, chars_max, budget)
    if window is None:
        # The file changed or went away: the beginning is what is known of the line.
        text = row.text[:_WHOLE_BYTES].decode("utf-8", "replace").translate(_VISIBLE)
        return text[:chars_max] + "…", True
    return _around(*window, chars_max)


def _whole(row: Row, chars_max: int) -> tuple[str, bool]:
    line = row.text.removesuffix(b"\r")
    seam = len(line) if row.column is None else row.column
    return _around(line[:seam], line[seam:], False, False, chars_max)


def _around(
    before: bytes, after: bytes, left_open: bool, right_open: bool, chars_max: int
) -> tuple[str, bool]:
    """`chars_max` characters around the seam of two pieces of a line.

    An open side goes on beyond its piece. Most of the room is after the seam,
    where the match is; what one side does not need the other gets.
    """
    head = _decoded(before, left_open, False)
    tail = _decoded(after, False, right_open)
    if len(head) + len(tail) <= chars_max and not left_open and not right_open:
        return head + tail, False
    head_max = max(chars_max * 2 // 5, chars_max - len(tail))
    kept = head[-min(head_max, len(head)) :] if head else ""
    rest = tail[: chars_max - len(kept)]
    left = "…" if left_open or len(kept) < len(head) else ""
    right = "…" if right_open or len(rest) < len(tail) else ""
    return left + kept + rest + right, bool(left or right)


def _decoded(data: bytes, cut_left: bool, cut_right: bool) -> str:
    if cut_left:
        # At most three bytes of a character whose beginning is not here.
        skip = next((i for i, byte in enumerate(data[:3]) if byte & 0xC0 != 0x80), 3)
        data = data[skip:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(data, not cut_right).translate(_VISIBLE)


def _window(
    row: Row, path: str, chars_max: int, budget: Budget
) -> tuple[bytes, bytes, bool, bool] | None:
    """The line before and after the start of the match, as far as it may be shown."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        head = os.pread(fd, 4, 0)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return _window_utf16(fd, row, chars_max, budget)
        # The engine counts from behind a byte order mark.
        start = row.offset + (len(_BOM) if head.startswith(_BOM) else 0)
        return _window_bytes(fd, row, start, chars_max)
    except OSError:
        return None
    finally:
        os.close(fd)


def _window_bytes(
    fd: int, row: Row, start: int, chars_max: int
) -> tuple[bytes, bytes, bool, bool] | None:
    known = row.text[:256]
    if os.pread(fd, len(known), start) != known:
        return None
    reach = 4 * (chars_max + 1)
    seam = os.fstat(fd).st_size if row.column is None else start + row.column
    begin = max(start, seam - reach)
    before = os.pread(fd, seam - begin, begin)
    after = os.pread(fd, reach, seam)
    if len(before) != seam - begin or b"\n" in before:
        return None
    right_open = len(after) == reach and b"\n" not in after
    after = after.partition(b"\n")[0]
    if not right_open:
        after = after.removesuffix(b"\r")
    return before, after, begin > start, right_open


def _window_utf16(
    fd: int, row: Row, chars_max: int, budget: Budget
) -> tuple[bytes, bytes, bool, bool] | None:
    with open(os.dup(fd), encoding="utf-16", errors="replace", newline="\n") as file:
        file.seek(0)
        line = 1
        while line < row.line:
            piece = file.readline(64 * 1024)
            if not piece or budget.over:
                return None
            line += piece.endswith("\n")
        text = file.readline(_DECODED_CHARS_MAX)
    whole = text.removesuffix("\n").removesuffix("\r").encode("utf-8", "replace")
    seam = len(whole) if row.column is None else row.column
    if len(text) >= _DECODED_CHARS_MAX or seam > len(whole):
        return None
    reach = 4 * (chars_max + 1)
    begin = max(0, seam - reach)
    after = whole[seam : seam + reach]
    return whole[begin:seam], after, begin > 0, seam + len(after) < len(whole)
