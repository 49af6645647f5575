"""Epochs: one that is not durable yet lets nobody act (contract.md 2)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import Any

import pytest
from grpc import aio

from sandboxd.sessions.records import SessionRecord
from tests.unit.worker import Worker, reason_of, until


async def saved(worker: Worker) -> str | None:
    def row(connection: sqlite3.Connection) -> str | None:
        found: str | None = connection.execute("SELECT epoch FROM sessions").fetchone()[0]
        return found

    return await worker.store.run(row)


async def test_epoch_that_could_not_be_saved_is_saved_by_the_repeat(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the repeat found it in memory and acted, and the next daemon knew nothing of it."""
    await worker.create()
    table: Any = worker.parts.directory._table

    async def fails(record: SessionRecord) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as broken:
        broken.setattr(table, "save_terms", fails)
        for call_id in ("c1", "c2"):
            with pytest.raises(aio.AioRpcError):
                await worker.call(call_id, epoch=5)
    assert worker.guest.started == []
    assert await saved(worker) is None
    await worker.call("c1", epoch=5)
    assert worker.guest.started == ["c1"]
    assert await saved(worker) == "5"
    with pytest.raises(aio.AioRpcError) as stale:
        await worker.call("c3", epoch=4)
    assert reason_of(stale.value) == "EPOCH_STALE"


async def test_who_brings_the_same_epoch_waits_until_it_is_saved(worker: Worker) -> None:
    await worker.create()
    (live,) = worker.parts.directory.all()
    directory = worker.parts.directory
    free = threading.Event()
    blocking = asyncio.ensure_future(worker.store.run(lambda _: free.wait(10.0)))
    try:
        first = asyncio.create_task(directory.announce(live, 7))
        await until(lambda: live.record.epoch == 7)
        second = asyncio.create_task(directory.announce(live, 7))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not second.done()
    finally:
        free.set()
    await asyncio.gather(blocking, first, second)
    assert await saved(worker) == "7"


async def test_epoch_that_is_saved_is_not_written_again(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await worker.create()
    table: Any = worker.parts.directory._table
    save, saves = table.save_terms, []

    async def counts(record: SessionRecord) -> None:
        saves.append(record.epoch)
        await save(record)

    monkeypatch.setattr(table, "save_terms", counts)
    for number in range(3):
        await worker.call(f"c{number}", epoch=5)
    await worker.call("c", epoch=6)
    assert saves == [5, 6]
