"""Rules on where a watch begins and how it ends (contract.md 4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Final

from google.protobuf.duration_pb2 import Duration

from sandbox_adapter import errors
from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import SIX_TOOLS, WATCH_CALL, rule
from sandbox_adapter.conformance.rules.sessions import BAD_IDS
from sandbox_adapter.conformance.rules.watched import (
    SEQUENCE_MAX,
    begin,
    data_of,
    kinds,
    result_of,
    same_result,
    watching,
    whole,
)
from sandbox_adapter.v1 import tool_pb2

NEEDS: Final = (SIX_TOOLS, WATCH_CALL)
AWAITED_S: Final = 5.0
"""How long a call that is not known yet is waited for."""
PARALLEL_MAX: Final = 64


@rule("watch.any-number-resumes", level="full", needs=NEEDS, cases=["contract 4"])
async def any_number_resumes(place: Place) -> None:
    """From every number on the rest comes, without loss and without anything twice."""
    call_id = new_id("call")
    whole_output = b"line 1\nline 2\n"
    answered = await begin(place, call_id, "echo line 1; echo line 2")
    for after in range(len(whole_output) + 2):
        events = await whole(place, call_id, after)
        expect.equal(data_of(events), whole_output[max(0, after - 1) :], f"output behind {after}")
        expect.equal(kinds(events)[:1] == ["started"], after == 0, f"`started` behind {after}")
        same_result(result_of(events), answered)


@rule("watch.resumes-while-it-runs", level="full", needs=NEEDS, cases=["contract 4"])
async def resumes_while_it_runs(place: Place) -> None:
    """Streams that are left and taken up again make one output, byte for byte."""
    await place.require("sleep")
    call_id = new_id("call")
    script = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo line $i; sleep 0.03; done"
    running = begin(place, call_id, script)
    data, after, ended = b"", 0, False
    while not ended:
        async with watching(place, call_id, after) as stream:
            for _ in range(5):
                event = await stream.next_but_heartbeats()
                expect.holds(event.sequence > after, f"number {event.sequence} after {after}")
                after = event.sequence
                data += event.output.data
                if event.WhichOneof("event") == "result":
                    ended = True
                    break
    expect.equal(data, b"".join(b"line %d\n" % number for number in range(1, 61)), "output")
    await running


@rule("watch.behind-the-end", level="full", needs=NEEDS, cases=["contract 4"])
async def behind_the_end(place: Place) -> None:
    """Behind the last number, however far, there is the result alone."""
    call_id = new_id("call")
    answered = await begin(place, call_id, "echo x")
    last = (await whole(place, call_id))[-1].sequence
    for after in (last, last + 1, last + 1_000_000, 2**53, 2**63, SEQUENCE_MAX - 1, SEQUENCE_MAX):
        events = await whole(place, call_id, after)
        expect.equal(kinds(events), ["result"], f"events behind {after}")
        same_result(result_of(events), answered)


@rule("watch.waits-for-a-call", level="full", needs=NEEDS, cases=["contract 4"])
async def waits_for_a_call(place: Place) -> None:
    """A call that is watched before it is made is waited for and misses nothing."""
    await place.require("echo")
    call_id = new_id("call")
    async with watching(place, call_id) as stream:
        first = asyncio.create_task(stream.next_but_heartbeats())
        await asyncio.sleep(0.5)
        running = begin(place, call_id, "echo x")
        expect.equal((await first).WhichOneof("event"), "started", "first event")
        rest = await stream.rest()
    expect.equal(data_of(rest), b"x\n", "output")
    same_result(result_of(rest), await running)


@rule("watch.unknown-calls", level="full", needs=NEEDS, cases=["contract 4"])
async def unknown_calls(place: Place) -> None:
    """A call that does not come within five seconds is CALL_UNKNOWN, and not at once."""
    begun = time.monotonic()
    async with watching(place, new_id("never")) as stream:
        with expect.fails("NOT_FOUND", "CALL_UNKNOWN"):
            await stream.rest()
    took_s = time.monotonic() - begun
    expect.holds(AWAITED_S - 0.5 <= took_s <= AWAITED_S + 10, f"it was waited for {took_s:.1f} s")


@rule("watch.unknown-sessions", level="full", needs=(WATCH_CALL,), cases=["contract 4"])
async def unknown_sessions(place: Place) -> None:
    """A session that is unknown or deleted has nothing to watch."""
    async with watching(place, "c", session_id=new_id("never")) as stream:
        with expect.fails("NOT_FOUND", "SESSION_UNKNOWN"):
            await stream.rest()
    async with place.target.session() as session:
        await place.client.delete_session(session.session_id)
        async with watching(place, "c", session_id=session.session_id) as stream:
            with expect.fails("FAILED_PRECONDITION", "SESSION_DELETED"):
                await stream.rest()


@rule("watch.refuses-bad-ids", level="full", needs=(WATCH_CALL,), cases=["contract 4"])
async def refuses_bad_ids(place: Place) -> None:
    """Ids that break their rule are faults of the envelope."""
    for bad in ("", *BAD_IDS):
        for field, call_id, session_id in (("call_id", bad, None), ("session_id", "c", bad)):
            async with watching(place, call_id, session_id=session_id) as stream:
                try:
                    with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field=field):
                        await stream.rest()
                except Broken as broken:
                    raise Broken(f"{field} {expect.shown(bad)}: {broken}") from None


@rule("watch.refuses-bad-intervals", level="full", needs=NEEDS, cases=["contract 4"])
async def refuses_bad_intervals(place: Place) -> None:
    """Heartbeats come every 1 s to 60 s; another interval is a fault of the envelope."""
    call_id = new_id("call")
    await begin(place, call_id, "true")
    bad = ((0, 0), (0, 999_999_999), (60, 1), (61, 0), (-1, 0), (2, -1), (10**12, 0))
    for seconds, nanos in bad:
        interval = Duration(seconds=seconds, nanos=nanos)
        async with watching(place, call_id, heartbeat=interval) as stream:
            with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field="heartbeat_interval"):
                await stream.rest()
    for seconds in (1, 60):
        async with watching(place, call_id, heartbeat=Duration(seconds=seconds)) as stream:
            result_of(await stream.rest())


@rule("watch.heartbeats", level="full", needs=NEEDS, cases=["contract 4"])
async def heartbeats(place: Place) -> None:
    """A silent command's stream has a heartbeat an interval, which says how long it has run."""
    await place.require("sleep")
    call_id = new_id("call")
    running = begin(place, call_id, "sleep 300")
    async with watching(place, call_id, heartbeat=Duration(seconds=1)) as stream:
        await stream.next_but_heartbeats()
        begun = time.monotonic()
        ran: list[float] = []
        for _ in range(3):
            event = await stream.next()
            expect.holds(
                event is not None and event.WhichOneof("event") == "heartbeat",
                "something else than a heartbeat comes",
            )
            assert event is not None
            ran.append(event.heartbeat.running.ToNanoseconds() / 1e9)
        took_s = time.monotonic() - begun
    expect.holds(2.0 <= took_s <= 6.0, f"three heartbeats of a second took {took_s:.1f} s")
    expect.holds(ran == sorted(ran) and ran[2] - ran[0] >= 1.0, f"the call has run {ran}")
    await place.client.cancel_call(place.session_id, call_id)
    await running


@rule("watch.cancelled-calls", level="full", needs=NEEDS, cases=["contract 4", "B6"])
async def cancelled_calls(place: Place) -> None:
    """A watched call that is cancelled ends its streams with that, after what it printed."""
    await place.require("sleep")
    call_id = new_id("call")
    running = begin(place, call_id, "echo begun; sleep 300")
    async with watching(place, call_id) as stream:
        await stream.until_output(b"begun\n")
        cancelled = await place.client.cancel_call(place.session_id, call_id)
        result = result_of(await stream.rest())
    expect.ending_is(result, "CANCELLED")
    expect.equal(result.text, cancelled.text, "text")
    same_result(result, await running)


@rule("watch.deleted-sessions", level="full", needs=NEEDS, cases=["contract 3", "contract 4"])
async def deleted_sessions(place: Place) -> None:
    """The end of its session ends a stream, with the call's end or with SESSION_DELETED."""
    await place.require("sleep")
    async with place.target.session() as session:
        own = Place(place.target, session, f"{session.effective.working_directory}/watched")
        call_id = new_id("call")
        running = begin(own, call_id, "echo begun; sleep 300")
        async with watching(own, call_id) as stream:
            await stream.until_output(b"begun\n")
            await place.client.delete_session(session.session_id)
            answered = await running
            expect.ending_is(answered, "CANCELLED")
            event = await _last_or_deleted(stream.next_but_heartbeats())
        if event is not None:
            expect.equal(event.WhichOneof("event"), "result", "last event")
            same_result(event.result, answered)


async def _last_or_deleted(
    event: Awaitable[tool_pb2.WatchCallResponse],
) -> tool_pb2.WatchCallResponse | None:
    try:
        return await event
    except errors.SessionDeleted:
        return None


@rule("watch.queued-calls", level="full", needs=NEEDS, cases=["contract 4", "contract 5"])
async def queued_calls(place: Place) -> None:
    """A call that waits for its turn has heartbeats, and `started` once its turn comes."""
    await place.require("sleep")
    most = place.bound("calls_parallel_max")
    if most > PARALLEL_MAX:
        raise Uncheckable(f"{most} calls would be needed to make one wait")
    async with place.target.session() as session:
        own = Place(place.target, session, f"{session.effective.working_directory}/watched")
        await own.bash("true")
        ahead = [new_id("call") for _ in range(most)]
        tasks = [begin(own, call_id, "sleep 300") for call_id in ahead]
        for call_id in ahead:
            async with watching(own, call_id) as stream:
                event = await stream.next_but_heartbeats()
                expect.equal(event.WhichOneof("event"), "started", "first event")
        waiting = new_id("call")
        tasks.append(begin(own, waiting, "echo mine"))
        async with watching(own, waiting, heartbeat=Duration(seconds=1)) as stream:
            beat = await stream.next()
            expect.holds(beat is not None, "the stream ended")
            assert beat is not None
            expect.equal(beat.WhichOneof("event"), "heartbeat", "event while it waits")
            expect.holds(not beat.heartbeat.HasField("running"), "it has not begun to run")
            await place.client.cancel_call(session.session_id, ahead[0])
            event = await stream.next_but_heartbeats()
            expect.equal(event.WhichOneof("event"), "started", "event once its turn has come")
            expect.equal(data_of(await stream.rest()), b"mine\n", "output")
        await asyncio.gather(
            *(place.client.cancel_call(session.session_id, call_id) for call_id in ahead)
        )
        await asyncio.gather(*tasks)
