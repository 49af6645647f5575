"""Rules on bad input: every field of the six tools, with every kind of bad value.

A fault in a field is a result with a text of one line that a model can act on, and
nothing ran or changed (contract.md 4, 6). `input_table` lists fields and values.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import Message

from sandbox_adapter.client import TypedInput
from sandbox_adapter.conformance import expect, snapshot
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import SIX_TOOLS, Rule
from sandbox_adapter.conformance.rules import input_table as table
from sandbox_adapter.conformance.rules.input_table import Field, Value
from sandbox_adapter.v1 import tool_pb2

REFUSAL_CHARS_MAX: Final = 10_000
"""Longest text of a refusal: a path of the greatest length, twice, and what is said of it."""
CONTENT: Final = "one\ntwo\nthree\n"

TYPED: Final[Mapping[str, type[TypedInput]]] = {
    "read": tool_pb2.ReadInput,
    "write": tool_pb2.WriteInput,
    "edit": tool_pb2.EditInput,
    "bash": tool_pb2.BashInput,
    "grep": tool_pb2.GrepInput,
    "glob": tool_pb2.GlobInput,
}

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OF_SEVERAL_LINES: Final = {"FILE_NOT_FOUND", "INVALID_PATTERN", "NO_MATCH"}
"""Reasons whose text may quote an engine, a file, or near names on lines of their own."""


def refused(result: tool_pb2.ToolResult, reasons: Collection[str], *names: str) -> None:
    """A refusal for one of the reasons, with a text that a model can use.

    `names` stand in the text: the field, or the path.
    """
    text = result.text
    expect.holds(result.is_error, f"not refused ({' or '.join(reasons)}): {expect.shown(text)}")
    reason = expect.reason_of(result)
    expect.holds(
        reason in reasons, f"reason {reason}, not {' or '.join(reasons)}: {expect.shown(text)}"
    )
    expect.ending_is(result, "COMPLETED")
    expect.says(text, *names)
    expect.holds(len(text) <= REFUSAL_CHARS_MAX, f"the text has {len(text)} characters")
    expect.holds(_CONTROL.search(text) is None, f"control characters in {expect.shown(text)}")
    if reason not in _OF_SEVERAL_LINES:
        expect.holds("\n" not in text, f"more than one line: {expect.shown(text)}")


@asynccontextmanager
async def untouched(place: Place) -> AsyncIterator[Place]:
    """A folder with a file `f`, in which the block must change nothing.

    Afterwards the session serves the next call, which is a read of the file.
    """
    inner = place.below("in")
    await inner.put("f", CONTENT)
    before = await snapshot.taken(place, contents=False)
    yield inner
    snapshot.same(before, await snapshot.taken(place, contents=False))
    expect.fine(await inner.read("f"), CONTENT)


def _rules() -> Iterator[Rule]:
    for field in table.FIELDS:
        values = [*table.OF_KIND[field.kind], *table.OF_FIELD.get((field.tool, field.name), ())]
        if field.required:
            values += table.ABSENT
        for value in values:
            yield _rule(field, value)


def _rule(field: Field, value: Value) -> Rule:
    async def check(place: Place) -> None:
        if value.json is not None:
            await _judge(place.below("custom"), field, value, typed=False)
        if value.typed is not None:
            await _judge(place.below("typed"), field, value, typed=True)

    said = value.name.replace("-", " ")
    outcome = " or ".join(value.reasons) if table.TAKEN not in value.reasons else "bounded"
    return Rule(
        id=f"inputs.{field.tool}-{_kebab(field.name)}-{value.name}",
        title=f"{field.tool} with `{field.name}` {said}: {outcome}, and nothing changes",
        check=check,
        cases=(*value.cases, "contract 4"),
        needs=frozenset({SIX_TOOLS}),
    )


async def _judge(place: Place, field: Field, value: Value, *, typed: bool) -> None:
    if table.TAKEN in value.reasons:
        await place.put("in/f", CONTENT)
        result = await _sent(place.below("in"), field, value, typed=typed)
        if result.is_error:
            refused(result, value.reasons)
        return
    async with untouched(place) as inner:
        result = await _sent(inner, field, value, typed=typed)
        named = [field.name] if expect.reason_of(result) == "INVALID_INPUT" else []
        refused(result, value.reasons, *named)
    if field.tool == "write" and field.name == "path":
        outside = Place(place.target, place.session, place.workdir)
        for name in value.becomes:
            expect.holds(not await outside.exists(name), f"the value became the file {name}")


async def _sent(place: Place, field: Field, value: Value, *, typed: bool) -> tool_pb2.ToolResult:
    if typed:
        result = await place.call_typed(_message(place, field, value))
    else:
        result = await place.call_json(field.tool, _json(place, field, value))
    return place.with_shell(result)


def _json(place: Place, field: Field, value: Value) -> str:
    """The input with the bad value in it, as JSON text."""
    parts = {name: json.dumps(good) for name, good in table.GOOD[field.tool].items()}
    bad = value.json or ""
    parts[field.name] = _spelled(bad, value, field)
    if bad == table.MISSING:
        del parts[field.name]
    text = ", ".join(f'"{name}": {part}' for name, part in parts.items())
    return "{" + in_json(text, place.folder) + "}"


def _message(place: Place, field: Field, value: Value) -> TypedInput:
    """The same in the typed form."""
    good = in_json(json.dumps(table.GOOD[field.tool]), place.folder)
    message = TYPED[field.tool]()
    json_format.Parse(good, message)
    bad = value.typed
    if isinstance(bad, str):
        bad = _spelled(bad, value, field).replace("$DIR", place.folder)
    setattr(message, proto_name(message, field.name), bad)
    return message


def in_json(text: str, folder: str) -> str:
    """JSON text with the folder's path for `$DIR`, and with its quoted form for `$QDIR`."""
    quoted, plain = json.dumps(shlex.quote(folder))[1:-1], json.dumps(folder)[1:-1]
    return text.replace("$QDIR", quoted).replace("$DIR", plain)


def _spelled(text: str, value: Value, field: Field) -> str:
    piece = {"over-4096-of-parts": "./", "digits": "9"}.get(value.name, "x")
    return text.replace("#", piece * value.times)


def proto_name(message: Message, json_name: str) -> str:
    """Name of the field in the proto file."""
    for each in message.DESCRIPTOR.fields:
        if each.json_name == json_name:
            return str(each.name)
    raise ValueError(f"{message.DESCRIPTOR.name} has no field {json_name}")


def _kebab(name: str) -> str:
    return re.sub(r"[A-Z]", lambda found: f"-{found.group().lower()}", name)


def arguments(place: Place, tool: str, **changed: Any) -> dict[str, Any]:
    """The good input of a tool with some fields changed."""
    text = in_json(json.dumps(dict(table.GOOD[tool])), place.folder)
    return {**json.loads(text), **changed}


RULES: Final = tuple(_rules())
