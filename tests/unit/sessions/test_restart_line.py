"""A restart is told in the first line of the next result, whatever that is, and once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from grpc import aio

from sandbox_adapter.v1 import error_pb2, session_pb2, tool_pb2
from sandboxd.errors import SandboxLost
from tests.unit.worker import Worker, running, until

LINE = "[The sandbox was restarted: files in the workspace are kept, running processes are gone.]\n"

Result = tool_pb2.ToolResult


async def restart(worker: Worker) -> int:
    """Loses the sandbox and waits for the next generation, whose number is returned."""
    before = (await worker.get()).generation
    worker.sandbox().lose("ENDED")

    async def again() -> bool:
        found = await worker.get()
        ready = found.state == session_pb2.SESSION_STATE_READY
        return ready and found.generation == before + 1

    await until(again)
    return before + 1


async def _success(worker: Worker) -> Result:
    result: Result = (await worker.call("next")).result
    assert result.text == f"{LINE}run 1"
    return result


async def _search(worker: Worker) -> Result:
    result: Result = (await worker.call("next", "probe")).result
    assert result.text == f"{LINE}run 1"
    return result


async def _tool_error(worker: Worker) -> Result:
    result: Result = (await worker.call("next", json='{"bad": true}')).result
    assert result.reason == error_pb2.REASON_INVALID_INPUT
    return result


async def _cancelled(worker: Worker) -> Result:
    worker.guest.gate.clear()
    waiting = asyncio.ensure_future(worker.call("next"))
    await until(lambda: worker.guest.started)
    result = await worker.cancel("next")
    assert result.ending == tool_pb2.ENDING_CANCELLED
    assert (await waiting).result.text == result.text
    worker.guest.gate.set()
    return result


async def _nobody_waits(worker: Worker) -> Result:
    worker.guest.gate.clear()
    rpc = worker.call("next")
    await until(lambda: worker.guest.started)
    rpc.cancel()
    worker.guest.gate.set()

    async def finished() -> bool:
        return (await worker.get_call("next")).state == tool_pb2.CALL_STATE_FINISHED

    await until(finished)
    return (await worker.get_call("next")).result


@pytest.mark.parametrize("way", [_success, _search, _tool_error, _cancelled, _nobody_waits])
async def test_restart_is_told_by_whatever_ends_first_and_by_nothing_after_it(
    worker: Worker, way: Callable[[Worker], Awaitable[Result]]
) -> None:
    await worker.create()
    generation = await restart(worker)
    told = await way(worker)
    assert told.text.startswith(LINE)
    assert told.generation == generation
    for call_id in ("after", "later"):
        assert LINE not in (await worker.call(call_id)).result.text
    again = await worker.get_call("next")
    assert again.result.text == told.text
    assert again.result.text.count(LINE) == 1


async def test_one_of_many_parallel_calls_tells_the_restart(worker: Worker) -> None:
    await worker.create()
    await restart(worker)
    worker.guest.gate.clear()
    waiting = [asyncio.ensure_future(worker.call(f"c{number}")) for number in range(12)]
    await until(lambda: len(worker.guest.started) == 12)
    worker.guest.gate.set()
    texts = [(await one).result.text for one in waiting]
    assert sum(text.startswith(LINE) for text in texts) == 1


async def test_all_callers_of_one_call_see_the_line_that_it_tells(worker: Worker) -> None:
    await worker.create()
    await restart(worker)
    worker.guest.gate.clear()
    waiting = [asyncio.ensure_future(worker.call("c1")) for _ in range(3)]
    await until(lambda: worker.guest.started)
    worker.guest.gate.set()
    assert {(await one).result.text for one in waiting} == {f"{LINE}run 1"}


async def test_replay_of_an_earlier_result_stays_as_it_was_and_leaves_the_line_to_the_next(
    worker: Worker,
) -> None:
    await worker.create()
    await worker.call("old")
    await restart(worker)
    replayed = (await worker.call("old")).result
    assert (replayed.replayed, replayed.text, replayed.generation) == (True, "run 1", 1)
    told = (await worker.call("new")).result
    assert told.text == f"{LINE}run 2"
    assert (await worker.call("new")).result.text == told.text
    assert LINE not in (await worker.call("newer")).result.text


async def test_call_whose_generation_is_lost_again_tells_its_own_restart(worker: Worker) -> None:
    await worker.create()
    await restart(worker)
    worker.poke.raised = SandboxLost("ENDED", "gone")
    lost = (await worker.call("c1")).result
    worker.poke.raised = None
    assert lost.ending == tool_pb2.ENDING_SANDBOX_LOST
    assert lost.text.startswith(LINE)
    assert LINE not in (await worker.call("c2")).result.text
    await restart(worker)
    assert (await worker.call("c3")).result.text.startswith(LINE)
    assert LINE not in (await worker.call("c4")).result.text


async def test_late_result_of_the_lost_generation_does_not_take_the_line(worker: Worker) -> None:
    await worker.create()
    worker.guest.gate.clear()
    late = asyncio.ensure_future(worker.call("late"))
    await until(lambda: worker.guest.started)
    await restart(worker)
    result = (await late).result
    assert (result.ending, result.generation) == (tool_pb2.ENDING_SANDBOX_LOST, 1)
    assert LINE not in result.text
    worker.guest.gate.set()
    assert (await worker.call("next")).result.text.startswith(LINE)


async def test_result_that_is_recorded_late_tells_the_restart_and_no_other_does(
    worker: Worker,
) -> None:
    """Seen: the note was cleared with a result that no caller ever got."""
    await worker.create()
    await restart(worker)

    def refuse(connection: object) -> None:
        connection.execute(  # type: ignore[attr-defined]
            "CREATE TRIGGER full BEFORE UPDATE ON calls BEGIN SELECT raise(ABORT, 'full'); END"
        )

    def allow(connection: object) -> None:
        connection.execute("DROP TRIGGER full")  # type: ignore[attr-defined]

    await worker.store.run(refuse)
    late = asyncio.ensure_future(worker.call("c1"))
    await until(lambda: worker.guest.started == ["c1"])
    await worker.store.run(allow)
    assert (await late).result.text.startswith(LINE)
    assert LINE not in (await worker.call("c2")).result.text


async def test_fault_that_hides_its_result_leaves_the_line_to_the_next(worker: Worker) -> None:
    await worker.create()
    await restart(worker)
    worker.poke.raised = ZeroDivisionError("a fault of the program")
    with pytest.raises(aio.AioRpcError):
        await worker.call("c1")
    worker.poke.raised = None
    assert (await worker.call("c2")).result.text.startswith(LINE)


@pytest.mark.parametrize("told", [False, True])
async def test_next_daemon_tells_a_restart_only_if_it_is_untold(tmp_path: Path, told: bool) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
        await restart(worker)
        if told:
            assert (await worker.call("c1")).result.text.startswith(LINE)
        backend = worker.backend
    async with running(tmp_path, backend) as worker:
        await worker.state_is(session_pb2.SESSION_STATE_READY)
        result = (await worker.call("c2")).result
        assert result.generation == 2
        assert result.text.startswith(LINE) is not told
        assert LINE not in (await worker.call("c3")).result.text
