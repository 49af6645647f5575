"""Calls that a daemon left behind, and the next one that goes on with them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from grpc import aio

from sandbox_adapter.v1 import session_pb2, tool_pb2
from sandboxd.backends.base import Report
from sandboxd.backends.fake import FakeBackend
from tests.unit.worker import Worker, reason_of, running, until

RUNNING = tool_pb2.CALL_STATE_RUNNING
UNKNOWN = tool_pb2.CALL_STATE_UNKNOWN


@pytest.fixture
async def left(tmp_path: Path) -> FakeBackend:
    """The backend of the next daemon: session `s1` with call `c1`, which was cut off as it ran."""
    worker = Worker(tmp_path, FakeBackend(tmp_path))
    await worker.start()
    await worker.create()
    worker.guest.gate.clear()
    cut = asyncio.ensure_future(worker.call("c1", json='{"path": "p"}'))
    await until(lambda: worker.guest.started == ["c1"])
    await worker.stop()
    await asyncio.wait({cut})
    return FakeBackend(tmp_path, worker.backend.containers)


async def test_call_goes_on_where_its_guest_is_back(left: FakeBackend, tmp_path: Path) -> None:
    left.calls_alive, left.sequence = {"c1"}, 1
    worker = Worker(tmp_path, left)
    worker.guest.gate.clear()
    await worker.start()
    try:
        assert (await worker.get_call("c1")).state == RUNNING
        joined = asyncio.ensure_future(worker.call("c1", json='{"path": "p"}'))
        with pytest.raises(aio.AioRpcError) as conflict:
            await worker.call("c1", json='{"path": "other"}')
        assert reason_of(conflict.value) == "ID_CONFLICT"
        worker.guest.gate.set()
        result = (await joined).result
        assert (result.text, result.replayed) == ("run 0", True)
        assert worker.guest.started == []
        assert worker.sandbox().told_recorded == ["c1"]
        again = (await worker.call("c1", json='{"path": "p"}')).result
        assert again.SerializeToString(deterministic=True) == result.SerializeToString(
            deterministic=True
        )
    finally:
        await worker.stop()


async def test_call_without_a_trace_in_its_guest_is_unknown(
    left: FakeBackend, tmp_path: Path
) -> None:
    async with running(tmp_path, left) as worker:
        result = (await worker.call("c1", json='{"path": "p"}')).result
        assert result.ending == tool_pb2.ENDING_UNKNOWN
        assert (await worker.get_call("c1")).state == UNKNOWN
        assert worker.guest.started == []
        assert (await worker.get()).generation == 1


async def test_call_whose_sandbox_is_gone_is_unknown(left: FakeBackend, tmp_path: Path) -> None:
    left.containers.clear()
    async with running(tmp_path, left) as worker:
        result = (await worker.call("c1", json='{"path": "p"}')).result
        assert result.ending == tool_pb2.ENDING_UNKNOWN
        await worker.state_is(session_pb2.SESSION_STATE_READY)
        assert (await worker.get()).generation == 2


async def test_resumed_call_can_be_cancelled_before_its_guest_is_back(
    left: FakeBackend, tmp_path: Path
) -> None:
    left.calls_alive, left.sequence = {"c1"}, 1
    gate = left.hold("adopt")
    worker = Worker(tmp_path, left)
    worker.guest.gate.clear()
    starting = asyncio.create_task(worker.start())
    await until(lambda: any(step == "adopt" for step, _ in left.calls))
    (live,) = worker.parts.directory.all()
    cancelling = asyncio.create_task(worker.parts.calls.cancel(live.record.key, "c1", None))
    await until(lambda: live.calls["c1"].cancel_wanted)
    gate.set()
    await starting
    try:
        assert (await cancelling).ending == tool_pb2.ENDING_CANCELLED
        assert worker.guest.cancelled == {"c1"}
    finally:
        await worker.stop()


async def test_session_that_is_deleted_meanwhile_ends_its_resumed_calls(
    left: FakeBackend, tmp_path: Path
) -> None:
    left.calls_alive, left.sequence = {"c1"}, 1
    worker = Worker(tmp_path, left)
    worker.guest.gate.clear()
    await worker.start()
    try:
        waiting = asyncio.ensure_future(worker.call("c1", json='{"path": "p"}'))
        await until(lambda: worker.parts.directory.all()[0].calls["c1"].waiters == 1)
        await worker.delete()
        assert (await waiting).result.ending == tool_pb2.ENDING_CANCELLED
    finally:
        await worker.stop()


async def test_s7_call_that_nobody_reserved_ends_the_session(tmp_path: Path) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
        await worker.call("c1")
        containers = dict(worker.backend.containers)
    backend = FakeBackend(tmp_path, containers)
    backend.calls_alive, backend.sequence = {"c1", "never"}, 1
    async with running(tmp_path, backend) as worker:
        await worker.state_is(session_pb2.SESSION_STATE_FAILED)
        assert (await worker.get()).reason == "PROTOCOL"


async def test_s16_guest_that_has_seen_more_calls_renews_the_ledger_id(tmp_path: Path) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
        await worker.call("c1")
        before = (await worker.get_call("c1")).ledger_id
        containers = dict(worker.backend.containers)
    backend = FakeBackend(tmp_path, containers)
    backend.sequence = 2
    async with running(tmp_path, backend) as worker:
        await worker.state_is(session_pb2.SESSION_STATE_READY)
        assert (await worker.get_call("c1")).ledger_id != before
        assert worker.store.ledger_id != before


async def test_guest_that_comes_back_is_told_again_what_is_recorded(tmp_path: Path) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
        await worker.call("c1")
        sandbox = worker.sandbox()
        assert sandbox.told_recorded == ["c1"]
        sandbox.on_report(Report(frozenset({"c1"}), 1))
        await until(lambda: sandbox.told_recorded == ["c1", "c1"])
        sandbox.on_report(Report(frozenset({"strange"}), 1))
        await worker.state_is(session_pb2.SESSION_STATE_FAILED)
