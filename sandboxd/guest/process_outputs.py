"""The one thread that reads what processes write, and sees them end.

It never waits for anybody: a reader that is slow misses bytes, the process is not held
up. It also says when an input that was full has room again, because nothing else in the
guest waits for descriptors of processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from . import process_terminal
from .drain import DRAIN
from .polls import POLLS
from .process_ring import PIECE_BYTES, Ring
from .process_table import TABLE, Process

LAST_READS_MAX: Final = 32
"""Pieces that are read of a pipe once its process has ended: more than any pipe holds."""
TERMINAL_LAST_S: Final = 0.1
"""After a process ended: longest wait for what its terminal still hands over."""

TERMINAL_RETRY_S: Final = 0.2
"""How often a terminal that nobody has open is looked at while its process runs."""

OnEnd = Callable[[Process], None]


@dataclass
class _Source:
    """A descriptor that a process writes to."""

    fd: int
    process: Process
    ring: Ring


class Outputs:
    """Owns the descriptors that were handed to it. `add` and `await_room`: from any thread."""

    def __init__(self) -> None:
        # Guards the queues alone. Taken by the waiter, which holds CHILDREN.lock.
        self._lock = threading.Lock()
        self._new: list[_Source] = []
        self._rooms: list[Process] = []
        self._wake = -1
        self._poller = select.poll()
        self._sources: dict[int, _Source] = {}
        self._idle: set[int] = set()
        """Of the sources, terminals that nobody has open; not polled, which would never rest."""
        self._full: dict[int, Process] = {}
        """Inputs that are waited for, by the descriptors of the wait's own."""
        self._running: dict[str, Process] = {}
        self._on_end: OnEnd = lambda process: None

    def start(self, on_end: OnEnd) -> None:
        """Starts the thread, which calls `on_end` for each process. It ends with the guest."""
        self._on_end = on_end
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        threading.Thread(target=self._run, name="outputs", daemon=True).start()

    def wake(self) -> None:
        """Has the thread look for processes that have ended. Must not block."""
        os.eventfd_write(self._wake, 1)

    def add(self, process: Process, outputs: dict[str, int]) -> None:
        """Takes over the non-blocking ends of a process's outputs, by the names of streams."""
        with self._lock:
            self._new += [_Source(fd, process, process.rings[name]) for name, fd in outputs.items()]
        self.wake()

    def await_room(self, process: Process) -> None:
        """Has `POLLS` told once when the input of a process takes bytes, or has broken."""
        with self._lock:
            if process not in self._rooms:
                self._rooms.append(process)
        self.wake()

    def _run(self) -> None:
        self._poller.register(self._wake, select.POLLIN)
        while True:
            for fd, _ in self._poller.poll(self._pause_ms()):
                if fd == self._wake:
                    os.eventfd_read(fd)
                    self._take_new()
                elif fd in self._full:
                    self._has_room(fd)
                elif fd in self._sources:
                    self._read(self._sources[fd])
            for fd in list(self._idle):
                self._read(self._sources[fd])
            for process in [each for each in self._running.values() if each.child.exited]:
                self._try_end(process)

    def _pause_ms(self) -> float | None:
        """What has exited is looked at until it has ended; a terminal that nobody has open, too."""
        if any(process.child.exited for process in self._running.values()):
            return TERMINAL_LAST_S * 250
        return TERMINAL_RETRY_S * 1_000 if self._idle else None

    def _take_new(self) -> None:
        with self._lock:
            new, self._new = self._new, []
            rooms, self._rooms = self._rooms, []
        for source in new:
            self._sources[source.fd] = source
            self._poller.register(source.fd, select.POLLIN)
            self._running[source.process.process_id] = source.process
        for process in rooms:
            # A descriptor of its own: the input's may be closed at any time, and one of a
            # terminal may be polled for its output already.
            with process.input.lock, contextlib.suppress(OSError):
                fd = os.dup(process.input.fd)
                self._full[fd] = process
                self._poller.register(fd, select.POLLOUT)
                continue
            POLLS.notify()

    def _has_room(self, fd: int) -> None:
        del self._full[fd]
        self._poller.unregister(fd)
        os.close(fd)
        POLLS.notify()

    def _read(self, source: _Source) -> bool:
        """Reads one piece; whether there was one."""
        try:
            data = os.read(source.fd, PIECE_BYTES)
        except BlockingIOError:
            self._poll_again(source.fd)
            return False
        except OSError:
            # A terminal that nobody has open. To close it would hang up on a process that
            # runs on without its streams, or is about to exit.
            if not source.process.child.exited:
                if source.fd not in self._idle:
                    self._poller.unregister(source.fd)
                    self._idle.add(source.fd)
                return False
            data = b""
        if data:
            self._poll_again(source.fd)
            TABLE.feed(source.process, source.ring, data)
        else:
            self._let_go(source)
            os.close(source.fd)
        POLLS.notify()
        return bool(data)

    def _poll_again(self, fd: int) -> None:
        if fd in self._idle:
            self._idle.discard(fd)
            self._poller.register(fd, select.POLLIN)

    def _let_go(self, source: _Source) -> None:
        self._poll_again(source.fd)
        self._poller.unregister(source.fd)
        del self._sources[source.fd]
        with TABLE.lock:
            source.ring.closed = True
            if source.process.terminal == source.fd:
                source.process.terminal = None

    def _close_all(self, process: Process) -> None:
        for source in [each for each in self._sources.values() if each.process is process]:
            self._let_go(source)
            os.close(source.fd)

    def _try_end(self, process: Process) -> None:
        """Ends a process that has exited, once what it wrote before is here.

        Where its time was over, once what it started is gone as well.
        """
        if process.ending:
            return
        own = [source for source in self._sources.values() if source.process is process]
        for source in own:
            for _ in range(LAST_READS_MAX):
                if not self._read(source):
                    break
        if process.has_terminal and process.terminal is not None:
            # The kernel hands it over behind the process's back.
            process.exit_seen_at = process.exit_seen_at or time.monotonic()
            if time.monotonic() < process.exit_seen_at + TERMINAL_LAST_S:
                return
            if not process_terminal.are_whole():
                self._close_all(process)
        del self._running[process.process_id]
        process.input.close()
        for old in TABLE.ended(process):
            for source in [each for each in self._sources.values() if each.process is old]:
                self._let_go(source)
                with contextlib.suppress(OSError):
                    DRAIN.take(source.fd)
        self._on_end(process)
        POLLS.notify()


OUTPUTS: Final = Outputs()
"""The guest's one thread of outputs."""
