"""Sessions as clients see them: create, get, list, update, delete."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Mapping
from typing import Final

from sandboxd import fault_points
from sandboxd.config import Settings
from sandboxd.errors import (
    CallerError,
    Draining,
    EndUnfinished,
    IdConflict,
    SandboxdError,
    SessionDeleted,
)
from sandboxd.log import EventLog
from sandboxd.metrics import Metrics
from sandboxd.sessions.digest import specification_digest
from sandboxd.sessions.directory import Directory
from sandboxd.sessions.ends import Ends
from sandboxd.sessions.live import LiveSession
from sandboxd.sessions.records import EndCause, SessionKey, SessionRecord, State
from sandboxd.sessions.session_table import SessionTable
from sandboxd.sessions.specification import Specification, check_labels, check_time, grant
from sandboxd.sessions.starts import Starts

_LOG: Final = EventLog("sessions")


class SessionManager:
    """Every operation is safe to repeat with the same id (contract.md 2, 3)."""

    def __init__(
        self,
        settings: Settings,
        table: SessionTable,
        directory: Directory,
        starts: Starts,
        ends: Ends,
        metrics: Metrics,
        digest_key: bytes,
    ) -> None:
        self._settings = settings
        self._table = table
        self._directory = directory
        self._starts = starts
        self._ends = ends
        self._metrics = metrics
        self._digest_key = digest_key

    async def create(
        self, tenant: str, session_id: str, asked: Specification
    ) -> tuple[SessionRecord, bool]:
        """Makes a session and returns it READY; true where it existed before.

        An empty id gets one made. Creation goes on when the caller leaves.
        """
        key = SessionKey(tenant, session_id or f"s-{uuid.uuid4().hex}")
        digest = specification_digest(self._digest_key, asked.canonical())
        live = self._directory.get(key)
        replayed = live is not None
        if live is None:
            live, replayed = await self._reserve(key, asked, digest)
        if live.record.state is State.DELETED:
            raise SessionDeleted(key.session_id)
        if live.record.spec_digest != digest:
            raise IdConflict("session", key.session_id)
        # Shielded: the creation belongs to every caller that asks for it.
        await asyncio.shield(live.created)
        return live.record, replayed

    async def get(self, key: SessionKey) -> SessionRecord:
        """The session as it is now; not a use of it."""
        return (await self._directory.find(key)).record

    def page(self, tenant: str, after: int, size: int) -> tuple[list[SessionRecord], int]:
        """Sessions with a greater number than `after`, oldest first, and the last number shown.

        The number is 0 where no more follow.
        """
        found = sorted(
            (
                live.record
                for live in self._directory.all()
                if live.record.key.tenant == tenant
                and live.record.number > after
                and live.record.state is not State.DELETED
            ),
            key=lambda record: record.number,
        )
        shown = found[:size]
        return shown, shown[-1].number if len(found) > size else 0

    async def update(
        self,
        key: SessionKey,
        epoch: int | None,
        *,
        idle_timeout_s: float | None,
        max_lifetime_s: float | None,
        labels: Mapping[str, str],
    ) -> SessionRecord:
        """Changes what is given and counts as use."""
        live = await self._directory.find(key)
        record = live.record
        await self._directory.announce(live, epoch)
        if record.state is State.DELETED:
            raise SessionDeleted(key.session_id)
        merged = {**record.labels, **labels}
        merged = {name: value for name, value in merged.items() if value}
        check_labels(labels)
        check_labels(merged)
        profile = record.profile
        if idle_timeout_s is not None:
            idle_timeout_s = check_time(profile, "idle_timeout", idle_timeout_s)
        if max_lifetime_s is not None:
            max_lifetime_s = check_time(profile, "max_lifetime", max_lifetime_s)
        record.labels = merged
        record.idle_timeout_s = idle_timeout_s or record.idle_timeout_s
        record.max_lifetime_s = max_lifetime_s or record.max_lifetime_s
        live.touch()
        await self._table.save_terms(record)
        return record

    async def delete(self, key: SessionKey, epoch: int | None) -> None:
        """Ends the session; nothing of it is left after success. Idempotent."""
        live = self._directory.get(key)
        if live is None:
            try:
                live = await self._directory.find(key)
            except SessionDeleted:
                return
        live.check_epoch(epoch)
        try:
            # Shielded: an end that has begun goes on when the caller leaves.
            await asyncio.shield(self._ends.begin(live, EndCause.DELETED))
        except CallerError:
            raise
        except SandboxdError as error:
            raise EndUnfinished(key.session_id, error.operator_text) from error

    async def delete_all(self, cause: EndCause, timeout_s: float) -> int:
        """Ends every session, for a shutdown that keeps none. Returns how many are left."""
        tasks = [self._ends.begin(live, cause) for live in self._directory.all()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        return len(self._directory)

    async def _reserve(
        self, key: SessionKey, asked: Specification, digest: bytes
    ) -> tuple[LiveSession, bool]:
        """A new session whose creation has begun; true with one that was faster."""
        try:
            if await self._table.tombstone(key):
                raise SessionDeleted(key.session_id)
            # Another request of the same id may have come while the table was asked.
            live = self._directory.get(key)
            if live is not None:
                return live, True
            live = LiveSession(self._record(key, asked, digest))
            self._directory.admit(live)
        except CallerError as error:
            self._metrics.session_create(error.reason)
            raise
        live.life_task = asyncio.create_task(self._create(live))
        return live, False

    def _record(self, key: SessionKey, asked: Specification, digest: bytes) -> SessionRecord:
        granted = grant(self._settings, asked)
        now = time.time()
        return SessionRecord(
            key=key,
            resource_id=secrets.token_hex(8),
            profile=granted.profile,
            spec_digest=digest,
            env=dict(asked.env),
            labels={name: value for name, value in asked.labels.items() if value},
            created_at=now,
            used_at=now,
            idle_timeout_s=granted.idle_timeout_s,
            max_lifetime_s=granted.max_lifetime_s,
        )

    async def _create(self, live: LiveSession) -> None:
        """The life of a new session: intent, sandbox, then whatever comes."""
        try:
            # The row stands before the engine is touched, so that a crash leaves
            # nothing that nobody knows of.
            await self._table.insert(live.record)
            await fault_points.reach("create.inserted")
            await self._starts.first(live)
        except asyncio.CancelledError:
            await self._give_up(live, Draining())
            raise
        except Exception as error:  # noqa: BLE001 - handed on to everybody who waits
            await self._give_up(live, error)
            return
        self._metrics.session_create("OK")
        live.touch()
        if not live.created.done():
            live.created.set_result(None)
        record = live.record
        assert record.facts is not None
        _LOG.info(
            "session ready",
            session=live.session_id,
            resource=record.resource_id,
            profile=record.profile.name,
            **{f"{name}_s": seconds for name, seconds in record.facts.phases_s.items()},
        )
        await self._starts.life(live)

    async def _give_up(self, live: LiveSession, error: BaseException) -> None:
        if live.end_cause is not None:
            return  # its end removes it and has answered
        reason = getattr(error, "reason", "INTERNAL_ERROR")
        self._metrics.session_create(reason)
        detail = error.operator_text if isinstance(error, SandboxdError) else repr(error)
        _LOG.warning("session not made", session=live.session_id, reason=reason, detail=detail)
        try:
            await self._table.discard(live.record.key)
        finally:
            # After the row is gone: a repeat with the same id starts afresh.
            self._directory.drop(live)
            live.creation_failed(error)
