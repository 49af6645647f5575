"""Finding processes in `/proc`: who they are, whom they come from, what marks them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

MARKER: Final = "SANDBOXD_CALL"
"""Variable that every process of a call inherits, unless it sheds it."""
ENVIRON_BYTES_MAX: Final = 256 * 1024
"""How far into a process's environment the marker is looked for; it is passed first."""


@dataclass(frozen=True)
class Process:
    """A line of the process table. `started` (clock ticks since boot) tells reused pids apart."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    started: int
    name: str

    @property
    def alive(self) -> bool:
        return self.state not in ("Z", "X", "x")


def read(pid: int) -> Process | None:
    """One process, or None where there is none (any more)."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line = os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
    # The name is in parentheses and may hold any byte, spaces and parentheses included.
    start, end = line.find(b"("), line.rfind(b")")
    fields = line[end + 2 :].split()
    if start < 0 or len(fields) < 20:
        return None
    name = line[start + 1 : end].decode("utf-8", "replace")
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        state=fields[0].decode("ascii", "replace"),
        started=int(fields[19]),
        name="".join(char if char.isprintable() else "?" for char in name),
    )


def scan() -> dict[int, Process]:
    """The process table by pid, as far as it stands still."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := read(int(entry))) is not None:
            table[process.pid] = process
    return table


def zombies_of(parent: int) -> list[Process]:
    """Dead children of a process that nobody has reaped."""
    return [p for p in scan().values() if p.parent == parent and p.state == "Z"]


def has_orphans() -> bool:
    """Whether the guest may have children that it did not start.

    The kernel gives orphans to the guest's first thread, which itself starts
    nothing: one short file tells. Where the kernel does not offer it: true.
    """
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return bool(file.read(1))
    except OSError:
        return True


def marker_of(pid: int) -> str | None:
    """The marker that a process carries, as far as the guest may see it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = b"\0" + file.read(ENVIRON_BYTES_MAX)
    except OSError:
        return None
    _, found, rest = environ.partition(b"\0" + MARKER.encode() + b"=")
    return rest.partition(b"\0")[0].decode("ascii", "replace") if found else None


def descendants(table: Mapping[int, Process], roots: Iterable[int]) -> set[int]:
    """`roots` and everything below them, by parents."""
    below: dict[int, list[int]] = {}
    for process in table.values():
        below.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(below.get(pid, ()))
    return found


def send(process: Process, number: int) -> None:
    """Sends a signal to exactly this process: a reused pid gets none.

    Kernels without pidfds are sandboxes' own (gVisor); there the moment between
    the look and the signal has to do.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except OSError as error:
        now = read(process.pid) if error.errno == errno.ENOSYS else None
        if now is not None and now.started == process.started:
            with contextlib.suppress(OSError):
                os.kill(process.pid, number)
        return
    try:
        now = read(process.pid)
        if now is not None and now.started == process.started:
            signal.pidfd_send_signal(fd, number)
    except OSError:
        return
    finally:
        os.close(fd)
