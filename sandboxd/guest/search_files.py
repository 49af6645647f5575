"""The files that a search without ripgrep reads, in the order in which they are printed.

What ripgrep finds as the searches here start it: regular files, hidden ones too,
nothing through a link, `.git` not entered, and of the others those that git does not
ignore, or all, or only those that it does.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from . import walk
from .gitignore import IgnoreRules, Scope
from .search_child import Budget
from .search_paths import Start, visible, worded_error

_CHECK_ENTRIES: Final = 512


class Hidden(enum.Enum):
    """What becomes of the files that git ignores."""

    LEFT_OUT = "left out"
    TAKEN = "taken"
    ONLY = "only"


class Stopped(Exception):
    """The budget was over before the walk."""


@dataclass
class Unread:
    """Directories and files that could not be read."""

    count: int = 0
    first: tuple[bytes, str] | None = None
    """The smallest printed path and its words."""

    def add(self, printed: bytes, error: OSError) -> None:
        self.say(printed, os.strerror(error.errno or 0))

    def say(self, printed: bytes, words: str) -> None:
        self.count += 1
        if self.first is None or (printed, words) < self.first:
            self.first = (printed, words)

    def worded(self) -> str | None:
        return None if self.first is None else worded_error(*self.first)


class Files:
    """One walk. Raises `Stopped` while it is iterated."""

    def __init__(
        self, start: Start, names: re.Pattern[str] | None, hidden: Hidden, budget: Budget
    ) -> None:
        self.unread = Unread()
        self._start = start
        self._names = names
        self._hidden = hidden
        self._budget = budget
        self._rules = IgnoreRules()
        self._entries = 0

    def __iter__(self) -> Iterator[tuple[bytes, str]]:
        """Printed path, and path below the start."""
        levels = [self._directory("", False)]
        while levels:
            found = next(levels[-1], None)
            if found is None:
                levels.pop()
                continue
            below, ignored = found
            if below.endswith("/"):
                levels.append(self._directory(below, ignored))
            elif self._hidden is not Hidden.ONLY or ignored:
                yield self._start.printed(os.fsencode(below)), below

    def _directory(self, below: str, ignored: bool) -> Iterator[tuple[str, bool]]:
        """Files, and directories with a slash, in order; whether each is ignored."""
        if self._budget.over:
            raise Stopped
        folder = self._start.absolute.rstrip("/") + "/" + below
        found: list[tuple[bytes, str, bool]] = []
        try:
            with os.scandir(folder) as entries:
                scope = None if ignored else self._scope(below)
                for entry in entries:
                    self._entries += 1
                    if self._entries % _CHECK_ENTRIES == 0 and self._budget.over:
                        raise Stopped
                    self._entry(entry, below, ignored, scope, found)
        except OSError as error:
            self.unread.add(self._start.printed(os.fsencode(below.rstrip("/"))), error)
        found.sort()
        return iter([(below + name, hidden) for _, name, hidden in found])

    def _scope(self, below: str) -> Scope | None:
        if self._hidden is Hidden.TAKEN:
            return None
        directory = os.path.join(self._start.real, below).rstrip("/") or "/"
        root = self._rules.work_tree(directory)
        return None if root is None else self._rules.scope(directory, root)

    def _entry(
        self,
        entry: os.DirEntry[str],
        below: str,
        ignored: bool,
        scope: Scope | None,
        found: list[tuple[bytes, str, bool]],
    ) -> None:
        name = entry.name
        if name == ".git" and not self._start.inside_git:
            # Also a file: that of a submodule or of a linked work tree.
            return
        try:
            is_directory = entry.is_dir(follow_symlinks=False)
            if is_directory:
                if not walk.entered(self._start, below + name, self._start.inside_git):
                    return
            elif (self._names is not None and self._names.match(name) is None) or (
                not entry.is_file(follow_symlinks=False)
            ):
                return
        except OSError:
            return
        if scope is not None and scope.ignores(name, is_directory):
            if self._hidden is Hidden.LEFT_OUT:
                return
            ignored = True
        slash = "/" if is_directory else ""
        key = self._start.order_key(below, visible(os.fsencode(name)) + os.fsencode(slash))
        found.append((key, name + slash, ignored))
