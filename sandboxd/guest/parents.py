"""The folders above a file that is to be made: made before it, gone again where it fails.

Several changes may need one folder at once. So what a change made stays while another one
still needs it, and goes with the last of them that fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import Counter
from types import TracebackType


class Parents:
    """A directory with its parents, held for one change until `end`."""

    def __init__(self, directory: str) -> None:
        """Makes what is missing; another process may make it too. Raises `OSError`."""
        self._directory = directory
        self._ended = False
        with _guard:
            _needed[directory] += 1
            try:
                _make(directory)
            except BaseException:
                self._end(kept=False)
                raise

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(kept=kind is None)

    def end(self, *, kept: bool) -> None:
        """Lets go of the folders; those that nobody else needs go unless `kept`.

        The first call counts.
        """
        with _guard:
            if not self._ended:
                self._end(kept=kept)

    def _end(self, *, kept: bool) -> None:
        self._ended = True
        _needed[self._directory] -= 1
        if not _needed[self._directory]:
            del _needed[self._directory]
        for folder in _upwards(self._directory):
            if folder not in _made:
                continue
            if kept:
                _made.discard(folder)
            elif not any(folder in _upwards(other) for other in _needed):
                _made.discard(folder)
                # What a command has put there keeps it.
                with contextlib.suppress(OSError):
                    os.rmdir(folder)


_guard = threading.Lock()
"""Held for calls of the kernel on folders alone, never while somebody is waited for."""
_needed: Counter[str] = Counter()
"""How many changes under way need a directory."""
_made: set[str] = set()
"""Folders that changes under way have made."""


def _upwards(directory: str) -> list[str]:
    """A directory and those above it, the deepest first, as they are spelled."""
    found = [directory]
    while (above := os.path.dirname(found[-1])) not in ("", found[-1]):
        found.append(above)
    return found


def _make(directory: str) -> None:
    missing = []
    for folder in _upwards(directory):
        if os.path.exists(folder):
            break
        missing.append(folder)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            _made.add(folder)
    if not os.path.isdir(directory):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
