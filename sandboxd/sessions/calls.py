"""Tool calls: reserve, act, record, and every way in which a call can end.

A call belongs to its id, not to the request that brought it: any number of
requests wait for one `Call`, each behind a shield, and the task that drives it
ends on its own. What was reserved gets an ending in the ledger, always.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from sandbox_adapter.v1 import tool_pb2
from sandboxd import fault_points
from sandboxd.backends.base import Report, Sandbox
from sandboxd.errors import (
    CallUnknown,
    Draining,
    EpochStale,
    IdConflict,
    ResultExpired,
    SandboxdError,
    SandboxLost,
    SessionDeleted,
)
from sandboxd.log import EventLog
from sandboxd.metrics import Metrics
from sandboxd.sessions.call import Call, Outcome, Step
from sandboxd.sessions.digest import call_digest
from sandboxd.sessions.directory import Directory
from sandboxd.sessions.execution import Execution
from sandboxd.sessions.ledger import Ledger, parse
from sandboxd.sessions.live import LiveSession
from sandboxd.sessions.records import CallPhase, CallRecord, ReservedCall, SessionKey, State
from sandboxd.tools.registry import Registry

_LOG: Final = EventLog("calls")
DIGEST_INLINE_CHARS_MAX: Final = 256 * 1024
DIGEST_INLINE_FIELDS_MAX: Final = 16
"""Inputs beyond either are digested on a thread."""


class Calls:
    """`CallTool`, `GetCall` and `CancelCall`."""

    def __init__(
        self,
        directory: Directory,
        ledger: Ledger,
        tools: Registry,
        execution: Execution,
        metrics: Metrics,
        digest_key: bytes,
    ) -> None:
        self._directory = directory
        self._ledger = ledger
        self._tools = tools
        self._execution = execution
        self._metrics = metrics
        self._digest_key = digest_key
        self._letting_go = False

    async def call(
        self,
        key: SessionKey,
        call_id: str,
        tool: str,
        raw: Mapping[str, Any],
        *,
        epoch: int | None,
        cancel_on_disconnect: bool,
    ) -> tuple[str, tool_pb2.ToolResult]:
        """Runs the call, joins it, or returns what is recorded of it.

        Returns the id, made where it was empty, and the result. Raises
        `CallerError`s; unless it is INTERNAL nothing ran under this id by this
        request.
        """
        live = await self._directory.find(key)
        self._tools.find(tool)
        digest = await self._digest(tool, raw)
        await self._directory.announce(live, epoch)
        if live.record.state is State.DELETED:
            raise SessionDeleted(key.session_id)
        call_id = call_id or f"c-{uuid.uuid4().hex}"
        call = live.calls.get(call_id)
        joined = call is not None
        if call is None:
            done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            call = Call(call_id, tool, raw, digest, epoch, done)
            # From here on every request with this id joins: no two of them can
            # both find nothing in the ledger.
            live.add_call(call)
            call.task = asyncio.create_task(
                self._drive(live, call, partial(self._outcome, live, call))
            )
        elif call.digest != digest:
            raise IdConflict("call", call_id)
        else:
            call.raise_epoch(epoch)
        outcome = await self._wait(live, call, cancel_on_disconnect)
        if joined or outcome.recorded_before:
            self._metrics.call_replayed()
        return call_id, _answer(outcome.result, replayed=joined or outcome.recorded_before)

    async def get(
        self, key: SessionKey, call_id: str
    ) -> tuple[tool_pb2.CallState, tool_pb2.ToolResult | None, bool]:
        """The state, the result where there is one, and whether that has expired."""
        live = await self._directory.find(key)
        call = live.calls.get(call_id)
        if call is not None and call.step is not Step.LOOKUP:
            return tool_pb2.CALL_STATE_RUNNING, None, False
        record = await self._ledger.find(key, call_id)
        if record is None:
            # It may have been asked for while the ledger was read.
            if call_id in live.calls:
                return tool_pb2.CALL_STATE_RUNNING, None, False
            return tool_pb2.CALL_STATE_NEVER_SEEN, None, False
        if record.phase is CallPhase.EXPIRED:
            return tool_pb2.CALL_STATE_FINISHED, None, True
        if record.result is None:
            if call_id in live.calls:
                return tool_pb2.CALL_STATE_RUNNING, None, False
            # Its result could not be recorded: what came of it is lost.
            return tool_pb2.CALL_STATE_UNKNOWN, self._execution.unrecorded(), False
        result = parse(record.result)
        if result.ending == tool_pb2.ENDING_UNKNOWN:
            return tool_pb2.CALL_STATE_UNKNOWN, result, False
        return tool_pb2.CALL_STATE_FINISHED, result, False

    async def cancel(self, key: SessionKey, call_id: str, epoch: int | None) -> tool_pb2.ToolResult:
        """Ends the call and returns its result; of one that has ended, the result it had.

        Raises `CallUnknown` or `ResultExpired`.
        """
        live = await self._directory.find(key)
        await self._directory.announce(live, epoch)
        call = live.calls.get(call_id)
        if call is None:
            record = await self._ledger.find(key, call_id)
            call = live.calls.get(call_id)
            if record is None and call is None:
                raise CallUnknown(call_id)
            if record is not None and call is None:
                return self._recorded(call_id, record).result
        assert call is not None
        self._cancel(live, call)
        # As one of its callers: the call that this waits for is not withdrawn.
        outcome = await self._wait(live, call, cancel_on_disconnect=False)
        return _answer(outcome.result, replayed=True)

    def let_go(self) -> None:
        """From here on a caller that goes was sent away: its call is the next daemon's."""
        self._letting_go = True

    def withdraw_queued(self) -> None:
        """At the start of a shutdown: calls that wait are refused, nothing of them ran."""
        for live in self._directory.all():
            for call in list(live.calls.values()):
                if call.step is Step.QUEUED and call.task is not None:
                    self._forget(live, call)
                    call.refuse(Draining())
                    call.task.cancel()

    async def drain(self, grace_s: float) -> int:
        """Waits for running calls; returns how many are late. Those stay reserved."""
        tasks = self._tasks()
        if not tasks:
            return 0
        _, late = await asyncio.wait(tasks, timeout=grace_s)
        return len(late)

    def resume(self, live: LiveSession, reserved: Sequence[ReservedCall]) -> None:
        """Takes up the calls of an earlier daemon; each goes on once `live.adopted` is known.

        From now on who asks with the same id joins, as if nothing had happened.
        """
        for each in reserved:
            done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            call = Call(each.call_id, each.tool, {}, each.digest, None, done, Step.RUNNING)
            live.add_call(call)
            call.task = asyncio.create_task(
                self._drive(live, call, partial(self._resumed, live, call, each))
            )

    async def reconcile(
        self, live: LiveSession, sandbox: Sandbox, report: Report, *, adopted: bool
    ) -> None:
        """Holds a guest's report against the ledger (security S7, S16).

        What is recorded the guest may forget, and ends where it runs all the same: its ending
        has been told. A call that nobody reserved ends the session. A number that the ledger
        never gave shows, to the daemon that adopts (`adopted`), that the ledger was set back;
        to one that gave the numbers itself, a guest that lies.
        """
        key = live.record.key
        if report.sequence > await self._ledger.sequence(key):
            if not adopted:
                live.condemn(SandboxLost("PROTOCOL", "the guest reports a number never given"))
                return
            _LOG.warning("the ledger was set back: its id is renewed", session=live.session_id)
            await self._ledger.set_back(key, report.sequence)
        asked = sorted(report.calls - live.calls.keys())
        phases = await self._ledger.phases(key, asked)
        for call_id in asked:
            phase = phases.get(call_id)
            if phase in (CallPhase.FINISHED, CallPhase.EXPIRED):
                sandbox.recorded(call_id)
                self._execution.end_recorded(sandbox, call_id)
            elif phase is None and call_id not in live.calls:
                live.condemn(
                    SandboxLost("PROTOCOL", "the guest reports a call that was never reserved")
                )
                return

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {
            call.task
            for live in self._directory.all()
            for call in live.calls.values()
            if call.task is not None
        }

    async def _digest(self, tool: str, raw: Mapping[str, Any]) -> bytes:
        if _is_small(raw):
            return call_digest(self._digest_key, tool, raw)
        # Megabytes take long enough to hold up every other session's calls.
        return await asyncio.to_thread(call_digest, self._digest_key, tool, raw)

    async def _wait(self, live: LiveSession, call: Call, cancel_on_disconnect: bool) -> Outcome:
        call.waiters += 1
        try:
            return await asyncio.shield(call.done)
        except asyncio.CancelledError:
            # `done` is never cancelled, so it is this caller who went.
            if call.waiters == 1 and not call.done.done():
                self._abandon(live, call, cancel_on_disconnect)
            raise
        finally:
            call.waiters -= 1

    def _abandon(self, live: LiveSession, call: Call, cancel_on_disconnect: bool) -> None:
        """The last caller went. A call that has not started is withdrawn."""
        if call.step is not Step.RUNNING:
            assert call.task is not None
            self._forget(live, call)
            call.refuse(Draining())
            call.task.cancel()
        elif cancel_on_disconnect and not self._letting_go:
            self._cancel(live, call)

    def _cancel(self, live: LiveSession, call: Call) -> None:
        if call.cancel_wanted:
            return
        call.cancel_wanted = True
        if call.step is Step.QUEUED:
            assert call.task is not None
            call.task.cancel()
            # A task of its own, because the one that waits for its turn is over.
            call.step = Step.RUNNING
            unstarted = partial(self._execution.cancel_unstarted, live, call)
            call.task = asyncio.create_task(self._drive(live, call, unstarted))
        elif call.step is Step.RUNNING:
            self._execution.begin_cancel(live, call)

    def _forget(self, live: LiveSession, call: Call) -> None:
        if live.calls.get(call.call_id) is call:
            del live.calls[call.call_id]

    async def _drive(
        self, live: LiveSession, call: Call, end: Callable[[], Awaitable[Outcome]]
    ) -> None:
        """Brings the call to its end and tells every caller, whatever happens."""
        own = asyncio.current_task()
        try:
            outcome = await end()
        except asyncio.CancelledError:
            # A running one is left to the next daemon: its callers learn nothing but that
            # their connection ends.
            if call.task is own and call.step is not Step.RUNNING:
                self._forget(live, call)
                call.refuse(Draining())
            raise
        except Exception as error:  # noqa: BLE001 - handed on to everybody who waits
            self._forget(live, call)
            call.refuse(error)
            if not isinstance(error, SandboxdError):
                _LOG.error("call broke off", tool=call.tool, session=live.session_id, cause=error)
        else:
            live.touch()
            self._forget(live, call)
            call.resolve(outcome)

    async def _outcome(self, live: LiveSession, call: Call) -> Outcome:
        record = await self._ledger.find(live.record.key, call.call_id)
        if record is not None:
            if record.digest != call.digest:
                raise IdConflict("call", call.call_id)
            return self._recorded(call.call_id, record)
        if self._directory.draining:
            raise Draining
        live.ready_sandbox()
        if call.cancel_wanted:
            call.step = Step.RUNNING
            return await self._execution.cancel_unstarted(live, call)
        call.step = Step.QUEUED
        asked = time.monotonic()
        async with live.lane.turn():
            self._metrics.call_waited(time.monotonic() - asked)
            if self._directory.draining:
                raise Draining
            seen = live.record.epoch
            if call.epoch is not None and seen is not None and call.epoch < seen:
                raise EpochStale(call.epoch, seen)
            await fault_points.reach("call.found")
            sandbox = live.ready_sandbox()
            call.step = Step.RUNNING
            return await self._execution.run(live, call, sandbox)

    async def _resumed(self, live: LiveSession, call: Call, reserved: ReservedCall) -> Outcome:
        if reserved.memo is None:
            # The guest was never asked.
            return await self._execution.resume(live, call, reserved, None)
        # It holds one of the guest's workers, as it did before: no fresh call may come between.
        async with live.lane.turn():
            sandbox = await asyncio.shield(live.adopted)
            return await self._execution.resume(live, call, reserved, sandbox)

    def _recorded(self, call_id: str, record: CallRecord) -> Outcome:
        if record.phase is CallPhase.EXPIRED:
            raise ResultExpired(call_id)
        if record.result is None:
            return Outcome(self._execution.unrecorded(), True)
        return Outcome(parse(record.result), True)


def _is_small(raw: Mapping[str, Any]) -> bool:
    """Whether its digest takes no time; what is nested is not looked through for that."""
    if len(raw) > DIGEST_INLINE_FIELDS_MAX or any(
        isinstance(value, dict | list) for value in raw.values()
    ):
        return False
    size = sum(len(value) for value in raw.values() if isinstance(value, str))
    return size <= DIGEST_INLINE_CHARS_MAX


def _answer(result: tool_pb2.ToolResult, *, replayed: bool) -> tool_pb2.ToolResult:
    """A copy for one caller: callers share the message, and differ in this field."""
    if result.replayed == replayed:
        return result
    answer = tool_pb2.ToolResult()
    answer.CopyFrom(result)
    answer.replayed = replayed
    return answer
