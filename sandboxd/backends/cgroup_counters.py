"""What the kernel counts against a container's limits, read from the host (security S4).

Endings are told from here and not from the guest's word: session code can have the guest
itself killed. Both versions of cgroups have the same facts under other names. On v1 a
counter belongs to one cgroup alone, so those of the commands' child are added; on v2 it
holds what happened below as well.

Descriptors stay open for as long as the sandbox is known: a reading costs a few system
calls in files of the kernel's and never waits. What cannot be read is not told.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sandboxd.backends.base import Counted
from sandboxd.backends.cgroups import COMMANDS, ContainerCgroup

_READ_BYTES: Final = 4096
_V1_MEMORY: Final = "memory.oom_control"
_V2_MEMORY: Final = "memory.events"
_PIDS: Final = "pids.events"


class CgroupCounters:
    """The counters of one container, as long as its cgroup exists."""

    def __init__(self, cgroup: ContainerCgroup) -> None:
        """Opens what there is. Blocks for moments only."""
        self._fds: list[int] = []
        own, child, peak = _memory_files(cgroup)
        self._own_kills = self._open([own])
        self._child_kills = self._open([child])
        self._memory_peak = self._open([peak])
        pids = cgroup.with_file(_PIDS)
        # Not on v2, where the container has no child of ours.
        self._refusals = self._open([_below(pids, _PIDS), _below(pids, f"{COMMANDS}/{_PIDS}")])
        self._pids_peak = self._open([_below(pids, "pids.peak")])

    def read(self) -> Counted | None:
        """All counters now; None where the kernel does not tell of memory, or no longer."""
        if not self._own_kills:
            return None
        try:
            own = _sum(self._own_kills, "oom_kill")
            return Counted(
                oom_kills=own + _sum(self._child_kills, "oom_kill"),
                own_oom_kills=own,
                forks_refused=_sum(self._refusals, "max"),
                memory_peak_bytes=_number(self._memory_peak),
                pids_peak=_number(self._pids_peak),
            )
        except (OSError, ValueError):
            # The cgroup is gone: its files answer no more.
            return None

    def close(self) -> None:
        """Idempotent; nothing can be read afterwards."""
        self._own_kills = []
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def _open(self, paths: Iterable[Path | None]) -> list[int]:
        opened = []
        for path in paths:
            if path is not None:
                with contextlib.suppress(OSError):
                    opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        self._fds += opened
        return opened


def can_tell(mounts: Iterable[tuple[Path, str]]) -> bool:
    """Whether the worker sees memory counters of containers at all.

    `mounts` are those of cgroups with their roots: below another root than the whole
    hierarchy, containers beside this process are out of sight.
    """
    for mount, root in mounts:
        if root != "/":
            continue
        if (mount / _V1_MEMORY).exists():
            return "oom_kill " in (mount / _V1_MEMORY).read_text()
        controllers = mount / "cgroup.controllers"
        if controllers.exists() and "memory" in controllers.read_text().split():
            return True
    return False


def _memory_files(cgroup: ContainerCgroup) -> tuple[Path | None, Path | None, Path | None]:
    """Kills in the container's own cgroup, kills in the commands' child, the peak of both."""
    folder = cgroup.with_file(_V1_MEMORY)
    if folder is not None:
        child = folder / COMMANDS / _V1_MEMORY
        return folder / _V1_MEMORY, child, folder / "memory.max_usage_in_bytes"
    folder = cgroup.with_file(_V2_MEMORY)
    return _below(folder, _V2_MEMORY), None, _below(folder, "memory.peak")


def _below(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / name


def _sum(fds: Iterable[int], row: str) -> int:
    """The number behind a row's name, of all files. Raises OSError, and ValueError without one."""
    total = 0
    for fd in fds:
        rows = (line.split() for line in os.pread(fd, _READ_BYTES, 0).decode().splitlines())
        counts = [int(words[1]) for words in rows if len(words) == 2 and words[0] == row]
        if not counts:
            raise ValueError(f"no row `{row}`")
        total += counts[0]
    return total


def _number(fds: Iterable[int]) -> int | None:
    """The one number of a file, where the kernel has it."""
    for fd in fds:
        return int(os.pread(fd, _READ_BYTES, 0))
    return None
