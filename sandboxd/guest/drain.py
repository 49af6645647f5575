"""The one thread that empties the pipes of background jobs (tool-cases B2).

A job whose call has returned may go on writing. Nobody reads it any more, but
closing the pipe would kill it by SIGPIPE at its next line, so it is read and
thrown away for as long as somebody holds the other end.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Final

PIPES_MAX: Final = 256
"""Pipes that are kept; beyond it the oldest is closed, and its jobs see a broken pipe."""
PIECE_BYTES: Final = 64 * 1024
READS_MAX: Final = 16
PAUSE_S: Final = 0.01
"""Between rounds: a job that writes without end is slowed down, not the guest."""


class Drain:
    """Owns the read ends that were handed to it."""

    def __init__(self) -> None:
        # Guards the queue only: the thread alone touches pipes.
        self._lock = threading.Lock()
        self._new: list[int] = []
        self._wake = -1

    def start(self) -> None:
        """Starts the thread. It ends with the process."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        threading.Thread(target=self._run, name="drain", daemon=True).start()

    def take(self, fd: int) -> None:
        """Takes over a non-blocking read end and closes it once nobody can write."""
        with self._lock:
            self._new.append(fd)
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        pipes: dict[int, None] = {}  # in the order of their arrival
        while True:
            for fd, _ in poller.poll():
                if fd == self._wake:
                    os.eventfd_read(fd)
                elif not _throw_away(fd):
                    self._close(poller, pipes, fd)
            with self._lock:
                new, self._new = self._new, []
            for fd in new:
                pipes[fd] = None
                poller.register(fd, select.POLLIN)
                if len(pipes) > PIPES_MAX:
                    self._close(poller, pipes, next(iter(pipes)))
            time.sleep(PAUSE_S)

    def _close(self, poller: select.poll, pipes: dict[int, None], fd: int) -> None:
        if fd in pipes:
            poller.unregister(fd)
            del pipes[fd]
            os.close(fd)


def _throw_away(fd: int) -> bool:
    """Reads what is there, up to READS_MAX pieces; false at the end."""
    try:
        return all(os.read(fd, PIECE_BYTES) for _ in range(READS_MAX))
    except BlockingIOError:
        return True
    except OSError:
        return False


DRAIN: Final = Drain()
