"""Rules on cancelling a call: what it ends, what it leaves, and what it says (contract.md 4)."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import CONFIRMED_CANCEL, SIX_TOOLS, rule
from sandbox_adapter.conformance.rules.calls import request_of, same_but_replayed
from sandbox_adapter.conformance.rules.sessions import BAD_IDS
from sandbox_adapter.conformance.rules.watched import begin
from sandbox_adapter.v1 import tool_pb2

NEEDS: Final = (SIX_TOOLS, CONFIRMED_CANCEL)
AT_ONCE: Final = 20
SLACK_S: Final = 10.0
"""Over the grace: time of a busy machine to end a tree and answer."""
PARALLEL_MAX: Final = 64


async def _cancelled(place: Place, call_id: str) -> tool_pb2.ToolResult:
    result = await place.client.cancel_call(place.session_id, call_id)
    expect.ending_is(result, "CANCELLED")
    expect.equal(expect.reason_of(result), "CANCELLED_BY_CALLER", "reason")
    expect.holds(not result.is_error, "is_error is set of a command that ran")
    return result


@rule("calls.cancel-asks-first", cases=["contract 4"], needs=NEEDS)
async def cancel_asks_first(place: Place) -> None:
    """A cancelled command gets TERM and may tidy up; what it prints then is in the result."""
    await place.require("sleep")
    call_id = new_id("call")
    script = (
        "trap 'echo tidied; : > tidied; exit 0' TERM; echo begun; : > begun; "
        "while :; do sleep 0.1; done"
    )
    running = begin(place, call_id, script)
    await place.until_made("begun", running)
    result = await _cancelled(place, call_id)
    expect.says(result.text, "begun\n", "tidied")
    expect.holds(await place.exists("tidied"), "its trap did not run to the end")
    await running


@rule("calls.cancel-kills-after-the-grace", cases=["contract 4"], needs=NEEDS)
async def cancel_kills_after_the_grace(place: Place) -> None:
    """What ignores TERM is killed after the announced grace, and the answer comes then."""
    await place.require("sleep")
    grace_s = place.target.limits.kill_grace.ToNanoseconds() / 1e9
    call_id = new_id("call")
    running = begin(place, call_id, "trap '' TERM; : > begun; while :; do sleep 1; done")
    await place.until_made("begun", running)
    asked = time.monotonic()
    result = await _cancelled(place, call_id)
    took_s = time.monotonic() - asked
    expect.equal(list(result.survivors), [], "survivors")
    expect.holds(
        grace_s - 0.2 <= took_s <= grace_s + SLACK_S,
        f"the cancel took {took_s:.1f} s, with a grace of {grace_s:g} s",
    )
    await running


@rule("calls.cancel-is-quick-where-it-can", cases=["contract 4"], needs=NEEDS)
async def cancel_is_quick_where_it_can(place: Place) -> None:
    """A command that ends at TERM is not waited for longer than that."""
    await place.require("sleep")
    call_id = new_id("call")
    running = begin(place, call_id, ": > begun; exec sleep 300")
    await place.until_made("begun", running)
    asked = time.monotonic()
    await _cancelled(place, call_id)
    took_s = time.monotonic() - asked
    expect.holds(took_s < 1.9, f"the cancel took {took_s:.1f} s")
    await running


@rule("calls.cancel-keeps-output", cases=["contract 4"], needs=NEEDS)
async def cancel_keeps_output(place: Place) -> None:
    """The result of a cancelled command has all that it printed, with its totals."""
    await place.require("sleep")
    call_id = new_id("call")
    script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; done; : > begun; sleep 300"
    running = begin(place, call_id, script)
    await place.until_made("begun", running)
    result = await _cancelled(place, call_id)
    lines = "".join(f"line {number}\n" for number in range(1, 301))
    expect.holds(result.text.startswith(lines), "what it printed is not in the text")
    expect.equal(result.lines_total, 300, "lines_total")
    expect.equal(result.bytes_total, len(lines), "bytes_total")
    await running


@rule("calls.cancel-many-at-once", cases=["contract 4"], needs=NEEDS)
async def cancel_many_at_once(place: Place) -> None:
    """Many cancels of one call all get its one result."""
    await place.require("sleep")
    call_id = new_id("call")
    running = begin(place, call_id, "echo begun; : > begun; sleep 300")
    await place.until_made("begun", running)
    results = await asyncio.gather(*(_cancelled(place, call_id) for _ in range(AT_ONCE)))
    answered = await running
    for result in results:
        same_but_replayed(answered, result)


@rule("calls.cancel-again-changes-nothing", cases=["contract 2", "contract 4"], needs=NEEDS)
async def cancel_again_changes_nothing(place: Place) -> None:
    """A cancelled call stays what it is: for a cancel, a GetCall and the same call again."""
    await place.require("sleep")
    call_id = new_id("call")
    script = ": > begun; sleep 300; : > late"
    running = begin(place, call_id, script)
    await place.until_made("begun", running)
    await _cancelled(place, call_id)
    answered = await running
    same_but_replayed(answered, await _cancelled(place, call_id))
    known = await place.client.get_call(place.session_id, call_id)
    expect.equal(known.state, tool_pb2.CALL_STATE_FINISHED, "state")
    same_but_replayed(answered, known.result)
    same_but_replayed(answered, await begin(place, call_id, script))
    expect.holds(not await place.exists("late"), "the command went on, or ran again")


@rule("calls.cancel-spares-jobs-of-ended-calls", cases=["contract 4"], needs=NEEDS)
async def cancel_spares_jobs_of_ended_calls(place: Place) -> None:
    """Cancelling an ended call kills nothing, its background jobs included."""
    await place.require("sleep")
    call_id = new_id("call")
    answered = await begin(place, call_id, "sleep 300 > /dev/null 2>&1 & echo $!")
    pid = answered.text.split()[0]
    cancelled = await place.client.cancel_call(place.session_id, call_id)
    same_but_replayed(answered, cancelled)
    expect.exited(await place.bash(f"kill -0 {pid} && echo alive; kill {pid}"), 0, "alive\n")


@rule("calls.cancel-spares-other-calls", cases=["contract 4"], needs=NEEDS)
async def cancel_spares_other_calls(place: Place) -> None:
    """Cancelling one call ends none that runs beside it."""
    await place.require("sleep")
    first, second = new_id("call"), new_id("call")
    ended = begin(place, first, ": > first; sleep 300")
    stays = begin(place, second, ": > second; until [ -e go ]; do sleep 0.1; done; echo stayed")
    await place.until_made("first", ended)
    await place.until_made("second", stays)
    await _cancelled(place, first)
    await ended
    await place.put("go", "")
    expect.exited(await stays, 0, "stayed\n")


@rule("calls.cancel-withdraws-what-waits", cases=["contract 4", "contract 5"], needs=NEEDS)
async def cancel_withdraws_what_waits(place: Place) -> None:
    """A call that waits for its turn ends CANCELLED at once, and its id runs nothing later."""
    await place.require("sleep")
    most = place.bound("calls_parallel_max")
    if most > PARALLEL_MAX:
        raise Uncheckable(f"{most} calls would be needed to make one wait")
    async with place.target.session() as session:
        own = Place(place.target, session, session.effective.working_directory)
        await own.bash("true")
        ahead = [new_id("call") for _ in range(most)]
        tasks = [begin(own, call_id, "sleep 300") for call_id in ahead]
        for call_id in ahead:
            await _known(own, call_id)
        waiting = new_id("call")
        request = request_of(own, waiting, ": > ran")
        late = asyncio.create_task(place.target.send(place.target.tools.CallTool, request))
        await _known(own, waiting)
        asked = time.monotonic()
        result = await _cancelled(own, waiting)
        expect.holds(time.monotonic() - asked < 1.9, "the cancel waited for a turn")
        same_but_replayed((await late).result, result)
        ends = (place.client.cancel_call(session.session_id, call_id) for call_id in ahead)
        await asyncio.gather(*ends)
        await asyncio.gather(*tasks)
        again = await place.target.send(place.target.tools.CallTool, request)
        same_but_replayed(result, again.result)
        expect.holds(not await own.exists("ran"), "the cancelled call ran")


async def _known(place: Place, call_id: str) -> None:
    """Waits until a call is known, so that calls come in order."""
    for _ in range(200):
        answer = await place.client.get_call(place.session_id, call_id)
        if answer.state == tool_pb2.CALL_STATE_RUNNING:
            return
        await asyncio.sleep(0.02)
    raise Broken("a call that was sent is not known")


@rule("calls.cancel-refuses-bad-ids", cases=["contract 2", "contract 4"], needs=())
async def cancel_refuses_bad_ids(place: Place) -> None:
    """A cancel without an id, or with a malformed one, is a fault of the envelope."""
    for bad in ("", *BAD_IDS):
        request = tool_pb2.CancelCallRequest(session_id=place.session_id, call_id=bad)
        try:
            with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field="call_id"):
                await place.target.send(place.target.tools.CancelCall, request)
        except Broken as broken:
            raise Broken(f"id {expect.shown(bad)}: {broken}") from None


@rule("calls.cancel-by-a-stale-owner", cases=["contract 2"], needs=NEEDS)
async def cancel_by_a_stale_owner(place: Place) -> None:
    """A cancel with a smaller epoch is refused, and the call goes on."""
    await place.require("sleep")
    async with place.target.session() as session:
        own = Place(place.target, session, session.effective.working_directory)
        call_id = new_id("call")
        script = ": > begun; until [ -e go ]; do sleep 0.1; done; echo done"
        running = begin(own, call_id, script)
        await own.until_made("begun", running)
        await place.client.update_session(session.session_id, epoch=5)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await place.client.cancel_call(session.session_id, call_id, epoch=4)
        await own.put("go", "")
        expect.exited(await running, 0, "done\n")
