"""The ledger: reserve, act, record (contract.md 2, security S16).

A call is reserved durably before its effect starts and its result is recorded
before anybody is answered. What a daemon's death cut off in between becomes
UNKNOWN when the next one starts: never a guess, never a silent second run.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass

from sandbox_adapter.v1 import tool_pb2
from sandboxd.errors import LedgerFull
from sandboxd.sessions import outcomes
from sandboxd.sessions.records import CallPhase, CallRecord, SessionKey
from sandboxd.sessions.store import Store


@dataclass(frozen=True)
class Reservation:
    """What is known of a call before it runs. `started_at` is wall clock."""

    key: SessionKey
    call_id: str
    digest: bytes
    tool: str
    is_read: bool
    generation: int
    started_at: float


@dataclass
class _Usage:
    rows: int = 0
    result_bytes: int = 0


class Ledger:
    """The record of calls. Bounds are per tenant and announced by `GetInfo`."""

    def __init__(self, store: Store, *, result_bytes_max: int, rows_max: int) -> None:
        self._store = store
        self._result_bytes_max = result_bytes_max
        self._rows_max = rows_max
        # Touched on the store's thread alone, so reserving costs no count of rows.
        self._usage: dict[str, _Usage] = defaultdict(_Usage)

    async def open(self, now: float) -> int:
        """Counts what is there and settles what was cut off. Returns how many became UNKNOWN."""
        return await self._store.run(self._open, now)

    async def find(self, key: SessionKey, call_id: str) -> CallRecord | None:
        """What is recorded under the id, or None: then nothing ran under it."""
        return await self._store.run(_find, key, call_id)

    async def reserve(self, reservation: Reservation) -> None:
        """Makes the call known. Nothing may run before this has returned.

        Raises `LedgerFull` at the tenant's bounds and `sqlite3.Error` where the
        database refuses; in both cases nothing may run.
        """
        await self._store.run(self._reserve, reservation)

    async def record(
        self, reservation: Reservation, result: bytes, finished_at: float, *, restart_told: bool
    ) -> None:
        """Keeps the result; the first recorded result of a call wins.

        `restart_told` clears, in the same transaction, the session's note that a
        restart has not been told: the text that tells it is in this result.
        """
        await self._store.run(self._record, reservation, result, finished_at, restart_told)

    async def expire(self, before: float) -> int:
        """Drops results from before that time and, beyond the byte bound, of reads. Counts them."""
        return await self._store.run(self._expire, before)

    async def forget(self, key: SessionKey) -> None:
        """Drops every call of a session that is gone."""
        await self._store.run(self._forget, key)

    def _open(self, connection: sqlite3.Connection, now: float) -> int:
        cut_off = connection.execute(
            "SELECT tenant, session_id, call_id, generation, started_at FROM calls "
            "WHERE phase = 'reserved'"
        ).fetchall()
        for tenant, session_id, call_id, generation, started_at in cut_off:
            result = outcomes.unknown(outcomes.WORKER_STOPPED)
            outcomes.stamp(result, generation, started_at, None)
            connection.execute(
                "UPDATE calls SET phase = 'finished', result = ?, finished_at = ? "
                "WHERE tenant = ? AND session_id = ? AND call_id = ?",
                (result.SerializeToString(), now, tenant, session_id, call_id),
            )
        self._count(connection)
        return len(cut_off)

    def _count(self, connection: sqlite3.Connection) -> None:
        self._usage.clear()
        for tenant, rows, size in connection.execute(
            "SELECT tenant, count(*), coalesce(sum(length(result)), 0) FROM calls GROUP BY tenant"
        ):
            self._usage[tenant] = _Usage(rows, size)

    def _forget(self, connection: sqlite3.Connection, key: SessionKey) -> None:
        rows, size = connection.execute(
            "SELECT count(*), coalesce(sum(length(result)), 0) FROM calls "
            "WHERE tenant = ? AND session_id = ?",
            key,
        ).fetchone()
        connection.execute("DELETE FROM calls WHERE tenant = ? AND session_id = ?", key)
        usage = self._usage[key.tenant]
        usage.rows -= rows
        usage.result_bytes -= size

    def _reserve(self, connection: sqlite3.Connection, call: Reservation) -> None:
        usage = self._usage[call.key.tenant]
        if usage.result_bytes >= self._result_bytes_max:
            self._shrink(connection, call.key.tenant)
        if usage.rows >= self._rows_max or usage.result_bytes >= self._result_bytes_max:
            raise LedgerFull
        connection.execute(
            "INSERT INTO calls (tenant, session_id, call_id, digest, tool, is_read, phase, "
            "generation, started_at) VALUES (?, ?, ?, ?, ?, ?, 'reserved', ?, ?)",
            (
                *call.key,
                call.call_id,
                call.digest,
                call.tool,
                int(call.is_read),
                call.generation,
                call.started_at,
            ),
        )
        usage.rows += 1

    def _record(
        self,
        connection: sqlite3.Connection,
        call: Reservation,
        result: bytes,
        finished_at: float,
        restart_told: bool,
    ) -> None:
        cursor = connection.execute(
            "UPDATE calls SET phase = 'finished', result = ?, finished_at = ? "
            "WHERE tenant = ? AND session_id = ? AND call_id = ? AND phase = 'reserved'",
            (result, finished_at, *call.key, call.call_id),
        )
        if restart_told:
            connection.execute(
                "UPDATE sessions SET restart_untold = 0 WHERE tenant = ? AND session_id = ?",
                call.key,
            )
        if cursor.rowcount:
            usage = self._usage[call.key.tenant]
            usage.result_bytes += len(result)
            if usage.result_bytes > self._result_bytes_max:
                self._shrink(connection, call.key.tenant)

    def _expire(self, connection: sqlite3.Connection, before: float) -> int:
        # Every sweep asks this, so it names all columns of `calls_by_age`: what is
        # not old is never looked at.
        expired = sum(
            connection.execute(
                "UPDATE calls SET phase = 'expired', result = NULL WHERE tenant = ? "
                "AND phase = 'finished' AND is_read IN (0, 1) AND finished_at < ?",
                (tenant, before),
            ).rowcount
            for tenant in self._usage
        )
        if expired:
            self._count(connection)
        return expired

    def _shrink(self, connection: sqlite3.Connection, tenant: str) -> None:
        """Drops the oldest results of reads until a tenth of the bound is free."""
        usage = self._usage[tenant]
        target = self._result_bytes_max - self._result_bytes_max // 10
        oldest = connection.execute(
            "SELECT session_id, call_id, length(result) FROM calls WHERE tenant = ? "
            "AND phase = 'finished' AND is_read = 1 ORDER BY finished_at",
            (tenant,),
        )
        dropped: list[tuple[str, str, str]] = []
        for session_id, call_id, size in oldest:
            if usage.result_bytes <= target:
                break
            usage.result_bytes -= size
            dropped.append((tenant, session_id, call_id))
        oldest.close()
        connection.executemany(
            "UPDATE calls SET phase = 'expired', result = NULL "
            "WHERE tenant = ? AND session_id = ? AND call_id = ?",
            dropped,
        )


def _find(connection: sqlite3.Connection, key: SessionKey, call_id: str) -> CallRecord | None:
    row = connection.execute(
        "SELECT phase, digest, result FROM calls "
        "WHERE tenant = ? AND session_id = ? AND call_id = ?",
        (*key, call_id),
    ).fetchone()
    return None if row is None else CallRecord(CallPhase(row[0]), row[1], row[2])


def parse(result: bytes) -> tool_pb2.ToolResult:
    """A recorded result as a message, marked as that of an earlier request."""
    message = tool_pb2.ToolResult.FromString(result)
    message.replayed = True
    return message
