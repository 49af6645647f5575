"""Opening a file for a POSIX grep, so that it reads what ripgrep would.

grep gets the open file as its stdin: what a file is called cannot confuse it, and
nothing can be put in the file's place after it was looked at. A byte order mark is
skipped, UTF-16 is written to memory as UTF-8, and what holds NUL is binary (tool-cases
G20, G21, G23).
"""

from __future__ import annotations

import codecs
import contextlib
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
_CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class Source:
    """An open file, its content as text from `base` on."""

    fd: int
    base: int
    binary: bool

    def rewind(self) -> int:
        """The descriptor, at the content's beginning."""
        os.lseek(self.fd, self.base, os.SEEK_SET)
        return self.fd


@contextlib.contextmanager
def opened(path: str, budget: Budget) -> Iterator[Source | None]:
    """The file's content; None where it is no regular file any more, or the budget is over.

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
        binary = _holds_nul(fd, budget)
        yield None if binary is None else Source(fd, base, binary)
    finally:
        os.close(fd)


def is_marked(path: bytes) -> bool:
    """Whether a regular file begins with a byte order mark."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.read(fd, 3).startswith(MARKS)
    except OSError:
        return False
    finally:
        os.close(fd)


def _holds_nul(fd: int, budget: Budget) -> bool | None:
    """None where the budget was over first."""
    at = 0
    while data := os.pread(fd, _CHUNK_BYTES, at):
        if b"\0" in data:
            return True
        if budget.over:
            return None
        at += len(data)
    return False


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
