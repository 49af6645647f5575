"""The rows of processes: which ids were used for what, and how they ended.

A row stands before its process is started, as a call's does, so that a start which a
crash cut off is never done twice; it goes with its session.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from sandboxd import limits
from sandboxd.errors import CallsExhausted
from sandboxd.sessions.records import SessionKey
from sandboxd.sessions.store import Store

_COLUMNS = "process_id, digest, argv, generation, started_at, pid, ended_at, exit_code, signal"


@dataclass(frozen=True)
class ProcessRecord:
    """A process as the store knows it. Times are seconds of the wall clock."""

    process_id: str
    digest: bytes
    argv: tuple[str, ...]
    generation: int
    """The session's generation that it was started in."""
    started_at: float
    pid: int = 0
    """0 while the guest has not said that it started."""
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None


class ProcessTable:
    """The processes of all sessions, by session and id."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, key: SessionKey, process_id: str) -> ProcessRecord | None:
        return await self._store.run(_find, key, process_id)

    async def insert(self, key: SessionKey, record: ProcessRecord) -> None:
        """Makes the process known. Nothing may be started before this has returned.

        Raises `CallsExhausted` where the session has as many rows as it may have.
        """
        await self._store.run(_insert, key, record)

    async def started(self, key: SessionKey, process_id: str, pid: int) -> None:
        """Notes that it runs, or ran: it must never be started again."""
        await self._store.run(_started, key, process_id, pid)

    async def ended(
        self,
        key: SessionKey,
        process_id: str,
        ended_at: float,
        exit_code: int | None,
        signal: int | None,
    ) -> None:
        """Notes how it ended; the first word counts."""
        await self._store.run(_ended, key, process_id, ended_at, exit_code, signal)

    async def remove(self, key: SessionKey, process_id: str) -> None:
        """Forgets a process that did not start: its id can be used again."""
        await self._store.run(_remove, key, process_id)

    async def all(self, key: SessionKey) -> list[ProcessRecord]:
        """The session's processes, oldest first."""
        return await self._store.run(_all, key)

    async def forget(self, key: SessionKey) -> None:
        """Drops every process of a session that is gone."""
        await self._store.run(_forget, key)


def _find(connection: sqlite3.Connection, key: SessionKey, process_id: str) -> ProcessRecord | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM processes WHERE tenant = ? AND session_id = ? AND process_id = ?",
        (*key, process_id),
    ).fetchone()
    return None if row is None else _record(row)


def _insert(connection: sqlite3.Connection, key: SessionKey, record: ProcessRecord) -> None:
    (count,) = connection.execute(
        "SELECT count(*) FROM processes WHERE tenant = ? AND session_id = ?", key
    ).fetchone()
    if count >= limits.PROCESSES_RECORDED_MAX:
        raise CallsExhausted("recorded processes", limits.PROCESSES_RECORDED_MAX)
    connection.execute(
        f"INSERT INTO processes (tenant, session_id, {_COLUMNS}) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, 0, NULL, NULL, NULL)",
        (
            *key,
            record.process_id,
            record.digest,
            json.dumps(record.argv),
            record.generation,
            record.started_at,
        ),
    )


def _started(connection: sqlite3.Connection, key: SessionKey, process_id: str, pid: int) -> None:
    connection.execute(
        "UPDATE processes SET pid = ? WHERE tenant = ? AND session_id = ? AND process_id = ?",
        (pid, *key, process_id),
    )


def _ended(
    connection: sqlite3.Connection,
    key: SessionKey,
    process_id: str,
    ended_at: float,
    exit_code: int | None,
    signal: int | None,
) -> None:
    connection.execute(
        "UPDATE processes SET ended_at = ?, exit_code = ?, signal = ? WHERE tenant = ? "
        "AND session_id = ? AND process_id = ? AND ended_at IS NULL",
        (ended_at, exit_code, signal, *key, process_id),
    )


def _remove(connection: sqlite3.Connection, key: SessionKey, process_id: str) -> None:
    connection.execute(
        "DELETE FROM processes WHERE tenant = ? AND session_id = ? AND process_id = ?",
        (*key, process_id),
    )


def _all(connection: sqlite3.Connection, key: SessionKey) -> list[ProcessRecord]:
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM processes WHERE tenant = ? AND session_id = ? "
        "ORDER BY started_at, process_id",
        key,
    ).fetchall()
    return [_record(row) for row in rows]


def _forget(connection: sqlite3.Connection, key: SessionKey) -> None:
    connection.execute("DELETE FROM processes WHERE tenant = ? AND session_id = ?", key)


def _record(row: tuple[object, ...]) -> ProcessRecord:
    process_id, digest, argv, *rest = row
    return ProcessRecord(process_id, digest, tuple(json.loads(str(argv))), *rest)  # type: ignore[arg-type]
