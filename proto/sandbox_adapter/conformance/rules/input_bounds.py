"""Values that look bad and must be taken, and what the schemas of the tools promise."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.conformance.rules import input_table as table
from sandbox_adapter.conformance.rules.inputs import (
    CONTENT,
    TYPED,
    arguments,
    refused,
    untouched,
)
from sandbox_adapter.v1 import tool_pb2

_JSON_TYPES: Final = {
    "path": "string",
    "text": "string",
    "version": "string",
    "line": "integer",
    "seconds": "number",
    "flag": "boolean",
}


@rule("inputs.read-offset-forms", cases=["R5"])
async def read_offset_forms(place: Place) -> None:
    """A whole number is taken for a line number however JSON spells it."""
    path = json.dumps(await place.put("f", CONTENT))
    for spelled in ("2", "2.0", "2e0", "20e-1", "0.2E+1"):
        text = f'{{"path": {path}, "offset": {spelled}, "limit": 1.0}}'
        result = expect.fine(await place.call_json("read", text))
        expect.equal(result.text.partition("\n")[0], "two", f"first line with offset {spelled}")


@rule("inputs.read-greatest-numbers", cases=["R5", "contract 9"])
async def read_greatest_numbers(place: Place) -> None:
    """The greatest limit shows the whole file; a great offset lies behind it."""
    await place.put("f", CONTENT)
    expect.fine(await place.read("f", limit=table.INT64_MAX), CONTENT)
    for offset in (4, 10**12, table.INT64_MAX):
        text = f"Offset {offset} is beyond the end of the file (3 lines)."
        expect.refused(await place.read("f", offset=offset), "OFFSET_BEYOND_END", text)
        typed = tool_pb2.ReadInput(path=place.at("f"), offset=offset)
        expect.refused(await place.call_typed(typed), "OFFSET_BEYOND_END", text)


@rule("inputs.longest-path", cases=["R27"])
async def longest_path(place: Place) -> None:
    """A path as long as the system takes them is taken."""
    await place.put("f", CONTENT)
    steps = (table.PATH_BYTES_MAX - len(place.at("f").encode())) // 2
    expect.fine(await place.read("./" * steps + "f"), CONTENT)
    name = "n" * table.NAME_BYTES_MAX
    expect.fine(await place.write(name, "a\n"))
    expect.fine(await place.edit(name, "a", "b"))
    expect.fine(await place.read(name), "b\n")


@rule("inputs.write-odd-contents", cases=["W13", "W14", "W15", "W16"])
async def write_odd_contents(place: Place) -> None:
    """An empty content, NUL, and characters from escapes are written as they are."""
    path = place.at("f")
    contents = (("", b""), ("a\\u0000b", b"a\0b"), ("\\ud83d\\ude00", "😀".encode()))
    for spelled, content in contents:
        text = f'{{"path": {json.dumps(path)}, "content": "{spelled}"}}'
        result = expect.fine(await place.call_json("write", text))
        expect.equal(result.text, f"Wrote {len(content)} bytes to {path}.", "text")
        expect.equal(await place.content("f"), content, "the file afterwards")


@rule("inputs.surrogate-is-placed", cases=["W15"])
async def surrogate_is_placed(place: Place) -> None:
    """The refusal of a lone surrogate says at which character it stands."""
    text = f'{{"path": {json.dumps(place.at("f"))}, "content": "{"a" * 40}\\ud800b"}}'
    result = await place.call_json("write", text)
    refused(result, table.BAD, "content")
    # Counted from 0 or from 1.
    placed = re.search(r"\b4[01]\b", result.text.replace(place.at("f"), ""))
    expect.holds(placed is not None, f"its place is not named: {expect.shown(result.text)}")
    expect.holds(not await place.exists("f"), "the file was made")


@rule("inputs.megabytes-are-taken", cases=["W22", "B17", "E28"])
async def megabytes_are_taken(place: Place) -> None:
    """Ten megabytes are no bad value of content, newText or command."""
    big = "x" * table.BIG_CHARS
    expect.fine(await place.write("f", big), f"Wrote {table.BIG_CHARS} bytes to {place.at('f')}.")
    await place.put("f", "one\n")
    expect.fine(await place.edit("f", "one", big))
    await place.put("f", "one\n")
    result = await place.bash(f"echo begun # {big}\necho ended")
    expect.exited(result, 0, "begun\nended\n")


@rule("inputs.edit-new-text-nul", cases=["D3"])
async def edit_new_text_nul(place: Place) -> None:
    """NUL in newText is put in, and in oldText it is found, as any character."""
    await place.put("f", "one\ntwo\n")
    expect.fine(await place.edit("f", "one", "a\0b"))
    expect.equal(await place.content("f"), b"a\0b\ntwo\n", "the file afterwards")
    expect.fine(await place.edit("f", "a\0", ""))
    expect.equal(await place.content("f"), b"b\ntwo\n", "the file after the second edit")


@rule("inputs.bash-timeout-zero", cases=["B9", "D11", "sandbox 18"])
async def bash_timeout_zero(place: Place) -> None:
    """A timeout of zero, or none, is the announced default."""
    default = place.target.limits.bash_timeout_default
    for spelled in ('"timeout": 0', '"timeout": 0.0', '"timeout": -0.0', '"timeout": 0e5'):
        result = place.with_shell(
            await place.call_json("bash", f'{{"command": "echo a", {spelled}}}')
        )
        expect.exited(result, 0, "a\n")
        _timeout_is(result, default, clamped=False)
    _timeout_is(await place.bash("echo a"), default, clamped=False)
    typed = tool_pb2.BashInput(command="echo a", timeout_seconds=0)
    _timeout_is(await place.call_typed(typed), default, clamped=False)


@rule("inputs.bash-timeout-fraction", cases=["B9"])
async def bash_timeout_fraction(place: Place) -> None:
    """A timeout may have a fraction."""
    result = expect.fine(await place.bash("echo a", timeout=60.25))
    expect.equal(result.bash.timeout.ToNanoseconds(), 60_250_000_000, "details.timeout, in ns")


def _timeout_is(result: tool_pb2.ToolResult, wanted: Duration, *, clamped: bool) -> None:
    expect.fine(result)
    expect.equal(result.bash.timeout.ToNanoseconds(), wanted.ToNanoseconds(), "timeout, in ns")
    expect.equal(result.bash.timeout_clamped, clamped, "details.timeout_clamped")


@rule("inputs.flags-may-be-false", cases=["contract 6"])
async def flags_may_be_false(place: Place) -> None:
    """A flag that is false means what its absence means."""
    await place.put("f", "a.c\nabc\n")
    expect.refused(await place.edit("f", "a", "x", replaceAll=False), "SEVERAL_MATCHES")
    found = expect.fine(await place.grep("a.c", literal=False))
    expect.equal(len(found.grep.matches), 2, "matches with literal false")


# --- Names of fields ---------------------------------------------------------------


async def _schema(place: Place, tool: str) -> dict[str, Any]:
    for each in await place.client.list_tools():
        if each.name == tool:
            schema: dict[str, Any] = json.loads(each.input_schema_json)
            return schema
    raise Broken(f"ListTools does not list {tool}")


@rule("inputs.schemas-type-the-fields", cases=["contract 4", "contract 6"])
async def schemas_type_the_fields(place: Place) -> None:
    """The schema of each tool gives the contract's fields their types."""
    for tool in TYPED:
        properties = (await _schema(place, tool))["properties"]
        for field in table.FIELDS:
            if field.tool == tool and field.name in properties:
                found = properties[field.name].get("type")
                expect.equal(found, _JSON_TYPES[field.kind], f"type of `{field.name}` of {tool}")


_UNKNOWN_NAMES: Final = ("file_path", "Path", "PATTERN", "old_text", "timeout_seconds", "", "\0")
"""Of other tools and other cases, of the proto file, and no names at all."""


@rule("inputs.unknown-fields", cases=["contract 4"])
async def unknown_fields(place: Place) -> None:
    """A field that the schema does not allow is refused by its name, and nothing runs."""
    for tool in TYPED:
        schema = await _schema(place, tool)
        if schema.get("additionalProperties", True) is not False:
            continue
        async with untouched(place.below(tool)) as inner:
            for name in _UNKNOWN_NAMES:
                result = await place.call(tool, {**arguments(inner, tool), name: "f"})
                refused(result, table.BAD, name.strip("\0"))


@rule("inputs.every-fault-at-once", cases=["contract 4"])
async def every_fault_at_once(place: Place) -> None:
    """An input in which everything is wrong is one refusal like any other."""
    for tool, message in TYPED.items():
        names = [field.json_name for field in message.DESCRIPTOR.fields]
        bad: tuple[Any, ...] = (None, [], {"a": [None]}, -math.pi)
        async with untouched(place.below(tool)):
            for value in bad:
                refused(await place.call(tool, dict.fromkeys(names, value)), table.BAD)
            refused(await place.call(tool, {}), table.BAD)
