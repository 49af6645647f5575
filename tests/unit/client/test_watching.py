"""Watching over streams that break, end early, or say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from sandbox_adapter import errors, watching
from sandbox_adapter.client import AdapterClient
from sandbox_adapter.v1 import tool_pb2, tool_pb2_grpc
from tests.unit.orchestrator.folder_adapter import Context, fail

Event = tool_pb2.WatchCallResponse
Script = Callable[[Any, Context], AsyncIterator[Event]]

STARTED = Event(sequence=1, started=tool_pb2.CallStarted())
BEAT = Event(heartbeat=tool_pb2.CallHeartbeat())


def output(sequence: int, data: bytes) -> Event:
    return Event(sequence=sequence, output=tool_pb2.CallOutput(data=data))


def result(sequence: int) -> Event:
    return Event(sequence=sequence, result=tool_pb2.ToolResult(text="done"))


def resume(after: int) -> Event:
    return Event(resume_from=tool_pb2.CallResumeFrom(after_sequence=after))


class Streams(tool_pb2_grpc.ToolServiceServicer):
    """Each watch gets the next script; the last one serves for all that follow."""

    def __init__(self, *scripts: Script) -> None:
        self.asked: list[tool_pb2.WatchCallRequest] = []
        self._scripts = list(scripts)

    async def WatchCall(self, request: Any, context: Context) -> AsyncIterator[Event]:
        self.asked.append(request)
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        async for event in script(request, context):
            yield event

    @property
    def places(self) -> list[int]:
        return [request.after_sequence for request in self.asked]


def gives(*events: Event, then: Callable[[Context], Awaitable[None]] | None = None) -> Script:
    async def script(_: Any, context: Context) -> AsyncIterator[Event]:
        for event in events:
            yield event
        if then is not None:
            await then(context)

    return script


@asynccontextmanager
async def served(folder: Path, service: Streams, **how: Any) -> AsyncIterator[AdapterClient]:
    server = grpc.aio.server()
    tool_pb2_grpc.add_ToolServiceServicer_to_server(service, server)
    server.add_insecure_port(f"unix:{folder}/s")
    await server.start()
    try:
        async with AdapterClient(f"unix:{folder}/s", **how) as client:
            yield client
    finally:
        await server.stop(0)


async def events_of(client: AdapterClient, *arguments: Any, **named: Any) -> list[Event]:
    async with asyncio.timeout(20):
        return [event async for event in client.watch_call("s", "c", *arguments, **named)]


async def test_events_come_as_they_are_to_the_result(tmp_path: Path) -> None:
    service = Streams(gives(STARTED, BEAT, output(4, b"abc"), result(5)))
    async with served(tmp_path, service) as client:
        events = await events_of(client, 0, 2.5)
    assert [event.WhichOneof("event") for event in events] == [
        "started",
        "heartbeat",
        "output",
        "result",
    ]
    assert service.asked[0].heartbeat_interval.ToMilliseconds() == 2500
    assert (service.asked[0].session_id, service.asked[0].call_id) == ("s", "c")


async def test_place_to_begin_from_is_passed_on(tmp_path: Path) -> None:
    service = Streams(gives(result(9)))
    async with served(tmp_path, service) as client:
        await events_of(client, after_sequence=7)
    assert service.places == [7]
    assert not service.asked[0].HasField("heartbeat_interval")


async def test_lost_stream_goes_on_behind_its_last_event(tmp_path: Path) -> None:
    async def lose(context: Context) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    service = Streams(
        gives(STARTED, output(4, b"abc"), BEAT, then=lose), gives(output(6, b"de"), result(7))
    )
    async with served(tmp_path, service) as client:
        events = await events_of(client)
    assert b"".join(event.output.data for event in events) == b"abcde"
    assert service.places == [0, 4]


async def test_stream_that_ends_without_a_result_goes_on(tmp_path: Path) -> None:
    service = Streams(gives(STARTED), gives(), gives(output(4, b"abc")), gives(result(5)))
    async with served(tmp_path, service) as client:
        events = await events_of(client)
    assert [event.sequence for event in events] == [1, 4, 5]
    assert service.places == [0, 1, 1, 4]


async def test_reader_that_was_cut_loose_resumes_at_the_place_it_is_told(tmp_path: Path) -> None:
    service = Streams(gives(STARTED, output(4, b"abc"), resume(4)), gives(result(9)))
    async with served(tmp_path, service) as client:
        events = await events_of(client)
    assert [event.WhichOneof("event") for event in events] == ["started", "output", "result"]
    assert service.places == [0, 4]


async def test_adapter_that_asks_to_wait_is_asked_again(tmp_path: Path) -> None:
    async def full(context: Context) -> None:
        await fail(context, "RESOURCE_EXHAUSTED", "CALLS_EXHAUSTED", retry_s=0.01)

    service = Streams(gives(then=full), gives(then=full), gives(result(2)))
    async with served(tmp_path, service) as client:
        assert [event.sequence for event in await events_of(client)] == [2]
    assert len(service.asked) == 3


async def test_call_that_is_unknown_is_not_asked_for_again(tmp_path: Path) -> None:
    async def unknown(context: Context) -> None:
        await fail(context, "NOT_FOUND", "CALL_UNKNOWN")

    service = Streams(gives(then=unknown))
    async with served(tmp_path, service) as client:
        with pytest.raises(errors.CallUnknown):
            await events_of(client)
    assert len(service.asked) == 1


async def test_adapter_that_stays_away_is_given_up(tmp_path: Path) -> None:
    async def lose(context: Context) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    service = Streams(gives(then=lose))
    async with served(tmp_path, service, retry_s_max=0.5) as client:
        with pytest.raises(errors.ConnectionLost):
            await events_of(client)
    assert len(service.asked) > 1


async def test_time_that_the_reader_takes_is_no_silence(tmp_path: Path) -> None:
    async def lose(context: Context) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    service = Streams(gives(STARTED, then=lose), gives(result(2)))
    async with served(tmp_path, service, retry_s_max=0.3) as client:
        seen = []
        async for event in client.watch_call("s", "c"):
            seen.append(event.sequence)
            await asyncio.sleep(0.6)
    assert seen == [1, 2]


async def test_stream_that_says_nothing_counts_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "SILENCE_S_MAX", -0.7)

    async def hang(_: Context) -> None:
        await asyncio.sleep(60)

    service = Streams(gives(STARTED, then=hang), gives(result(2)))
    async with served(tmp_path, service) as client:
        assert [event.sequence for event in await events_of(client, 0, 1.0)] == [1, 2]


async def test_reader_that_leaves_ends_its_stream(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def wait_for_end(_: Context) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    service = Streams(gives(STARTED, then=wait_for_end))
    async with served(tmp_path, service) as client:
        async for _ in client.watch_call("s", "c"):
            break
        await asyncio.wait_for(ended.wait(), 10)
