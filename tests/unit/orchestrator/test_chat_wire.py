"""Fragments of replies, as servers really cut them."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from orchestrator.errors import ModelError
from orchestrator.messages import ModelMessage, ModelRequest, Reply, ToolCall
from orchestrator.models.chat_wire import Accumulator, encode_request, strict_object


def accumulate(
    *deltas: dict[str, Any], finish: str | None = "tool_calls", done: bool = True
) -> Reply:
    ids = count(1)
    accumulator = Accumulator(lambda: f"own_{next(ids)}")
    for delta in deltas:
        accumulator.feed("", json.dumps({"choices": [{"delta": delta, "finish_reason": None}]}))
    if finish is not None:
        last = {"choices": [{"delta": {}, "finish_reason": finish}]}
        accumulator.feed("", json.dumps(last))
    if done:
        accumulator.feed("", "[DONE]")
    return accumulator.reply()


def fragment(
    arguments: Any = None,
    *,
    index: int | None = None,
    id_: str | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    call: dict[str, Any] = {"function": {}}
    if index is not None:
        call["index"] = index
    if id_ is not None:
        call["id"] = id_
    if name is not None:
        call["function"]["name"] = name
    if arguments is not None:
        call["function"]["arguments"] = arguments
    return {"tool_calls": [call]}


def calls(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in reply.calls]


TWO = [("read", {"path": "a"}), ("read", {"path": "b"})]


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            [
                fragment("", index=0, id_="x", name="read"),
                fragment('{"path": ', index=0),
                fragment("", index=1, id_="y", name="read"),
                fragment('"a"}', index=0),
                fragment('{"path": "b"}', index=1),
            ],
            id="interleaved by index",
        ),
        pytest.param(
            [
                fragment('{"path": "a"}', index=0, id_="x", name="read"),
                fragment('{"path": "b"}', index=0, id_="y", name="read"),
            ],
            id="index 0 for all, ids differ",
        ),
        pytest.param(
            [
                fragment('{"path": "a"}', index=0, name="read"),
                fragment('{"path": "b"}', index=0, name="read"),
            ],
            id="index 0 for all, no ids",
        ),
        pytest.param(
            [
                fragment('{"path": ', id_="x", name="read"),
                fragment('"a"}'),
                fragment('{"path": ', id_="y", name="read"),
                fragment('"b"}'),
            ],
            id="no index, id on the first fragment",
        ),
        pytest.param(
            [
                fragment('{"path": ', id_="x", name="read"),
                fragment('"a"}', id_="null"),
                fragment('{"path": "b"}', id_="y", name="read"),
            ],
            id="id null on continuations",
        ),
        pytest.param(
            [
                fragment('{"path": ', index=0, id_="x1", name="read"),
                fragment('"a"}', index=0, id_="x2"),
                fragment('{"path": ', index=1, id_="y1", name="read"),
                fragment('"b"}', index=1, id_="y2"),
            ],
            id="a fresh id on every fragment",
        ),
        pytest.param(
            [
                fragment({"path": "a"}, index=0, id_="x", name="read"),
                fragment({"path": "b"}, index=1, id_="y", name="read"),
            ],
            id="arguments as an object",
        ),
        pytest.param(
            [
                fragment('{"path": ', index=0, id_="x", name="read"),
                fragment('"a"}', index=0, id_="x", name="read"),
                fragment('{"path": "b"}', index=1, id_="y", name="read"),
            ],
            id="id and name repeated",
        ),
    ],
)
def test_two_calls_stay_two_calls(deltas: list[dict[str, Any]]) -> None:
    reply = accumulate(*deltas)
    assert calls(reply) == TWO
    assert [call.call_id for call in reply.calls] == ["own_1", "own_2"]


@pytest.mark.parametrize("raw", [None, "", "{}", "[]", " "])
def test_no_arguments_are_an_empty_object(raw: str | None) -> None:
    assert calls(accumulate(fragment(raw, index=0, id_="x", name="now"))) == [("now", {})]


@pytest.mark.parametrize(
    "raw",
    ['{"path": "a', '{"a": NaN}', '{"a": 1, "a": 2}', "['a']", '"text"', "3", '{"a":1}{"b":2}',
     '{"a": "\\ud800"}', "[1]"],
)  # fmt: skip
def test_arguments_that_are_no_strict_object_never_become_any(raw: str) -> None:
    (call,) = accumulate(fragment(raw, index=0, id_="x", name="bash")).calls
    assert call.arguments is None
    assert call.fault
    assert call.raw_arguments == raw


def test_stop_with_calls_asks_for_them() -> None:
    reply = accumulate(fragment("{}", index=0, id_="x", name="now"), finish="stop")
    assert reply.stop == "calls"


@pytest.mark.parametrize(
    ("finish", "stop"),
    [("length", "length"), ("content_filter", "refused"), ("pause_turn", "other")],
)
def test_other_ends_are_kept_apart_from_calls(finish: str, stop: str) -> None:
    reply = accumulate(fragment("{}", index=0, id_="x", name="now"), finish=finish)
    assert (reply.stop, reply.raw_stop) == (stop, finish)


def test_end_without_a_terminal_mark_is_an_error() -> None:
    with pytest.raises(ModelError) as caught:
        accumulate({"content": "half"}, finish=None, done=False)
    assert caught.value.retryable


@pytest.mark.parametrize(("finish", "done"), [("stop", False), (None, True), ("STOP", False)])
def test_either_terminal_mark_suffices(finish: str | None, done: bool) -> None:
    reply = accumulate({"content": "whole"}, finish=finish, done=done)
    assert (reply.text, reply.stop) == ("whole", "end")


def test_error_inside_the_stream_is_an_error() -> None:
    accumulator = Accumulator(lambda: "own")
    with pytest.raises(ModelError) as caught:
        accumulator.feed("", '{"error": {"type": "overloaded_error", "message": "busy"}}')
    assert (caught.value.category, caught.value.retryable) == ("server_busy", True)


@pytest.mark.parametrize("where", ["chunk", "choice"])
def test_usage_is_found_where_servers_put_it(where: str) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3,
             "prompt_tokens_details": {"cached_tokens": 8}}  # fmt: skip
    accumulator = Accumulator(lambda: "own")
    choice: dict[str, Any] = {"delta": {"content": "x"}, "finish_reason": "stop"}
    chunk: dict[str, Any] = {"choices": [choice]}
    (chunk if where == "chunk" else choice)["usage"] = usage
    accumulator.feed("", json.dumps(chunk))
    found = accumulator.reply().usage
    assert (found.input, found.output, found.cached, found.reported) == (12, 3, 8, True)


def test_malformed_arguments_do_not_go_back_to_the_server() -> None:
    broken = ToolCall(call_id="c", name="bash", arguments=None, raw_arguments='{"comm', fault="cut")
    request = ModelRequest(
        messages=(
            ModelMessage(role="assistant", calls=(broken,)),
            ModelMessage(role="tool", text="not JSON", call_id="c"),
        ),
        tools=(),
    )
    encoded = json.dumps(encode_request(request, "m", None, streamed=True))
    assert '{\\"comm' not in encoded
    assert "tools" not in json.loads(encoded)


def test_calls_of_a_whole_reply_stay_apart_whatever_their_ids() -> None:
    whole = [
        {"id": "same", "function": {"name": "read", "arguments": '{"path": "a"}'}},
        {"id": "same", "function": {"name": "read", "arguments": {"path": "b"}}},
    ]
    choice = {"message": {"content": "Hm.", "tool_calls": whole}, "finish_reason": "tool_calls"}
    accumulator = Accumulator(lambda: "own")
    accumulator.feed("", json.dumps({"choices": [choice]}))
    reply = accumulator.reply()
    assert calls(reply) == TWO
    assert (reply.text, reply.stop) == ("Hm.", "calls")


def test_strict_object_survives_deep_nesting() -> None:
    value, fault = strict_object("[" * 100_000)
    assert value is None
    assert fault
