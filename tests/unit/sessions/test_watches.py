"""Watching calls, with a scripted guest: numbers, gaps, slow readers, ends of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc import aio

from sandbox_adapter.v1 import session_pb2, tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.backends.fake import FakeBackend
from sandboxd.tools.bash import BashTool
from tests.unit.sessions.scripted_command import Command
from tests.unit.worker import Worker, error_info, reason_of, retry_s, until

MANY_S = 20.0


class Watched:
    """A worker with one session and one command in it."""

    def __init__(self, worker: Worker, command: Command) -> None:
        self.worker = worker
        self.command = command

    def run(self, call_id: str = "c") -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.worker.call(call_id, "bash", '{"command": "x"}'))

    def watch(self, after: int = 0, call_id: str = "c", **fields: Any) -> Any:
        fields.setdefault("session_id", "s1")
        return self.worker.tools.WatchCall(
            tool_pb2.WatchCallRequest(call_id=call_id, after_sequence=after, **fields)
        )

    async def all(self, after: int = 0, call_id: str = "c") -> list[tool_pb2.WatchCallResponse]:
        async with asyncio.timeout(MANY_S):
            return [event async for event in self.watch(after, call_id)]

    @property
    def live(self) -> Any:
        (live,) = self.worker.parts.directory.all()
        return live


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    worker = Worker(tmp_path, FakeBackend(tmp_path))
    worker.offered.append(BashTool())
    command = Command()
    worker.guest.files = command.answer
    await worker.start()
    await worker.create()
    try:
        yield Watched(worker, command)
    finally:
        await worker.stop()


def told(events: list[tool_pb2.WatchCallResponse]) -> list[tuple[str, int]]:
    return [(event.WhichOneof("event") or "", event.sequence) for event in events]


async def next_of(stream: Any) -> tool_pb2.WatchCallResponse:
    async with asyncio.timeout(MANY_S):
        event = await stream.read()
    assert event is not aio.EOF
    found: tool_pb2.WatchCallResponse = event
    return found


async def failure_of(stream: Any) -> aio.AioRpcError:
    async def read_all() -> None:
        async for _ in stream:
            pass

    with pytest.raises(aio.AioRpcError) as failed:
        await asyncio.wait_for(read_all(), MANY_S)
    return failed.value


# --- numbers -----------------------------------------------------------------


async def test_events_are_numbered_by_their_place_in_the_output(watched: Watched) -> None:
    running = watched.run()
    stream = watched.watch()
    assert (await next_of(stream)).WhichOneof("event") == "started"
    watched.command.write(b"abc")
    first = await next_of(stream)
    assert (first.sequence, first.output.data) == (4, b"abc")
    watched.command.write(b"de")
    second = await next_of(stream)
    assert (second.sequence, second.output.data) == (6, b"de")
    watched.command.end()
    last = await next_of(stream)
    assert (last.sequence, last.result.bytes_total) == (7, 5)
    answer = (await running).result
    assert last.result.replayed
    last.result.replayed = False
    assert last.result.SerializeToString(deterministic=True) == answer.SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize("while_it_runs", [True, False])
async def test_every_number_is_a_place_to_go_on_from(watched: Watched, while_it_runs: bool) -> None:
    running = watched.run()
    watched.command.write(b"0123456789")
    if not while_it_runs:
        watched.command.end()
        await running
    for after in range(12):
        stream = watched.watch(after)
        seen = b""
        while len(seen) < 10 - max(0, after - 1):
            event = await next_of(stream)
            assert event.sequence > after
            seen += event.output.data
        assert seen == b"0123456789"[max(0, after - 1) :]
        stream.cancel()
    watched.command.end()
    await running
    assert told(await watched.all(12)) == [("result", 13)]
    assert told(await watched.all(10_000)) == [("result", 10_001)]
    assert told(await watched.all(2**64 - 1)) == [("result", 2**64 - 1)]


async def test_large_output_comes_in_chunks_of_the_announced_size(watched: Watched) -> None:
    running = watched.run()
    watched.command.write(bytes(range(256)) * 4_000)
    watched.command.end()
    await running
    events = await watched.all()
    pieces = [event.output.data for event in events if event.WhichOneof("event") == "output"]
    assert b"".join(pieces) == watched.command.output
    assert max(len(piece) for piece in pieces) == limits.CHUNK_BYTES_MAX


async def test_tool_without_output_starts_and_ends(watched: Watched) -> None:
    await watched.worker.call("p", "poke")
    assert told(await watched.all(0, "p")) == [("started", 1), ("result", 2)]
    assert told(await watched.all(1, "p")) == [("result", 2)]
    assert watched.command.feeds == []


async def test_start_is_the_results_own(watched: Watched) -> None:
    running = watched.run()
    stream = watched.watch()
    started = (await next_of(stream)).started
    watched.command.end()
    result = (await running).result
    assert started.started_at == result.started_at
    assert started.generation == result.generation == 1


# --- what is gone --------------------------------------------------------------


async def test_dropped_bytes_are_announced_at_the_start_of_a_stream(watched: Watched) -> None:
    running = watched.run()
    watched.command.write(b"0123456789")
    watched.command.start = 4
    stream = watched.watch()
    await next_of(stream)
    event = await next_of(stream)
    assert (event.sequence, event.output.data, event.output.bytes_dropped) == (11, b"456789", 4)
    stream.cancel()
    watched.command.end()
    await running


async def test_reader_that_the_ring_passed_is_told_where_to_resume(watched: Watched) -> None:
    running = watched.run()
    stream = watched.watch()
    await next_of(stream)
    watched.command.write(b"0123")
    assert (await next_of(stream)).sequence == 5
    watched.command.start = 8
    watched.command.write(b"456789")
    last = await next_of(stream)
    assert last.resume_from.after_sequence == 5
    assert await stream.read() is aio.EOF
    again = watched.watch(5)
    event = await next_of(again)
    assert (event.sequence, event.output.data, event.output.bytes_dropped) == (11, b"89", 4)
    again.cancel()
    watched.command.end()
    await running


async def test_output_of_an_ended_call_that_is_gone_is_counted(watched: Watched) -> None:
    running = watched.run()
    watched.command.write(b"0123456789")
    watched.command.end()
    await running
    watched.command.known = False
    events = await watched.all(5)
    assert told(events) == [("output", 11), ("result", 12)]
    assert (events[0].output.bytes_dropped, events[0].output.data) == (6, b"")


async def test_output_is_counted_as_dropped_where_its_sandbox_is_gone(watched: Watched) -> None:
    running = watched.run()
    watched.command.write(b"0123456789")
    watched.command.end()
    await running
    watched.worker.sandbox().lose("ENDED")
    events = await watched.all()
    assert [name for name, _ in told(events)] == ["started", "output", "result"]
    assert events[1].output.bytes_dropped == 10


async def test_expired_result_is_nothing_to_watch(watched: Watched) -> None:
    await watched.worker.call("p", "poke")
    await watched.worker.parts.sweeper._ledger.expire(2e12)
    error = await failure_of(watched.watch(0, "p"))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason_of(error) == "RESULT_EXPIRED"


# --- calls that are not running yet ------------------------------------------


async def test_call_that_comes_later_is_waited_for(watched: Watched) -> None:
    stream = watched.watch()
    reading = asyncio.ensure_future(next_of(stream))
    await until(lambda: watched.live.watches == 1)
    running = watched.run()
    assert (await reading).WhichOneof("event") == "started"
    watched.command.end()
    await running
    assert (await next_of(stream)).WhichOneof("event") == "result"
    assert await stream.read() is aio.EOF


async def test_call_that_never_comes_is_unknown(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CALL_AWAITED_S", 0.2)
    error = await failure_of(watched.watch(0, "never"))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert reason_of(error) == "CALL_UNKNOWN"
    assert watched.live.watches == 0


async def test_queued_call_has_heartbeats_and_then_starts(watched: Watched) -> None:
    watched.worker.guest.gate.clear()
    ahead = [
        asyncio.ensure_future(watched.worker.call(f"a{number}"))
        for number in range(limits.CALLS_PARALLEL_MAX)
    ]
    await until(lambda: len(watched.worker.guest.started) == limits.CALLS_PARALLEL_MAX)
    running = watched.run()
    stream = watched.watch(0, heartbeat_interval=Duration(seconds=1))
    beat = await next_of(stream)
    assert beat.WhichOneof("event") == "heartbeat"
    assert not beat.heartbeat.HasField("running")
    watched.worker.guest.gate.set()
    assert (await next_of(stream)).WhichOneof("event") == "started"
    watched.command.end()
    await asyncio.gather(running, *ahead)


async def test_call_that_was_refused_is_not_known(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CALL_AWAITED_S", 0.2)
    await watched.worker.sessions.UpdateSession(
        session_pb2.UpdateSessionRequest(session_id="s1", epoch=5)
    )
    with pytest.raises(aio.AioRpcError):
        await watched.worker.call("c", "bash", '{"command": "x"}', epoch=4)
    assert reason_of(await failure_of(watched.watch())) == "CALL_UNKNOWN"


# --- how streams end ------------------------------------------------------------


async def test_heartbeats_come_at_the_interval_asked_for_and_tell_the_time(
    watched: Watched,
) -> None:
    running = watched.run()
    stream = watched.watch(1, heartbeat_interval=Duration(seconds=1))
    first, second = await next_of(stream), await next_of(stream)
    assert [each.sequence for each in (first, second)] == [0, 0]
    passed_s = second.heartbeat.running.ToTimedelta() - first.heartbeat.running.ToTimedelta()
    assert 0.8 <= passed_s.total_seconds() <= 3
    stream.cancel()
    watched.command.end()
    await running


async def test_stream_of_a_deleted_session_ends_with_the_calls_result(watched: Watched) -> None:
    running = watched.run()
    stream = watched.watch()
    await next_of(stream)
    await watched.worker.delete()
    last = await next_of(stream)
    assert last.result.ending == tool_pb2.ENDING_CANCELLED
    assert (await running).result.ending == tool_pb2.ENDING_CANCELLED
    error = await failure_of(watched.watch())
    assert reason_of(error) == "SESSION_DELETED"


async def test_stream_of_a_lost_sandbox_ends_with_the_calls_result(watched: Watched) -> None:
    running = watched.run()
    watched.command.write(b"0123456789")
    stream = watched.watch()
    await next_of(stream)
    assert (await next_of(stream)).sequence == 11
    watched.worker.sandbox().lose("ENDED")
    last = await next_of(stream)
    assert last.result.ending == tool_pb2.ENDING_SANDBOX_LOST
    assert last.sequence > 11
    await running


async def test_streams_end_with_a_place_to_resume_from_at_a_shutdown(watched: Watched) -> None:
    running = watched.run()
    stream = watched.watch()
    await next_of(stream)
    watched.command.write(b"abc")
    await next_of(stream)
    watched.worker.parts.watches.end()
    last = await next_of(stream)
    assert last.resume_from.after_sequence == 4
    error = await failure_of(watched.watch())
    assert reason_of(error) == "DRAINING"
    watched.command.end()
    await running


async def test_old_streams_end_with_a_place_to_resume_from(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAM_LIFE_S", 0.2)
    running = watched.run()
    assert [name for name, _ in told(await watched.all())] == ["started", "resume_from"]
    watched.command.end()
    await running


@pytest.mark.parametrize("seconds", [0.0, 0.5, 61.0, -1.0, 1e9])
async def test_interval_out_of_bounds_is_a_fault_of_the_envelope(
    watched: Watched, seconds: float
) -> None:
    interval = Duration()
    interval.FromNanoseconds(round(seconds * 1e9))
    error = await failure_of(watched.watch(0, heartbeat_interval=interval))
    assert error_info(error).reason == "INVALID_ENVELOPE"
    assert error_info(error).metadata["field"] == "heartbeat_interval"


@pytest.mark.parametrize("bad", [{"session_id": "-"}, {"call_id": ""}, {"call_id": "a b"}])
async def test_ids_that_are_none_are_a_fault_of_the_envelope(
    watched: Watched, bad: dict[str, str]
) -> None:
    fields: dict[str, Any] = {"session_id": "s1", "call_id": "c", **bad}
    stream = watched.worker.tools.WatchCall(tool_pb2.WatchCallRequest(**fields))
    assert error_info(await failure_of(stream)).reason == "INVALID_ENVELOPE"


# --- many watchers ---------------------------------------------------------------


async def test_watchers_beyond_the_bound_are_refused_and_places_come_back(
    watched: Watched,
) -> None:
    running = watched.run()
    streams = [watched.watch() for _ in range(limits.WATCHERS_PARALLEL_MAX)]
    for stream in streams:
        await next_of(stream)
    error = await failure_of(watched.watch())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason_of(error) == "CALLS_EXHAUSTED"
    assert retry_s(error) > 0
    for stream in streams:
        stream.cancel()
    await until(lambda: watched.live.watches == 0)
    await next_of(watched.watch())
    watched.command.end()
    await running


async def test_streams_that_are_cancelled_leave_one_poll_in_the_guest(watched: Watched) -> None:
    running = watched.run()
    for _ in range(100):
        stream = watched.watch()
        await next_of(stream)
        stream.cancel()
    await until(lambda: watched.live.watches == 0)
    assert len(watched.command.feeds) <= 2
    watched.command.end()
    await running


# --- a guest that lies -------------------------------------------------------------


@pytest.mark.parametrize(
    "lie",
    [
        Reply({}),
        Reply({"known": True, "start": -1, "end": 3, "ended": False}),
        Reply({"known": True, "start": 1, "end": 2**60, "ended": False}),
        Reply({"known": True, "start": 1, "end": 10, "ended": False}),
        Reply({"known": True, "start": 0, "end": 3, "ended": False}, b"abc"),
        Reply({"known": True, "start": 1, "end": 3, "ended": False}, b"far more than two"),
        Reply({"known": "yes", "start": 1, "end": 3, "ended": False}),
    ],
)
async def test_guest_that_lies_of_its_output_ends_its_session_alone(
    watched: Watched, lie: Reply
) -> None:
    await watched.worker.create("s2")
    running = watched.run()
    watched.command.lie = lie
    watched.command.write(b"abc")
    events = await watched.all(2)
    assert events[-1].result.ending == tool_pb2.ENDING_SANDBOX_LOST
    await running
    await watched.worker.state_is(session_pb2.SESSION_STATE_FAILED)
    assert (await watched.worker.get("s2")).state == session_pb2.SESSION_STATE_READY
