"""The ledger: reserve, act, record (contract.md 2, security S16).

A call is reserved durably before its effect starts and its result is recorded
before anybody is answered. What a daemon's death cut off in between is the next one's to
ask the guest for, and UNKNOWN where that cannot tell: never a guess, never a silent second
run.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandbox_adapter.v1 import tool_pb2
from sandboxd.errors import LedgerFull
from sandboxd.sessions.records import CallPhase, CallRecord, ReservedCall, SessionKey
from sandboxd.sessions.store import Store

SEQUENCE_MAX: Final = 2**53
"""Beyond it no number of a guest is believed."""


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
    memo: Mapping[str, Any] | None = None
    """What it takes to word the guest's answer (`tools/base.py`, `Ask.memo`), with the bounds
    of the answer: `{"words": {...}, "reply_bytes_max": N, "timeout_s": S}`. None where no
    guest is asked."""


@dataclass(frozen=True)
class Begun:
    """When a call started, by the wall clock, and in which generation."""

    started_at: float
    generation: int


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

    async def open(self) -> None:
        """Counts what is there."""
        await self._store.run(self._count)

    async def reserved(self, key: SessionKey) -> list[ReservedCall]:
        """The session's calls that were reserved and not recorded, in the order of their start."""
        return await self._store.run(_reserved, key)

    async def find(self, key: SessionKey, call_id: str) -> CallRecord | None:
        """What is recorded under the id, or None: then nothing ran under it."""
        return await self._store.run(_find, key, call_id)

    async def begun(self, key: SessionKey, call_id: str) -> Begun | None:
        """The start of a call that is known, whatever came of it."""
        return await self._store.run(_begun, key, call_id)

    async def reserve(self, reservation: Reservation) -> int:
        """Makes the call known. Nothing may run before this has returned.

        Returns the call's number in its session, from 1. A guest that was told it shows a
        ledger that was set back (security S16).

        Raises `LedgerFull` at the tenant's bounds and `sqlite3.Error` where the
        database refuses; in both cases nothing may run.
        """
        return await self._store.run(self._reserve, reservation)

    async def record(
        self, reservation: Reservation, result: bytes, finished_at: float, *, restart_told: bool
    ) -> None:
        """Keeps the result; the first recorded result of a call wins.

        `restart_told` clears, in the same transaction, the session's note that a
        restart has not been told: the text that tells it is in this result.
        """
        await self._store.run(self._record, reservation, result, finished_at, restart_told)

    async def sequence(self, key: SessionKey) -> int:
        """The greatest number that a call of the session was given."""
        return await self._store.run(_sequence, key)

    async def set_back(self, key: SessionKey, seen: int) -> None:
        """A guest was given the number `seen`, which this ledger lacks: renews `ledger_id`.

        Numbers go on behind that one, so that the next daemon does not find the same again.
        """
        await self._store.run(_raise_sequence, key, min(seen, SEQUENCE_MAX))
        await self._store.renew_ledger_id()

    async def phases(self, key: SessionKey, call_ids: Sequence[str]) -> dict[str, CallPhase]:
        """What is known of each of these calls; those that it never saw are left out."""
        return await self._store.run(_phases, key, call_ids)

    async def expire(self, before: float) -> int:
        """Drops results from before that time and, beyond the byte bound, of reads. Counts them."""
        return await self._store.run(self._expire, before)

    async def forget(self, key: SessionKey) -> None:
        """Drops every call of a session that is gone."""
        await self._store.run(self._forget, key)

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

    def _reserve(self, connection: sqlite3.Connection, call: Reservation) -> int:
        usage = self._usage[call.key.tenant]
        if usage.result_bytes >= self._result_bytes_max:
            self._shrink(connection, call.key.tenant)
        if usage.rows >= self._rows_max or usage.result_bytes >= self._result_bytes_max:
            raise LedgerFull
        row = connection.execute(
            "UPDATE sessions SET call_sequence = call_sequence + 1 "
            "WHERE tenant = ? AND session_id = ? RETURNING call_sequence",
            call.key,
        ).fetchone()
        sequence = int(row[0]) if row is not None else 0
        connection.execute(
            "INSERT INTO calls (tenant, session_id, call_id, digest, tool, is_read, phase, "
            "generation, started_at, sequence, memo) "
            "VALUES (?, ?, ?, ?, ?, ?, 'reserved', ?, ?, ?, ?)",
            (
                *call.key,
                call.call_id,
                call.digest,
                call.tool,
                int(call.is_read),
                call.generation,
                call.started_at,
                sequence,
                None if call.memo is None else json.dumps(call.memo),
            ),
        )
        usage.rows += 1
        return sequence

    def _record(
        self,
        connection: sqlite3.Connection,
        call: Reservation,
        result: bytes,
        finished_at: float,
        restart_told: bool,
    ) -> None:
        cursor = connection.execute(
            # The memo is of use no more, and holds parts of the input.
            "UPDATE calls SET phase = 'finished', result = ?, finished_at = ?, memo = NULL "
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


def _sequence(connection: sqlite3.Connection, key: SessionKey) -> int:
    row = connection.execute(
        "SELECT call_sequence FROM sessions WHERE tenant = ? AND session_id = ?", key
    ).fetchone()
    return 0 if row is None else int(row[0])


def _raise_sequence(connection: sqlite3.Connection, key: SessionKey, least: int) -> None:
    connection.execute(
        "UPDATE sessions SET call_sequence = max(call_sequence, ?) "
        "WHERE tenant = ? AND session_id = ?",
        (least, *key),
    )


def _phases(
    connection: sqlite3.Connection, key: SessionKey, call_ids: Sequence[str]
) -> dict[str, CallPhase]:
    marks = ", ".join("?" * len(call_ids))
    rows = connection.execute(
        "SELECT call_id, phase FROM calls "
        f"WHERE tenant = ? AND session_id = ? AND call_id IN ({marks})",
        (*key, *call_ids),
    )
    return {call_id: CallPhase(phase) for call_id, phase in rows}


def _reserved(connection: sqlite3.Connection, key: SessionKey) -> list[ReservedCall]:
    rows = connection.execute(
        "SELECT call_id, digest, tool, is_read, generation, started_at, sequence, memo FROM calls "
        "WHERE tenant = ? AND session_id = ? AND phase = 'reserved' ORDER BY sequence",
        key,
    ).fetchall()
    return [
        ReservedCall(
            call_id=row[0],
            digest=row[1],
            tool=row[2],
            is_read=bool(row[3]),
            generation=row[4],
            started_at=row[5],
            sequence=row[6],
            memo=None if row[7] is None else json.loads(row[7]),
        )
        for row in rows
    ]


def _find(connection: sqlite3.Connection, key: SessionKey, call_id: str) -> CallRecord | None:
    row = connection.execute(
        "SELECT phase, digest, result FROM calls "
        "WHERE tenant = ? AND session_id = ? AND call_id = ?",
        (*key, call_id),
    ).fetchone()
    return None if row is None else CallRecord(CallPhase(row[0]), row[1], row[2])


def _begun(connection: sqlite3.Connection, key: SessionKey, call_id: str) -> Begun | None:
    row = connection.execute(
        "SELECT started_at, generation FROM calls "
        "WHERE tenant = ? AND session_id = ? AND call_id = ?",
        (*key, call_id),
    ).fetchone()
    return None if row is None else Begun(*row)


def parse(result: bytes) -> tool_pb2.ToolResult:
    """A recorded result as a message, marked as that of an earlier request."""
    message = tool_pb2.ToolResult.FromString(result)
    message.replayed = True
    return message
