"""How close the sandbox is to its process limit, by its own view of its cgroup.

Commands may have a cgroup of their own below it, with a limit of its own (security S4),
which the daemon makes once the guest has said hello.
"""

from __future__ import annotations

import os
from typing import Final

RESERVE: Final = 16
"""Processes that a command should find free when it starts."""
_FOLDERS: Final = ("/sys/fs/cgroup", "/sys/fs/cgroup/pids")
_LEVELS: Final = ("", "commands/")


class Pressure:
    """Remembers how often the kernel refused a process. Used by one thread at a time."""

    def __init__(self) -> None:
        self._refusals = 0

    def note(self) -> None:
        """Takes the refusals so far as seen: they belong to a call that was running."""
        self._refusals = _refusals()

    def felt(self) -> bool:
        """Whether processes were refused since `note`, or few are free now."""
        refusals = _refusals()
        risen, self._refusals = refusals > self._refusals, refusals
        return risen or _free() < RESERVE


def _free() -> int:
    free = []
    for level in _LEVELS:
        limit, current = _read(f"{level}pids.max"), _read(f"{level}pids.current")
        if limit.isdigit() and current.isdigit():
            free.append(int(limit) - int(current))
    return min(free, default=RESERVE)


def _refusals() -> int:
    total = 0
    for level in _LEVELS:
        for line in _read(f"{level}pids.events").splitlines():
            name, _, count = line.partition(" ")
            if name == "max" and count.isdigit():
                total += int(count)
    return total


_opened: dict[str, int] = {}


def _open(name: str) -> int:
    """Kept open: the question comes before every command. -1 where there is no such file yet."""
    for folder in _FOLDERS if name not in _opened else ():
        try:
            _opened[name] = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        break
    return _opened.get(name, -1)


def _read(name: str) -> str:
    try:
        return os.pread(_open(name), 4096, 0).decode("ascii", "replace").strip()
    except OSError:
        return ""
