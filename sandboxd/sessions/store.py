"""The state folder and its database: one SQLite file, one thread that touches it.

`synchronous=NORMAL` in WAL mode is durable against the death of any process, not
against that of the host; hence `ledger_id` is renewed after an unclean boot of
the host, where the database is another file than before, and where a guest has seen
more calls than it holds (contract.md 2, security S16). The folder is locked by a file that
lies directly in it, which is mounted into no sandbox.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import sqlite3
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from sandboxd.errors import EXIT_STATE, StartupError

_P = ParamSpec("_P")
_T = TypeVar("_T")

FORMAT_VERSION = 2
BUSY_TIMEOUT_MS = 5_000
_DATABASE = "state.db"
_HOST_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_SCHEMA = """
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE sessions (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant          TEXT NOT NULL,
    session_id      TEXT NOT NULL,
    resource_id     TEXT NOT NULL UNIQUE,
    state           TEXT NOT NULL,
    reason          TEXT NOT NULL,
    message         TEXT NOT NULL,
    generation      INTEGER NOT NULL,
    epoch           TEXT,
    profile         TEXT NOT NULL,
    spec_digest     BLOB NOT NULL,
    env             TEXT NOT NULL,
    labels          TEXT NOT NULL,
    facts           TEXT,
    secret_digest   TEXT NOT NULL,
    created_at      REAL NOT NULL,
    used_at         REAL NOT NULL,
    idle_timeout_s  REAL NOT NULL,
    max_lifetime_s  REAL NOT NULL,
    restarts        TEXT NOT NULL,
    restart_untold  INTEGER NOT NULL,
    deleted_at      REAL,
    removed         INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, session_id)
);

CREATE TABLE calls (
    tenant       TEXT NOT NULL,
    session_id   TEXT NOT NULL,
    call_id      TEXT NOT NULL,
    digest       BLOB NOT NULL,
    tool         TEXT NOT NULL,
    is_read      INTEGER NOT NULL,
    phase        TEXT NOT NULL,
    generation   INTEGER NOT NULL,
    started_at   REAL NOT NULL,
    finished_at  REAL,
    result       BLOB,
    PRIMARY KEY (tenant, session_id, call_id),
    FOREIGN KEY (tenant, session_id) REFERENCES sessions (tenant, session_id) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE INDEX calls_by_age ON calls (tenant, phase, is_read, finished_at);
"""

_STEPS: dict[int, str] = {
    # What a daemon needs to go on with the calls of the one before it.
    2: """
ALTER TABLE sessions ADD COLUMN call_sequence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN memo TEXT;

CREATE TABLE processes (
    tenant       TEXT NOT NULL,
    session_id   TEXT NOT NULL,
    process_id   TEXT NOT NULL,
    digest       BLOB NOT NULL,
    argv         TEXT NOT NULL,
    generation   INTEGER NOT NULL,
    started_at   REAL NOT NULL,
    pid          INTEGER NOT NULL,
    ended_at     REAL,
    exit_code    INTEGER,
    signal       INTEGER,
    PRIMARY KEY (tenant, session_id, process_id),
    FOREIGN KEY (tenant, session_id) REFERENCES sessions (tenant, session_id) ON DELETE CASCADE
) WITHOUT ROWID;
""",
}
"""From the format before to this one. The first format is `_SCHEMA`."""


class Store:
    """Owns the state folder while it lives.

    `run` executes a function with the connection on the one thread that has it,
    inside a transaction that is committed before `run` returns and rolled back
    where the function raises.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._connection: sqlite3.Connection | None = None
        self._lock_fd = -1
        self.ledger_id = ""
        self.digest_key = b""

    async def open(self) -> None:
        """Makes or opens the state folder. Raises `StartupError` (EXIT_STATE)."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        except BaseException:
            self._thread.shutdown(wait=True)
            self._unlock()
            raise

    async def run(
        self,
        action: Callable[Concatenate[sqlite3.Connection, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Runs `action(connection, ...)` in one transaction, durable when this returns.

        A caller that is cancelled leaves the action running to its end. Raises
        `sqlite3.Error` where the database refuses; then nothing was changed.
        """

        def transaction() -> _T:
            connection = self._connection
            if connection is None:
                raise sqlite3.ProgrammingError("the store is closed")
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                return action(connection, *args, **kwargs)

        # Shielded: a cancelled wait would take an action that is still queued with it,
        # and memory, which was changed already, would be ahead of the disk for good.
        return await asyncio.shield(
            asyncio.get_running_loop().run_in_executor(self._thread, transaction)
        )

    async def renew_ledger_id(self) -> None:
        """The history is not what was: nothing that it lacks may be taken for proof.

        Durable when this returns; from then on `ledger_id` is another.
        """

        def renew(connection: sqlite3.Connection) -> str:
            made = _new_ledger_id()
            connection.execute("UPDATE meta SET value = ? WHERE name = 'ledger_id'", (made,))
            return made

        self.ledger_id = await self.run(renew)

    async def fold_log(self) -> None:
        """Folds the write-ahead log into the database, where deleted rows are overwritten.

        What the end of a session erased would stay readable in the log otherwise.
        Raises `sqlite3.Error`.
        """

        def fold() -> None:
            if self._connection is not None:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, fold))

    async def close(self) -> None:
        """Flushes everything to the disk, marks the end as clean, gives the folder up."""
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=True)
        self._unlock()

    def _open(self) -> None:
        folder = self._folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.chmod(folder, 0o700)
            self._take_lock(folder / "sandboxd.lock")
            # The database's side files take the mode of the database itself.
            path = folder / _DATABASE
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.chmod(path, 0o600)
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=True)
            self._connection = connection
            self._prepare(connection)
        except OSError as error:
            raise StartupError(
                f"cannot use the state folder `{folder}`: {error.strerror or error}", EXIT_STATE
            ) from None
        except sqlite3.Error as error:
            raise StartupError(
                f"cannot use the database in `{folder}`: {error}", EXIT_STATE
            ) from None

    def _take_lock(self, path: Path) -> None:
        self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupError(
                f"the state folder `{self._folder}` is in use by another daemon", EXIT_STATE
            ) from None

    def _unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # environments may hold secrets
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > FORMAT_VERSION:
            raise StartupError(
                f"the state in `{self._folder}` has format {found}; this version reads up to "
                f"{FORMAT_VERSION}",
                EXIT_STATE,
            )
        for version in range(found + 1, FORMAT_VERSION + 1):
            step = _SCHEMA if version == 1 else _STEPS[version]
            connection.executescript(f"BEGIN; {step} PRAGMA user_version = {version}; COMMIT;")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            self._load_identity(connection)

    def _load_identity(self, connection: sqlite3.Connection) -> None:
        meta = dict(connection.execute("SELECT name, value FROM meta"))
        key = meta.get("digest_key")
        self.digest_key = key if isinstance(key, bytes) else secrets.token_bytes(32)
        host_boot_id = _host_boot_id()
        # A commit that the host's end may have undone must not be claimed: the
        # history counts as intact only in the same boot, or after a clean end.
        intact = meta.get("host_boot_id") == host_boot_id or meta.get("clean") == "1"
        # Another file than the one that was written last: a copy of some earlier day.
        file_id = self._file_id()
        intact = intact and meta.get("file_id") in (None, file_id)
        kept = meta.get("ledger_id")
        self.ledger_id = kept if intact and isinstance(kept, str) else _new_ledger_id()
        connection.executemany(
            "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)",
            [
                ("digest_key", self.digest_key),
                ("ledger_id", self.ledger_id),
                ("host_boot_id", host_boot_id),
                ("file_id", file_id),
                ("clean", "0"),
            ],
        )

    def _file_id(self) -> str:
        status = os.stat(self._folder / _DATABASE)
        return f"{status.st_dev}:{status.st_ino}"

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            # Only what is on the disk may be called clean: first everything
            # before, then the mark, each with a real sync.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('clean', '1')")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()


def _new_ledger_id() -> str:
    return f"l{uuid.uuid4().hex}"


def _host_boot_id() -> str:
    try:
        return _HOST_BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        # Without the kernel's word every start counts as a new boot.
        return uuid.uuid4().hex
