"""Rules on watching a call: its events, their order and their numbers (contract.md 4)."""

from __future__ import annotations

import asyncio
import shlex
from typing import Final

from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import SIX_TOOLS, WATCH_CALL, rule
from sandbox_adapter.conformance.rules import watched
from sandbox_adapter.conformance.rules.watched import (
    begin,
    data_of,
    dropped_of,
    kinds,
    result_of,
    same_result,
    watching,
    whole,
)

NEEDS: Final = (SIX_TOOLS, WATCH_CALL)
WATCHERS: Final = 20
"""Streams at a time: an adapter must allow some, and says nowhere how many."""

RAW: Final = b"\x1b[1mbold\x1b[0m\rover\b\b\x07\r\n\xe2\x82\xac\xe2\x82" + bytes(range(256))


@rule("watch.started-output-result", level="full", needs=NEEDS, cases=["contract 4"])
async def started_output_result(place: Place) -> None:
    """A watched command has started once, gives its raw output, and ends with its result."""
    await place.require("sleep")
    call_id = new_id("call")
    running = begin(place, call_id, "for i in 1 2 3; do echo line $i; sleep 0.1; done; exit 3")
    events = await whole(place, call_id)
    answered = await running
    expect.equal(kinds(events), ["started", "output", "result"], "events")
    expect.equal(data_of(events), b"line 1\nline 2\nline 3\n", "output")
    expect.equal(dropped_of(events), 0, "bytes dropped")
    same_result(result_of(events), answered)


@rule("watch.output-comes-while-it-runs", level="full", needs=NEEDS, cases=["contract 4"])
async def output_comes_while_it_runs(place: Place) -> None:
    """Output is there while the command still runs, a piece without a line end too."""
    await place.require("sleep")
    call_id = new_id("call")
    script = "printf 'name? '; until [ -e go ]; do sleep 0.1; done; echo there"
    running = begin(place, call_id, script)
    async with watching(place, call_id) as stream:
        first = await stream.next_but_heartbeats()
        expect.equal(first.WhichOneof("event"), "started", "first event")
        expect.equal(await stream.until_output(b"name? "), b"name? ", "output so far")
        # The command goes on because its output was seen: no late answer passes here.
        await place.put("go", "")
        rest = await stream.rest()
    expect.equal(data_of(rest), b"there\n", "output after that")
    same_result(result_of(rest), await running)


@rule("watch.numbers-are-places", level="full", needs=NEEDS, cases=["contract 4"])
async def numbers_are_places(place: Place) -> None:
    """`started` is 1, an output that ends with byte k is 1 + k, and the result is 2 + the total."""
    await place.require("sleep")
    call_id = new_id("call")
    begin_at = begin(place, call_id, "printf abc; sleep 0.3; printf de; sleep 0.3; printf f")
    events = await whole(place, call_id)
    await begin_at
    at = 1
    for event in events:
        at += len(event.output.data) + event.output.bytes_dropped
        expected = at + 1 if event.WhichOneof("event") == "result" else at
        expect.equal(event.sequence, expected, f"number of a {event.WhichOneof('event')}")
    expect.equal(events[-1].sequence, 8, "number of the result")


@rule("watch.start-is-the-results", level="full", needs=NEEDS, cases=["contract 4"])
async def start_is_the_results(place: Place) -> None:
    """`started` names the time and the generation that the result has."""
    await place.require("echo")
    call_id = new_id("call")
    running = begin(place, call_id, "echo x")
    events = await whole(place, call_id)
    result = await running
    expect.equal(events[0].started.started_at, result.started_at, "time of the start")
    expect.equal(events[0].started.generation, result.generation, "generation")


@rule("watch.output-is-raw", level="full", needs=NEEDS, cases=["contract 4"])
async def output_is_raw(place: Place) -> None:
    """Watched output has every byte as it was written: NUL, escapes, what is no UTF-8."""
    await place.require("printf")
    call_id = new_id("call")
    octal = "".join(f"\\{byte:03o}" for byte in RAW)
    running = begin(place, call_id, f"printf '{octal}'")
    events = await whole(place, call_id)
    expect.equal(data_of(events), RAW, "output")
    expect.equal((await running).bytes_total, len(RAW), "bytes_total")


@rule("watch.both-streams-in-order", level="full", needs=NEEDS, cases=["contract 4"])
async def both_streams_in_order(place: Place) -> None:
    """stdout and stderr are one output, in the order in which they were written."""
    await place.require("echo")
    call_id = new_id("call")
    running = begin(place, call_id, "echo 1; echo 2 >&2; echo 3; echo 4 >&2")
    expect.equal(data_of(await whole(place, call_id)), b"1\n2\n3\n4\n", "output")
    await running


@rule("watch.other-tools-start-and-end", level="full", needs=NEEDS, cases=["contract 4"])
async def other_tools_start_and_end(place: Place) -> None:
    """A call without output has started and has its result, a refusal too."""
    await place.put("f", "x\n")
    inputs = {
        "read": {"path": place.at("f")},
        "write": {"path": place.at("g"), "content": "y"},
        "glob": {"pattern": "f", "path": place.folder},
        "edit": {"path": place.at("missing"), "oldText": "a", "newText": "b"},
    }
    for tool, fields in inputs.items():
        call_id = new_id("call")
        answered = await place.call(tool, fields, call_id=call_id)
        events = await whole(place, call_id)
        expect.equal(kinds(events), ["started", "result"], f"events of {tool}")
        expect.equal([event.sequence for event in events], [1, 2], f"numbers of {tool}")
        same_result(result_of(events), answered)


@rule("watch.ends-of-every-kind", level="full", needs=NEEDS, cases=["contract 4", "B5"])
async def ends_of_every_kind(place: Place) -> None:
    """A command that exits, is killed, takes too long or prints nothing ends its stream so."""
    await place.require("sleep")
    for script, fields, ending, data in (
        ("exit 7", {}, "EXITED", b""),
        ("echo x; kill -9 $$", {}, "SIGNALED", b"x\n"),
        ("echo x; sleep 300", {"timeout": 1}, "TIMED_OUT", b"x\n"),
        ("sleep 300 > /dev/null 2>&1 & echo job", {}, "EXITED", b"job\n"),
    ):
        call_id = new_id("call")
        running = begin(place, call_id, script, **fields)
        events = await whole(place, call_id)
        result = result_of(events)
        expect.ending_is(result, ending)
        expect.equal(data_of(events), data, f"output of {script!r}")
        same_result(result, await running)
        for survivor in result.survivors:
            await place.shell(f"kill {survivor.pid}")


@rule("watch.ends-at-the-result", level="full", needs=NEEDS, cases=["contract 4", "B2"])
async def ends_at_the_result(place: Place) -> None:
    """What a background job prints after its call has ended is in no stream."""
    await place.require("sleep")
    call_id = new_id("call")
    script = "(sleep 6; echo late; : > printed) & echo done"
    answered = await begin(place, call_id, script)
    expect.equal(data_of(await whole(place, call_id)), b"done\n", "output at once")
    await place.bash_here("until [ -e printed ]; do sleep 0.2; done", timeout=30)
    events = await whole(place, call_id)
    expect.equal(data_of(events), b"done\n", "output after the job has printed")
    same_result(result_of(events), answered)


@rule("watch.many-watch-one-call", level="full", needs=NEEDS, cases=["contract 4"])
async def many_watch_one_call(place: Place) -> None:
    """Any number of readers get the same bytes, whenever they begin."""
    await place.require("sleep")
    call_id = new_id("call")
    script = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; sleep 0.05; done"
    running = begin(place, call_id, script)

    async def watch_later(number: int) -> list[watched.Event]:
        await asyncio.sleep(number * 0.1)
        return await whole(place, call_id)

    everything = await asyncio.gather(*map(watch_later, range(WATCHERS)))
    expected = b"".join(b"line %d\n" % number for number in range(1, 41))
    answered = await running
    for events in everything:
        expect.equal(data_of(events), expected, "output of one of many")
        same_result(result_of(events), answered)


@rule("watch.leaving-changes-nothing", level="full", needs=NEEDS, cases=["contract 4", "B38"])
async def leaving_changes_nothing(place: Place) -> None:
    """A watcher that goes ends neither the call nor another watcher's stream."""
    await place.require("sleep")
    call_id = new_id("call")
    script = "echo begun; until [ -e go ]; do sleep 0.1; done; echo done"
    running = begin(place, call_id, script)
    async with watching(place, call_id) as stays:
        await stays.until_output(b"begun\n")
        for _ in range(10):
            async with watching(place, call_id) as goes:
                await goes.until_output(b"begun\n")
        await place.put("go", "")
        rest = await stays.rest()
    expect.equal(data_of(rest), b"done\n", "output for who stayed")
    expect.exited(await running, 0, "begun\ndone\n")


@rule("watch.starts-nothing", level="full", needs=NEEDS, cases=["contract 4"])
async def starts_nothing(place: Place) -> None:
    """Watching an ended call again and again runs nothing and gives the same each time."""
    call_id = new_id("call")
    await begin(place, call_id, "echo x >> ran; echo done")
    first = await whole(place, call_id)
    for _ in range(3):
        again = await whole(place, call_id)
        expect.equal(data_of(again), data_of(first), "output")
        same_result(result_of(again), result_of(first))
    expect.equal(await place.content("ran"), b"x\n", "what the command left")


@rule("watch.takes-any-length", level="full", needs=NEEDS, cases=["contract 4", "contract 5"])
async def takes_any_length(place: Place) -> None:
    """Of output beyond what is kept the end comes, and how much came before is said."""
    await place.require("head", "tr")
    call_id = new_id("call")
    total = 3_000_000
    script = f"head -c {total - 10} /dev/zero | tr '\\0' x; printf 0123456789"
    answered = await begin(place, call_id, script)
    expect.equal(answered.bytes_total, total, "bytes_total")
    events = await whole(place, call_id)
    data = data_of(events)
    expect.equal(len(data) + dropped_of(events), total, "bytes that came and bytes dropped")
    expect.holds(data == (b"x" * (total - 10) + b"0123456789")[-len(data) :], "other bytes came")
    expect.holds(len(data) > 0, "nothing is kept of the output")
    expect.equal(events[-1].sequence, total + 2, "number of the result")


@rule("watch.slow-reader-loses-and-learns", level="full", needs=NEEDS, cases=["contract 4"])
async def slow_reader_loses_and_learns(place: Place) -> None:
    """A reader that stands still holds up nobody; it gets all, or learns what it missed."""
    await place.require("head", "tr")
    call_id = new_id("call")
    folder = shlex.quote(place.folder)
    script = (
        f"echo begun; until [ -e {folder}/go ]; do sleep 0.1; done; "
        "head -c 8000000 /dev/zero | tr '\\0' x"
    )
    running = begin(place, call_id, script)
    async with watching(place, call_id) as slow:
        seen = [await slow.next_but_heartbeats()]
        await place.put("go", "")
        # It is not read while the command writes eight megabytes and ends.
        result = await running
        expect.equal(result.bytes_total, 8_000_006, "bytes_total")
        seen += await slow.rest()
    watched.well_ordered(place, seen)
    total = len(data_of(seen)) + dropped_of(seen)
    while seen[-1].WhichOneof("event") == "resume_from":
        after = seen[-1].resume_from.after_sequence
        numbers = [event.sequence for event in seen if event.sequence]
        expect.equal(after, max(numbers), "place to resume from")
        seen += await whole(place, call_id, after)
        total = len(data_of(seen)) + dropped_of(seen)
    expect.equal(total, 8_000_006, "bytes that came and bytes dropped")
    same_result(result_of(seen), result)
