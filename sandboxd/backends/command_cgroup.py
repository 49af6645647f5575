"""A child cgroup for commands, so that their lack of memory never meets the guest (security S4).

Session code can make itself the worse choice for the kernel than process 1: memory that is
no process's (memfd, tmpfs), a lowered score. So its commands get a limit of their own below
the container's. What they exhaust is theirs, and so is what the kernel kills for it.

A process belongs to the cgroup of the thread that started it, and its memory with it. The
guest names the threads that start processes; moving those is enough, and nothing has to be
moved for a command. The guest's own memory is that of its first thread, which stays.

Not on v2: there the threads of one process share a memory cgroup.

The threads that are moved count in the child's process limit, those that stay are within
the reserve.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from sandboxd import limits
from sandboxd.backends.cgroups import COMMANDS, ContainerCgroup

MEMORY_RESERVE_BYTES: Final = 32 * limits.MIB
PIDS_RESERVE: Final = 16
PIDS_LEFT_MIN: Final = 16
"""Processes that commands must be left with; a smaller limit gets no child."""


def confine(cgroup: ContainerCgroup, init_pid: int, threads: Collection[int]) -> str:
    """Makes the child and moves the guest's `threads` into it; safe to repeat.

    `threads` are numbers of the guest's own PID namespace, hostile: only threads of
    `init_pid` are looked for, and its first is never moved. Returns why commands are
    not confined, or not in every respect; an empty text where they are. Blocks for moments.
    """
    tasks = _host_threads(init_pid, threads)
    if not tasks:
        return "the guest names no threads"
    memory, pids = cgroup.with_file("memory.oom_control"), cgroup.with_file("pids.max")
    if memory is None or pids is None or not (pids / "tasks").exists():
        return "cgroups are not of version 1"
    faults = []
    for make, folder in ((_memory_child, memory), (_pids_child, pids)):
        try:
            child = make(folder, len(tasks))
            for task in tasks:
                _write(child / "tasks", str(task))
        except (OSError, ValueError) as error:
            faults.append(str(error))
    return "; ".join(faults)


def _memory_child(folder: Path, _threads: int) -> Path:
    """Raises OSError, and ValueError where a child would not be safe or of use."""
    if _number(folder / "memory.use_hierarchy") != 1:
        # Its memory would not count against the container's limit.
        raise ValueError("memory is not counted by hierarchy")
    limit = _number(folder / "memory.limit_in_bytes") - MEMORY_RESERVE_BYTES
    if limit < MEMORY_RESERVE_BYTES:
        raise ValueError("the memory limit is too small to be divided")
    child = _made(folder)
    _write(child / "memory.limit_in_bytes", str(limit))
    return child


def _pids_child(folder: Path, threads: int) -> Path:
    """As `_memory_child`."""
    limit = _number(folder / "pids.max") - PIDS_RESERVE
    if limit < threads + PIDS_LEFT_MIN:
        raise ValueError("the process limit is too small to be divided")
    child = _made(folder)
    _write(child / "pids.max", str(limit))
    return child


def _made(folder: Path) -> Path:
    child = folder / COMMANDS
    child.mkdir(mode=0o755, exist_ok=True)
    return child


def _host_threads(init_pid: int, threads: Collection[int]) -> list[int]:
    """Threads of a process as the host numbers them, by their numbers inside."""
    try:
        tasks = [int(name) for name in os.listdir(f"/proc/{init_pid}/task")]
        return [each for each in tasks if _is_one_of(threads, init_pid, each)]
    except OSError:
        return []  # it has just ended


def _is_one_of(threads: Collection[int], init_pid: int, task: int) -> bool:
    """Whether a thread, but not the first, has one of the numbers in its own namespace."""
    if task == init_pid:
        return False
    for line in Path(f"/proc/{init_pid}/task/{task}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1]) in threads
    return False


def _number(path: Path) -> int:
    return int(path.read_text())


def _write(path: Path, content: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, content.encode())
    finally:
        os.close(handle)
