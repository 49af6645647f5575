"""A process of a sandbox, held so that its end is seen and its number cannot be mistaken."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal


class WatchedProcess:
    """Holds a pidfd of one process, not necessarily a child.

    As long as `ended` is not done, the pid names this very process: a number is
    given out again only after its process was reaped.
    """

    def __init__(self, pid: int, *, child: bool = False) -> None:
        """Raises `ProcessLookupError` where there is no such process (any more).

        `child`: the process is the daemon's own, and is reaped when it ends.
        """
        self.pid = pid
        self._child = child
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._fd = os.pidfd_open(pid)
        self._loop.add_reader(self._fd, self._on_end)

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    def kill(self) -> None:
        """SIGKILL to exactly this process, or nothing where it has ended."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        """Stops watching and ends nothing. Idempotent."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_end(self) -> None:
        if self._child:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
        self.close()
        if not self.ended.done():
            self.ended.set_result(None)


def start_time_of(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None where there is none.

    With the pid it names a process over the life of several daemons.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may hold anything; fields are counted behind it.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19])
