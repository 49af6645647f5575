"""The processes of a `local` sandbox, found on a host that is full of others.

Two marks name them and nothing else does: descent from the guest, which adopts
the orphans among its descendants, and the session's marker in the environment
that every command inherits. What sheds both is not found: this backend isolates
nothing. No process is signalled that neither mark names, and each is held by a
pidfd and looked at again before it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARKER: Final = "SANDBOXD_SESSION"
ROUND_REST_S: Final = 0.01


@dataclass(frozen=True)
class _Entry:
    """One row of the process table. The start time tells whether a number was given anew."""

    parent: int
    start_time: int
    dead: bool


def end_processes(resource_id: str, guest: int | None, deadline_s: float) -> bool:
    """Kills everything of the sandbox, the guest last; whether nothing was left in time.

    Descendants go while the guest lives, because it is what holds them together:
    once it is gone, orphans belong to the host's process 1. Blocks for up to
    `deadline_s`.
    """
    marker = f"{MARKER}={resource_id}".encode()
    end = time.monotonic() + deadline_s
    while True:
        table = _scan()
        targets = _below(table, guest) if guest is not None else set()
        targets |= {pid for pid in table.keys() - targets if _is_marked(pid, marker)}
        targets = {pid for pid in targets if not table[pid].dead} - {guest, os.getpid()}
        for pid in targets:
            _kill(pid, table[pid])
        if not targets:
            last = None if guest is None else table.get(guest)
            if guest is None or last is None or last.dead:
                return True
            _kill(guest, last)
        if time.monotonic() >= end:
            return False
        time.sleep(ROUND_REST_S)


def _scan() -> dict[int, _Entry]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return {pid: entry for pid in pids if (entry := _look(pid)) is not None}


def _look(pid: int) -> _Entry | None:
    try:
        # The name, in parentheses, may hold anything; fields are counted behind it.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return _Entry(int(fields[1]), int(fields[19]), fields[0] in (b"Z", b"X"))


def _below(table: dict[int, _Entry], top: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, entry in table.items():
        children.setdefault(entry.parent, []).append(pid)
    found: set[int] = set()
    waiting = [top]
    while waiting:
        new = set(children.get(waiting.pop(), [])) - found
        found |= new
        waiting.extend(new)
    return found


def _is_marked(pid: int, marker: bytes) -> bool:
    try:
        return marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill(pid: int, entry: _Entry) -> None:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        now = _look(pid)
        if now is not None and now.start_time == entry.start_time:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)
