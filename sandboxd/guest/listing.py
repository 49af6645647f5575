"""Listing a directory or a tree, in order and in bounded memory.

Entries come in bytewise order of their names, a directory before what it holds.
Of a directory only the next `BATCH_NAMES` names are kept; it is read again for
those behind them. Links are reported and never followed.
"""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

BATCH_NAMES = 4_096
KEPT_NAMES_MAX = 65_536
"""Names kept in all levels of a deep tree; beyond it the outer levels forget theirs."""
PATH_BYTES_MAX = 4_095
"""Longer relative paths are not listed: no call could name them."""


@dataclass
class _Level:
    """A directory that is being listed. `prefix` is its own relative path and a slash."""

    prefix: bytes
    last: bytes = b""
    """Name that was given last; names are never empty, so this is before all."""
    names: list[bytes] = field(default_factory=list)
    """The next names, the nearest at the end."""
    complete: bool = False
    """Whether nothing lies behind `names`."""


class Listing:
    """Walks a directory; `next_entry` gives one entry after the other."""

    def __init__(self, root: str, *, recursive: bool) -> None:
        """Raises `OSError` where `root` cannot be read as a directory."""
        self._root = os.fsencode(root)
        self._recursive = recursive
        self.unreadable = 0
        """Directories below the root, and entries, that could not be looked at."""
        first = _Level(b"")
        self._fill(first)
        self._levels = [first]
        self._waiting: tuple[bytes, os.stat_result] | None = None

    def close(self) -> None:
        self._levels.clear()

    def put_back(self, entry: tuple[bytes, os.stat_result]) -> None:
        """The next `next_entry` gives this one again."""
        self._waiting = entry

    def next_entry(self) -> tuple[bytes, os.stat_result] | None:
        """Relative path and facts of the next entry; None at the end."""
        if self._waiting is not None:
            entry, self._waiting = self._waiting, None
            return entry
        while self._levels:
            level = self._levels[-1]
            if not level.names and not level.complete:
                try:
                    self._fill(level)
                except OSError:
                    self.unreadable += 1
                    level.complete = True
            if not level.names:
                self._levels.pop()
                continue
            level.last = level.names.pop()
            path = level.prefix + level.last
            try:
                found = os.lstat(os.path.join(self._root, path))
            except FileNotFoundError:
                continue
            except OSError:
                self.unreadable += 1
                continue
            if self._recursive and stat.S_ISDIR(found.st_mode):
                self._descend(path)
            if len(path) > PATH_BYTES_MAX:
                self.unreadable += 1
                continue
            return path, found
        return None

    def _descend(self, path: bytes) -> None:
        self._levels.append(_Level(path + b"/"))
        kept = sum(len(level.names) for level in self._levels)
        for level in self._levels[:-1]:
            if kept <= KEPT_NAMES_MAX:
                break
            kept -= len(level.names)
            level.names.clear()
            level.complete = False

    def _fill(self, level: _Level) -> None:
        directory = os.path.join(self._root, level.prefix) if level.prefix else self._root
        # One more than is kept tells whether there are others.
        names = heapq.nsmallest(BATCH_NAMES + 1, _names_after(directory, level.last))
        level.complete = len(names) <= BATCH_NAMES
        level.names = names[:BATCH_NAMES][::-1]


def _names_after(directory: bytes, last: bytes) -> Iterator[bytes]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name > last:
                yield entry.name
