"""The threads that run ops, the calls that can be cancelled, and those that have ended.

Three lanes, so that a full one never holds up another (security S17): `call` for
the tools, `verb` for the file verbs, `control` for what must always be answered;
what waits for something to happen is in `polls`. All threads are started before the
first command (architecture.md 14) and end with the process.

`cancel` and `attach` are no ops of a module: only the lanes know what waits and what
runs. They never wait themselves. `cancel` marks the call, and the thread that runs the
call answers both when the call has ended, so sixteen cancels at once do not delay a
ping. `attach` asks for the answer of a call that an earlier connection started; the
answers of calls are in `kept` until they are recorded.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .kept import Kept
from .ops import Answer, Facts, Op, OpError, PollOp, Request
from .polls import POLLS

WORKERS: Final = {"call": 16, "verb": 4, "control": 1}
SPAWNING: Final = ("call", "verb")
"""Lanes whose ops start processes: commands, searches, processes of clients."""
QUEUED_MAX: Final = 512
"""Requests that wait in one lane; the daemon queues before it sends, so few ever do."""
CANCEL_SURVIVORS_MAX: Final = 64
"""Processes that the answer of `cancel` names."""

Settle = Callable[[Answer | OpError], None]


@dataclass
class Job:
    """A request on its way. Each of `settles` answers it and must be called exactly once."""

    request: Request
    op: Op
    settles: list[Settle]
    """Who asked for it first, then who attached."""
    call_id: str | None = None
    started: bool = False
    cancels: list[Settle] = field(default_factory=list)


class Lanes:
    """Runs jobs; see the module."""

    def __init__(self, ops: Mapping[str, Op | PollOp]) -> None:
        self._ops = ops
        # Guards the queues, `_calls`, `_kept` and `_sequence`. Held for dictionary work only, never
        # while an op runs or a reply is sent.
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Job]] = {lane: deque() for lane in WORKERS}
        self._ready = {lane: threading.Condition(self._lock) for lane in WORKERS}
        self._calls: dict[str, Job] = {}
        self._kept = Kept()
        self._sequence = 0
        """The greatest number that a call brought: how far the daemon's ledger has come."""
        self.spawning: list[int] = []
        """Ids of the threads that start processes, once `start` has returned (security S4)."""

    def start(self) -> None:
        """Starts every worker."""
        for lane, count in WORKERS.items():
            for number in range(count):
                thread = threading.Thread(
                    target=self._work, args=(lane,), name=f"{lane}-{number}", daemon=True
                )
                thread.start()
                if lane in SPAWNING and thread.native_id is not None:
                    self.spawning.append(thread.native_id)

    def submit(self, request: Request, settle: Settle) -> None:
        """Queues a request; `settle` is called later, from any thread, exactly once.

        Raises `OpError` where the op is unknown, the lane is full, or a call with
        the same id is still here.
        """
        if request.op == "cancel":
            self._cancel(request.text("call_id"), settle)
            return
        if request.op == "attach":
            self._attach(request.text("call_id"), settle)
            return
        op = self._ops.get(request.op)
        if op is None:
            raise OpError("INVALID_INPUT", "no such op")
        if isinstance(op, PollOp):
            POLLS.add(op, request, settle)
            return
        job = Job(request, op, [settle], request.optional_text("call_id"))
        sequence = request.optional_integer("sequence") or 0
        with self._lock:
            waiting = self._waiting[op.lane]
            if len(waiting) >= QUEUED_MAX:
                raise OpError("CALLS_EXHAUSTED", f"{QUEUED_MAX} requests wait already")
            if job.call_id is not None:
                if job.call_id in self._calls or self._kept.find(job.call_id) is not None:
                    raise OpError("ID_CONFLICT", "a call with this id ran already")
                self._calls[job.call_id] = job
                self._sequence = max(self._sequence, sequence)
            waiting.append(job)
            self._ready[op.lane].notify()

    def drop_waiting(self) -> None:
        """Forgets what has not started, after the connection that asked for it is lost.

        Each is settled, which releases what was counted for it; the answer itself
        goes nowhere.
        """
        with self._lock:
            dropped = [job for queue in self._waiting.values() for job in queue]
            for queue in self._waiting.values():
                queue.clear()
            for job in dropped:
                if job.call_id is not None:
                    self._calls.pop(job.call_id, None)
        for job in dropped:
            for settle in job.settles:
                settle(OpError("CANCELLED_BY_CALLER", "the connection was lost"))
        POLLS.drop()

    def recorded(self, call_ids: Iterable[str]) -> None:
        """The daemon says that these calls need not be kept any more."""
        with self._lock:
            self._kept.forget(call_ids)

    def report(self) -> dict[str, Any]:
        """What a new connection is told of the calls of earlier ones (security S7).

        Complete once `drop_waiting` has been called: what is not in it never started.
        """
        with self._lock:
            return {"calls": [*self._calls, *self._kept.ids()], "sequence": self._sequence}

    def _work(self, lane: str) -> None:
        while True:
            # In a frame of its own, so that nothing of a job outlives it: bodies
            # are large, and a worker may wait long for its next one.
            self._run_next(lane)

    def _run_next(self, lane: str) -> None:
        with self._lock:
            while not self._waiting[lane]:
                self._ready[lane].wait()
            job = self._waiting[lane].popleft()
            job.started = True
        answer = _answer(job)
        self._end(job, answer)
        for settle in job.cancels:
            settle(_cancel_facts(answer))

    def _end(self, job: Job, answer: Answer | OpError) -> None:
        with self._lock:
            # From here on a cancel finds no such call, so no waiter is missed; and an
            # attach finds what is kept.
            if job.call_id is not None:
                self._calls.pop(job.call_id, None)
                self._kept.keep(job.call_id, answer)
            settles = list(job.settles)
        for settle in settles:
            settle(answer)

    def _attach(self, call_id: str, settle: Settle) -> None:
        with self._lock:
            answer = self._kept.find(call_id)
            if answer is None:
                job = self._calls.get(call_id)
                if job is None:
                    answer = OpError("CALL_UNKNOWN", "no call with this id has started")
                else:
                    job.settles.append(settle)
        if answer is not None:
            settle(answer)

    def _cancel(self, call_id: str, settle: Settle) -> None:
        with self._lock:
            job = self._calls.get(call_id)
            if job is not None and job.started:
                job.cancels.append(settle)
            elif job is not None:
                self._waiting[job.op.lane].remove(job)
        if job is None:
            settle(({"found": False, "survivors": []}, b""))
        elif job.started:
            job.request.cancel()
        else:
            self._end(job, OpError("CANCELLED_BY_CALLER", "cancelled before it started"))
            settle(({"found": True, "survivors": []}, b""))


def _answer(job: Job) -> Answer | OpError:
    try:
        return job.op.handler(job.request)
    except OpError as error:
        # A traceback holds the op's frames, and those hold whole files, in a
        # cycle that only the collector would free.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return error
    except Exception as error:  # noqa: BLE001  a fault of one op must not end the sandbox
        # The container's log is the operator's: nothing of the traceback travels.
        traceback.print_exc(file=sys.stderr)
        return OpError("INTERNAL_ERROR", f"the guest failed: {type(error).__name__}")


def _cancel_facts(answer: Answer | OpError) -> Answer:
    facts: Facts = answer.facts if isinstance(answer, OpError) else answer[0]
    survivors = facts.get("survivors", [])
    return {"found": True, "survivors": survivors[:CANCEL_SURVIVORS_MAX]}, b""
