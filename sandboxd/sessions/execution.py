"""Running one call in its sandbox, from its reservation to its recorded result."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sandbox_adapter.v1 import tool_pb2
from sandboxd import fault_points, limits
from sandboxd.backends.base import Channel, Sandbox
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.log import EventLog
from sandboxd.metrics import Metrics
from sandboxd.sessions import causes, outcomes
from sandboxd.sessions.call import Call, Outcome
from sandboxd.sessions.call_channels import EndedAgo, NotedChannel, note_lock_wait
from sandboxd.sessions.ledger import Ledger, Reservation
from sandboxd.sessions.live import LiveSession
from sandboxd.sessions.partial import Partial
from sandboxd.sessions.records import ReservedCall
from sandboxd.tools.base import Ask, InvalidInput, Tool, answer_of, refused, worded
from sandboxd.tools.registry import Registry

_LOG: Final = EventLog("calls")
CANCEL_TIMEOUT_S: Final = limits.KILL_GRACE_S + 20.0
"""Longest time that the guest may take to end a process tree and answer."""
CANCEL_TRIES_MAX: Final = 5
RECORD_PAUSE_MIN_S: Final = 0.25
RECORD_PAUSE_MAX_S: Final = 10.0
"""Between two tries to record a result."""
CANCEL_SETTLE_S: Final = 1.0
"""After the guest's answer: time for the call's own reply, before the guest is asked again."""


class Execution:
    """Acts between reserve and record (contract.md 2)."""

    def __init__(self, ledger: Ledger, tools: Registry, metrics: Metrics) -> None:
        self._ledger = ledger
        self._tools = tools
        self._metrics = metrics
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, live: LiveSession, call: Call, sandbox: Sandbox) -> Outcome:
        """Reserves the call, runs its tool, records what came of it.

        Raises what the reservation raises: then nothing ran. A fault of the tool's
        own code is recorded as UNKNOWN first and raised then.
        """
        tool = self._tools.find(call.tool)
        asked = _asked(tool, call.raw)
        seen = causes.seen_before(sandbox, asked) if isinstance(asked, Ask) else None
        memo = _memo(asked, seen) if isinstance(asked, Ask) else None
        reservation = self._reservation(live, call, memo)
        sequence = await self._ledger.reserve(reservation)
        await fault_points.reach("call.reserved")
        began = time.monotonic()
        if call.cancel_wanted:
            # It came while the reservation was written: nothing was sent yet.
            ended = _Ended(outcomes.cancelled(started=False))
        elif isinstance(asked, Ask):
            named = {"call_id": call.call_id, "sequence": sequence}
            channel = NotedChannel(sandbox, partial(note_lock_wait, self._metrics))
            met = partial(causes.met, sandbox, seen)
            work = _worded(tool, asked.memo, channel, asked, named, met)
            ended = await self._work(live, call, work)
        else:
            ended = _Ended(asked)
        return await self._conclude(live, call, sandbox, reservation, ended, began)

    async def resume(
        self, live: LiveSession, call: Call, reserved: ReservedCall, sandbox: Sandbox | None
    ) -> Outcome:
        """Goes on with a call of an earlier daemon, where the guest that ran it is back.

        Where it is not, or has no trace of the call, the outcome is UNKNOWN.
        """
        reservation = Reservation(
            key=live.record.key,
            call_id=reserved.call_id,
            digest=reserved.digest,
            tool=reserved.tool,
            is_read=reserved.is_read,
            generation=reserved.generation,
            started_at=reserved.started_at,
        )
        began = time.monotonic() - max(0.0, time.time() - reserved.started_at)
        ended = _Ended(outcomes.unknown(outcomes.WORKER_STOPPED))
        if live.end_cause is not None:
            ended = _Ended(outcomes.session_ended(live.end_cause))
        elif sandbox is not None and reserved.memo is not None and _is_known(sandbox, reserved):
            tool, memo = self._tools.find(reserved.tool), reserved.memo
            attach = Ask(
                "attach",
                {},
                {},
                reply_bytes_max=memo["reply_bytes_max"],
                timeout_s=memo["timeout_s"],
            )
            named = {"call_id": reserved.call_id}
            ended_ago = EndedAgo()
            channel = NotedChannel(sandbox, ended_ago.note)
            met = partial(causes.met, sandbox, memo.get("seen"))
            work = _worded(tool, memo["words"], channel, attach, named, met)
            ended = await self._work(live, call, work)
            began = min(time.monotonic(), began + ended_ago.seconds)
        outcome = await self._conclude(live, call, sandbox, reservation, ended, began)
        ending = _ending_name(outcome.result)
        self._metrics.call_resumed(ending)
        _LOG.info("call resumed", tool=call.tool, session=live.session_id, ending=ending)
        return outcome

    async def cancel_unstarted(self, live: LiveSession, call: Call) -> Outcome:
        """Records a call that was cancelled in the queue, so that its id runs nothing later."""
        reservation = self._reservation(live, call, None)
        await self._ledger.reserve(reservation)
        result = outcomes.cancelled(started=False)
        await self._record(live, reservation, result, 0.0)
        return Outcome(result, False)

    async def _conclude(
        self,
        live: LiveSession,
        call: Call,
        sandbox: Sandbox | None,
        reservation: Reservation,
        ended: _Ended,
        began: float,
    ) -> Outcome:
        """Records what came of a call. `began` is on the monotonic clock."""
        await fault_points.reach("call.answered")
        if sandbox is not None:
            await causes.explain_loss(ended.result, sandbox)
        if call.cancelling is not None:
            outcomes.mark_cancelled(ended.result, await call.cancelling)
        await self._record(live, reservation, ended.result, time.monotonic() - began)
        await fault_points.reach("call.recorded")
        if sandbox is not None:
            # Durable, so the guest may let go of it.
            sandbox.recorded(call.call_id)
        if ended.fault is not None:
            raise ended.fault
        return Outcome(ended.result, False)

    def begin_cancel(self, live: LiveSession, call: Call) -> None:
        """Asks the guest to end the call's process tree; once a call.

        Before the tool is at work there is nothing to end: `run` sees the wish
        after its reservation.
        """
        if call.cancelling is None and call.work is not None and live.sandbox is not None:
            call.cancelling = asyncio.create_task(self._cancel(live.sandbox, call, call.work))

    def end_recorded(self, sandbox: Sandbox, call_id: str) -> None:
        """Ends what may still run of a call whose ending has been told."""

        async def end() -> None:
            try:
                await sandbox.request(
                    "cancel",
                    {"call_id": call_id},
                    reply_bytes_max=limits.KIB,
                    timeout_s=CANCEL_TIMEOUT_S,
                )
            except (GuestFault, SandboxLost) as error:
                _LOG.info("nothing to end of a recorded call", detail=error.operator_text)

        task = asyncio.create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def unrecorded(self) -> tool_pb2.ToolResult:
        """What is left to say of a call whose result could not be recorded."""
        return outcomes.unknown(outcomes.FAULT)

    def _reservation(
        self, live: LiveSession, call: Call, memo: Mapping[str, Any] | None
    ) -> Reservation:
        tool = self._tools.find(call.tool)
        return Reservation(
            key=live.record.key,
            call_id=call.call_id,
            digest=call.digest,
            tool=call.tool,
            is_read=tool.effect == tool_pb2.EFFECT_CLASS_READ,
            generation=live.record.generation,
            started_at=time.time(),
            memo=memo,
        )

    async def _work(
        self,
        live: LiveSession,
        call: Call,
        worded: Coroutine[Any, Any, tool_pb2.ToolResult],
    ) -> _Ended:
        work = asyncio.create_task(worded)
        call.work = work
        call.working.set_result(None)
        printed = Partial(live, call)
        if call.cancel_wanted:
            # Of a call that is resumed: the wish came while its guest was awaited.
            self.begin_cancel(live, call)
        try:
            await fault_points.reach("call.sent")
            await asyncio.wait({work})
        finally:
            work.cancel()
            printed.stop()
        if work.cancelled():
            return _Ended(printed.before(_cut_off(live, call)))
        error = work.exception()
        if error is None:
            return _Ended(work.result())
        if isinstance(error, SandboxLost):
            return _Ended(printed.before(_lost(live, error)))
        _LOG.error("tool broke off", tool=call.tool, session=live.session_id, cause=error)
        return _Ended(outcomes.unknown(outcomes.FAULT), error)

    async def _cancel(
        self, sandbox: Sandbox, call: Call, work: asyncio.Task[tool_pb2.ToolResult]
    ) -> object:
        """The survivors that the guest names, unchecked.

        Asked again where the call goes on after the answer: its request may have waited for
        the session's byte budget, when there was nothing to find.
        """
        survivors: object = None
        for _ in range(CANCEL_TRIES_MAX):
            try:
                reply = await sandbox.request(
                    "cancel",
                    {"call_id": call.call_id},
                    reply_bytes_max=limits.KIB,
                    timeout_s=CANCEL_TIMEOUT_S,
                )
                survivors = reply.facts.get("survivors") or survivors
            except GuestFault as error:
                _LOG.warning("cancel refused", tool=call.tool, detail=error.operator_text)
            except SandboxLost:
                return None  # and the call ends by it as well
            await asyncio.wait({work}, timeout=CANCEL_SETTLE_S)
            if work.done():
                return survivors
        work.cancel()
        return survivors

    async def _record(
        self,
        live: LiveSession,
        reservation: Reservation,
        result: tool_pb2.ToolResult,
        duration_s: float,
    ) -> None:
        outcomes.stamp(result, reservation.generation, reservation.started_at, duration_s)
        told = _tell_restart(live, reservation, result)
        ending = _ending_name(result)
        self._metrics.call_ended(
            reservation.tool,
            ending,
            duration_s,
            is_error=result.is_error,
            truncated=result.truncated,
        )
        serialised = result.SerializeToString()
        pause_s = RECORD_PAUSE_MIN_S
        while True:
            try:
                await self._ledger.record(reservation, serialised, time.time(), restart_told=told)
                return
            except sqlite3.Error as error:
                if live.end_cause is not None:
                    raise
                # Until then the call runs, for everybody who asks: an answer that a daemon
                # after this one could contradict is none. A disk that is full may be emptied.
                if pause_s == RECORD_PAUSE_MIN_S:
                    _LOG.error(
                        "a result cannot be recorded yet", tool=reservation.tool, cause=error
                    )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RECORD_PAUSE_MAX_S)


_UNTOLD: Final = frozenset({"RESULT_DROPPED", "CALL_UNKNOWN", "ID_CONFLICT", "INTERNAL_ERROR"})
"""Faults of the guest that leave open whether the op had its effect."""


@dataclass(frozen=True)
class _Ended:
    """What came of the work, and the fault of this program that broke it off, if one did."""

    result: tool_pb2.ToolResult
    fault: BaseException | None = None


def _ending_name(result: tool_pb2.ToolResult) -> str:
    return tool_pb2.Ending.Name(result.ending).removeprefix("ENDING_")


def _asked(tool: Tool, raw: Mapping[str, Any]) -> Ask | tool_pb2.ToolResult:
    """What the tool asks of the guest; where the input is at fault, already the result."""
    try:
        return tool.ask(raw)
    except InvalidInput as error:
        return refused(error)


def _memo(ask: Ask, seen: causes.Seen | None) -> Mapping[str, Any]:
    return {
        "words": ask.memo,
        "seen": seen,
        "reply_bytes_max": ask.reply_bytes_max,
        "timeout_s": ask.timeout_s,
    }


async def _worded(
    tool: Tool,
    memo: Mapping[str, Any],
    channel: Channel,
    ask: Ask,
    named: Mapping[str, Any],
    met: Callable[[], Awaitable[Mapping[str, Any]]],
) -> tool_pb2.ToolResult:
    answer = await answer_of(channel, ask, named)
    if isinstance(answer, GuestFault) and answer.reason in _UNTOLD:
        _LOG.warning("the guest cannot tell of a call", tool=tool.name, reason=answer.reason)
        return outcomes.unknown(outcomes.UNTOLD)
    return worded(tool, {**memo, **await met()}, answer)


def _is_known(sandbox: Sandbox, reserved: ReservedCall) -> bool:
    """Whether the guest that is back is the one that ran the call, and says so."""
    same = sandbox.generation == reserved.generation
    return same and reserved.call_id in sandbox.report.calls


def _tell_restart(live: LiveSession, reservation: Reservation, result: tool_pb2.ToolResult) -> bool:
    """Whether this result is the one that tells a restart, in its first line (contract.md 9).

    That is the first of the generation, however it ended: a tool's error, a timeout, a
    cancel, the loss of this generation as well. An UNKNOWN is not: its caller may get
    no text at all. The result of a call of an earlier generation, which is late, is none.
    """
    record = live.record
    if not record.restart_untold or record.generation != reservation.generation:
        return False
    if result.ending == tool_pb2.ENDING_UNKNOWN:
        return False
    outcomes.tell_restart(result)
    # At once, so that only one of several results carries the line.
    record.restart_untold = False
    return True


def _lost(live: LiveSession, error: SandboxLost) -> tool_pb2.ToolResult:
    if live.end_cause is not None:
        return outcomes.session_ended(live.end_cause)
    if error.cause == "SHUTDOWN":
        return outcomes.unknown(outcomes.WORKER_STOPPED)
    if error.cause == "PROTOCOL":
        # The backend may not know: a tool found the facts to be no facts.
        live.condemn(error)
    return outcomes.sandbox_lost()


def _cut_off(live: LiveSession, call: Call) -> tool_pb2.ToolResult:
    """Nobody waits for the tool any more: by the session's end, a cancel, or a shutdown."""
    if live.end_cause is not None:
        return outcomes.session_ended(live.end_cause)
    if call.cancel_wanted:
        return outcomes.cancelled(started=True)
    return outcomes.unknown(outcomes.WORKER_STOPPED)
