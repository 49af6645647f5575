"""Rules on calls: one id is one effect, and what is known of it is true (contract.md 2 and 4)."""

from __future__ import annotations

import asyncio
import json
import shlex
from typing import Any, Final

from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import CONFIRMED_CANCEL, SIX_TOOLS, rule
from sandbox_adapter.conformance.rules.sessions import BAD_IDS
from sandbox_adapter.v1 import error_pb2, tool_pb2

AT_ONCE: Final = 50


async def _once(place: Place, call_id: str, tool: str, **fields: Any) -> tool_pb2.ToolResult:
    answer = await place.client.call_tool(place.session_id, tool, fields, call_id=call_id)
    expect.equal(answer.call_id, call_id, "the call's id in the answer")
    return answer.result


def same_but_replayed(first: tool_pb2.ToolResult, again: tool_pb2.ToolResult) -> None:
    """The second is the first's recorded result."""
    expect.holds(again.replayed, "replayed is not set")
    bare = tool_pb2.ToolResult()
    bare.CopyFrom(again)
    bare.replayed = first.replayed
    expect.equal(
        bare.SerializeToString(deterministic=True),
        first.SerializeToString(deterministic=True),
        "the recorded result",
    )


@rule("calls.repeated-is-replayed", cases=["contract 2"])
async def repeated_is_replayed(place: Place) -> None:
    """A repeated call returns the recorded result byte for byte and does nothing again."""
    path = await place.put("f", "x\n")
    call_id = new_id("call")
    fields = {"path": path, "oldText": "x", "newText": "xx", "replaceAll": True}
    first = await _once(place, call_id, "edit", **fields)
    expect.holds(not first.replayed, "the first answer is marked as replayed")
    for _ in range(3):
        same_but_replayed(first, await _once(place, call_id, "edit", **fields))
    expect.equal(await place.content("f"), b"xx\n", "the file after four requests")


@rule("calls.refusals-are-recorded", cases=["contract 4"])
async def refusals_are_recorded(place: Place) -> None:
    """The refusal of a tool is a result like any other: it is replayed, whatever is there now."""
    call_id = new_id("call")
    first = await _once(place, call_id, "read", path=place.at("f"))
    expect.refused(first, "FILE_NOT_FOUND")
    await place.put("f", "now it is there\n")
    same_but_replayed(first, await _once(place, call_id, "read", path=place.at("f")))


@rule("calls.same-in-both-forms", cases=["contract 2", "contract 4"])
async def same_in_both_forms(place: Place) -> None:
    """The typed and the custom form of one input are the same call."""
    path = await place.put("f", "a\nb\nc\n")
    call_id = new_id("call")
    typed = tool_pb2.ReadInput(path=path, offset=2, limit=1)
    answer = await place.client.call_typed(place.session_id, typed, call_id=call_id)
    again = await _once(place, call_id, "read", path=path, offset=2, limit=1)
    same_but_replayed(answer.result, again)


@rule("calls.same-in-any-spelling", cases=["contract 2"])
async def same_in_any_spelling(place: Place) -> None:
    """Order of fields, white space, escapes and the spelling of a number do not matter."""
    path = await place.put("f", "a\nb\nc\n")
    call_id = new_id("call")
    first = await _once(place, call_id, "read", path=path, offset=2)
    escaped, spelled = "".join(f"\\u{ord(char):04x}" for char in path), json.dumps(path)
    for text in (
        json.dumps({"offset": 2, "path": path}),
        f'{{ "path" :\n"{escaped}" , "offset":2.0 }}',
        f'{{"offset":2e0,"path":{spelled}}}',
    ):
        answer = await place.client.call_json(place.session_id, "read", text, call_id=call_id)
        same_but_replayed(first, answer.result)


@rule("calls.other-input-conflicts", cases=["contract 2"])
async def other_input_conflicts(place: Place) -> None:
    """The same id with another tool or input is refused, and nothing runs."""
    path = await place.put("f", "a\n")
    call_id = new_id("call")
    await _once(place, call_id, "read", path=path)
    others: tuple[tuple[str, dict[str, Any]], ...] = (
        ("read", {"path": path, "offset": 1}),
        ("read", {"path": path + "2"}),
        ("write", {"path": path, "content": "b\n"}),
        ("glob", {"pattern": "f"}),
    )
    for tool, fields in others:
        with expect.fails("ALREADY_EXISTS", "ID_CONFLICT"):
            await _once(place, call_id, tool, **fields)
    expect.equal(await place.content("f"), b"a\n", "the file afterwards")


@rule("calls.fifty-at-once-run-once", cases=["contract 2"])
async def fifty_at_once_run_once(place: Place) -> None:
    """Fifty requests with one id at once have one effect, and all get its result."""
    path = await place.put("f", "1\n")
    call_id = new_id("call")
    fields = {"path": path, "oldText": "1", "newText": "11", "replaceAll": True}
    results = await asyncio.gather(
        *(_once(place, call_id, "edit", **fields) for _ in range(AT_ONCE))
    )
    for result in results:
        expect.fine(result)
        expect.equal(result.started_at, results[0].started_at, "started_at")
    expect.equal(await place.content("f"), b"11\n", "the file afterwards")


@rule("calls.join-what-runs", cases=["contract 2"])
async def join_what_runs(place: Place) -> None:
    """A request with the id of a running call waits for it and gets its result."""
    await place.require("sleep", "wc")
    call_id = new_id("call")
    command = (
        f"cd {shlex.quote(place.folder)} && echo x >> count; : > begun; sleep 1; wc -l < count"
    )
    await place.make_folder()
    running = asyncio.create_task(_run(place, call_id, command))
    await place.until_made("begun", running)
    joined = await place.call("bash", {"command": command}, call_id=call_id)
    first = await running
    expect.exited(first, 0)
    expect.equal(first.text.strip(), "1", "runs")
    expect.equal(joined.text, first.text, "text of the joined call")
    expect.equal(joined.started_at, first.started_at, "start of the joined call")


@rule("calls.unknown-are-never-seen", cases=["contract 2"], needs=())
async def unknown_are_never_seen(place: Place) -> None:
    """GetCall of an id that was never sent says so, with boot_id and ledger_id."""
    answer = await place.client.get_call(place.session_id, new_id("never"))
    expect.equal(answer.state, tool_pb2.CALL_STATE_NEVER_SEEN, "state")
    expect.equal(answer.boot_id, place.target.info.boot_id, "boot_id")
    expect.equal(answer.ledger_id, place.target.info.ledger_id, "ledger_id")


@rule("calls.finished-are-known", cases=["contract 2"])
async def finished_are_known(place: Place) -> None:
    """GetCall of a call that ended gives its result."""
    call_id = new_id("call")
    result = await _once(place, call_id, "write", path=place.at("f"), content="x")
    answer = await place.client.get_call(place.session_id, call_id)
    expect.equal(answer.state, tool_pb2.CALL_STATE_FINISHED, "state")
    expect.equal(answer.result.text, result.text, "text")
    expect.equal(answer.result.started_at, result.started_at, "started_at")
    expect.equal(answer.reason, error_pb2.REASON_UNSPECIFIED, "reason")


@rule("calls.running-are-known", cases=["contract 2"])
async def running_are_known(place: Place) -> None:
    """GetCall of a running call says RUNNING and does not wait for it."""
    await place.require("sleep")
    call_id = new_id("call")
    running = asyncio.create_task(_command(place, call_id, ": > begun; sleep 300"))
    await place.until_made("begun", running)
    answer = await place.client.get_call(place.session_id, call_id)
    expect.equal(answer.state, tool_pb2.CALL_STATE_RUNNING, "state")
    await place.client.cancel_call(place.session_id, call_id)
    await running


@rule("calls.server-makes-ids", cases=["contract 2"])
async def server_makes_ids(place: Place) -> None:
    """Without an id the server makes one, returns it, and knows it."""
    request = tool_pb2.CallToolRequest(
        session_id=place.session_id, glob=tool_pb2.GlobInput(pattern="x")
    )
    answer = await place.target.send(place.target.tools.CallTool, request)
    expect.holds(bool(answer.call_id), "the id is empty")
    known = await place.client.get_call(place.session_id, answer.call_id)
    expect.equal(known.state, tool_pb2.CALL_STATE_FINISHED, "state")


@rule("calls.refuse-bad-ids", cases=["contract 2", "contract 4"])
async def refuse_bad_ids(place: Place) -> None:
    """An id that breaks the rule of ids is a fault of the envelope, and nothing runs."""
    for bad in BAD_IDS:
        request = tool_pb2.CallToolRequest(
            session_id=place.session_id,
            call_id=bad,
            write=tool_pb2.WriteInput(path=place.at("f"), content="x"),
        )
        try:
            with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field="call_id"):
                await place.target.send(place.target.tools.CallTool, request)
        except Broken as broken:
            raise Broken(f"id {expect.shown(bad)}: {broken}") from None
    expect.refused(await place.read("f"), "FILE_NOT_FOUND")


@rule("calls.need-an-input", cases=["contract 4"], needs=())
async def need_an_input(place: Place) -> None:
    """A call without an input is a fault of the envelope."""
    request = tool_pb2.CallToolRequest(session_id=place.session_id, call_id=new_id("call"))
    with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE"):
        await place.target.send(place.target.tools.CallTool, request)


@rule("calls.ids-belong-to-sessions", cases=["contract 2"])
async def ids_belong_to_sessions(place: Place) -> None:
    """One call id in two sessions names two calls."""
    call_id = new_id("call")
    await _once(place, call_id, "glob", pattern="x")
    async with place.target.session() as other:
        known = await place.client.get_call(other.session_id, call_id)
        expect.equal(known.state, tool_pb2.CALL_STATE_NEVER_SEEN, "state in the other session")
        answer = await place.client.call_tool(
            other.session_id, "glob", {"pattern": "y"}, call_id=call_id
        )
        expect.holds(not answer.result.replayed, "it is replayed from another session")


@rule("calls.leaving-detaches", cases=["contract 4", "B38"])
async def leaving_detaches(place: Place) -> None:
    """A caller whose deadline passes is detached; the call goes on and its result is kept."""
    await place.require("sleep")
    call_id = new_id("call")
    request = request_of(place, call_id, "sleep 2; echo late > late; echo done")
    await place.make_folder()
    await place.bash("true")
    with expect.fails("DEADLINE_EXCEEDED", ""):
        await place.target.send(place.target.tools.CallTool, request, 0.5)
    result = (await place.target.send(place.target.tools.CallTool, request)).result
    expect.exited(result, 0, "done\n")
    expect.equal(await place.content("late"), b"late\n", "what the command made")


@rule("calls.cancel-on-disconnect", cases=["contract 4", "B38"])
async def cancel_on_disconnect(place: Place) -> None:
    """A caller that asked for it takes its call along when it leaves."""
    await place.require("sleep")
    call_id = new_id("call")
    request = request_of(place, call_id, ": > begun; sleep 300; : > late")
    request.cancel_on_disconnect = True
    await place.make_folder()
    await place.bash("true")
    with expect.fails("DEADLINE_EXCEEDED", ""):
        await place.target.send(place.target.tools.CallTool, request, 2.0)
    request.cancel_on_disconnect = False
    result = (await place.target.send(place.target.tools.CallTool, request)).result
    expect.ending_is(result, "CANCELLED")
    expect.equal(expect.reason_of(result), "CANCELLED_BY_CALLER", "reason")
    expect.holds(not await place.exists("late"), "the command went on")


@rule("calls.cancel-ends-the-tree", cases=["contract 4", "B6"], needs=(SIX_TOOLS, CONFIRMED_CANCEL))
async def cancel_ends_the_tree(place: Place) -> None:
    """CancelCall answers when the command's processes are gone, with what was written."""
    await place.require("sleep")
    call_id = new_id("call")
    script = "echo begun; (trap '' TERM; sleep 301) & sleep 302 & : > begun; sleep 300"
    running = asyncio.create_task(_command(place, call_id, script))
    await place.until_made("begun", running)
    result = await place.client.cancel_call(place.session_id, call_id)
    expect.ending_is(result, "CANCELLED")
    expect.equal(expect.reason_of(result), "CANCELLED_BY_CALLER", "reason")
    expect.equal(list(result.survivors), [], "survivors")
    expect.says(result.text, "begun")
    waited = await running
    expect.equal(waited.text, result.text, "what the caller that waited got")


@rule("calls.cancel-of-ended-changes-nothing", cases=["contract 4"])
async def cancel_of_ended_changes_nothing(place: Place) -> None:
    """CancelCall of a call that ended returns its result; of an unknown one it fails."""
    call_id = new_id("call")
    result = await _once(place, call_id, "write", path=place.at("f"), content="x")
    cancelled = await place.client.cancel_call(place.session_id, call_id)
    expect.equal(cancelled.text, result.text, "text")
    expect.ending_is(cancelled, "COMPLETED")
    with expect.fails("NOT_FOUND", "CALL_UNKNOWN"):
        await place.client.cancel_call(place.session_id, new_id("never"))


async def _command(place: Place, call_id: str, script: str) -> tool_pb2.ToolResult:
    await place.make_folder()
    return await _run(place, call_id, f"cd {shlex.quote(place.folder)} && {script}")


async def _run(place: Place, call_id: str, command: str) -> tool_pb2.ToolResult:
    return place.with_shell(await place.call("bash", {"command": command}, call_id=call_id))


def request_of(place: Place, call_id: str, script: str) -> tool_pb2.CallToolRequest:
    command = f"cd {shlex.quote(place.folder)} && {{ {script}; }}"
    return tool_pb2.CallToolRequest(
        session_id=place.session_id,
        call_id=call_id,
        bash=tool_pb2.BashInput(command=command),
    )
