"""Temporary files: content on its way to its place, and old content held back.

A staged file lies beside its target, so that a rename can put it there; its name
begins with a dot, is random, and goes on every failure. Held bytes lie in a file
without a name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator

from .opening import CHUNK_BYTES, write_all

NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4_095


class Bytes:
    """Content in memory."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = data

    def chunks(self) -> Iterator[bytes | memoryview]:
        view = memoryview(self._data)
        for start in range(0, self.size, CHUNK_BYTES):
            yield view[start : start + CHUNK_BYTES]


class Staged:
    """Content in a temporary file; `path` is None where the file has no name."""

    def __init__(self, fd: int, path: str | None) -> None:
        self.fd = fd
        self.path = path
        self.size = 0

    def append(self, data: bytes | memoryview) -> None:
        """Raises `OSError`; the caller discards the whole then."""
        write_all(self.fd, data)
        self.size += len(data)

    def chunks(self) -> Iterator[bytes | memoryview]:
        position = 0
        while chunk := os.pread(self.fd, CHUNK_BYTES, position):
            position += len(chunk)
            yield chunk

    def placed(self) -> None:
        """The file got its final name: it is no longer ours to remove."""
        self.path = None

    def discard(self) -> None:
        """Closes the file and removes its name. Safe to repeat."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.unname()

    def unname(self) -> None:
        """Removes the temporary name; the open file stays."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            self.path = None


def stage_beside(target: str, mode: int) -> Staged:
    """A new file in the target's directory, with `mode` less the umask.

    Raises `OSError` where the directory takes no new file.
    """
    parent, name = os.path.split(target)
    while True:
        tail = f".{secrets.token_hex(6)}.tmp"
        room = min(NAME_BYTES_MAX, PATH_BYTES_MAX - len(os.fsencode(parent)) - 1) - len(tail) - 1
        stem = os.fsdecode(b"." + os.fsencode(name)[: max(room, 0)])
        path = os.path.join(parent, stem + tail)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(FileExistsError):
            return Staged(os.open(path, flags, mode), path)


def stage_nameless(folder: str) -> Staged:
    """A new file without a name in `folder`. Raises `OSError`."""
    staged = stage_beside(os.path.join(folder, "held"), 0o600)
    assert staged.path is not None
    try:
        os.unlink(staged.path)
    except OSError:
        staged.discard()
        raise
    staged.placed()
    return staged
