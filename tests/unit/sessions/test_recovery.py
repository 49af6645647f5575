"""What goes wrong around sessions: the engine, a fault, somebody who goes at a bad moment."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc import aio

from sandbox_adapter.v1 import error_pb2, session_pb2, tool_pb2
from sandboxd.backends.base import Reply
from sandboxd.backends.engine import EngineRefused
from sandboxd.backends.fake import FakeBackend, FakeRequest
from sandboxd.errors import EngineDown, SandboxdError, SandboxLost
from sandboxd.sessions import starts, sweeper
from sandboxd.sessions.store import Store
from tests.unit.worker import Worker, retry_s, running, until

READY = session_pb2.SESSION_STATE_READY
RESTARTING = session_pb2.SESSION_STATE_RESTARTING


async def test_sweep_goes_on_after_any_failure_of_a_step(tmp_path: Path) -> None:
    """Seen: one refusal of the engine's listing ended the sweeper, and expiry with it."""
    async with running(tmp_path) as worker:
        worker.backend.fail_next("owned", EngineRefused(500, "busy"), RuntimeError("a fault"))
        await worker.create(idle_timeout=Duration(nanos=1_000_000))
        worker.parts.sweeper._interval_s = 0.001
        sweeping = asyncio.create_task(worker.parts.sweeper.run())
        try:
            await until(lambda: len(worker.parts.directory) == 0)
            await until(lambda: [step for step, _ in worker.backend.calls].count("owned") > 3)
        finally:
            sweeping.cancel()


async def test_restart_is_repeated_where_the_old_sandbox_is_hard_to_end(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: a release that failed ended the session's life; it was RESTARTING for ever."""
    monkeypatch.setattr(starts, "RESTART_PAUSE_S", 0.01)
    await worker.create()
    worker.backend.fail_next("release", SandboxdError("busy"), SandboxdError("busy"))
    worker.sandbox().lose("ENDED")

    async def restarted() -> bool:
        found = await worker.get()
        return found.state == READY and found.generation == 2

    await until(restarted)


async def test_fault_in_a_restart_fails_the_session(worker: Worker) -> None:
    await worker.create()
    worker.backend.fail_next("create", RuntimeError("a fault of the program"))
    worker.sandbox().lose("ENDED")
    await worker.state_is(session_pb2.SESSION_STATE_FAILED)
    assert (await worker.get()).reason == "INTERNAL_ERROR"
    assert worker.backend.running == {}
    await worker.delete()


async def test_fault_in_an_adoption_keeps_nobody_waiting(tmp_path: Path) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
        containers = dict(worker.backend.containers)
    backend = FakeBackend(tmp_path, containers)
    backend.fail_next("adopt", RuntimeError("a fault of the program"))
    async with running(tmp_path, backend) as worker, asyncio.timeout(5):
        assert (await worker.create()).state == session_pb2.SESSION_STATE_FAILED
        await worker.delete()


async def test_guest_that_breaks_the_protocol_at_its_adoption_fails_its_session(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
        containers = dict(worker.backend.containers)
    backend = FakeBackend(tmp_path, containers)

    async def broken(request: FakeRequest) -> Reply:
        raise SandboxLost("PROTOCOL", "neither ok nor error")

    worker = Worker(tmp_path, backend)
    backend.on_request = broken
    await worker.start()
    try:
        await worker.state_is(session_pb2.SESSION_STATE_FAILED)
        assert (await worker.get()).reason == "PROTOCOL"
        assert backend.containers == {}
    finally:
        await worker.stop()


async def test_update_during_an_adoption_leaves_the_row_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the next daemon read RESTARTING and started a live sandbox anew, untold."""
    monkeypatch.setattr(sweeper, "ADOPT_S_MAX", 0.01)
    async with running(tmp_path) as worker:
        await worker.create()
        containers = dict(worker.backend.containers)
    backend = FakeBackend(tmp_path, dict(containers))
    backend.hold("adopt")
    async with running(tmp_path, backend) as worker:
        assert (await worker.get()).state == RESTARTING
        await worker.sessions.UpdateSession(
            session_pb2.UpdateSessionRequest(session_id="s1", epoch=9, labels={"a": "1"})
        )
    async with running(tmp_path, FakeBackend(tmp_path, dict(containers))) as worker:
        await worker.state_is(READY)
        assert [step for step, _ in worker.backend.calls if step in ("create", "release")] == []
        session = await worker.get()
        assert (session.generation, session.epoch, dict(session.labels)) == (1, 9, {"a": "1"})


async def test_epoch_announced_while_a_session_becomes_ready_leaves_the_row_ready(
    worker: Worker,
) -> None:
    """Seen: CREATING was written over READY, and the next daemon dropped the session."""
    gate = worker.backend.hold("create")
    creating = asyncio.ensure_future(worker.create())
    await until(worker.parts.directory.all)
    (live,) = worker.parts.directory.all()
    free = threading.Event()
    blocking = asyncio.ensure_future(worker.store.run(lambda _: free.wait(10.0)))
    try:
        gate.set()
        await until(lambda: live.record.facts is not None)
        calling = worker.call("c1", epoch=5)
        await until(lambda: live.record.epoch == 5)
    finally:
        free.set()
    await asyncio.gather(blocking, creating, calling)

    def row(connection: sqlite3.Connection) -> tuple[str, str]:
        found: tuple[str, str] = connection.execute("SELECT state, epoch FROM sessions").fetchone()
        return found

    assert await worker.store.run(row) == ("READY", "5")


async def test_calls_of_a_session_that_expired_meanwhile_end_with_it(tmp_path: Path) -> None:
    """Seen: UNKNOWN, although it is known that the session's end is theirs."""
    worker = Worker(tmp_path, FakeBackend(tmp_path))
    await worker.start()
    await worker.create(max_lifetime=Duration(nanos=300_000_000))
    worker.guest.gate.clear()
    cut = asyncio.ensure_future(worker.call("c1"))
    await until(lambda: worker.guest.started == ["c1"])
    (live,) = worker.parts.directory.all()
    record = live.record
    await worker.stop()
    await asyncio.wait({cut})
    await until(lambda: time.time() > record.expires_at)
    backend = FakeBackend(tmp_path, worker.backend.containers)
    removal = backend.hold("remove")
    worker = Worker(tmp_path, backend)
    await worker.start()
    try:
        (live,) = worker.parts.directory.all()
        call = live.calls.get("c1")
        if call is not None:
            await call.done
        found = await worker.parts.sweeper._ledger.find(record.key, "c1")
        assert found is not None
        assert found.result is not None
        result = tool_pb2.ToolResult.FromString(found.result)
        assert result.ending == tool_pb2.ENDING_CANCELLED
        assert result.reason == error_pb2.REASON_CANCELLED_BY_EXPIRY
        assert live.record.reason == "LIFETIME_EXPIRED"
        removal.set()
        await until(lambda: len(worker.parts.directory) == 0)
        assert backend.containers == {}
    finally:
        removal.set()
        await worker.stop()


async def test_action_of_a_caller_that_left_is_done_all_the_same(tmp_path: Path) -> None:
    """Seen: an epoch was in force in memory, and its write, still queued, went with its RPC."""
    store = Store(tmp_path)
    await store.open()
    free = threading.Event()
    blocking = asyncio.ensure_future(store.run(lambda _: free.wait(10.0)))
    done: list[bool] = []
    leaving = asyncio.ensure_future(store.run(lambda _: done.append(True)))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait({leaving})
    free.set()
    await blocking
    await store.run(lambda _: None)
    await store.close()
    assert done == [True]


async def test_cancel_that_waits_keeps_its_call_when_the_first_caller_leaves(
    worker: Worker,
) -> None:
    """Seen: the call was withdrawn beneath the cancel, which was told of a shutdown."""
    await worker.create()
    (live,) = worker.parts.directory.all()
    free = threading.Event()
    blocking = asyncio.ensure_future(worker.store.run(lambda _: free.wait(10.0)))
    try:
        calling = worker.call("c1")
        await until(lambda: "c1" in live.calls)
        cancelling = asyncio.ensure_future(worker.cancel("c1"))
        await until(lambda: live.calls["c1"].cancel_wanted)
        calling.cancel()
        await until(lambda: live.calls["c1"].waiters == 1)
    finally:
        free.set()
    await blocking
    assert (await cancelling).ending == tool_pb2.ENDING_CANCELLED
    assert worker.guest.started == []
    assert (await worker.call("c1")).result.replayed


async def test_delete_that_cannot_end_everything_says_to_repeat_it(worker: Worker) -> None:
    """Seen: INTERNAL, as if it were a fault of the program that no repeat would cure."""
    await worker.create()
    worker.backend.fail_next("remove", SandboxdError("busy", "container c is still there"))
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.delete()
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert retry_s(failed.value) > 0
    assert "container" not in (failed.value.details() or "")
    await worker.delete()
    assert worker.backend.stores == set()


async def test_sweep_asks_an_engine_that_is_down_once(worker: Worker) -> None:
    worker.backend.stores |= {"left-1", "left-2", "left-3"}
    worker.backend.fail_next("remove", EngineDown("down"))
    await worker.parts.sweeper.sweep()
    assert len([step for step, _ in worker.backend.calls if step == "remove"]) == 1
    await worker.parts.sweeper.sweep()
    assert worker.backend.stores == set()
