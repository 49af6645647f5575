"""Calls that a daemon left behind, and the next one that goes on with them."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from grpc import aio

from sandbox_adapter.v1 import session_pb2, tool_pb2
from sandboxd import app
from sandboxd.backends.base import Reply, Report
from sandboxd.backends.fake import FakeBackend, FakeRequest
from sandboxd.errors import GuestFault
from sandboxd.sessions.call import Step
from sandboxd.sessions.ledger import Reservation
from sandboxd.sessions.records import CallRecord, SessionKey
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


async def test_s7_number_that_this_daemon_never_gave_ends_the_session_and_keeps_the_ledger_id(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
        before = worker.store.ledger_id
        sandbox = worker.sandbox()
        sandbox.on_report(Report(frozenset(), 2**62))
        await worker.state_is(session_pb2.SESSION_STATE_FAILED)
        assert worker.store.ledger_id == before


async def test_command_of_a_recorded_call_is_ended_where_it_runs_all_the_same(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
        await worker.call("c1")
        worker.sandbox().on_report(Report(frozenset({"c1"}), 1))
        await until(lambda: worker.guest.cancelled == {"c1"})


async def test_result_that_cannot_be_recorded_at_once_is_told_only_once_it_is(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as worker:
        await worker.create()

        def refuse(connection: sqlite3.Connection) -> None:
            connection.execute(
                "CREATE TRIGGER full BEFORE UPDATE ON calls "
                "BEGIN SELECT raise(ABORT, 'database or disk is full'); END"
            )

        def allow(connection: sqlite3.Connection) -> None:
            connection.execute("DROP TRIGGER full")

        await worker.store.run(refuse)
        waiting = asyncio.ensure_future(worker.call("c1"))
        await until(lambda: worker.guest.started == ["c1"])
        (live,) = worker.parts.directory.all()
        work = live.calls["c1"].work
        await until(lambda: work is not None and work.done())
        assert (await worker.get_call("c1")).state == RUNNING
        await worker.store.run(allow)
        result = (await waiting).result
        assert (result.text, result.replayed) == ("run 1", False)
        assert (await worker.call("c1")).result.text == "run 1"
        assert worker.guest.started == ["c1"]


async def test_resumed_calls_hold_their_turns_before_any_fresh_one(tmp_path: Path) -> None:
    worker = Worker(tmp_path, FakeBackend(tmp_path))
    await worker.start()
    await worker.create()
    worker.guest.gate.clear()
    cut = [asyncio.ensure_future(worker.call(f"c{n}")) for n in range(16)]
    await until(lambda: len(worker.guest.started) == 16)
    await worker.stop()
    await asyncio.wait(cut)
    backend = FakeBackend(tmp_path, worker.backend.containers)
    backend.calls_alive, backend.sequence = {f"c{n}" for n in range(16)}, 16
    gate = backend.hold("adopt")
    worker = Worker(tmp_path, backend)
    worker.guest.gate.clear()
    starting = asyncio.create_task(worker.start())
    try:
        await until(lambda: any(step == "adopt" for step, _ in backend.calls))
        (live,) = worker.parts.directory.all()
        # Before their guest is back: no moment is left for others.
        await until(live.lane._turns.locked)
        gate.set()
        await starting
        fresh = asyncio.ensure_future(worker.call("fresh"))
        await until(lambda: live.lane.queued == 1)
        assert worker.guest.started == []
        worker.guest.gate.set()
        assert (await fresh).result.text == "run 1"
    finally:
        await worker.stop()


@pytest.mark.parametrize(
    "reason", ["RESULT_DROPPED", "CALL_UNKNOWN", "ID_CONFLICT", "INTERNAL_ERROR"]
)
async def test_fault_of_the_guest_that_leaves_the_effect_open_is_unknown(
    tmp_path: Path, reason: str
) -> None:
    async with running(tmp_path) as worker:
        await worker.create()

        async def refuse(request: FakeRequest) -> Reply:
            raise GuestFault(reason, "words of the guest", {})

        worker.backend.on_request = refuse
        result = (await worker.call("c1")).result
        assert result.ending == tool_pb2.ENDING_UNKNOWN
        assert "words" not in result.text
        assert (await worker.get_call("c1")).state == UNKNOWN


async def test_time_of_an_end_beyond_belief_changes_nothing(
    left: FakeBackend, tmp_path: Path
) -> None:
    left.calls_alive, left.sequence = {"c1"}, 1
    worker = Worker(tmp_path, left)

    async def answer(request: FakeRequest) -> Reply:
        wild = {"text": "end", "ended_ago_s": 10**400, "lock_wait_s": 10**400}
        return Reply(wild if request.op in ("attach", "poke") else {})

    left.on_request = answer
    await worker.start()
    try:
        result = (await worker.call("c1", json='{"path": "p"}')).result
        assert result.text == "end"
        assert (await worker.call("c2")).result.text == "end"
    finally:
        await worker.stop()


async def test_shutdown_cancels_no_call_for_its_callers_disconnection(tmp_path: Path) -> None:
    worker = Worker(tmp_path, FakeBackend(tmp_path))
    await worker.start()
    await worker.create()
    worker.guest.gate.clear()
    call = asyncio.ensure_future(worker.call("c1", cancel_on_disconnect=True))
    await until(lambda: worker.guest.started == ["c1"])
    await app._stop_server(worker.parts, app._Signals())
    with pytest.raises(aio.AioRpcError):
        await call
    await worker.stop()
    assert worker.guest.cancelled == set()


async def test_cancel_that_comes_first_of_all_is_recorded_though_everybody_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
        ledger = worker.parts.calls._ledger
        find, reserve = ledger.find, ledger.reserve
        looked, reserved = asyncio.Event(), asyncio.Event()

        async def slow_find(key: SessionKey, call_id: str) -> CallRecord | None:
            await looked.wait()
            return await find(key, call_id)

        async def slow_reserve(reservation: Reservation) -> int:
            number = await reserve(reservation)
            await reserved.wait()
            return number

        monkeypatch.setattr(ledger, "find", slow_find)
        monkeypatch.setattr(ledger, "reserve", slow_reserve)
        (live,) = worker.parts.directory.all()
        call = asyncio.ensure_future(worker.call("c1"))
        await until(lambda: "c1" in live.calls)
        cancel = asyncio.ensure_future(worker.cancel("c1"))
        await until(lambda: live.calls["c1"].cancel_wanted)
        looked.set()
        await until(lambda: live.calls["c1"].step is Step.RUNNING)
        call.cancel()
        cancel.cancel()
        await until(lambda: live.calls["c1"].waiters == 0)
        reserved.set()
        await until(lambda: "c1" not in live.calls)
        monkeypatch.undo()
        result = (await worker.call("c1")).result
        assert result.ending == tool_pb2.ENDING_CANCELLED
        assert worker.guest.started == []
