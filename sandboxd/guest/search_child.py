"""Running one program of a search: bounded in time, ended by a cancel."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .children import CHILDREN, Child
from .ops import Request

_CHUNK_BYTES: Final = 64 * 1024
_EXIT_S: Final = 5.0
"""Time from the end of its output, or from its kill, to the end of a program."""
LOOK_AFTER_S: Final = 1.0
"""Longer than nearly every search takes."""
_ENVIRONMENT: Final[Mapping[str, str]] = {"LC_ALL": "C"}


class Budget:
    """The time of one search, and whether it was cancelled.

    One program at a time is attached to it; a cancel kills that one.
    """

    def __init__(self, request: Request, timeout_s: float) -> None:
        self.deadline = time.monotonic() + timeout_s
        # Closes the race between a cancel and a program that just starts: taken
        # by the reading thread in a cancel and by the worker around each program.
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._cancelled = False
        request.on_cancel(self._cancel)

    @property
    def cancelled(self) -> bool:
        with self._lock:
            return self._cancelled

    @property
    def over(self) -> bool:
        """Whether the search must stop, for either reason."""
        return self.cancelled or time.monotonic() >= self.deadline

    def shortened(self, seconds: float) -> Budget:
        """The same budget with less time; it ends with this one, and is cancelled with it."""
        return _Part(self, seconds)

    def attach(self, child: Child | None) -> None:
        with self._lock:
            self._child = child
            kill = self._cancelled
        if child is not None and kill:
            CHILDREN.kill_group(child, signal.SIGKILL)

    def _cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            child = self._child
        if child is not None:
            CHILDREN.kill_group(child, signal.SIGKILL)


class _Part(Budget):
    """A budget within another."""

    def __init__(self, whole: Budget, seconds: float) -> None:
        self.deadline = min(whole.deadline, time.monotonic() + seconds)
        self._whole = whole

    @property
    def cancelled(self) -> bool:
        return self._whole.cancelled

    def attach(self, child: Child | None) -> None:
        self._whole.attach(child)


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    exit_code: int | None
    """None where it was killed, by whomever."""
    complete: bool
    """False where time, a cancel or the reader of its output stopped it."""


Sink = Callable[[bytes], bool]
"""Takes the next bytes; false: enough."""


def run(
    argv: Sequence[str],
    budget: Budget,
    on_output: Sink,
    on_errors: Sink,
    stdin: int | None = None,
    look: Callable[[], bool] | None = None,
) -> Ended:
    """Runs a program to its end, or kills it when there is no use in going on.

    `look` is asked once, after LOOK_AFTER_S, whether there is.

    Raises `OpError` SPAWN_FAILED.
    """
    if budget.over:
        return Ended(None, complete=False)
    out, out_end = os.pipe2(os.O_CLOEXEC)
    err, err_end = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            child = CHILDREN.spawn(argv, _ENVIRONMENT, stdin=stdin, stdout=out_end, stderr=err_end)
        finally:
            os.close(out_end)
            os.close(err_end)
        budget.attach(child)
        try:
            complete = _pump({out: on_output, err: on_errors}, budget, look)
            if not complete:
                CHILDREN.kill_group(child, signal.SIGKILL)
            child.wait(_EXIT_S)
        finally:
            budget.attach(None)
            # Nothing outlives its search, whatever the reader of its output raised.
            CHILDREN.kill_group(child, signal.SIGKILL)
    finally:
        os.close(out)
        os.close(err)
    return Ended(child.exit_code, complete and not budget.cancelled)


def _pump(sinks: dict[int, Sink], budget: Budget, look: Callable[[], bool] | None) -> bool:
    look_at = time.monotonic() + LOOK_AFTER_S
    poller = select.poll()
    for fd in sinks:
        poller.register(fd, select.POLLIN)
    open_fds = set(sinks)
    while open_fds:
        left_s = budget.deadline - time.monotonic()
        if left_s <= 0 or budget.cancelled:
            return False
        if look is not None:
            look_s = look_at - time.monotonic()
            if look_s <= 0:
                if not look():
                    return False
                look = None
                continue
            left_s = min(left_s, look_s)
        for fd, _ in poller.poll(left_s * 1000 + 1):
            data = os.read(fd, _CHUNK_BYTES)
            if not data:
                poller.unregister(fd)
                open_fds.remove(fd)
            elif not sinks[fd](data):
                return False
    return True
