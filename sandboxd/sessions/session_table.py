"""The rows of sessions: written before the engine is touched, read at start."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from typing import Any

from sandboxd.backends.base import SandboxFacts
from sandboxd.config import ProfileSettings
from sandboxd.sessions.records import SessionKey, SessionRecord, State
from sandboxd.sessions.store import Store

_COLUMNS = (
    "tenant, session_id, resource_id, state, reason, message, generation, epoch, profile, "
    "spec_digest, env, labels, facts, secret_digest, created_at, used_at, idle_timeout_s, "
    "max_lifetime_s, restarts, restart_untold, deleted_at"
)
_NAMES = [name.strip() for name in _COLUMNS.split(",")]
_LIFE = (
    "state",
    "reason",
    "message",
    "generation",
    "facts",
    "secret_digest",
    "restarts",
    "restart_untold",
)
_TERMS = ("epoch", "labels", "used_at", "idle_timeout_s", "max_lifetime_s")


class SessionTable:
    """The sessions of this worker, by tenant and id."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def insert(self, record: SessionRecord) -> None:
        """Adds a new session and gives it its number."""
        record.number = await self._store.run(_insert, _row(record))

    async def save_life(self, record: SessionRecord) -> None:
        """Writes what the session's own life changes, unless it was buried meanwhile."""
        await self._store.run(_update, _LIFE, _row(record))

    async def save_terms(self, record: SessionRecord) -> None:
        """Writes what clients change, unless the session was buried meanwhile.

        Never the state: a client may come between two of the life's own steps, when
        the row is ahead of the record or behind it on purpose.
        """
        await self._store.run(_update, _TERMS, _row(record))

    async def save_use(self, uses: list[tuple[SessionKey, float]]) -> None:
        """Writes when sessions were used last."""
        await self._store.run(_save_use, uses)

    async def discard(self, key: SessionKey) -> None:
        """Forgets a session whose creation failed: its id can be used again."""
        await self._store.run(_discard, key)

    async def bury(self, record: SessionRecord) -> None:
        """Makes the row a tombstone: the state and the id stay, what a client gave goes."""
        await self._store.run(_bury, record)

    async def mark_removed(self, key: SessionKey) -> None:
        """Notes that nothing of a deleted session exists any more, and erases its traces."""
        await self._store.run(_mark_removed, key)
        await self._store.fold_log()

    async def purge(self, before: float) -> int:
        """Forgets tombstones from before that time. Returns how many."""
        return await self._store.run(_purge, before)

    async def tombstone(self, key: SessionKey) -> bool:
        """Whether the id belonged to a session that is deleted."""
        return await self._store.run(_tombstone, key)

    async def load(self) -> list[SessionRecord]:
        """Everything that is not known to be gone, deleted but unremoved sessions included."""
        return await self._store.run(_load)


def _row(record: SessionRecord) -> dict[str, Any]:
    facts = None if record.facts is None else dataclasses.asdict(record.facts)
    return {
        "tenant": record.key.tenant,
        "session_id": record.key.session_id,
        "resource_id": record.resource_id,
        "state": record.state.value,
        "reason": record.reason,
        "message": record.message,
        "generation": record.generation,
        # Text: SQLite's integers end at 2^63, an epoch at 2^64.
        "epoch": None if record.epoch is None else str(record.epoch),
        "profile": record.profile.model_dump_json(),
        "spec_digest": record.spec_digest,
        "env": json.dumps(record.env),
        "labels": json.dumps(record.labels),
        "facts": None if facts is None else json.dumps(facts),
        "secret_digest": record.secret_digest,
        "created_at": record.created_at,
        "used_at": record.used_at,
        "idle_timeout_s": record.idle_timeout_s,
        "max_lifetime_s": record.max_lifetime_s,
        "restarts": json.dumps(record.restarts),
        "restart_untold": int(record.restart_untold),
        "deleted_at": record.deleted_at,
    }


def _record(row: tuple[Any, ...]) -> SessionRecord:
    number, values = row[0], dict(zip(_NAMES, row[1:], strict=True))
    facts = values["facts"]
    return SessionRecord(
        key=SessionKey(values["tenant"], values["session_id"]),
        resource_id=values["resource_id"],
        profile=ProfileSettings.model_validate_json(values["profile"]),
        spec_digest=values["spec_digest"],
        env=json.loads(values["env"]),
        labels=json.loads(values["labels"]),
        created_at=values["created_at"],
        used_at=values["used_at"],
        idle_timeout_s=values["idle_timeout_s"],
        max_lifetime_s=values["max_lifetime_s"],
        number=number,
        state=State(values["state"]),
        reason=values["reason"],
        message=values["message"],
        generation=values["generation"],
        epoch=None if values["epoch"] is None else int(values["epoch"]),
        facts=None if facts is None else SandboxFacts(**json.loads(facts)),
        secret_digest=values["secret_digest"],
        restarts=json.loads(values["restarts"]),
        restart_untold=bool(values["restart_untold"]),
        deleted_at=values["deleted_at"],
    )


def _insert(connection: sqlite3.Connection, row: dict[str, Any]) -> int:
    marks = ", ".join(f":{name}" for name in _NAMES)
    cursor = connection.execute(f"INSERT INTO sessions ({_COLUMNS}) VALUES ({marks})", row)
    number = cursor.lastrowid
    assert number is not None
    return number


def _update(connection: sqlite3.Connection, columns: tuple[str, ...], row: dict[str, Any]) -> None:
    sets = ", ".join(f"{name} = :{name}" for name in columns)
    # A tombstone stays one: a save that was on its way when the session ended is late.
    connection.execute(
        f"UPDATE sessions SET {sets} WHERE tenant = :tenant AND session_id = :session_id "
        "AND deleted_at IS NULL",
        row,
    )


def _save_use(connection: sqlite3.Connection, uses: list[tuple[SessionKey, float]]) -> None:
    connection.executemany(
        "UPDATE sessions SET used_at = max(used_at, ?) WHERE tenant = ? AND session_id = ?",
        [(at, *key) for key, at in uses],
    )


def _discard(connection: sqlite3.Connection, key: SessionKey) -> None:
    connection.execute("DELETE FROM sessions WHERE tenant = ? AND session_id = ?", key)


def _bury(connection: sqlite3.Connection, record: SessionRecord) -> None:
    connection.execute(
        "UPDATE sessions SET state = ?, reason = ?, message = ?, deleted_at = ?, epoch = ?, "
        "env = '{}', labels = '{}', facts = NULL, secret_digest = '' "
        "WHERE tenant = ? AND session_id = ?",
        (
            record.state.value,
            record.reason,
            record.message,
            record.deleted_at,
            None if record.epoch is None else str(record.epoch),
            *record.key,
        ),
    )


def _mark_removed(connection: sqlite3.Connection, key: SessionKey) -> None:
    connection.execute("UPDATE sessions SET removed = 1 WHERE tenant = ? AND session_id = ?", key)


def _purge(connection: sqlite3.Connection, before: float) -> int:
    cursor = connection.execute(
        "DELETE FROM sessions WHERE state = 'DELETED' AND removed = 1 AND deleted_at < ?", (before,)
    )
    return cursor.rowcount


def _tombstone(connection: sqlite3.Connection, key: SessionKey) -> bool:
    row = connection.execute(
        "SELECT 1 FROM sessions WHERE tenant = ? AND session_id = ? AND state = 'DELETED'", key
    ).fetchone()
    return row is not None


def _load(connection: sqlite3.Connection) -> list[SessionRecord]:
    rows = connection.execute(
        f"SELECT number, {_COLUMNS} FROM sessions WHERE removed = 0 ORDER BY number"
    ).fetchall()
    return [_record(row) for row in rows]
