"""The life of a session's sandbox: made or adopted, watched, started anew.

One task a session does all of it, so that nothing of it can happen twice at the
same time, and ending a session is: cancel the task, then remove what exists.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from sandboxd import fault_points, limits
from sandboxd.backends.base import Backend, Report, Sandbox, SandboxSpec
from sandboxd.errors import CreateFailed, EngineDown, GuestFault, SandboxdError, SandboxLost
from sandboxd.log import EventLog
from sandboxd.metrics import Metrics
from sandboxd.sessions.directory import Directory
from sandboxd.sessions.live import LiveSession
from sandboxd.sessions.records import SessionRecord, State
from sandboxd.sessions.session import (
    count_restart,
    engine_down,
    may_restart,
    move,
    sandbox_lost,
)
from sandboxd.sessions.session_table import SessionTable

_LOG: Final = EventLog("sessions")
CONFIGURE_S_MAX: Final = 30.0
RESTART_PAUSE_S: Final = 1.0
"""Between a start that failed and the next."""
ENGINE_REST_S: Final = 1.0
"""Before an engine that did not answer is asked again."""
ADOPTING: Final = "ADOPTING"


class Reconcile(Protocol):
    """Holds what a guest reports of calls against the ledger; see `Calls.reconcile`."""

    async def __call__(
        self, live: LiveSession, sandbox: Sandbox, report: Report, *, adopted: bool
    ) -> None: ...


class Starts:
    """Makes sandboxes for sessions, at most `parallel_max` at a time."""

    def __init__(
        self,
        backend: Backend,
        table: SessionTable,
        directory: Directory,
        metrics: Metrics,
        parallel_max: int,
        reconcile: Reconcile,
    ) -> None:
        self._backend = backend
        self._table = table
        self._directory = directory
        self._metrics = metrics
        self._reconcile = reconcile
        self._reconciling: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(parallel_max)

    async def first(self, live: LiveSession) -> None:
        """Makes the sandbox of a new session, whose row exists. READY after success.

        Raises `CreateFailed` or `EngineDown`; then nothing of it is left but the row.
        """
        await self._start(live)

    def adopt(self, live: LiveSession) -> None:
        """Takes up a session of an earlier daemon, in the background."""
        live.life_task = asyncio.create_task(self._guarded(live, self._adopted_life))

    async def life(self, live: LiveSession) -> None:
        """Watches a READY session and starts it anew; returns when it has FAILED.

        Ended by cancelling, when the session or the daemon ends.
        """
        await self._guarded(live, self._watch)

    async def _guarded(
        self, live: LiveSession, life: Callable[[LiveSession], Awaitable[None]]
    ) -> None:
        """A fault of this program fails the session; else it would be starting for ever."""
        try:
            await life(live)
        except asyncio.CancelledError:
            # Its calls wait for this.
            live.settle_adoption(None)
            raise
        except Exception as error:  # noqa: BLE001 - nobody else waits for this task
            live.settle_adoption(None)
            _LOG.error("the life of a session broke off", session=live.session_id, cause=error)
            if not live.created.done():
                live.created.set_result(None)
            if live.record.state in (State.READY, State.RESTARTING):
                await self.fail(live, "INTERNAL_ERROR", "The worker met a fault of its own.")

    async def _watch(self, live: LiveSession) -> None:
        while live.record.state is State.READY and live.sandbox is not None:
            error = await _lost(live, live.sandbox)
            if live.end_cause is not None or error.cause == "SHUTDOWN":
                return
            _LOG.warning(
                "sandbox lost",
                session=live.session_id,
                resource=live.record.resource_id,
                cause=error.cause,
                detail=error.operator_text,
            )
            if error.cause == "PROTOCOL":
                await self._fail_protocol(live)
                return
            move(live.record, State.RESTARTING, "SANDBOX_LOST", "The sandbox ended.")
            await self._restart(live)

    async def fail(self, live: LiveSession, reason: str, message: str) -> None:
        """Ends the session's container, keeps its files until deletion, takes no more calls."""
        move(live.record, State.FAILED, reason, message)
        live.release_due = True
        self._directory.count()
        await self._table.save_life(live.record)
        await self.release(live)

    async def _fail_protocol(self, live: LiveSession) -> None:
        await self.fail(live, "PROTOCOL", "The sandbox's guest broke its protocol and was ended.")

    async def release(self, live: LiveSession) -> None:
        """Ends what runs of a failed session. Where the engine does not, the sweeper repeats it."""
        try:
            await self._backend.release(live.record.resource_id)
        except SandboxdError as error:
            self._metrics.sweep_failure("release")
            _LOG.warning("release failed", session=live.session_id, detail=error.operator_text)
        else:
            live.release_due = False

    async def _adopted_life(self, live: LiveSession) -> None:
        record = live.record
        if record.state is State.RESTARTING:
            # The daemon ended between counting the restart and making it.
            live.settle_adoption(None)
            live.created.set_result(None)
            await self._again(live)
        else:
            # In memory only: should this daemon end as well, the row still says READY.
            move(record, State.RESTARTING, ADOPTING, "The worker was restarted.")
            self._directory.count()
            adopted = await self._adopt(live)
            live.settle_adoption(live.sandbox if adopted else None)
            if not live.created.done():
                live.created.set_result(None)
            if not adopted:
                await self._restart(live)
        await self._watch(live)

    async def _adopt(self, live: LiveSession) -> bool:
        """False where the sandbox has to be started anew."""
        record = live.record
        assert record.facts is not None
        while True:
            try:
                sandbox = await self._backend.adopt(
                    _spec(record), record.facts, record.secret_digest
                )
                if sandbox is None:
                    return False
                await fault_points.reach("recovery.adopted")
                await _configure(sandbox, record)
            except EngineDown:
                await _rest_for_engine(live)
                continue
            except (GuestFault, SandboxdError) as error:
                _LOG.warning("not adopted", session=live.session_id, detail=error.operator_text)
                if isinstance(error, SandboxLost) and error.cause == "PROTOCOL":
                    await self._fail_protocol(live)
                    return True
                return False
            await self._ready(live, sandbox, record.facts.phases_s)
            await self._look(live, sandbox, sandbox.report, adopted=True)
            _LOG.info("session adopted", session=live.session_id, generation=record.generation)
            return True

    async def _restart(self, live: LiveSession) -> None:
        """Next generation on the same store, or FAILED where there were too many."""
        record = live.record
        if not may_restart(record, time.time()):
            await self.fail(live, "RESTART_LIMIT", "The sandbox ended too often.")
            return
        count_restart(record, time.time())
        live.sandbox = None
        self._directory.count()
        # Intent first: after a crash the next daemon knows that this generation is due.
        await self._table.save_life(record)
        await fault_points.reach("restart.counted")
        self._metrics.session_restart()
        await self._again(live)

    async def _again(self, live: LiveSession) -> None:
        while True:
            try:
                await self._start(live, anew=True)
            except EngineDown:
                await _rest_for_engine(live)
            except CreateFailed as error:
                _LOG.warning("restart failed", session=live.session_id, detail=error.operator_text)
                if not may_restart(live.record, time.time()):
                    await self.fail(live, error.reason, str(error))
                    return
                count_restart(live.record, time.time())
                await self._table.save_life(live.record)
                await asyncio.sleep(RESTART_PAUSE_S)
            except SandboxdError as error:
                # The last generation does not end yet, so the next has not begun.
                _LOG.warning("release failed", session=live.session_id, detail=error.operator_text)
                await asyncio.sleep(RESTART_PAUSE_S)
            else:
                return

    async def _start(self, live: LiveSession, *, anew: bool = False) -> None:
        """`anew`: ends what is left of the last generation first."""
        asked = time.monotonic()
        async with self._turns:
            admit_s = time.monotonic() - asked
            record = live.record
            if anew:
                # In its turn: an engine that has lost all its containers is not asked for
                # hundreds at once, of which the last would wait beyond their deadline.
                await self._backend.release(record.resource_id)
                sandbox_lost(record)
                await fault_points.reach("restart.released")
            sandbox = await self._backend.create(_spec(record), lambda _phase: None)
            await fault_points.reach("create.greeted")
            try:
                await _configure(sandbox, record)
            except (GuestFault, SandboxLost) as error:
                if record.generation == 1:
                    await self._backend.remove(record.resource_id)
                raise CreateFailed(
                    "GUEST_NOT_READY",
                    "the sandbox started, but did not take its settings",
                    error.operator_text,
                ) from error
            phases = {"admit": admit_s, **sandbox.facts.phases_s}
        for phase, seconds in phases.items():
            self._metrics.session_phase(phase, seconds)
        await self._ready(live, sandbox, phases)

    async def _ready(
        self, live: LiveSession, sandbox: Sandbox, phases_s: Mapping[str, float]
    ) -> None:
        record = live.record
        sandbox.on_report = lambda report: self._reported(live, sandbox, report)
        record.facts = dataclasses.replace(sandbox.facts, phases_s=dict(phases_s))
        record.secret_digest = sandbox.secret_digest
        ready = dataclasses.replace(record)
        move(ready, State.READY)
        # Durable before anybody is told; a daemon that dies in between finds the
        # earlier state and starts the sandbox once more, which nobody has used.
        await self._table.save_life(ready)
        await fault_points.reach("create.saved")
        move(record, State.READY)
        live.sandbox = sandbox
        self._directory.count()

    def _reported(self, live: LiveSession, sandbox: Sandbox, report: Report) -> None:
        """The guest has come back to this daemon: what it says of calls is looked at."""
        task = asyncio.create_task(self._look(live, sandbox, report, adopted=False))
        self._reconciling.add(task)
        task.add_done_callback(self._reconciling.discard)

    async def _look(
        self, live: LiveSession, sandbox: Sandbox, report: Report, *, adopted: bool
    ) -> None:
        try:
            await self._reconcile(live, sandbox, report, adopted=adopted)
        except Exception as error:  # noqa: BLE001 - a database that fails ends no sandbox
            _LOG.error("a report was not looked at", session=live.session_id, cause=error)


async def _lost(live: LiveSession, sandbox: Sandbox) -> SandboxLost:
    either: set[asyncio.Future[Any]] = {sandbox.lost, live.condemned}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    error: object = live.condemned.result() if live.condemned.done() else sandbox.lost.result()
    return error if isinstance(error, SandboxLost) else SandboxLost("ENDED", str(error))


async def _rest_for_engine(live: LiveSession) -> None:
    """Short: an engine that is known to be down is asked by its one probe alone."""
    engine_down(live.record)
    await asyncio.sleep(ENGINE_REST_S)


async def _configure(sandbox: Sandbox, record: SessionRecord) -> None:
    """Gives the guest the environment of its commands: the profile's under the session's."""
    body = json.dumps({**record.profile.env, **record.env}).encode()
    await sandbox.request(
        "configure", {}, body, reply_bytes_max=limits.KIB, timeout_s=CONFIGURE_S_MAX
    )


def _spec(record: SessionRecord) -> SandboxSpec:
    return SandboxSpec(
        resource_id=record.resource_id,
        generation=record.generation,
        profile=record.profile,
        env={**record.profile.env, **record.env},
    )
