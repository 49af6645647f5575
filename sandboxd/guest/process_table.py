"""The processes that were started for programs, by id, and what is kept of each.

As many run at once as PROCESSES_MAX. Of those that have ended the latest keep their
output; of older ones only how they ended is known, and of the oldest nothing.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import Any, Final

from .calls import Call
from .children import Child
from .ops import OpError
from .process_ring import Ring

PROCESSES_MAX: Final = 64
"""Processes that run at the same time."""
ENDED_MAX: Final = 128
"""Ended processes that keep their output; the oldest lose it first."""
REMEMBERED_MAX: Final = 4096
"""Processes of which anything is known."""
OUTPUT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of output of all processes; beyond it the oldest ended one's go, then the largest."""
STARTING_S: Final = 30.0
"""Longest wait for another request that starts the same process."""
NUMBERS: Final = itertools.count(1)
"""Numbers of processes and jobs, in the order in which they became known."""


class Input:
    """The input of a process: a pipe's end or a terminal's, which never blocks."""

    def __init__(self, fd: int, terminal: bool) -> None:
        self.terminal = terminal
        # Guards the rest: written on the thread of `polls`, closed when the process ends.
        self.lock = threading.Lock()
        self.fd = fd
        self.written = 0
        self.last = b""
        """Last byte that was written."""

    @property
    def closed(self) -> bool:
        return self.fd < 0

    def close(self) -> None:
        with self.lock:
            self.close_locked()

    def close_locked(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Process:
    """A started process. What changes is changed under the table's lock."""

    def __init__(
        self,
        process_id: str,
        child: Child,
        call: Call,
        given: Input,
        *,
        terminal: int | None,
        timeout_s: float | None,
    ) -> None:
        self.process_id = process_id
        self.number = next(NUMBERS)
        self.child = child
        self.call = call
        self.input = given
        self.terminal = terminal
        """Descriptor of the terminal's other side, where it has one that is open."""
        self.has_terminal = terminal is not None
        self.timeout_at = None if timeout_s is None else time.monotonic() + timeout_s
        self.rings = {"stdout": Ring(), "stderr": Ring()}
        self.ending = False
        """Whether its time is over and its tree not gone yet. Until then it has not ended."""
        self.exit_seen_at = 0.0
        """When the thread of outputs first saw that it had exited. Used by it alone."""
        self.ended_at: float | None = None
        """On the monotonic clock. Set once it has ended and all that it wrote was read."""
        if self.has_terminal:
            # Everything that it writes to its terminal is in the first.
            self.rings["stderr"].closed = True

    def facts(self) -> dict[str, Any]:
        """How it stands, as it leaves the guest."""
        ended = self.ended_at is not None
        return {
            "pid": self.child.pid,
            "running": not ended,
            "exit_code": self.child.exit_code if ended else None,
            "signal": self.child.signal if ended else None,
            "ended_s": time.monotonic() - self.ended_at if self.ended_at is not None else None,
        }


class Table:
    """All of them. `lock` guards the table, every ring in it, and the sum of their bytes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._processes: dict[str, Process] = {}  # in the order of their start
        self._starting: set[str] = set()
        self._bytes = 0

    def find(self, process_id: str) -> Process:
        """Raises `OpError` PROCESS_UNKNOWN."""
        with self.lock:
            process = self._processes.get(process_id)
        if process is None:
            raise OpError("PROCESS_UNKNOWN", f"no process `{process_id}` in this session")
        return process

    def listed(self) -> list[Process]:
        """Those that run, and the latest that have ended."""
        with self.lock:
            running = [each for each in self._processes.values() if each.ended_at is None]
            return [*running, *self._ended_locked()[-ENDED_MAX:]]

    def begin(self, process_id: str) -> Process | None:
        """Takes a place for a process that is about to start, or returns the one of this id.

        The place is given up by `add` or `give_up`. Raises `OpError` CALLS_EXHAUSTED
        where there is none.
        """
        with self._changed:
            self._changed.wait_for(lambda: process_id not in self._starting, STARTING_S)
            if process_id in self._processes:
                return self._processes[process_id]
            running = sum(each.ended_at is None for each in self._processes.values())
            if process_id in self._starting or running + len(self._starting) >= PROCESSES_MAX:
                raise OpError(
                    "CALLS_EXHAUSTED",
                    f"{PROCESSES_MAX} processes run already",
                    full="processes",
                )
            self._starting.add(process_id)
            return None

    def give_up(self, process_id: str) -> None:
        """Ends what `begin` began, also where nothing was started."""
        with self._changed:
            self._starting.discard(process_id)
            self._changed.notify_all()

    def add(self, process: Process) -> None:
        with self._changed:
            self._processes[process.process_id] = process
            if len(self._processes) > REMEMBERED_MAX:
                ended = (each for each in self._processes.values() if each.ended_at is not None)
                oldest = next(ended)
                self._clear(oldest)
                del self._processes[oldest.process_id]

    def ended(self, process: Process) -> list[Process]:
        """Notes that it has ended. Returns those whose outputs nobody can ask for any more."""
        with self.lock:
            process.ended_at = time.monotonic()
            old = self._ended_locked()[:-ENDED_MAX]
            for each in old:
                self._clear(each)
            return old

    def feed(self, process: Process, ring: Ring, data: bytes) -> None:
        """Takes what a process wrote."""
        with self.lock:
            self._bytes += ring.feed(data)
            while self._bytes > OUTPUT_BYTES_MAX:
                self._bytes -= self._victim().drop_piece()

    def _ended_locked(self) -> list[Process]:
        """In the order of their end."""
        ended = [each for each in self._processes.values() if each.ended_at is not None]
        return sorted(ended, key=lambda each: each.ended_at or 0.0)

    def _victim(self) -> Ring:
        rings = [
            (each.ended_at, ring)
            for each in self._processes.values()
            for ring in each.rings.values()
            if ring.kept
        ]
        ended = [(at, ring) for at, ring in rings if at is not None]
        if ended:
            return min(ended, key=lambda pair: pair[0])[1]
        return max((ring for _, ring in rings), key=lambda ring: ring.kept)

    def _clear(self, process: Process) -> None:
        for ring in process.rings.values():
            self._bytes -= ring.clear()


TABLE: Final = Table()
"""The guest's one table."""
