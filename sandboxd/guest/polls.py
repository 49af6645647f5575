"""Requests that wait for something to happen, all on one thread.

Following a command's output or waiting for a process would hold one worker each for as
long as it lasts. Here a waiting request is an entry of a list: the thread looks at every
entry when something has changed or an entry's time is over, and answers those that have
something to say. Who changes something calls `POLLS.notify`, from any thread.

Nobody waits for some of them any more: whose asker left is ended by the op `wait_end`, by
the number that the asker gave it as `wait`.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .ops import Answer, Op, OpError, PollOp, Request

WAIT_MAX_S: Final = 120.0
"""Longest time that a request may wait; the other side asks again."""
PENDING_MAX: Final = 512
REST_S: Final = 0.004
"""Between two rounds: what changes a thousand times a second is looked at less often."""

Settle = Callable[[Answer | OpError], None]


@dataclass(eq=False)
class _Pending:
    request: Request
    op: PollOp
    settle: Settle
    until: float
    """On the monotonic clock."""


class Polls:
    """The waiting requests. `add` and `notify` may be called from any thread."""

    def __init__(self) -> None:
        # Guards `_pending` and `_changed`. Never held while an op looks.
        self._condition = threading.Condition()
        self._pending: list[_Pending] = []
        self._changed = False

    def start(self) -> None:
        """Starts the thread. It ends with the process."""
        threading.Thread(target=self._run, name="polls", daemon=True).start()

    def add(self, op: PollOp, request: Request, settle: Settle) -> None:
        """Takes a request, whose `wait_s` says how long it may wait; none: not at all.

        Raises `OpError` where it says something else, or too many wait.
        """
        wait_s = 0.0 if request.args.get("wait_s") is None else request.seconds("wait_s")
        until = time.monotonic() + min(wait_s, WAIT_MAX_S)
        with self._condition:
            if len(self._pending) >= PENDING_MAX:
                raise OpError(
                    "CALLS_EXHAUSTED",
                    f"{PENDING_MAX} requests wait already for something to happen",
                    full="waits",
                )
            self._pending.append(_Pending(request, op, settle, until))
            self._changed = True
            self._condition.notify()

    def notify(self) -> None:
        """Says that something has changed which a request may wait for."""
        with self._condition:
            if self._pending:
                self._changed = True
                self._condition.notify()

    def end(self, number: int) -> bool:
        """Settles what waits under this number; false where nothing does."""
        with self._condition:
            ended = [each for each in self._pending if each.request.args.get("wait") == number]
            for each in ended:
                self._pending.remove(each)
        for each in ended:
            each.settle(OpError("CANCELLED_BY_CALLER", "nobody waits for it any more"))
        return bool(ended)

    def drop(self) -> None:
        """Settles everything that waits, after the connection that asked is lost."""
        with self._condition:
            dropped, self._pending = self._pending, []
        for each in dropped:
            each.settle(OpError("CANCELLED_BY_CALLER", "the connection is lost"))

    def _run(self) -> None:
        while True:
            with self._condition:
                self._wait_locked()
                self._changed = False
                pending = list(self._pending)
            for each in pending:
                self._look(each, over=time.monotonic() >= each.until)
            time.sleep(REST_S)

    def _wait_locked(self) -> None:
        """Returns when something has changed or the time of a request is over."""
        while not self._changed:
            now = time.monotonic()
            until = min((each.until for each in self._pending), default=None)
            if until is None:
                self._condition.wait()
            elif until <= now or not self._condition.wait(until - now):
                return

    def _look(self, each: _Pending, *, over: bool) -> None:
        answer: Answer | OpError | None
        try:
            answer = each.op.look(each.request, over)
        except OpError as error:
            error.__traceback__ = error.__context__ = error.__cause__ = None
            answer = error
        except Exception as error:  # noqa: BLE001  a fault of one op must not end the sandbox
            traceback.print_exc(file=sys.stderr)
            answer = OpError("INTERNAL_ERROR", f"the guest failed: {type(error).__name__}")
        if answer is None:
            if not over:
                return
            answer = OpError("INTERNAL_ERROR", "the guest has no answer where it must have one")
        with self._condition:
            # Dropped meanwhile: then it was settled already.
            if each not in self._pending:
                return
            self._pending.remove(each)
        each.settle(answer)


POLLS: Final = Polls()
"""The guest's one list: whoever changes something has no other way to it."""


def _end(request: Request) -> Answer:
    return {"found": POLLS.end(request.integer("wait"))}, b""


OPS: Final = {"wait_end": Op(_end, "control")}
