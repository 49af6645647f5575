"""Opening a file for a POSIX grep, so that it reads what ripgrep would.

grep gets the open file as its stdin: what a file is called cannot confuse it, and
nothing can be put in the file's place after it was looked at. A byte order mark is
skipped, UTF-16 is written to memory as UTF-8, and what holds NUL is binary from there on
(tool-cases G20, G21, G23).
"""

from __future__ import annotations

import codecs
import contextlib
import enum
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from .search_child import Budget

COPIED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of a UTF-16 or a binary file, which is searched as a copy in memory: what comes later
is not searched."""
MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
HEAD_BYTES: Final = 64 * 1024
"""A NUL in there makes all of a file binary; one that comes later ends its text."""
_CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class Source:
    """An open file, its content as text from `base` on."""

    fd: int
    base: int
    binary: bool
    """Whether NUL stands in its first bytes."""

    def rewind(self) -> int:
        """The descriptor, at the content's beginning."""
        os.lseek(self.fd, self.base, os.SEEK_SET)
        return self.fd


@contextlib.contextmanager
def opened(path: str, budget: Budget) -> Iterator[Source | None]:
    """The file's content; None where it is no regular file any more.

    Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            yield None
            return
        head = os.pread(fd, 4, 0)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            decoded = _decoded(fd, budget)
            os.close(fd)
            fd = decoded
        base = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
        yield Source(fd, base, b"\0" in os.pread(fd, HEAD_BYTES, base))
    finally:
        os.close(fd)


class Kind(enum.Enum):
    """What a file's beginning says of it."""

    TEXT = "text"
    MARKED = "marked"
    """It begins with a byte order mark."""
    BINARY = "binary"


def kind_of(path: bytes) -> Kind:
    """Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        head = os.read(fd, HEAD_BYTES)
    finally:
        os.close(fd)
    if head.startswith(MARKS):
        return Kind.MARKED
    return Kind.BINARY if b"\0" in head else Kind.TEXT


class TextLines:
    """Which lines end before the piece with the first NUL, as ripgrep drops such a piece.

    The file is looked through only as far as it is asked for.
    """

    def __init__(self, source: Source, budget: Budget) -> None:
        self._fd = source.fd
        self._at = source.base
        self._budget = budget
        self._ended = 0
        self._over: int | None = None
        """The first line that is no text, or that was not reached in time."""

    def holds(self, line: int) -> bool:
        while self._over is None and self._ended < line:
            data = os.pread(self._fd, HEAD_BYTES, self._at)
            if not data:
                break
            if b"\0" in data or self._budget.over:
                self._over = self._ended + 1
            self._ended += data.count(b"\n")
            self._at += len(data)
        return self._over is None or line < self._over


@contextlib.contextmanager
def without_nul(source: Source, budget: Budget) -> Iterator[Source]:
    """A copy in which lines end at each NUL: some greps see nothing behind one."""
    fd = _copied(source.fd, lambda data: data.replace(b"\0", b"\n"), budget)
    try:
        yield Source(fd, 0, binary=True)
    finally:
        os.close(fd)


def _decoded(fd: int, budget: Budget) -> int:
    """A file in memory with the text of a UTF-16 file in UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    return _copied(
        fd,
        lambda data: decoder.decode(data, final=not data).encode("utf-8", "replace"),
        budget,
    )


def _copied(fd: int, change: Callable[[bytes], bytes], budget: Budget) -> int:
    """A file in memory with a file's changed content; `change` gets empty bytes at the end."""
    target = os.memfd_create("text", os.MFD_CLOEXEC)
    try:
        at = 0
        while at < COPIED_BYTES_MAX and not budget.over:
            data = os.pread(fd, _CHUNK_BYTES, at)
            text = change(data)
            while text:
                text = text[os.write(target, text) :]
            if not data:
                break
            at += len(data)
    except BaseException:
        os.close(target)
        raise
    return target
