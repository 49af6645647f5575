"""One loop that makes what exists agree with what is recorded.

Expiry, ends that failed, resources that nobody owns, tombstones and results that
are old: everything that has to happen without a request. Each step can fail and
is repeated; none stops another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from sandboxd import fault_points, limits
from sandboxd.backends.base import Backend
from sandboxd.errors import EngineDown, SandboxdError
from sandboxd.log import EventLog
from sandboxd.metrics import Metrics
from sandboxd.sessions.calls import Calls
from sandboxd.sessions.directory import Directory
from sandboxd.sessions.ends import Ends
from sandboxd.sessions.ledger import Ledger
from sandboxd.sessions.live import LiveSession
from sandboxd.sessions.records import EndCause, SessionRecord, State
from sandboxd.sessions.session_table import SessionTable
from sandboxd.sessions.starts import Starts

_LOG: Final = EventLog("sweeper")
ADOPT_S_MAX: Final = 5.0
"""At start: how long listening waits for guests to come back; the rest go on behind it."""


class Sweeper:
    """Adopts at start, then sweeps every `interval_s` until it is cancelled."""

    def __init__(
        self,
        backend: Backend,
        table: SessionTable,
        ledger: Ledger,
        directory: Directory,
        calls: Calls,
        starts: Starts,
        ends: Ends,
        metrics: Metrics,
        interval_s: float,
    ) -> None:
        self._backend = backend
        self._table = table
        self._ledger = ledger
        self._directory = directory
        self._calls = calls
        self._starts = starts
        self._ends = ends
        self._metrics = metrics
        self._interval_s = interval_s
        self._failing: set[str] = set()

    async def recover(self) -> None:
        """Takes over what an earlier daemon left: sessions, cut-off calls, ends begun."""
        await self._ledger.open()
        adopting: set[asyncio.Future[None]] = set()
        records = await self._table.load()
        await fault_points.reach("recovery.loaded")
        for record in records:
            live = await self._recover(record)
            if live is not None and live.life_task is not None:
                adopting.add(live.created)
        if adopting:
            await asyncio.wait(adopting, timeout=ADOPT_S_MAX)

    async def run(self) -> None:
        """Sweeps for ever."""
        while True:
            await self.sweep()
            await asyncio.sleep(self._interval_s)

    async def sweep(self) -> None:
        """One round of every step."""
        await self._step("uses", self._save_uses)
        await self._step("expiry", self._expire_sessions)
        await self._step("ends", self._finish_ends)
        await self._step("unowned", self._remove_unowned)
        await self._step("retention", self._forget_old)

    async def save_uses(self) -> None:
        """Writes when sessions were last used; at the end of the daemon as well."""
        await self._step("uses", self._save_uses)

    async def _recover(self, record: SessionRecord) -> LiveSession | None:
        if record.state is State.CREATING:
            # Nobody was told that it exists. Its remains, if any, belong to no
            # session from now on, and the first sweep removes them.
            await self._table.discard(record.key)
            return None
        live = LiveSession(record)
        if record.state is not State.DELETED:
            # Before anybody can find the session: a repeat of a call must join it.
            await self._resume_calls(live)
        self._directory.put(live)
        if record.state is State.DELETED:
            live.created.set_result(None)
            self._ends.begin(live, EndCause.DELETED)
        elif (cause := _expiry(live, time.time())) is not None:
            # Expired while no daemon ran. First the cause: the calls that were cut off wait
            # for the adoption, and end by what they find then.
            live.created.set_result(None)
            self._ends.begin(live, cause)
            live.settle_adoption(None)
        elif record.state is State.FAILED:
            live.created.set_result(None)
            live.settle_adoption(None)
            live.release_due = True
        else:
            self._starts.adopt(live)
        return live

    async def _resume_calls(self, live: LiveSession) -> None:
        reserved = await self._ledger.reserved(live.record.key)
        if reserved:
            _LOG.info("earlier calls go on", session=live.session_id, calls=len(reserved))
            self._calls.resume(live, reserved)

    async def _step(self, name: str, action: Callable[[], Awaitable[None]]) -> None:
        try:
            await action()
        except Exception as error:  # noqa: BLE001 - without the sweeper nothing expires
            self._metrics.sweep_failure(name)
            # Once for each run of failures: an engine that is down for an hour
            # must not fill the log.
            if name not in self._failing:
                if isinstance(error, SandboxdError):
                    _LOG.warning("sweep step failed", step=name, detail=error.operator_text)
                else:
                    _LOG.error("sweep step broke off", step=name, cause=error)
            self._failing.add(name)
        else:
            self._failing.discard(name)

    async def _save_uses(self) -> None:
        used = [live for live in self._directory.all() if live.use_unsaved]
        for live in used:
            live.use_unsaved = False
        if used:
            await self._table.save_use([(live.record.key, live.record.used_at) for live in used])

    async def _expire_sessions(self) -> None:
        now = time.time()
        for live in self._directory.all():
            cause = _expiry(live, now)
            if cause is not None:
                self._ends.begin(live, cause)

    async def _finish_ends(self) -> None:
        failed: list[BaseException] = []
        for live in self._directory.all():
            task = live.end_task
            if live.end_cause is not None and (task is None or task.done()):
                error = None if task is None or task.cancelled() else task.exception()
                if error is not None:
                    failed.append(error)
                self._ends.begin(live, live.end_cause)
            elif live.record.state is State.FAILED and live.release_due:
                await self._starts.release(live)
        if failed:
            raise failed[0]

    async def _remove_unowned(self) -> None:
        found = await self._backend.owned()
        await fault_points.reach("sweep.listed")
        # Read after the listing: whatever was made by then had its session before.
        unowned = found - self._directory.resource_ids()
        first: SandboxdError | None = None
        for resource_id in sorted(unowned):
            try:
                await self._backend.remove(resource_id)
            except EngineDown:
                # The next one would wait for its deadline as well, and expiry with it.
                raise
            except SandboxdError as error:
                first = first or error
            else:
                await fault_points.reach("sweep.removed")
                _LOG.info("removed what no session owns", resource=resource_id)
        if first is not None:
            raise first

    async def _forget_old(self) -> None:
        now = time.time()
        await self._ledger.expire(now - limits.RESULT_RETENTION_S)
        await self._table.purge(now - limits.TOMBSTONE_RETENTION_S)


def _expiry(live: LiveSession, now: float) -> EndCause | None:
    """The cause by which a session is over, if it is; a creation under way never is."""
    record = live.record
    if live.end_cause is not None or record.state in (State.CREATING, State.DELETED):
        return None
    if now >= record.expires_at:
        return EndCause.LIFETIME
    if now >= record.idle_expires_at and not live.busy:
        return EndCause.IDLE
    return None
