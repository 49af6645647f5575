"""Finding files by name, in the order in which they are printed.

A directory is sorted as if directories ended in a slash; walked in that order,
the printed paths come out in bytewise order of the whole path, and the walk ends
as soon as it has found enough.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from .search_child import Budget
from .search_paths import Start, visible, worded_error

PSEUDO: Final = frozenset({"/proc", "/sys", "/dev"})
"""Not entered from above: they hold no files of anyone's, and no end of names."""
_FILES_KEPT_MAX: Final = 16 * 1024
"""Matching files of one directory that are kept before all but the first are dropped."""
_CHECK_ENTRIES: Final = 512


@dataclass
class Walked:
    """What a walk found."""

    printed: list[bytes] = field(default_factory=list)
    more: bool = False
    unsearched: int = 0
    first_error: str | None = None
    """In one line; the first in the order of the walk."""
    other_case: bytes | None = None
    """A name that fits but for its case; looked for until anything is found."""
    entries: int = 0
    stopped: str | None = None
    """`time`, `entries` or `cancelled`, where it ended before its end."""


@dataclass(frozen=True)
class NameQuery:
    """What to look for, and the bounds of the walk."""

    name: re.Pattern[str]
    any_case: re.Pattern[str]
    paths_max: int
    entries_max: int


class _Stop(Exception):
    pass


def walk(start: Start, query: NameQuery, budget: Budget) -> Walked:
    """Regular files, and links to such, whose name fits.

    Links to directories are not followed, the start itself excepted; `.git` is
    not entered unless the start is inside one. The start must be a directory.
    """
    walked = Walked()
    enter_git = start.inside_git
    try:
        # Names below the start, without a leading slash; a generator for each open level.
        levels: list[Iterator[str]] = [_directory(start, "", query, budget, walked, enter_git)]
        while levels:
            below = next(levels[-1], None)
            if below is None:
                levels.pop()
            elif below.endswith("/"):
                levels.append(_directory(start, below, query, budget, walked, enter_git))
            elif len(walked.printed) >= query.paths_max:
                walked.more = True
                break
            else:
                walked.printed.append(start.printed(os.fsencode(below)))
    except _Stop:
        walked.stopped = walked.stopped or ("cancelled" if budget.cancelled else "time")
    return walked


def _directory(
    start: Start, below: str, query: NameQuery, budget: Budget, walked: Walked, enter_git: bool
) -> Iterator[str]:
    """Matching files and all directories (with a slash) of one directory, in order."""
    folder = start.absolute.rstrip("/") + "/" + below
    found: list[tuple[bytes, str]] = []
    directories = 0
    if budget.over:
        raise _Stop
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                _count(query, budget, walked)
                if _is_directory(entry):
                    if entered(start, below + entry.name, enter_git):
                        directories += 1
                        shown = visible(os.fsencode(entry.name)) + b"/"
                        found.append((start.order_key(below, shown), entry.name + "/"))
                elif _fits(entry, start, below, query, walked):
                    shown = visible(os.fsencode(entry.name))
                    found.append((start.order_key(below, shown), entry.name))
                    if len(found) - directories > _FILES_KEPT_MAX:
                        found = _first(found, query.paths_max + 1)
    except OSError as error:
        walked.unsearched += 1
        if walked.first_error is None:
            printed = start.printed(os.fsencode(below.rstrip("/")))
            walked.first_error = worded_error(printed, os.strerror(error.errno or 0))
    found.sort()
    return iter([below + name for _, name in found])


def _first(found: list[tuple[bytes, str]], files_max: int) -> list[tuple[bytes, str]]:
    directories = [each for each in found if each[1].endswith("/")]
    files = sorted(each for each in found if not each[1].endswith("/"))
    return directories + files[:files_max]


def _count(query: NameQuery, budget: Budget, walked: Walked) -> None:
    if walked.entries >= query.entries_max:
        walked.stopped = "entries"
        raise _Stop
    walked.entries += 1
    if walked.entries % _CHECK_ENTRIES == 0 and budget.over:
        raise _Stop


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def entered(start: Start, below: str, enter_git: bool) -> bool:
    """Whether a walk goes into the directory `below` the start."""
    name = below.rsplit("/", 1)[-1]
    if name == ".git" and not enter_git:
        return False
    return not (start.real == "/" and "/" + below in PSEUDO)


def _fits(
    entry: os.DirEntry[str], start: Start, below: str, query: NameQuery, walked: Walked
) -> bool:
    fits = query.name.match(entry.name) is not None
    if not fits:
        if walked.printed or walked.other_case is not None:
            return False
        if query.any_case.match(entry.name) is None:
            return False
    try:
        # Links to files count, links that lead nowhere or to a directory do not.
        if not entry.is_file():
            return False
    except OSError:
        return False
    if not fits:
        walked.other_case = start.printed(os.fsencode(below + entry.name))
    return fits
