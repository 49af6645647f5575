"""Rules on what is kept of calls: replay, epochs, and what is known of a call (contract.md 2)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from sandbox_adapter.client import AdapterClient, new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.conformance.rules.calls import request_of, same_but_replayed
from sandbox_adapter.conformance.rules.watched import begin
from sandbox_adapter.v1 import tool_pb2, tool_pb2_grpc

JOINED: Final = 20
PARALLEL_MAX: Final = 64


@rule("ledger.replays-every-ending", cases=["contract 2"])
async def replays_every_ending(place: Place) -> None:
    """Results of every kind are replayed byte for byte, with all their facts."""
    await place.require("sleep")
    await place.put("f", "one\ntwo\nthree\n")
    inputs: tuple[tuple[str, dict[str, Any]], ...] = (
        ("read", {"path": place.at("f"), "limit": 1}),
        ("read", {"path": place.at("missing")}),
        ("read", {"path": place.at("f"), "offset": -1}),
        ("write", {"path": place.at("g"), "content": "\u20ac\n"}),
        ("edit", {"path": place.at("f"), "oldText": "two", "newText": "2"}),
        ("grep", {"pattern": "o", "path": place.folder}),
        ("grep", {"pattern": "(", "path": place.folder}),
        ("glob", {"pattern": "*", "path": place.folder}),
        ("bash", {"command": "echo out; echo err >&2; exit 3"}),
        ("bash", {"command": "kill -9 $$"}),
        ("bash", {"command": "echo x; sleep 300", "timeout": 1}),
        ("bash", {"command": "i=0; while [ $i -lt 9000 ]; do i=$((i+1)); echo $i; done"}),
    )
    for tool, fields in inputs:
        call_id = new_id("call")
        first = place.with_shell(await place.call(tool, fields, call_id=call_id))
        same_but_replayed(first, await place.call(tool, fields, call_id=call_id))
        known = await place.client.get_call(place.session_id, call_id)
        expect.equal(known.state, tool_pb2.CALL_STATE_FINISHED, f"state of {tool}")
        same_but_replayed(first, known.result)


@rule("ledger.replays-to-another-connection", cases=["contract 2"])
async def replays_to_another_connection(place: Place) -> None:
    """A call belongs to its id and not to the connection that brought it."""
    await place.require("sleep")
    call_id = new_id("call")
    request = request_of(place, call_id, "echo x >> ran; sleep 1; echo done")
    await place.make_folder()
    await place.bash("true")
    async with place.client.connection.another() as other:
        call = tool_pb2_grpc.ToolServiceStub(other.channel).CallTool
        first = asyncio.create_task(other.once(call, request, 60.0))
        await place.until_made("ran", asyncio.create_task(_result_of(first)))
        joined = asyncio.create_task(place.target.send(place.target.tools.CallTool, request))
        answered = (await first).result
    expect.exited(answered, 0)
    expect.equal((await joined).result.text, answered.text, "text for who joined")
    again = await place.target.send(place.target.tools.CallTool, request)
    same_but_replayed(answered, again.result)
    expect.equal(await place.content("ran"), b"x\n", "runs")


async def _result_of(answer: asyncio.Task[Any]) -> tool_pb2.ToolResult:
    result: tool_pb2.ToolResult = (await asyncio.shield(answer)).result
    return result


@rule("ledger.joined-by-many-who-leave", cases=["contract 2"])
async def joined_by_many_who_leave(place: Place) -> None:
    """Callers that join a running call and leave again take nothing with them."""
    await place.require("sleep")
    call_id = new_id("call")
    script = ": > begun; until [ -e go ]; do sleep 0.1; done; echo done"
    request = request_of(place, call_id, script)
    await place.make_folder()
    await place.bash("true")
    first = asyncio.create_task(place.target.send(place.target.tools.CallTool, request))
    await place.until_made("begun", asyncio.create_task(_result_of(first)))

    async def join_and_leave() -> None:
        with expect.fails("DEADLINE_EXCEEDED", ""):
            await place.target.send(place.target.tools.CallTool, request, 0.5)

    await asyncio.gather(*(join_and_leave() for _ in range(JOINED)))
    await place.put("go", "")
    expect.exited((await first).result, 0, "done\n")


@rule("ledger.envelope-is-no-input", cases=["contract 2"])
async def envelope_is_no_input(place: Place) -> None:
    """Epoch, cancel_on_disconnect and deadline do not make another call of an id."""
    async with place.target.session() as session:
        own = Place(place.target, session, session.effective.working_directory)
        call_id = new_id("call")
        request = tool_pb2.CallToolRequest(
            session_id=session.session_id,
            call_id=call_id,
            write=tool_pb2.WriteInput(path="f", content="x"),
        )
        send, tools = place.target.send, place.target.tools
        first = (await send(tools.CallTool, request)).result
        for epoch, bound, deadline_s in ((None, True, 50.0), (3, False, 20.0), (9, True, 33.0)):
            request.cancel_on_disconnect = bound
            if epoch is not None:
                request.epoch = epoch
            again = (await send(tools.CallTool, request, deadline_s)).result
            same_but_replayed(first, again)
        expect.equal(await own.content("f"), b"x", "the file")


@rule("ledger.stale-callers-learn-nothing", cases=["contract 2"])
async def stale_callers_learn_nothing(place: Place) -> None:
    """A stale caller is refused also where the call has long been recorded."""
    client = place.client
    async with place.target.session() as session:
        sid = session.session_id
        fields = {"path": "f", "content": "x"}
        await client.call_tool(sid, "write", fields, call_id="c", epoch=4)
        await client.update_session(sid, epoch=5)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await client.call_tool(sid, "write", fields, call_id="c", epoch=4)
        again = await client.call_tool(sid, "write", fields, call_id="c", epoch=5)
        expect.holds(again.result.replayed, "the new owner gets no replay")
        bare = await client.call_tool(sid, "write", fields, call_id="c")
        expect.holds(bare.result.replayed, "a caller without an epoch gets no replay")


@rule("ledger.refused-is-never-seen", cases=["contract 2"])
async def refused_is_never_seen(place: Place) -> None:
    """Of a request that was refused nothing is recorded, and its id is free."""
    client = place.client
    async with place.target.session() as session:
        sid = session.session_id
        await client.update_session(sid, epoch=5)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await client.call_tool(
                sid, "write", {"path": "f", "content": "x"}, call_id="c", epoch=1
            )
        with expect.fails("INVALID_ARGUMENT", "UNKNOWN_TOOL"):
            await client.call_tool(sid, "no_such_tool", {}, call_id="c")
        with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE"):
            await client.call_json(sid, "write", "{", call_id="c")
        known = await client.get_call(sid, "c")
        expect.equal(known.state, tool_pb2.CALL_STATE_NEVER_SEEN, "state")
        answer = await client.call_tool(sid, "write", {"path": "f", "content": "y"}, call_id="c")
        expect.fine(answer.result)
        expect.holds(not answer.result.replayed, "it is replayed")


@rule("ledger.epoch-fences-what-waits", cases=["contract 2", "contract 5"])
async def epoch_fences_what_waits(place: Place) -> None:
    """A call that waits for its turn is refused where a newer owner came meanwhile."""
    await place.require("sleep")
    most = place.bound("calls_parallel_max")
    if most > PARALLEL_MAX:
        raise Uncheckable(f"{most} calls would be needed to make one wait")
    client = place.client
    async with place.target.session() as session:
        own = Place(place.target, session, session.effective.working_directory)
        await own.bash("true")
        ahead = [new_id("call") for _ in range(most)]
        tasks = [begin(own, call_id, "sleep 300") for call_id in ahead]
        for call_id in ahead:
            await _until_running(client, session.session_id, call_id)
        late = asyncio.create_task(
            client.call_tool(
                session.session_id, "write", {"path": "f", "content": "x"}, call_id="late", epoch=1
            )
        )
        await _until_running(client, session.session_id, "late")
        await client.update_session(session.session_id, epoch=2)
        ends = (client.cancel_call(session.session_id, call_id, epoch=2) for call_id in ahead)
        await asyncio.gather(*ends)
        await asyncio.gather(*tasks)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await late
        known = await client.get_call(session.session_id, "late")
        expect.equal(known.state, tool_pb2.CALL_STATE_NEVER_SEEN, "state of the fenced call")
        expect.holds(not await own.exists("f"), "the fenced call ran")


async def _until_running(client: AdapterClient, session_id: str, call_id: str) -> None:
    for _ in range(300):
        answer = await client.get_call(session_id, call_id)
        if answer.state == tool_pb2.CALL_STATE_RUNNING:
            return
        await asyncio.sleep(0.02)
    raise Uncheckable("a call does not begin to wait")


@rule("ledger.ids-are-exact", cases=["contract 2"])
async def ids_are_exact(place: Place) -> None:
    """Ids that differ in case, in one character or in length are different calls."""
    base = new_id("call")
    long = (base + "x" * 64)[:64]
    for call_id in (base, base.lower(), base + ".", base + "-", base[:-1], long, long[:-1]):
        answer = await place.client.call_tool(
            place.session_id, "read", {"path": place.at(call_id[-20:])}, call_id=call_id
        )
        expect.equal(answer.call_id, call_id, "id in the answer")
        expect.holds(not answer.result.replayed, f"{call_id} is taken for another call")


@rule("ledger.goes-with-its-session", cases=["contract 2", "contract 3"])
async def goes_with_its_session(place: Place) -> None:
    """After its session's deletion a call can be neither repeated, looked up nor cancelled."""
    client = place.client
    async with place.target.session() as session:
        sid = session.session_id
        await client.call_tool(sid, "glob", {"pattern": "x"}, call_id="c")
        await client.delete_session(sid)
        for attempt in (
            client.call_tool(sid, "glob", {"pattern": "x"}, call_id="c"),
            client.get_call(sid, "c"),
            client.cancel_call(sid, "c"),
        ):
            with expect.fails("FAILED_PRECONDITION", "SESSION_DELETED"):
                await attempt
    async with place.target.session() as session:
        known = await client.get_call(session.session_id, "c")
        expect.equal(known.state, tool_pb2.CALL_STATE_NEVER_SEEN, "state in a new session")


@rule("ledger.names-its-history", cases=["contract 2"], needs=())
async def names_its_history(place: Place) -> None:
    """boot_id and ledger_id are the same in every answer of one run of the adapter."""
    info = await place.client.get_info()
    expect.holds(bool(info.boot_id) and bool(info.ledger_id), "an id is empty")
    for call_id in (new_id("never"), new_id("never")):
        known = await place.client.get_call(place.session_id, call_id)
        expect.equal(known.boot_id, info.boot_id, "boot_id")
        expect.equal(known.ledger_id, info.ledger_id, "ledger_id")


@rule("ledger.announces-its-bounds", cases=["contract 2", "contract 5"], needs=())
async def announces_its_bounds(place: Place) -> None:
    """How long results, and the ids of deleted sessions, are kept is announced."""
    limits = (await place.client.get_info()).limits
    expect.holds(limits.result_retention.ToSeconds() > 0, "result_retention is not announced")
    expect.holds(limits.tombstone_retention.ToSeconds() > 0, "tombstone_retention is absent")
