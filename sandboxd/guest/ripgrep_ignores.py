"""Ignore files that ripgrep would wait for, or read without an end (tool-cases G32).

ripgrep opens whatever is called `.gitignore`, a FIFO or a link to /dev/zero too. What is
above a search is looked at before it; what is below, only once a search takes so long
that this may be why.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Final

from .search_child import Budget
from .search_paths import Start, visible, worded_error

REGULAR_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of an ignore file. A larger one is made up, and ripgrep would hold its lines in memory."""
LOOK_S: Final = 3.0
"""Of the look below the start."""
_NAMES: Final = (".gitignore", ".git/info/exclude")
_WORDS: Final = "not a regular file of usual size, so ignore rules were not applied"


def error_above(start: Start) -> str | None:
    """The first such file in the start or above it, in one line; None: there is none."""
    folder = os.path.dirname(start.real) if start.is_file else start.real
    while True:
        for name in _NAMES:
            path = os.path.join(folder, name)
            if _holds_up(path):
                return worded_error(visible(os.fsencode(path)), _WORDS)
        if folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)


class Look:
    """A look below the start, at most once."""

    def __init__(self, start: Start, budget: Budget) -> None:
        self._start = start
        self._budget = budget
        self._done = False
        self.error: str | None = None
        """In one line, where such a file was found."""

    def goes_on(self) -> bool:
        """Whether the search may go on, as no such file was found."""
        if not self._done:
            self._done = True
            self.error = self._find()
        return self.error is None

    def _find(self) -> str | None:
        deadline = time.monotonic() + LOOK_S
        base = self._start.absolute.rstrip("/") + "/"
        waiting = [] if self._start.is_file else [""]
        while waiting and time.monotonic() < deadline and not self._budget.over:
            below = waiting.pop()
            try:
                with os.scandir(base + below) as entries:
                    for entry in entries:
                        if entry.name == ".gitignore" and _holds_up(entry.path):
                            return self._worded(below + entry.name)
                        if not entry.is_dir(follow_symlinks=False):
                            continue
                        if entry.name == ".git":
                            if _holds_up(entry.path + "/info/exclude"):
                                return self._worded(below + ".git/info/exclude")
                        else:
                            waiting.append(below + entry.name + "/")
            except OSError:
                # The search itself tells of directories that cannot be read.
                continue
        return None

    def _worded(self, below: str) -> str:
        return worded_error(self._start.printed(os.fsencode(below)), _WORDS)


def _holds_up(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    if stat.S_ISREG(found.st_mode):
        return found.st_size > REGULAR_BYTES_MAX
    return stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)
