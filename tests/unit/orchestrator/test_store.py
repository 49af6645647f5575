"""The log in SQLite."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from orchestrator.errors import StoreError
from orchestrator.events import TurnClosed, UserSaid
from orchestrator.store import sqlite
from orchestrator.store.sqlite import SqliteLog


async def test_events_come_back_as_they_went_in(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "deep" / "log")
    assert await log.append("c", 0, [UserSaid(text="größer 🙂"), TurnClosed(number=1)]) == 2
    assert await log.append("c", 2, [TurnClosed(number=2)]) == 3
    await log.close()
    again = await SqliteLog.open(tmp_path / "deep" / "log")
    entries = await again.read("c")
    await again.close()
    assert [entry.seq for entry in entries] == [1, 2, 3]
    assert entries[0].event == UserSaid(text="größer 🙂")
    assert (tmp_path / "deep" / "log").stat().st_mode & 0o077 == 0


async def test_stale_writer_cannot_append(tmp_path: Path) -> None:
    first, second = [await SqliteLog.open(tmp_path / "log") for _ in range(2)]
    await first.append("c", 0, [UserSaid(text="one")])
    with pytest.raises(StoreError, match="somebody else"):
        await second.append("c", 0, [UserSaid(text="two")])
    assert len(await first.read("c")) == 1
    await first.close()
    await second.close()


async def test_two_runs_share_a_log(tmp_path: Path) -> None:
    logs = await asyncio.gather(*(SqliteLog.open(tmp_path / "log") for _ in range(4)))

    async def write(number: int, log: SqliteLog) -> None:
        for seq in range(20):
            await log.append(f"c{number}", seq, [TurnClosed(number=seq)])

    await asyncio.gather(*(write(number, log) for number, log in enumerate(logs)))
    for number, log in enumerate(logs):
        assert len(await log.read(f"c{number}")) == 20
        await log.close()


async def test_recorded_events_can_be_neither_changed_nor_deleted(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log")
    await log.append("c", 0, [UserSaid(text="one")])
    await log.close()
    database = sqlite3.connect(tmp_path / "log")
    for statement in ("UPDATE event SET body = '{}'", "DELETE FROM event"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            database.execute(statement)
    database.close()


@pytest.mark.parametrize("content", [b"this is not a database, and long enough to be read", None])
async def test_log_that_is_none_is_one_clear_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "log"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content * 50)
    with pytest.raises(StoreError, match="cannot open the log"):
        await SqliteLog.open(path)


async def test_log_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    await (await SqliteLog.open(tmp_path / "log")).close()
    database = sqlite3.connect(tmp_path / "log")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreError, match="format 99"):
        await SqliteLog.open(tmp_path / "log")


async def test_log_behind_a_dangling_link_is_its_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "log").symlink_to("there/real")
    umask = os.umask(0)
    try:
        log = await SqliteLog.open(tmp_path / "log")
    finally:
        os.umask(umask)
    await log.close()
    assert (tmp_path / "there/real").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("path", ["file/log", "circle"])
async def test_log_that_cannot_be_made_names_the_cause(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "circle").symlink_to("circle")
    cause = "File exists" if path == "file/log" else "unable to open"
    with pytest.raises(StoreError, match=f"cannot open the log .*{cause}"):
        await SqliteLog.open(tmp_path / path)


class _Busy:
    """A database that is busy. At first it says so soon, later only after it waited."""

    def __init__(self, code: int, times: int) -> None:
        self.code = code
        self.times = times
        self.now_s = 0.0
        self.timeout_ms = sqlite.BUSY_TIMEOUT_MS

    def execute(self, statement: str) -> None:
        if statement.startswith("PRAGMA busy_timeout = "):
            self.timeout_ms = int(statement.rpartition(" ")[2])
        elif self.times:
            self.times -= 1
            self.now_s += 1.0 if self.now_s < 20 else self.timeout_ms / 1000
            error = sqlite3.OperationalError("busy")
            error.sqlite_errorcode = self.code
            raise error

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY])
def test_busy_log_is_tried_again(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    busy = _Busy(code, times=1)
    monkeypatch.setattr(sqlite, "time", busy)
    sqlite._keep_a_write_ahead_log(busy)  # type: ignore[arg-type]
    assert busy.times == 0
    assert busy.timeout_ms == sqlite.BUSY_TIMEOUT_MS


def test_busy_log_is_given_up_within_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = _Busy(sqlite3.SQLITE_BUSY, times=1_000_000)
    monkeypatch.setattr(sqlite, "time", busy)
    with pytest.raises(sqlite3.OperationalError):
        sqlite._keep_a_write_ahead_log(busy)  # type: ignore[arg-type]
    assert busy.now_s <= sqlite.BUSY_TIMEOUT_MS / 1000 + sqlite.BUSY_RETRY_S
    assert busy.now_s >= sqlite.BUSY_TIMEOUT_MS / 1000
