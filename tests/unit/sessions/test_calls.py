"""Calls over a real ledger and a real server: reserve, act, record."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc import aio

from sandbox_adapter.v1 import error_pb2, session_pb2, tool_pb2
from sandboxd import limits
from sandboxd.errors import SandboxLost
from tests.unit.worker import Worker, reason_of, retry_s, running, until


async def test_call_repeated_with_its_id_is_replayed_and_runs_once(worker: Worker) -> None:
    await worker.create()
    first = (await worker.call("c1")).result
    second = (await worker.call("c1")).result
    assert worker.guest.started == ["c1"]
    assert not first.replayed
    assert second.replayed
    second.replayed = False
    assert second.SerializeToString(deterministic=True) == first.SerializeToString(
        deterministic=True
    )


async def test_call_without_id_gets_one_and_runs_each_time(worker: Worker) -> None:
    await worker.create()
    answers = [await worker.call(""), await worker.call("")]
    assert len({answer.call_id for answer in answers}) == 2
    assert worker.guest.started == [answer.call_id for answer in answers]


async def test_fifty_requests_with_one_id_are_one_call(worker: Worker) -> None:
    await worker.create()
    worker.guest.gate.clear()
    waiting = [asyncio.ensure_future(worker.call("c1")) for _ in range(50)]
    await until(lambda: worker.guest.started)
    worker.guest.gate.set()
    results = [(await one).result for one in waiting]
    assert worker.guest.started == ["c1"]
    assert sum(not result.replayed for result in results) == 1
    assert {result.text for result in results} == {"run 1"}


async def test_call_with_the_id_of_another_input_is_a_conflict(worker: Worker) -> None:
    await worker.create()
    await worker.call("c1", json='{"path": "a"}')
    for tool, json in (("poke", '{"path": "b"}'), ("probe", '{"path": "a"}')):
        with pytest.raises(aio.AioRpcError) as failed:
            await worker.call("c1", tool, json)
        assert failed.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert reason_of(failed.value) == "ID_CONFLICT"
    assert worker.guest.started == ["c1"]


async def test_call_digest_ignores_the_spelling_of_the_json(worker: Worker) -> None:
    await worker.create()
    await worker.call("c1", json='{"path": "a", "n": 1.0}')
    again = await worker.call("c1", json='{ "n":1,"path":"\\u0061" }')
    assert again.result.replayed


async def test_input_fault_is_a_recorded_result(worker: Worker) -> None:
    await worker.create()
    result = (await worker.call("c1", json='{"bad": true}')).result
    assert result.is_error
    assert result.reason == error_pb2.REASON_INVALID_INPUT
    assert result.ending == tool_pb2.ENDING_COMPLETED
    assert (await worker.call("c1", json='{"bad": true}')).result.replayed


async def test_call_goes_on_when_its_caller_leaves(worker: Worker) -> None:
    await worker.create()
    worker.guest.gate.clear()
    rpc = worker.call("c1")
    await until(lambda: worker.guest.started)
    rpc.cancel()
    assert (await worker.get_call("c1")).state == tool_pb2.CALL_STATE_RUNNING
    worker.guest.gate.set()

    async def finished() -> bool:
        return (await worker.get_call("c1")).state == tool_pb2.CALL_STATE_FINISHED

    await until(finished)
    assert (await worker.get_call("c1")).result.text == "run 1"


async def test_cancel_on_disconnect_ends_the_call(worker: Worker) -> None:
    await worker.create()
    worker.guest.gate.clear()
    rpc = worker.call("c1", cancel_on_disconnect=True)
    await until(lambda: worker.guest.started)
    rpc.cancel()

    async def finished() -> bool:
        return (await worker.get_call("c1")).state == tool_pb2.CALL_STATE_FINISHED

    await until(finished)
    result = (await worker.get_call("c1")).result
    assert result.ending == tool_pb2.ENDING_CANCELLED
    assert worker.guest.cancelled == {"c1"}


async def test_cancel_on_disconnect_spares_a_call_that_another_caller_waits_for(
    worker: Worker,
) -> None:
    """A client that lost its connection and repeated the call must not be cut off."""
    await worker.create()
    worker.guest.gate.clear()
    first = worker.call("c1", cancel_on_disconnect=True)
    await until(lambda: worker.guest.started)
    second = asyncio.ensure_future(worker.call("c1", cancel_on_disconnect=True))
    (live,) = worker.parts.directory.all()
    await until(lambda: live.calls["c1"].waiters == 2)
    first.cancel()
    await until(lambda: live.calls["c1"].waiters == 1)
    worker.guest.gate.set()
    assert (await second).result.text == "run 1"


async def test_cancel_returns_the_survivors_and_drops_what_is_no_process(worker: Worker) -> None:
    await worker.create()
    worker.guest.gate.clear()
    worker.guest.survivors = [[7, "sl\x1beep"], ["x", 1], [2**40, "y"], "z", [8]]
    waiting = asyncio.ensure_future(worker.call("c1"))
    await until(lambda: worker.guest.started)
    result = await worker.cancel("c1")
    assert result.ending == tool_pb2.ENDING_CANCELLED
    assert result.reason == error_pb2.REASON_CANCELLED_BY_CALLER
    assert not result.is_error
    assert [(survivor.pid, survivor.name) for survivor in result.survivors] == [(7, "sleep")]
    assert (await waiting).result.survivors == result.survivors


async def test_cancel_of_an_ended_call_returns_its_result_and_asks_the_guest_nothing(
    worker: Worker,
) -> None:
    await worker.create()
    await worker.call("c1")
    result = await worker.cancel("c1")
    assert result.text == "run 1"
    assert worker.guest.cancelled == set()


async def test_cancel_of_an_unknown_call_is_not_found(worker: Worker) -> None:
    await worker.create()
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.cancel("nothing")
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    assert reason_of(failed.value) == "CALL_UNKNOWN"


async def _fill_lane(worker: Worker) -> list[asyncio.Future[tool_pb2.CallToolResponse]]:
    worker.guest.gate.clear()
    filling = [
        asyncio.ensure_future(worker.call(f"fill{index}"))
        for index in range(limits.CALLS_PARALLEL_MAX)
    ]
    await until(lambda: len(worker.guest.started) == limits.CALLS_PARALLEL_MAX)
    return filling


async def _queued(worker: Worker, count: int) -> None:
    (live,) = worker.parts.directory.all()
    await until(lambda: live.lane.queued == count)


async def test_sixteen_calls_run_and_the_next_waits_as_running(worker: Worker) -> None:
    await worker.create()
    filling = await _fill_lane(worker)
    waiting = asyncio.ensure_future(worker.call("next"))
    await _queued(worker, 1)
    assert "next" not in worker.guest.started
    assert (await worker.get_call("next")).state == tool_pb2.CALL_STATE_RUNNING
    worker.guest.gate.set()
    await asyncio.gather(*filling)
    assert (await waiting).result.text == "run 17"


async def test_queued_call_is_withdrawn_when_its_caller_leaves(worker: Worker) -> None:
    await worker.create()
    filling = await _fill_lane(worker)
    rpc = worker.call("next")
    await _queued(worker, 1)
    rpc.cancel()
    await _queued(worker, 0)
    assert (await worker.get_call("next")).state == tool_pb2.CALL_STATE_NEVER_SEEN
    worker.guest.gate.set()
    await asyncio.gather(*filling)
    assert "next" not in worker.guest.started


async def test_queued_call_that_is_cancelled_ends_cancelled_for_good(worker: Worker) -> None:
    await worker.create()
    filling = await _fill_lane(worker)
    waiting = asyncio.ensure_future(worker.call("next"))
    await _queued(worker, 1)
    assert (await worker.cancel("next")).ending == tool_pb2.ENDING_CANCELLED
    assert (await waiting).result.ending == tool_pb2.ENDING_CANCELLED
    worker.guest.gate.set()
    await asyncio.gather(*filling)
    assert (await worker.call("next")).result.replayed
    assert "next" not in worker.guest.started


async def test_queue_refuses_beyond_its_bound_with_a_delay(worker: Worker) -> None:
    await worker.create()
    filling = await _fill_lane(worker)
    waiting = [
        asyncio.ensure_future(worker.call(f"wait{index}"))
        for index in range(limits.CALLS_QUEUED_MAX)
    ]
    await _queued(worker, limits.CALLS_QUEUED_MAX)
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.call("more")
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason_of(failed.value) == "CALLS_EXHAUSTED"
    assert retry_s(failed.value) > 0
    worker.guest.gate.set()
    await asyncio.gather(*filling, *waiting)


async def test_stale_epoch_is_refused_and_a_missing_one_is_not(worker: Worker) -> None:
    await worker.create()
    await worker.call("c1", epoch=5)
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.call("c2", epoch=4)
    assert failed.value.code() is grpc.StatusCode.ABORTED
    assert reason_of(failed.value) == "EPOCH_STALE"
    await worker.call("c3")
    assert worker.guest.started == ["c1", "c3"]
    assert (await worker.get()).epoch == 5


async def test_queued_call_is_fenced_by_a_newer_owner(worker: Worker) -> None:
    await worker.create()
    filling = await _fill_lane(worker)
    waiting = asyncio.ensure_future(worker.call("next", epoch=1))
    await _queued(worker, 1)
    await worker.sessions.UpdateSession(
        session_pb2.UpdateSessionRequest(session_id="s1", epoch=2**64 - 1)
    )
    worker.guest.gate.set()
    with pytest.raises(aio.AioRpcError) as failed:
        await waiting
    assert reason_of(failed.value) == "EPOCH_STALE"
    await asyncio.gather(*filling)
    assert "next" not in worker.guest.started


async def test_call_in_a_lost_sandbox_ends_sandbox_lost_and_the_next_says_restarted(
    worker: Worker,
) -> None:
    await worker.create()
    worker.guest.gate.clear()
    waiting = asyncio.ensure_future(worker.call("c1"))
    await until(lambda: worker.guest.started)
    worker.sandbox().lose("ENDED")
    lost = (await waiting).result
    assert lost.is_error
    assert lost.ending == tool_pb2.ENDING_SANDBOX_LOST
    assert lost.generation == 1
    worker.guest.gate.set()
    await worker.state_is(session_pb2.SESSION_STATE_READY)
    told = (await worker.call("c2")).result
    assert told.text.splitlines()[0] == (
        "[The sandbox was restarted: files in the workspace are kept, running processes are gone.]"
    )
    assert told.generation == 2
    assert "restarted" not in (await worker.call("c3")).result.text


async def test_tool_that_finds_no_facts_fails_its_session(worker: Worker) -> None:
    await worker.create()
    worker.poke.raised = SandboxLost("PROTOCOL", "facts do not fit")
    result = (await worker.call("c1")).result
    assert result.ending == tool_pb2.ENDING_SANDBOX_LOST
    await worker.state_is(session_pb2.SESSION_STATE_FAILED)
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.call("c2")
    assert reason_of(failed.value) == "SESSION_FAILED"
    assert (await worker.call("c1")).result.replayed
    assert worker.backend.running == {}


async def test_fault_of_a_tool_is_recorded_as_unknown_and_hidden_behind_a_reference(
    worker: Worker,
) -> None:
    await worker.create()
    worker.poke.raised = ZeroDivisionError("secret words")
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.call("c1")
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (failed.value.details() or "")
    found = await worker.get_call("c1")
    assert found.state == tool_pb2.CALL_STATE_UNKNOWN
    assert found.result.is_error
    worker.poke.raised = None
    assert (await worker.call("c1")).result.ending == tool_pb2.ENDING_UNKNOWN
    assert worker.guest.started == ["c1"]


async def test_reservation_that_fails_runs_nothing(worker: Worker) -> None:
    await worker.create()

    def refuse(connection: object) -> None:
        connection.execute(  # type: ignore[attr-defined]
            "CREATE TRIGGER full BEFORE INSERT ON calls BEGIN SELECT raise(ABORT, 'full'); END"
        )

    await worker.store.run(refuse)
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.call("c1")
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert worker.guest.started == []
    assert (await worker.get_call("c1")).state == tool_pb2.CALL_STATE_NEVER_SEEN


async def test_call_cut_off_by_the_end_of_a_daemon_is_unknown_to_the_next(tmp_path: Path) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
        ledger_id = (await worker.get_call("x")).ledger_id
        boot_id = (await worker.get_call("x")).boot_id
        worker.guest.gate.clear()
        waiting = asyncio.ensure_future(worker.call("c1"))
        await until(lambda: worker.guest.started)
        backend = worker.backend
    assert waiting.done() or await _ended(waiting)
    async with running(tmp_path, backend) as worker:
        found = await worker.get_call("c1")
        assert found.state == tool_pb2.CALL_STATE_UNKNOWN
        assert found.result.is_error
        assert found.result.reason == error_pb2.REASON_OUTCOME_UNKNOWN
        assert (found.ledger_id, found.boot_id != boot_id) == (ledger_id, True)
        again = (await worker.call("c1")).result
        assert again.replayed
        assert again.ending == tool_pb2.ENDING_UNKNOWN
        assert worker.guest.started == []


async def _ended(waiting: asyncio.Future[tool_pb2.CallToolResponse]) -> bool:
    with pytest.raises(aio.AioRpcError):
        await waiting
    return True


async def test_expired_result_says_that_the_call_ran(worker: Worker) -> None:
    await worker.create()
    await worker.call("c1")
    ledger = worker.parts.sweeper._ledger
    assert await ledger.expire(2**40) == 1
    found = await worker.get_call("c1")
    assert found.state == tool_pb2.CALL_STATE_FINISHED
    assert found.reason == error_pb2.REASON_RESULT_EXPIRED
    assert not found.HasField("result")
    for attempt in (worker.call("c1"), worker.cancel("c1")):
        with pytest.raises(aio.AioRpcError) as failed:
            await attempt
        assert reason_of(failed.value) == "RESULT_EXPIRED"
    assert worker.guest.started == ["c1"]


async def test_drain_refuses_what_is_new_and_still_replays(worker: Worker) -> None:
    await worker.create()
    await worker.call("c1")
    worker.guest.gate.clear()
    waiting = asyncio.ensure_future(worker.call("c2"))
    await until(lambda: len(worker.guest.started) == 2)
    worker.parts.directory.draining = True
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.call("c3")
    assert reason_of(failed.value) == "DRAINING"
    assert retry_s(failed.value) > 0
    assert (await worker.call("c1")).result.replayed
    assert await worker.parts.calls.drain(0.01) == 1
    # It stays what it is, and whoever comes next goes on with it.
    assert (await worker.get_call("c2")).state == tool_pb2.CALL_STATE_RUNNING
    worker.guest.gate.set()
    assert (await waiting).result.text == "run 2"
