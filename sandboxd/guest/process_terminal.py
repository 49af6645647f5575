"""Terminals of processes, and what kernels of their own (gVisor) make of them.

Linux tells the other side once nobody has a terminal open any more, and makes it the
controlling one of a session's leader that opens it. Where it is not told, its process's
end counts; where nothing controls, a resize has to be told by a signal of the guest's.
"""

from __future__ import annotations

import fcntl
import functools
import os
import struct
import termios
from typing import Final

CELLS_MAX: Final = 10_000
"""Rows, or columns."""


def open_pair(rows: int, columns: int) -> tuple[int, int, str]:
    """The guest's side, which does not block, the process's side, and its name.

    Raises `OSError` where there are no more.
    """
    ours, theirs = os.openpty()
    try:
        os.set_blocking(ours, False)
        resize(ours, rows, columns)
        return ours, theirs, os.ttyname(theirs)
    except OSError:
        os.close(ours)
        os.close(theirs)
        raise


def resize(fd: int, rows: int, columns: int) -> None:
    """Sets a terminal's size; the kernel tells the processes in its foreground."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@functools.cache
def are_whole() -> bool:
    """Whether the kernel tells that nobody has a terminal open: Linux does."""
    try:
        ours, theirs, _ = open_pair(1, 1)
    except OSError:
        return True
    try:
        os.close(theirs)
        return not _open(ours)
    finally:
        os.close(ours)


def _open(fd: int) -> bool:
    try:
        return bool(os.read(fd, 1))
    except BlockingIOError:
        return True
    except OSError:
        return False
