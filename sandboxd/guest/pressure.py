"""How close the sandbox is to its process limit, by its own view of its cgroup."""

from __future__ import annotations

import functools
import os
from typing import Final

RESERVE: Final = 16
"""Processes that a command should find free when it starts."""
_FOLDERS: Final = ("/sys/fs/cgroup", "/sys/fs/cgroup/pids")


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
    limit, current = _read("pids.max"), _read("pids.current")
    if not limit.isdigit() or not current.isdigit():
        return RESERVE
    return int(limit) - int(current)


def _refusals() -> int:
    for line in _read("pids.events").splitlines():
        name, _, count = line.partition(" ")
        if name == "max" and count.isdigit():
            return int(count)
    return 0


@functools.cache
def _open(name: str) -> int:
    """Kept open: the question comes before every command. -1 where there is no such file."""
    for folder in _FOLDERS:
        try:
            return os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
    return -1


def _read(name: str) -> str:
    try:
        return os.pread(_open(name), 4096, 0).decode("ascii", "replace").strip()
    except OSError:
        return ""
