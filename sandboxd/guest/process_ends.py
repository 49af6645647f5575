"""The one thread that ends processes whose time is over, and lets go of those that ended.

A timeout ends the tree as a call's does (see `calls`): TERM, KILL_GRACE_S, KILL. The
process itself stays a zombie until then, so that its group's number is nobody else's.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from .calls import CALLS
from .children import CHILDREN
from .process_table import Process

KILL_GRACE_S: Final = 2.0
KILLS_MAX: Final = 3
"""Tries to kill a tree, each of many rounds; what is left then cannot be killed."""
TREE_CHECK_S: Final = 0.05
"""Between two looks at a tree that was asked to end."""


@dataclass(eq=False)
class _Watched:
    process: Process
    kill_at: float | None = None
    """Set once its tree was asked to end."""
    kills: int = 0
    ended: bool = False


class Ends:
    """Watches processes from their start to the end of their tracing; from any thread."""

    def __init__(self) -> None:
        # Guards `_watched` and `_changed`; taken before no other lock.
        self._condition = threading.Condition()
        self._watched: dict[str, _Watched] = {}
        self._changed = False

    def start(self) -> None:
        """Starts the thread. It ends with the guest."""
        threading.Thread(target=self._run, name="process-ends", daemon=True).start()

    def watch(self, process: Process) -> None:
        """A process has started."""
        with self._condition:
            self._watched[process.process_id] = _Watched(process)
            self._notify_locked()

    def ended(self, process: Process) -> None:
        """It has ended; called once, after `watch`."""
        with self._condition:
            self._watched[process.process_id].ended = True
            self._notify_locked()

    def _notify_locked(self) -> None:
        self._changed = True
        self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._changed:
                    self._condition.wait(self._pause_s())
                self._changed = False
                watched = list(self._watched.values())
            for each in watched:
                self._look(each)

    def _pause_s(self) -> float | None:
        if any(each.kill_at is not None for each in self._watched.values()):
            return TREE_CHECK_S
        times = [
            each.process.timeout_at
            for each in self._watched.values()
            if each.process.timeout_at is not None
        ]
        # Longer than a lock can wait for is as good as no time.
        left_s = min(times, default=None)
        return None if left_s is None else min(max(0.0, left_s - time.monotonic()), 3_600.0)

    def _look(self, each: _Watched) -> None:
        process, now = each.process, time.monotonic()
        if each.kill_at is None:
            if each.ended:
                self._let_go(each)
            elif process.timeout_at is not None and now >= process.timeout_at:
                each.kill_at = now + KILL_GRACE_S
                process.ending = True
                CALLS.terminate(process.call)
            return
        own, untraceable = CALLS.remaining(process.call)
        if (own or untraceable) and each.kills < KILLS_MAX:
            if own and now < each.kill_at:
                return
            each.kills += 1
            if CALLS.kill(process.call):
                return
        process.ending = False
        if each.ended:
            self._let_go(each)

    def _let_go(self, each: _Watched) -> None:
        CALLS.finish(each.process.call)
        CHILDREN.release(each.process.child)
        with self._condition:
            del self._watched[each.process.process_id]


ENDS: Final = Ends()
"""The guest's one thread of ends."""
