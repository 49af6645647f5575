"""Runs against a real adapter and a real model server."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from orchestrator import app
from orchestrator.errors import UsageError
from orchestrator.events import (
    AssistantSaid,
    AttemptDiscarded,
    CallStarted,
    CopiedOut,
    ModelCalled,
    TextDelta,
)
from orchestrator.models.script import Script
from orchestrator.models.scripted import ScriptedModel
from orchestrator.store.sqlite import SqliteLog
from sandbox_adapter.v1 import tool_pb2
from tests.unit.orchestrator.conftest import World
from tests.unit.orchestrator.folder_adapter import text_result


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def test_run_completes_and_deletes_its_session(world: World) -> None:
    (world.adapter.folder / "a.txt").write_text("content of a\n")
    exit_code = await world.run(
        [
            {"text": "Looking.", "calls": [call("read", path="a.txt")]},
            {"when": {"results": ["content of a"]}, "text": "Done."},
        ]
    )
    assert exit_code == 0
    assert (world.settled.outcome, world.settled.model_calls, world.settled.tool_calls) == (
        "completed", 2, 1,
    )  # fmt: skip
    assert len(world.adapter.deleted) == 1
    assert not world.adapter.sessions


async def test_reads_run_side_by_side_up_to_the_first_effect(world: World) -> None:
    together = asyncio.Barrier(2)
    order: list[str] = []

    async def look(given: dict[str, Any]) -> tool_pb2.ToolResult:
        # Passes only while another one is running.
        await asyncio.wait_for(together.wait(), 10)
        return text_result("seen")

    async def act(given: dict[str, Any]) -> tool_pb2.ToolResult:
        order.append(f"begin {given['n']}")
        await asyncio.sleep(0.02)
        order.append(f"end {given['n']}")
        return text_result("acted")

    number = {"n": {"type": "integer"}}
    reading: dict[str, Any] = {"effect": tool_pb2.EFFECT_CLASS_READ}
    world.adapter.add_tool("look", look, parallel=True, **reading)
    world.adapter.add_tool("act", act, properties=number)
    # READ, but not parallel: it waits its turn like an effect.
    world.adapter.add_tool("peek", act, properties=number, **reading)
    calls = [call("look"), call("look"), call("act", n=1), call("peek", n=2), call("act", n=3)]
    assert await world.run([{"calls": calls}, {"text": "Done."}]) == 0
    assert order == ["begin 1", "end 1", "begin 2", "end 2", "begin 3", "end 3"]


async def test_results_stand_in_the_order_of_the_calls(world: World) -> None:
    ended = asyncio.Event()

    async def first(given: dict[str, Any]) -> tool_pb2.ToolResult:
        await asyncio.wait_for(ended.wait(), 10)
        return text_result("of the first")

    async def second(given: dict[str, Any]) -> tool_pb2.ToolResult:
        ended.set()
        return text_result("of the second")

    reading: dict[str, Any] = {"effect": tool_pb2.EFFECT_CLASS_READ, "parallel": True}
    world.adapter.add_tool("first", first, **reading)
    world.adapter.add_tool("second", second, **reading)
    turns = [
        {"calls": [call("first"), call("second")]},
        {"when": {"results": [r"^of the first\nof the second$"]}, "text": "Done."},
    ]
    assert await world.run(turns) == 0


async def test_read_after_an_effect_sees_it(world: World) -> None:
    calls = [call("write", path="n", content="new"), call("read", path="n")]
    turns = [{"calls": calls}, {"when": {"results": ["^new$"]}, "text": "Done."}]
    assert await world.run(turns) == 0


async def test_unknown_tool_is_named_with_the_known_ones(world: World) -> None:
    wanted = {"results": ["no tool named frobnicate", "bash, read, write"]}
    assert await world.run([{"calls": [call("frobnicate")]}, {"when": wanted, "text": "ok"}]) == 0
    assert not world.adapter.calls


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({}, "'path' is a required property"), ({"path": 3}, "`path`"),
     ({"path": "a", "x": 1}, "Additional properties")],
)  # fmt: skip
async def test_arguments_that_do_not_fit_the_schema_are_not_run(
    world: World, arguments: dict[str, Any], said: str
) -> None:
    turns = [{"calls": [call("read", **arguments)]}, {"when": {"results": [said]}, "text": "ok"}]
    assert await world.run(turns) == 0
    assert not world.adapter.calls
    assert world.outcomes[0][1].ending == "NOT_RUN"


async def test_unparsable_arguments_are_not_run_and_do_not_poison_the_history(
    world: World,
) -> None:
    broken = {"name": "bash", "raw_arguments": '{"command": "touch x'}
    turns = [{"calls": [broken]}, {"when": {"results": ["not valid JSON"]}, "text": "ok"}]
    assert await world.run(turns) == 0
    assert not world.adapter.calls


async def test_call_over_the_message_bound_is_fed_back(world: World) -> None:
    # As JSON each of them has six bytes: 21 MiB, and in the model's reply seven.
    content = "\x01" * (7 * 1024 * 1024 // 2)
    turns = [
        {"calls": [call("write", path="a", content=content), call("read", path="nope")]},
        {"when": {"results": ["over the 20 MiB of one message", "Nothing was run"]}, "text": "ok"},
    ]
    chunking = {"fragment_chars": 1_000_000, "write_bytes": 1_000_000}
    assert await world.run(turns, chunking=chunking) == 0
    assert world.outcomes[0][1].ending == "NOT_RUN"
    assert [name for _, name, _ in world.adapter.calls] == ["read"]


async def test_calls_of_a_reply_cut_by_length_are_never_run(world: World) -> None:
    turns = [
        {"calls": [call("write", path="a", content="half")], "finish": "length"},
        {"when": {"results": ["cut at the output limit"]}, "text": "ok"},
    ]
    assert await world.run(turns) == 0
    assert not world.adapter.calls


async def test_ceiling_of_model_calls_ends_the_run(world: World) -> None:
    world.settings["model_calls_max"] = 3
    turns = [{"calls": [call("read", path="a")]}] * 9
    assert await world.run(turns) == 4
    assert world.settled.outcome == "failed"
    assert world.server is not None
    assert world.server.requests == 3


async def test_failed_call_is_fed_back(world: World) -> None:
    wanted = {"results": ["File not found: nope", r"exited with code 3"]}
    calls = [call("read", path="nope"), call("bash", command="exit 3")]
    assert await world.run([{"calls": calls}, {"when": wanted, "text": "ok"}]) == 0


async def test_conversation_that_is_not_the_scripts_fails_loudly(world: World) -> None:
    exit_code = await world.run([{"when": {"task": "something else"}, "text": "ok"}])
    assert exit_code == 3
    assert "the task does not match" in world.settled.error


@pytest.mark.parametrize("kind", ["cut", "garble", "error", "status"])
async def test_failed_attempt_is_void_and_repeated(world: World, kind: str) -> None:
    fault = {"kind": kind, "after_events": 5, "times": 2}
    calls = [call("write", path="once", content="x")]
    turns = [{"text": "I write it.", "calls": calls, "fault": fault}, {"text": "Done."}]
    assert await world.run(turns) == 0
    discarded = [event for event in world.events if isinstance(event, AttemptDiscarded)]
    assert [event.attempt for event in discarded] == [1, 2]
    assert [name for _, name, _ in world.adapter.calls] == ["write"]
    (first, _) = [event for event in world.events if isinstance(event, AssistantSaid)]
    assert first.reply.text == "I write it."
    # Only the first attempt is streamed, so nobody sees the reply begin anew.
    at = [at for at, event in enumerate(world.events) if isinstance(event, AttemptDiscarded)]
    said = [event.text for event in world.events[at[1] : at[1] + 2] if isinstance(event, TextDelta)]
    assert said == ["I write it."]
    assert first.reply.usage.reported


async def test_reply_with_an_end_that_is_not_known_is_not_called_done(world: World) -> None:
    assert await world.run([{"text": "Well", "finish": "pause_turn"}]) == 3
    assert world.settled.outcome == "failed"
    assert "`pause_turn`" in world.settled.error


async def test_attempts_are_bounded(world: World) -> None:
    turns = [{"text": "x", "fault": {"kind": "cut", "times": 99}}]
    assert await world.run(turns) == 3
    assert world.server is not None
    assert world.server.requests == 3
    assert "connection to the model server failed" in world.settled.error


async def test_long_retry_after_ends_the_run_instead_of_a_silent_wait(world: World) -> None:
    fault = {"kind": "status", "status": 429, "retry_after": "3600", "times": 99}
    assert await world.run([{"text": "x", "fault": fault}]) == 3
    assert world.server is not None
    assert world.server.requests == 1


async def test_silent_stream_is_given_up(world: World) -> None:
    world.model_settings.update(idle_timeout_s=0.2, attempts_max=1)
    fault = {"kind": "delay", "seconds": 30}
    assert await world.run([{"text": "x", "fault": fault}]) == 3


@pytest.mark.parametrize("key", ["sk-secret\n", "sk secret", "sk-sécret"])
async def test_key_that_cannot_be_sent_is_refused_and_not_shown(world: World, key: str) -> None:
    world.model_settings["api_key"] = key
    with pytest.raises(UsageError, match="api_key") as caught:
        await world.run([{"text": "x"}])
    assert "cret" not in str(caught.value)


async def test_model_server_down_is_one_clear_line(world: World) -> None:
    world.model_settings.update(attempts_max=2)
    exit_code = await app.run(world.run_settings("http://127.0.0.1:9/v1"), world.events.append)
    assert exit_code == 3
    assert "cannot reach the model server at `http://127.0.0.1:9/v1`" in world.settled.error
    assert len(world.adapter.deleted) == 1


async def test_tool_without_a_usable_schema_is_one_clear_line(world: World) -> None:
    async def never(given: dict[str, Any]) -> tool_pb2.ToolResult:
        return text_result("ran")

    world.adapter.add_tool("odd", never)
    world.adapter.tools["odd"][0].input_schema_json = '{"type": "nothing"}'
    assert await world.run([{"text": "x"}]) == 5
    assert "the adapter's tool `odd` has no usable schema" in world.settled.error
    assert not world.adapter.sessions


async def test_facts_too_large_for_the_log_keep_their_counts(world: World) -> None:
    paths = [f"a/long/path/to/file-{n}.py" for n in range(1000)]

    async def glob(given: dict[str, Any]) -> tool_pb2.ToolResult:
        return text_result("\n".join(paths), glob=tool_pb2.GlobDetails(paths=paths, capped=True))

    world.adapter.add_tool("glob", glob)
    assert await world.run([{"calls": [call("glob")]}, {"text": "Done."}]) == 0
    assert world.outcomes[0][1].facts == {"paths": 1000, "capped": True}


async def test_sandbox_that_is_not_there_is_one_clear_line(world: World) -> None:
    world.settings["sandbox"] = f"unix:{world.folder / 'nobody'}"
    assert await world.run([{"text": "x"}]) == 5
    assert "cannot reach the sandbox" in world.settled.error


async def test_lost_session_ends_the_run_and_every_call_has_its_result(world: World) -> None:
    async def lose(given: dict[str, Any]) -> tool_pb2.ToolResult:
        world.adapter.sessions.clear()
        return text_result("the last thing it did")

    world.adapter.add_tool("lose", lose)
    calls = [call("lose"), call("bash", command="true"), call("read", path="a")]
    assert await world.run([{"calls": calls}]) == 5
    endings = [(name, outcome.ending) for name, outcome in world.outcomes]
    assert endings == [("lose", "COMPLETED"), ("bash", "UNKNOWN"), ("read", "NOT_RUN")]


async def test_workspace_may_have_any_name(world: World) -> None:
    odd = world.folder / os.fsdecode(b"w\xff")
    odd.mkdir()
    world.settings["workspace"] = odd
    calls = [call("write", path="a", content="1")]
    assert await world.run([{"calls": calls}, {"text": "Done."}]) == 0
    assert (odd / "a").read_text() == "1"


async def test_changes_taken_before_the_sandbox_was_lost_are_told(world: World) -> None:
    world.settings["workspace"] = world.workspace
    calls = [call("bash", command="echo 1 > a; echo 2 > b")]
    world.adapter.reads_until_lost = 1
    assert await world.run([{"calls": calls}, {"text": "Done."}]) == 5
    (copied,) = [event for event in world.events if isinstance(event, CopiedOut)]
    assert [change.path for change in copied.changes] == ["a"]
    assert [path.name for path in world.workspace.iterdir()] == ["a"]
    assert world.settled.outcome == "failed"


async def test_interrupted_run_cancels_its_call_and_leaves_a_closed_log(world: World) -> None:
    begun = asyncio.Event()

    async def forever(given: dict[str, Any]) -> tool_pb2.ToolResult:
        begun.set()
        await asyncio.sleep(600)
        return text_result("never")

    world.adapter.add_tool("forever", forever)
    turns = [{"calls": [call("forever"), call("bash", command="touch x")]}]
    running = asyncio.ensure_future(world.run(turns))
    await asyncio.wait_for(begun.wait(), 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [(n, o.ending) for n, o in world.outcomes] == [
        ("forever", "CANCELLED"), ("bash", "NOT_RUN"),
    ]  # fmt: skip
    assert len(world.adapter.cancelled) == 1
    assert len(world.adapter.deleted) == 1
    assert world.settled.outcome == "aborted"


async def test_every_durable_event_is_in_the_log_in_order(world: World) -> None:
    calls = [call("read", path="a"), call("bash", command="true")]
    await world.run([{"text": "Hm.", "calls": calls}, {"text": "Done."}])
    log = await SqliteLog.open(world.log)
    try:
        conversation = next(iter(await conversations(log)))
        entries = await log.read(conversation)
    finally:
        await log.close()
    assert [entry.event for entry in entries] == [e for e in world.events if e.durable]
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert not any(isinstance(entry.event, TextDelta) for entry in entries)
    kinds = [entry.event.type for entry in entries]
    assert kinds.count("call_started") == kinds.count("result") == 2


async def test_intent_is_in_the_log_before_the_effect(world: World) -> None:
    async def act(given: dict[str, Any]) -> tool_pb2.ToolResult:
        (id_, _, _) = world.adapter.calls[-1]
        log = await SqliteLog.open(world.log)
        try:
            (conversation,) = await conversations(log)
            kept = [entry.event for entry in await log.read(conversation)]
        finally:
            await log.close()
        started = [e.call.call_id for e in kept if isinstance(e, CallStarted)]
        return text_result("intent is kept" if started == [id_] else "it is not")

    world.adapter.add_tool("act", act)
    turns = [{"calls": [call("act")]}, {"when": {"results": ["^intent is kept$"]}, "text": "ok"}]
    assert await world.run(turns) == 0


async def conversations(log: SqliteLog) -> list[str]:
    rows = await log._run(
        lambda: log._database.execute("SELECT conv_id FROM conversation").fetchall()
    )
    return [conversation for (conversation,) in rows]


async def test_reply_is_whole_however_the_stream_is_cut(world: World) -> None:
    text = "größer – 🙂 ‹done›"
    world.adapter.add_tool("note", note := Noted(), properties={"text": {"type": "string"}})
    for size in (1, 2, 7):
        note.given.clear()
        world.events.clear()
        turns = [{"text": text, "calls": [call("note", text=text)]}, {"text": "Done."}]
        chunking = {"fragment_chars": size, "write_bytes": size}
        assert await world.run(turns, chunking=chunking) == 0
        assert note.given == [text]
        first = next(event for event in world.events if isinstance(event, AssistantSaid))
        assert first.reply.text == text


class Noted:
    def __init__(self) -> None:
        self.given: list[str] = []

    async def __call__(self, given: dict[str, Any]) -> tool_pb2.ToolResult:
        self.given.append(given["text"])
        return text_result("noted")


async def test_usage_of_all_calls_is_added_up(world: World) -> None:
    turns = [
        {"calls": [call("read", path="a")], "input_tokens": 100, "output_tokens": 7},
        {"text": "Done.", "input_tokens": 150, "output_tokens": 3},
    ]
    await world.run(turns)
    assert (world.settled.usage.input, world.settled.usage.output) == (250, 10)
    assert all(event.ok for event in world.events if isinstance(event, ModelCalled))


async def test_call_ids_are_ours_and_new_each_time(world: World) -> None:
    turns = [
        {"calls": [call("read", path="a")]},
        {"calls": [call("read", path="a")]},
        {"text": "."},
    ]
    await world.run(turns)
    started = [event.call for event in world.events if isinstance(event, CallStarted)]
    # The scripted model calls both `call_0`, as some servers do.
    assert {c.provider_id for c in started} == {"call_0"}
    assert len({c.call_id for c in started}) == 2


async def test_scripted_model_refuses_what_it_does_not_serve(world: World) -> None:
    script = Script.model_validate({"turns": []})
    async with ScriptedModel(script, "127.0.0.1", 0) as server:
        for request in (
            b"GET /v1/nothing HTTP/1.1\r\n\r\n",
            b"POST /v1/chat/completions HTTP/1.1\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request)
            answer = await asyncio.wait_for(reader.read(), 10)
            assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
            writer.close()
            await writer.wait_closed()


async def test_scripted_model_ends_quietly_with_a_connection_that_asks_nothing() -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    async with ScriptedModel(Script.model_validate({"turns": []}), "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        # Answered after the other connection was taken.
        asking, asked = await asyncio.open_connection("127.0.0.1", server.port)
        asked.write(b"GET /v1/models HTTP/1.1\r\n\r\n")
        assert (await asyncio.wait_for(asking.read(), 10)).startswith(b"HTTP/1.1 200")
        asked.close()
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    await writer.wait_closed()
    assert faults == []
