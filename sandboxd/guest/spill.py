"""Spill files: the whole output of a command, where not all of it is shown.

They lie in a folder of the guest's own with a random name, below `/tmp` in a
container (tool-cases B25: never in the workspace, where searches would find them).
Commands run as the same user and can change them: they are a convenience for the
model, and nothing that the guest reads back.
"""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import dataclass
from typing import Final

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
TOTAL_BYTES_MAX: Final = 64 * 1024 * 1024
"""All files of the session; the oldest go first."""
HEAD_BYTES_MAX: Final = 64 * 1024
"""Output of a command that is kept in memory before it gets a file."""


@dataclass
class _File:
    path: str
    size: int = 0
    dropped: bool = False


class SpillFolder:
    """The files of the session, oldest first, within TOTAL_BYTES_MAX."""

    def __init__(self, parent: str) -> None:
        self._parent = parent
        # Guards the list and the sizes; held for dictionary work and unlink only.
        self._lock = threading.Lock()
        self._files: list[_File] = []
        self._folder: str | None = None

    def create(self) -> tuple[_File, int]:
        """Makes a new file; its entry and a descriptor. Raises OSError."""
        with self._lock:
            folder = self._ensure_folder()
            path = f"{folder}/{secrets.token_hex(8)}.txt"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(path, flags, 0o600)
            file = _File(path)
            self._files.append(file)
            return file, fd

    def reserve(self, file: _File, count: int) -> bool:
        """Counts bytes that are about to be written; removes older files to make room."""
        with self._lock:
            if file.dropped:
                return False
            total = sum(each.size for each in self._files)
            for oldest in [each for each in self._files if each is not file]:
                if total + count <= TOTAL_BYTES_MAX:
                    break
                total -= oldest.size
                self._remove(oldest)
            if total + count > TOTAL_BYTES_MAX:
                return False
            file.size += count
            return True

    def remove(self, file: _File) -> None:
        with self._lock:
            self._remove(file)

    def _remove(self, file: _File) -> None:
        if file.dropped:
            return
        file.dropped = True
        self._files.remove(file)
        try:
            os.unlink(file.path)
        except OSError:
            return

    def _ensure_folder(self) -> str:
        if self._folder is not None and os.path.isdir(self._folder):
            return self._folder
        os.makedirs(self._parent, exist_ok=True)
        folder = f"{self._parent}/.output-{secrets.token_hex(8)}"
        # A random name that does not exist: nobody can have put a link in its place.
        os.mkdir(folder, 0o700)
        self._folder = folder
        return folder


@dataclass(frozen=True)
class Spilled:
    """A finished spill file. `complete`: it holds everything from the first byte to the last."""

    path: str
    bytes: int
    complete: bool


class Spill:
    """The raw output of one command: in memory, and in a file once that is too small.

    Nothing raises: where the file cannot be made or written, there is none.
    """

    def __init__(self, folder: SpillFolder) -> None:
        self._folder = folder
        self._head: bytearray | None = bytearray()
        self._file: _File | None = None
        self._fd = -1
        self._total = 0

    def feed(self, data: bytes) -> None:
        self._total += len(data)
        if self._fd >= 0:
            self._write(data)
        elif self._head is not None:
            self._head += data
            if len(self._head) > HEAD_BYTES_MAX:
                self._begin()

    def finish(self, wanted: bool) -> Spilled | None:
        """Ends it: the file where something is not shown (`wanted`), else no file is left."""
        if wanted and self._head is not None:
            self._begin()
        self._head = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        file, self._file = self._file, None
        if file is None or file.dropped:
            return None
        if not wanted:
            self._folder.remove(file)
            return None
        return Spilled(file.path, file.size, file.size == self._total)

    def _begin(self) -> None:
        head, self._head = self._head, None
        try:
            self._file, self._fd = self._folder.create()
        except OSError:
            return
        self._write(head or b"")

    def _write(self, data: bytes | bytearray) -> None:
        assert self._file is not None
        view = memoryview(data)[: FILE_BYTES_MAX - self._file.size]
        if not view:
            return
        if not self._folder.reserve(self._file, len(view)):
            self._give_up()
            return
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            # A full disk takes the convenience away, never the command's result.
            self._give_up()

    def _give_up(self) -> None:
        if self._file is not None:
            self._folder.remove(self._file)
            self._file = None
        os.close(self._fd)
        self._fd = -1
