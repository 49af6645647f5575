"""A call that a rule watches: single streams, as they come, and what all of them must keep."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from google.protobuf.duration_pb2 import Duration

from sandbox_adapter import errors
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.v1 import tool_pb2

EVENT_S_MAX: Final = 20.0
"""Longest silence of a stream that a rule takes: heartbeats come every 5 s."""
SEQUENCE_MAX: Final = 2**64 - 1

Event = tool_pb2.WatchCallResponse


class Stream:
    """One `WatchCall`, as it is, which the client would mend."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._messages = aiter(call)

    async def next(self) -> Event | None:
        """The next event, or None at a proper end. Raises `AdapterError`."""
        try:
            async with asyncio.timeout(EVENT_S_MAX):
                event: Event | None = await anext(self._messages, None)
        except TimeoutError:
            raise Broken(f"no event and no heartbeat for {EVENT_S_MAX:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error) from None
        return event

    async def next_but_heartbeats(self) -> Event:
        """The next event that is none. Raises `Broken` where the stream ends instead."""
        while (event := await self.next()) is not None:
            if event.WhichOneof("event") != "heartbeat":
                return event
        raise Broken("the stream ended before its result")

    async def until_output(self, wanted: bytes) -> bytes:
        """Output up to where this stands in it."""
        data = b""
        while wanted not in data:
            event = await self.next_but_heartbeats()
            if event.WhichOneof("event") in ("result", "resume_from"):
                raise Broken(f"{expect.shown(wanted)} did not come, but {expect.shown(data)}")
            data += event.output.data
        return data

    async def rest(self) -> list[Event]:
        """Everything that follows, to the end of the stream."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


@asynccontextmanager
async def watching(
    place: Place,
    call_id: str,
    after: int = 0,
    *,
    session_id: str | None = None,
    heartbeat: Duration | None = None,
) -> AsyncIterator[Stream]:
    """A stream, cancelled at the end of the block."""
    request = tool_pb2.WatchCallRequest(
        session_id=place.session_id if session_id is None else session_id,
        call_id=call_id,
        after_sequence=after,
        heartbeat_interval=heartbeat,
    )
    call = place.client.connection.open(place.target.tools.WatchCall, request)
    try:
        yield Stream(call)
    finally:
        call.cancel()


async def whole(place: Place, call_id: str, after: int = 0) -> list[Event]:
    """All events of one stream but its heartbeats, checked for what every stream keeps."""
    async with watching(place, call_id, after) as stream:
        events = await stream.rest()
    well_ordered(place, events, after)
    return [event for event in events if event.WhichOneof("event") != "heartbeat"]


def well_ordered(place: Place, events: Sequence[Event], after: int = 0) -> None:
    """Numbers grow, each kind has its place, and only kinds without a number have none."""
    last = after
    for index, event in enumerate(events):
        kind = event.WhichOneof("event")
        if kind in ("heartbeat", "resume_from"):
            expect.equal(event.sequence, 0, f"number of a {kind}")
        elif not (after == SEQUENCE_MAX and kind == "result"):
            expect.holds(event.sequence > last, f"{kind} has number {event.sequence}, after {last}")
            last = event.sequence
        if kind == "started":
            numbered = [each for each in events[:index] if each.sequence]
            expect.equal(len(numbered), 0, "events with a number before `started`")
            expect.holds(after == 0, "`started` comes again")
        if kind == "output":
            _has_bounds(place, event)
        if kind in ("result", "resume_from"):
            expect.equal(index, len(events) - 1, f"place of the {kind}")
    if not events or events[-1].WhichOneof("event") not in ("result", "resume_from"):
        raise Broken("the stream ended without a result or a place to resume from")


def _has_bounds(place: Place, event: Event) -> None:
    expect.holds(
        bool(event.output.data) or event.output.bytes_dropped > 0,
        "an output event without data and without dropped bytes",
    )
    if most := place.target.limits.chunk_bytes_max:
        expect.holds(
            len(event.output.data) <= most,
            f"an output event has {len(event.output.data)} bytes, over {most}",
        )


def kinds(events: Sequence[Event]) -> list[str]:
    """What the events are, output of several pieces once."""
    found: list[str] = []
    for event in events:
        kind = event.WhichOneof("event") or "none"
        if kind != "output" or found[-1:] != ["output"]:
            found.append(kind)
    return found


def data_of(events: Sequence[Event]) -> bytes:
    return b"".join(event.output.data for event in events)


def dropped_of(events: Sequence[Event]) -> int:
    return sum(event.output.bytes_dropped for event in events)


def result_of(events: Sequence[Event]) -> tool_pb2.ToolResult:
    expect.equal(kinds(events)[-1:], ["result"], "the last event")
    return events[-1].result


def same_result(watched: tool_pb2.ToolResult, answered: tool_pb2.ToolResult) -> None:
    """What the watcher got is what the caller got, byte for byte, marked as replayed."""
    expect.holds(watched.replayed, "replayed is not set in the watcher's result")
    bare = tool_pb2.ToolResult()
    bare.CopyFrom(watched)
    bare.replayed = answered.replayed
    expect.equal(
        bare.SerializeToString(deterministic=True),
        answered.SerializeToString(deterministic=True),
        "the watcher's result",
    )


def begin(place: Place, call_id: str, script: str, **fields: Any) -> asyncio.Task[Any]:
    """A command in the place's folder, which is made by it."""
    folder = shlex.quote(place.folder)
    command = f"mkdir -p {folder} && cd {folder} || exit 99\n{script}"

    async def run() -> tool_pb2.ToolResult:
        fields_of = {"command": command, **fields}
        return place.with_shell(await place.call("bash", fields_of, call_id=call_id))

    return asyncio.create_task(run())
