"""How a session ends: recorded first, then its processes, then everything of it.

After `DeleteSession` nothing of the session exists (contract.md 3). The tombstone
is durable before the engine is touched, so a daemon that dies part of the way
leaves work for the next one, not a session that comes back.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from sandboxd import fault_points
from sandboxd.backends.base import Backend
from sandboxd.errors import SessionDeleted
from sandboxd.log import EventLog
from sandboxd.metrics import Metrics
from sandboxd.sessions.call import Step
from sandboxd.sessions.directory import Directory
from sandboxd.sessions.ledger import Ledger
from sandboxd.sessions.live import LiveSession
from sandboxd.sessions.process_table import ProcessTable
from sandboxd.sessions.records import EndCause, State
from sandboxd.sessions.session import move
from sandboxd.sessions.session_table import SessionTable

_LOG: Final = EventLog("sessions")
CALLS_END_S: Final = 2.0
"""After the sandbox is gone: how long its calls may take to notice by themselves."""


class Ends:
    """Ends sessions, each once, for whatever cause comes first."""

    def __init__(
        self,
        backend: Backend,
        table: SessionTable,
        ledger: Ledger,
        processes: ProcessTable,
        directory: Directory,
        metrics: Metrics,
    ) -> None:
        self._backend = backend
        self._table = table
        self._ledger = ledger
        self._processes = processes
        self._directory = directory
        self._metrics = metrics

    def begin(self, live: LiveSession, cause: EndCause) -> asyncio.Task[None]:
        """Starts the end, or goes on with one that failed; the same task for all who ask.

        From this moment the session takes no call. The task fails with
        `EngineDown` or another `SandboxdError` where something could not be
        removed; the sweeper begins again.
        """
        if live.end_cause is None:
            live.end_cause = cause
            if live.record.state is not State.DELETED:
                move(live.record, State.DELETED, cause.value)
                live.record.deleted_at = time.time()
                self._metrics.session_end(cause.value)
                _LOG.info("session ends", session=live.session_id, cause=cause.value)
            self._directory.count()
        if live.end_task is None or (live.end_task.done() and _failed(live.end_task)):
            live.end_task = asyncio.create_task(self._end(live))
        return live.end_task

    async def _end(self, live: LiveSession) -> None:
        if live.life_task is not None:
            live.life_task.cancel()
        await self._table.bury(live.record)
        await fault_points.reach("delete.buried")
        gone = SessionDeleted(live.session_id)
        live.creation_failed(gone)
        if live.life_task is not None:
            # A start that is cancelled removes its own attempt before it returns;
            # removing beneath it would race with what it makes.
            await asyncio.wait({live.life_task})
        for call in list(live.calls.values()):
            if call.step is not Step.RUNNING:
                call.refuse(gone)
                if call.task is not None:
                    call.task.cancel()
        await self._backend.remove(live.record.resource_id)
        await fault_points.reach("delete.store_removed")
        await self._end_calls(live)
        await self._ledger.forget(live.record.key)
        await self._processes.forget(live.record.key)
        await self._table.mark_removed(live.record.key)
        await fault_points.reach("delete.marked")
        self._directory.drop(live)

    async def _end_calls(self, live: LiveSession) -> None:
        """Running calls saw their sandbox go; those that did not are told."""
        tasks = {call.task for call in live.calls.values() if call.task is not None}
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=CALLS_END_S)
        for call in list(live.calls.values()):
            if call.task in late and call.work is not None:
                call.work.cancel()
        if late:
            await asyncio.wait(late)


def _failed(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None
