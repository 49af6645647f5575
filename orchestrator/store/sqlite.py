"""The log in SQLite: one file, one thread, every append durable when it returns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from orchestrator.errors import StoreError
from orchestrator.events import EVENT, Event
from orchestrator.store.base import Entry

FORMAT_VERSION: Final = 1
BUSY_TIMEOUT_MS: Final = 30_000
BUSY_RETRY_S: Final = 0.01

# The triggers make "append-only" a property of the file, not of this program.
_SCHEMA: Final = """
CREATE TABLE conversation (
    conv_id TEXT PRIMARY KEY,
    head_seq INTEGER NOT NULL,
    created_at TEXT NOT NULL
) STRICT;
CREATE TABLE event (
    conv_id TEXT NOT NULL REFERENCES conversation (conv_id),
    seq INTEGER NOT NULL,
    type TEXT NOT NULL,
    body TEXT NOT NULL,
    at TEXT NOT NULL,
    PRIMARY KEY (conv_id, seq)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER event_no_update BEFORE UPDATE ON event
BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER event_no_delete BEFORE DELETE ON event
BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END;
"""

_T = TypeVar("_T")


class SqliteLog:
    """`Log` in a file that several runs may share."""

    def __init__(self, executor: ThreadPoolExecutor, database: sqlite3.Connection) -> None:
        self._executor = executor
        self._database = database
        self._closed = False

    @classmethod
    async def open(cls, path: Path) -> SqliteLog:
        """Opens or makes the file, readable by its owner alone."""
        # One thread owns the connection: SQLite work never blocks the event loop,
        # and appends happen in the order in which they were asked for.
        executor = ThreadPoolExecutor(1, thread_name_prefix="log")
        loop = asyncio.get_running_loop()
        try:
            database = await loop.run_in_executor(executor, _connect, path)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(executor, database)

    async def append(self, conversation: str, after_seq: int, events: Sequence[Event]) -> int:
        rows: list[tuple[str, str]] = [(event.type, event.model_dump_json()) for event in events]
        return await self._run(lambda: self._append(conversation, after_seq, rows))

    async def read(self, conversation: str) -> list[Entry]:
        rows = await self._run(lambda: self._select(conversation))
        try:
            return [
                Entry(seq, EVENT.validate_json(body), datetime.fromisoformat(at))
                for seq, body, at in rows
            ]
        except ValidationError as error:
            raise StoreError(f"the log holds an event that cannot be read: {error}") from None

    async def close(self) -> None:
        if self._closed:
            return
        await self._run(self._database.close)
        self._closed = True
        self._executor.shutdown(wait=False)

    async def _run(self, work: Callable[[], _T]) -> _T:
        if self._closed:
            raise StoreError("the log is closed")
        try:
            # Shielded: a cancelled caller must not leave a transaction half asked for.
            return await asyncio.shield(
                asyncio.get_running_loop().run_in_executor(self._executor, work)
            )
        except sqlite3.Error as error:
            raise StoreError(f"the log cannot be written or read: {error}") from None

    def _append(self, conversation: str, after_seq: int, rows: list[tuple[str, str]]) -> int:
        at = datetime.now(UTC).isoformat()
        head = after_seq + len(rows)
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            if after_seq == 0:
                database.execute(
                    "INSERT OR IGNORE INTO conversation (conv_id, head_seq, created_at) "
                    "VALUES (?, 0, ?)",
                    (conversation, at),
                )
            moved = database.execute(
                "UPDATE conversation SET head_seq = ? WHERE conv_id = ? AND head_seq = ?",
                (head, conversation, after_seq),
            )
            if moved.rowcount != 1:
                raise StoreError(
                    f"conversation `{conversation}` does not end at event {after_seq}: "
                    "somebody else writes it"
                )
            database.executemany(
                "INSERT INTO event (conv_id, seq, type, body, at) VALUES (?, ?, ?, ?, ?)",
                [
                    (conversation, after_seq + number, kind, body, at)
                    for number, (kind, body) in enumerate(rows, 1)
                ],
            )
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise
        return head

    def _select(self, conversation: str) -> list[tuple[int, str, str]]:
        found = self._database.execute(
            "SELECT seq, body, at FROM event WHERE conv_id = ? ORDER BY seq", (conversation,)
        )
        return found.fetchall()


def _connect(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Where a link leads: SQLite follows it, and would make the file by the umask alone.
        file = os.path.realpath(path)
        # Where it exists it is not opened again: closing a second descriptor would drop the
        # locks that other connections of this process hold.
        if not os.path.lexists(file):
            _make_file(file)
    except OSError as error:
        raise StoreError(f"cannot open the log `{path}`: {error.strerror}") from None
    database = None
    try:
        database = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)
        _prepare(database, path)
    except BaseException as error:
        if database is not None:
            database.close()
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"cannot open the log `{path}`: {error}") from None
        raise
    return database


def _make_file(file: str) -> None:
    # Another run may have made it in the meantime.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    _keep_a_write_ahead_log(database)
    # FULL: an accepted event outlives a power cut, not only the death of a process.
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA foreign_keys = ON")
    # Two runs may make the file at the same moment: the version is read under the lock.
    database.execute("BEGIN IMMEDIATE")
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _statements(_SCHEMA):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        elif version != FORMAT_VERSION:
            raise StoreError(
                f"the log `{path}` has format {version}; this version reads {FORMAT_VERSION}"
            )
        database.execute("COMMIT")
    except BaseException:
        database.execute("ROLLBACK")
        raise


def _keep_a_write_ahead_log(database: sqlite3.Connection) -> None:
    # Of several that make a file at the same moment, SQLite lets only one change the mode
    # and refuses the others at once: its own waiting does not cover that step.
    # One deadline for both kinds of waiting.
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        left_ms = max(0, round((deadline - time.monotonic()) * 1000))
        database.execute(f"PRAGMA busy_timeout = {left_ms}")
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # The code's upper bytes say more closely what is busy.
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() >= deadline:
                raise
            time.sleep(BUSY_RETRY_S)
        else:
            database.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            return


def _statements(script: str) -> list[str]:
    found: list[str] = []
    pending = ""
    for line in script.splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            found.append(pending)
            pending = ""
    return found
