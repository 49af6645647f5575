"""JSON that is no input: faults of the envelope, and where they end and a tool's begin.

What is no JSON object fails the request (INVALID_ARGUMENT, INVALID_ENVELOPE), is not
recorded, and runs nothing (contract.md 4, error.proto). What is one, and has a bad field,
is a recorded result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from sandbox_adapter import errors
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import SIX_TOOLS, Rule, rule
from sandbox_adapter.conformance.rules.inputs import (
    REFUSAL_CHARS_MAX,
    arguments,
    in_json,
    refused,
    untouched,
)
from sandbox_adapter.v1 import tool_pb2

Verdict = Literal["envelope", "either"]


@dataclass(frozen=True)
class Text:
    """JSON text of a call that must be refused; `$DIR/f` is a file."""

    name: str
    json: str
    verdict: Verdict = "envelope"
    """`either`: the envelope's fault or a field's. It has no canonical form (RFC 8785), or is
    a number that some readers of JSON take (NaN, Infinity)."""
    tool: str = "write"


TEXTS: Final = (
    Text("nothing", ""),
    Text("blanks", " \n\t "),
    Text("cut-off", '{"path": "$DIR/f", "content": "cha'),
    Text("not-closed", '{"path": "$DIR/f", "content": "changed"'),
    Text("closed-twice", '{"path": "$DIR/f", "content": "changed"}}'),
    Text("two-objects", '{"path": "$DIR/f", "content": "changed"} {}'),
    Text("text-behind", '{"path": "$DIR/f", "content": "changed"} please'),
    Text("text-before", 'Sure! {"path": "$DIR/f", "content": "changed"}'),
    Text("fenced", '```json\n{"path": "$DIR/f", "content": "changed"}\n```'),
    Text("single-quotes", "{'path': '$DIR/f', 'content': 'changed'}"),
    Text("bare-names", '{path: "$DIR/f", content: "changed"}'),
    Text("comma-at-the-end", '{"path": "$DIR/f", "content": "changed",}'),
    Text("comment", '{"path": "$DIR/f", /* all of it */ "content": "changed"}'),
    Text("bare-newline-in-text", '{"path": "$DIR/f", "content": "changed\n"}'),
    Text("bare-nul", '{"path": "$DIR/f", "content": "changed"}\0'),
    Text("unknown-escape", '{"path": "$DIR/f", "content": "\\q"}'),
    Text("short-escape", '{"path": "$DIR/f", "content": "\\u12"}'),
    Text("python", '{"path": "$DIR/f", "content": None}'),
    Text("shell", "echo changed > $QDIR/f"),
    Text("list", '[{"path": "$DIR/f", "content": "changed"}]'),
    Text("pairs", '[["path", "$DIR/f"], ["content", "changed"]]'),
    Text("a-text", '"$DIR/f"'),
    Text("object-in-a-text", '"{\\"path\\": \\"$DIR/f\\", \\"content\\": \\"changed\\"}"'),
    Text("a-number", "7"),
    Text("null", "null"),
    Text("true", "true"),
    Text("nan", '{"command": "echo changed > $QDIR/f", "timeout": NaN}', "either", "bash"),
    Text(
        "infinity", '{"command": "echo changed > $QDIR/f", "timeout": Infinity}', "either", "bash"
    ),
    Text("minus-infinity", '{"command": "a", "timeout": -Infinity}', "either", "bash"),
    Text("leading-zero", '{"path": "$DIR/f", "offset": 02}', tool="read"),
    Text("hexadecimal", '{"path": "$DIR/f", "offset": 0x2}', tool="read"),
    Text("plus-sign", '{"path": "$DIR/f", "offset": +2}', tool="read"),
    Text("bare-point", '{"path": "$DIR/f", "offset": 2.}', tool="read"),
    Text("underscore", '{"path": "$DIR/f", "offset": 1_0}', tool="read"),
    Text("too-large-for-a-double", '{"path": "$DIR/f", "offset": 1e400}', "either", "read"),
    Text("too-small-for-a-double", '{"path": "$DIR/f", "offset": -1e400}', "either", "read"),
    Text("timeout-over-a-double", '{"command": "a", "timeout": 1e400}', "either", "bash"),
    Text(
        "ten-thousand-digits", f'{{"path": "$DIR/f", "offset": {"9" * 10_000}}}', "either", "read"
    ),
    Text(
        "name-twice",
        '{"path": "$DIR/f", "content": "changed", "content": "also changed"}',
        "either",
    ),
    Text("same-value-twice", '{"path": "$DIR/f", "path": "$DIR/f", "content": "a"}', "either"),
    Text(
        "name-twice-by-escape",
        '{"path": "$DIR/g", "p\\u0061th": "$DIR/f", "content": "a"}',
        "either",
    ),
    Text(
        "name-twice-and-null",
        '{"path": "$DIR/f", "oldText": "two", "newText": "a", "newText": null}',
        "either",
        "edit",
    ),
    Text("name-twice-within", '{"path": "$DIR/f", "content": {"a": 1, "a": 2}}', "either"),
    Text("surrogate-in-a-name", '{"path": "$DIR/f", "content": "a", "\\ud800": 1}', "either"),
    Text("hundred-thousand-deep", '{"path": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    Text("deep-and-cut-off", '{"path": ' + '{"a":' * 100_000),
)


def _rules() -> Iterator[Rule]:
    for text in TEXTS:
        yield _rule(text)


def _rule(text: Text) -> Rule:
    async def check(place: Place) -> None:
        async with untouched(place) as inner:
            spelled = in_json(text.json, inner.folder)
            if text.verdict == "envelope":
                await _bad_envelope(place, text.tool, spelled)
                return
            try:
                result = place.with_shell(await place.call_json(text.tool, spelled))
            except errors.InvalidRequest as error:
                _sound(error)
            else:
                refused(result, ("INVALID_INPUT",))

    outcome = "fails the request" if text.verdict == "envelope" else "is refused"
    return Rule(
        id=f"inputs.json-{text.name}",
        title=f"JSON: {text.name.replace('-', ' ')}: {outcome}, and nothing changes",
        check=check,
        cases=("contract 2", "contract 4"),
        needs=frozenset({SIX_TOOLS}),
    )


async def _bad_envelope(place: Place, tool: str, text: str) -> None:
    """The request fails, and its call was never seen."""
    call_id = "envelope-" + place.folder.rpartition("/")[2]
    try:
        answer = await place.client.call_json(place.session_id, tool, text, call_id=call_id)
    except errors.AdapterError as error:
        _sound(error)
    else:
        raise Broken(f"it was taken for an input: {expect.shown(answer.result.text)}")
    known = await place.client.get_call(place.session_id, call_id)
    expect.equal(known.state, tool_pb2.CALL_STATE_NEVER_SEEN, "state of the refused call")


def _sound(error: errors.AdapterError) -> None:
    """INVALID_ENVELOPE, with the field and the rule (error.proto)."""
    expect.equal(error.status, "INVALID_ARGUMENT", f"status ({expect.shown(str(error))})")
    expect.equal(error.reason, "INVALID_ENVELOPE", "reason")
    metadata = error.failure.metadata
    expect.says(metadata.get("field", ""), "json")
    expect.holds(bool(metadata.get("rule")), "the failure names no rule")
    size = len(str(error))
    expect.holds(size <= REFUSAL_CHARS_MAX, f"the failure's text has {size} characters")


@rule("inputs.json-depth", cases=["contract 4", "contract 5"])
async def json_depth(place: Place) -> None:
    """Nesting below the announced depth is an input with a bad field; beyond it, no input."""
    bound = place.bound("input_depth_max")
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        # One level to either side of the bound: whether the object around counts is not judged.
        below, beyond = (
            f'{{"path": {opening * depth}{"1" * (opening != "[")}{closing * depth}}}'
            for depth in (bound - 2, bound + 1)
        )
        async with untouched(place):
            refused(await place.call_json("read", below), ("INVALID_INPUT",))
            await _bad_envelope(place, "read", beyond)


@rule("inputs.json-brackets-in-texts", cases=["contract 4"])
async def json_brackets_in_texts(place: Place) -> None:
    """Brackets inside texts are no depth, whatever quotes and backslashes stand among them."""
    for content in ("[" * 5_000 + "{" * 5_000, '\\"[' * 2_000, "[\\" * 2_000, '"]}' * 2_000):
        expect.fine(await place.write("f", content))
        expect.equal(await place.content("f"), content.encode(), "the file afterwards")


@rule("inputs.json-odd-and-valid", cases=["contract 4"])
async def json_odd_and_valid(place: Place) -> None:
    """White space, escapes and the order of names change nothing of what an input says."""
    path = place.at("f")
    spelled = json.dumps(path)
    slashed, escaped = spelled.replace("/", "\\/"), "".join(f"\\u{ord(char):04x}" for char in path)
    for text in (
        f' \r\n\t{{ "content"\n:\t"a\\n" , "path" : {spelled} }} \n',
        f'{{"path":{slashed},"content":"a\\u000A"}}',
        f'{{"\\u0070ath":"{escaped}","content":"\\u0061\\n"}}',
    ):
        await place.put("f", "before\n")
        expect.fine(await place.call_json("write", text), f"Wrote 2 bytes to {path}.")
        expect.equal(await place.content("f"), b"a\n", "the file afterwards")


@rule("inputs.bad-fields-are-recorded", cases=["contract 4", "contract 2"])
async def bad_fields_are_recorded(place: Place) -> None:
    """A refused field is the recorded result of its call, and the same when asked again."""
    call_id = "recorded-" + place.folder.rpartition("/")[2]
    async with untouched(place) as inner:
        bad = arguments(inner, "write", content=7)
        first = await place.call("write", bad, call_id=call_id)
        refused(first, ("INVALID_INPUT",), "content")
        known = await place.client.get_call(place.session_id, call_id)
        expect.equal(known.state, tool_pb2.CALL_STATE_FINISHED, "state of the call")
        expect.equal(known.result.text, first.text, "text in GetCall")
        again = await place.call("write", bad, call_id=call_id)
        expect.equal(again.replayed, True, "replayed")
        expect.equal(again.text, first.text, "text of the second answer")
        with expect.fails("ALREADY_EXISTS", "ID_CONFLICT"):
            await place.call("write", arguments(inner, "write"), call_id=call_id)


RULES: Final = tuple(_rules())
