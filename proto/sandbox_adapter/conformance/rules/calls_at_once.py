"""Rules on how many calls of a session run, and wait, at the same time (contract.md 5)."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Final

from sandbox_adapter import errors
from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.conformance.rules.calls import request_of
from sandbox_adapter.conformance.target import SEND_S
from sandbox_adapter.v1 import tool_pb2, tool_pb2_grpc

OVER: Final = 8
"""Calls that are sent beyond a bound."""
REFUSED_S_MAX: Final = 30.0
"""Time in which every call beyond a bound must be refused."""
STREAMS_MAX: Final = 64
"""Calls that wait at a time on one connection."""
QUEUE_MAX: Final = 1_000
"""Calls that a rule sends at most to fill a queue."""
PARALLEL_MAX: Final = 64
"""Calls that a rule runs at the same time at most."""


@rule("calls.run-in-parallel", cases=["contract 5"])
async def run_in_parallel(place: Place) -> None:
    """As many calls as announced run at the same time, each with its own output and code."""
    await place.require("sleep")
    count = min(place.bound("calls_parallel_max"), PARALLEL_MAX)
    async with place.target.session() as session:
        own = Place(place.target, session, f"{session.effective.working_directory}/parallel")
        await own.make_folder()
        # Each waits for all others: with one fewer at a time none would ever end.
        script = (
            f"cd {shlex.quote(own.folder)} && : > here-$$ && "
            f"while set -- here-*; [ $# -lt {count} ]; do sleep 0.1; done"
        )

        async def one(number: int) -> None:
            result = await own.bash(f"{script}; echo call {number}; exit {number}", timeout=40)
            note = f"[Command exited with code {number}]" if number else ""
            expect.exited(result, number, f"call {number}\n{note}")

        await asyncio.gather(*map(one, range(count)))


@rule("calls.queue-has-a-bound", cases=["contract 5"], timeout_s=120.0)
async def queue_has_a_bound(place: Place) -> None:
    """What would wait beyond the announced bound is refused with a time to come back."""
    await place.require("sleep")
    most = place.bound("calls_parallel_max") + place.bound("calls_queued_max")
    if most > QUEUE_MAX:
        raise Uncheckable(f"{most} calls would be needed to fill the queue")
    async with place.target.session() as session, AsyncExitStack() as stack:
        own = Place(place.target, session, session.effective.working_directory)
        await own.bash("true")
        senders = [await _sender(place, stack) for _ in range(-(-(most + OVER) // STREAMS_MAX))]
        sent = [
            asyncio.create_task(
                senders[number % len(senders)](request_of(own, new_id("call"), "sleep 300"))
            )
            for number in range(most + OVER)
        ]
        try:
            await _answered(sent, OVER)
            # Asked after all the others, so once it is answered those beyond the bound are too.
            with expect.fails("RESOURCE_EXHAUSTED", "CALLS_EXHAUSTED"):
                await place.target.send(
                    place.target.tools.CallTool,
                    request_of(own, new_id("call"), "true"),
                    REFUSED_S_MAX,
                )
        finally:
            for task in sent:
                task.cancel()
            answers: list[object] = list(await asyncio.gather(*sent, return_exceptions=True))
    # Those that waited were given up here; everything else is an answer.
    answered = [answer for answer in answers if not isinstance(answer, asyncio.CancelledError)]
    expect.equal(len(answered), OVER, "calls that were answered at once")
    for answer in answered:
        if not isinstance(answer, errors.Exhausted):
            raise Broken(f"not refused: {expect.shown(str(answer))}")
        expect.equal(answer.reason, "CALLS_EXHAUSTED", "reason")
        expect.holds(answer.retry_after_s is not None, "a refusal without RetryInfo")


async def _sender(
    place: Place, stack: AsyncExitStack
) -> Callable[[tool_pb2.CallToolRequest], Coroutine[None, None, object]]:
    """Sends calls over a connection of its own: a server may bound the streams of each."""
    connection = await stack.enter_async_context(place.client.connection.another())
    call = tool_pb2_grpc.ToolServiceStub(connection.channel).CallTool

    async def send(request: tool_pb2.CallToolRequest) -> object:
        return await connection.once(call, request, SEND_S)

    return send


async def _answered(sent: Sequence[asyncio.Task[object]], count: int) -> None:
    """Waits until so many are answered, or time is over."""
    deadline = time.monotonic() + REFUSED_S_MAX
    waiting = set(sent)
    while len(sent) - len(waiting) < count and time.monotonic() < deadline:
        _, waiting = await asyncio.wait(waiting, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
