"""The log in SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from orchestrator.errors import StoreError
from orchestrator.events import TurnClosed, UserSaid
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
