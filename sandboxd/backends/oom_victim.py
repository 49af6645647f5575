"""Whom the kernel killed for lack of memory, from its log (contract.md 4, `Limit.victim`).

The log is a ring that everybody shares and that few may read. It is read only after a
counter rose, once, without waiting, on a thread. A row names the container's cgroup, so
nothing of another session is taken; the name of a process is hostile text.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KERNEL_LOG: Final = Path("/dev/kmsg")
READ_S_MAX: Final = 0.5
"""Longest time for one pass through the ring; what comes behind it is not looked at."""
VICTIMS_MAX: Final = 64
"""Of one container; older ones are not told."""
_RECORD_BYTES: Final = 8192
_NAME_CHARS_MAX: Final = 64
# The name may hold anything, commas included: what follows it is taken from the end.
_ROW: Final = re.compile(
    r"oom-kill:.*,task_memcg=(?P<cgroup>[^,]*),task=(?P<name>.*),pid=(?P<pid>\d+),uid=\d+\Z"
)


@dataclass(frozen=True)
class Victim:
    """A process that the kernel chose; `pid` is in the numbering of the host."""

    name: str
    pid: int


def last_victims(container_id: str, log: Path = KERNEL_LOG) -> list[Victim]:
    """Victims within a container's cgroup, oldest first; none where the log does not tell."""
    try:
        fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    found: deque[Victim] = deque(maxlen=VICTIMS_MAX)
    deadline = time.monotonic() + READ_S_MAX
    try:
        while time.monotonic() < deadline:
            record = _next(fd)
            if record is None:
                break
            victim = _victim_of(record, container_id)
            if victim is not None:
                found.append(victim)
    finally:
        os.close(fd)
    return list(found)


def _next(fd: int) -> str | None:
    """One record, empty for one that was overwritten meanwhile; None at the end."""
    try:
        return os.read(fd, _RECORD_BYTES).decode("utf-8", "replace") or None
    except OSError as error:
        return "" if error.errno in (errno.EPIPE, errno.EINVAL) else None


def _victim_of(record: str, container_id: str) -> Victim | None:
    """Of `PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT`, with rows of key and value below it."""
    text = record.partition(";")[2].partition("\n")[0]
    found = _ROW.match(text)
    if found is None or container_id not in found["cgroup"]:
        return None
    name = "".join(char for char in found["name"] if char.isprintable())
    return Victim(name[:_NAME_CHARS_MAX], int(found["pid"]))
