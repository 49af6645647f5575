"""Opening regular files without ever hanging on one (security S17).

A FIFO blocks a plain open until somebody writes, a device may answer for ever,
and a lease holds an open back for 45 seconds. So: look first, open without
waiting, look again, and repeat a refused open only to a deadline.
"""

from __future__ import annotations

import errno
import os
import time

from .ops import Request
from .paths import fault, kind_fault

OPEN_S = 5.0
"""Longest time that an open is repeated for while another process holds a lease."""
_RETRY_S = 0.02
CHUNK_BYTES = 1024 * 1024
SIZE_TOLD_MAX = 2**53
"""Largest size that facts give: a sparse file may claim more than JSON readers take."""


def open_regular(
    target: str, flags: int, path: str, request: Request | None = None
) -> tuple[int, os.stat_result]:
    """Opens a regular file; gives the descriptor and its facts.

    `path` is the spelling for texts. Raises `FileNotFoundError` as it is, since
    callers differ in what a missing file means, and `OpError` for all else.
    """
    try:
        # Before the open too: opening a device can have effects of its own.
        _check(os.stat(target), path)
        fd = _open(target, flags, request)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise fault(error, path) from None
    try:
        found = os.fstat(fd)
        _check(found, path)
    except BaseException:
        os.close(fd)
        raise
    return fd, found


def _check(found: os.stat_result, path: str) -> None:
    refused = kind_fault(found.st_mode, path)
    if refused is not None:
        raise refused


def _open(target: str, flags: int, request: Request | None) -> int:
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    deadline = time.monotonic() + OPEN_S
    while True:
        try:
            return os.open(target, flags)
        except OSError as error:
            # EINTR never gets here: Python repeats the call itself.
            if error.errno != errno.EAGAIN or time.monotonic() >= deadline:
                raise
        if request is not None:
            request.stop_if_cancelled("Cancelled before the file could be opened.")
        time.sleep(_RETRY_S)


def read_chunk(fd: int, bytes_max: int = CHUNK_BYTES) -> bytes:
    """The next bytes; empty at the end, and where a pseudo file would block."""
    try:
        return os.read(fd, bytes_max)
    except BlockingIOError:
        return b""


def read_whole(fd: int, size: int, bytes_max: int) -> bytes | None:
    """Everything from here to the end, or None where that is over `bytes_max`.

    `size` is what `fstat` said: a hint only, pseudo files say 0.
    """
    data = bytearray()
    while len(data) <= bytes_max:
        # One read takes a file of the expected size; the next finds its end.
        chunk = read_chunk(fd, max(64 * 1024, min(CHUNK_BYTES, size + 1 - len(data))))
        if not chunk:
            return bytes(data)
        data += chunk
    return None


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Writes every byte. Raises `OSError` as the kernel says it."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[: 8 * CHUNK_BYTES]) :]
