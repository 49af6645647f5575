"""Rules that are data: files under `vectors/`, which other languages can read too.

README.md describes the format. A vector makes files, runs calls, and says what their
results and the files must then be. Each runs in the custom form and, unless it says
`"typed": false`, once more in the typed form, each time in a fresh folder.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sandbox_adapter.client import TypedInput
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import SIX_TOOLS, Level, Rule
from sandbox_adapter.v1 import tool_pb2

_FOLDER: Final = "$DIR"
_QUOTED_FOLDER: Final = "$QDIR"
_TYPED: Final[Mapping[str, type[TypedInput]]] = {
    "read": tool_pb2.ReadInput,
    "write": tool_pb2.WriteInput,
    "edit": tool_pb2.EditInput,
    "bash": tool_pb2.BashInput,
    "grep": tool_pb2.GrepInput,
    "glob": tool_pb2.GlobInput,
}
_VECTOR_KEYS: Final = {
    "id",
    "title",
    "cases",
    "level",
    "typed",
    "root",
    "commands",
    "files",
    "calls",
    "after",
}
_EXPECT_KEYS: Final = {
    "text",
    "starts",
    "ends",
    "contains",
    "lacks",
    "bytes_max",
    "reason",
    "ending",
    "exit_code",
    "signal",
    "truncated",
    "bytes_total",
    "lines_total",
    "details",
}

Vector = Mapping[str, Any]


class BadVector(ValueError):
    """A vector file breaks its format: a fault of the kit, found when it is loaded."""


def load(name: str) -> list[Rule]:
    """The rules of one vector file, such as `read.json`."""
    text = (resources.files(__package__) / "vectors" / name).read_text(encoding="utf-8")
    content = json.loads(text)
    return [rule_of(vector, name) for vector in content["vectors"]]


def rule_of(vector: Vector, name: str) -> Rule:
    """The rule that a vector of the file `name` is. Raises `BadVector`."""
    where = f"{name}: {vector.get('id')}"
    if unknown := set(vector) - _VECTOR_KEYS:
        raise BadVector(f"{where}: unknown keys {sorted(unknown)}")
    for call in vector["calls"]:
        if unknown := set(call["expect"]) - _EXPECT_KEYS:
            raise BadVector(f"{where}: unknown expectations {sorted(unknown)}")
        if unknown := set(call["expect"].get("details", ())) - set(_facts_of(call["tool"])):
            raise BadVector(f"{where}: unknown details {sorted(unknown)}")
    level: Level = "full" if vector.get("level") == "full" else "core"

    async def check(place: Place) -> None:
        await _judge(vector, place.below("custom"), typed=False)
        if vector.get("typed", True):
            await _judge(vector, place.below("typed"), typed=True)

    return Rule(
        id=vector["id"],
        title=vector["title"],
        check=check,
        level=level,
        cases=tuple(vector.get("cases", ())),
        needs=frozenset({SIX_TOOLS}),
    )


async def _judge(vector: Vector, place: Place, *, typed: bool) -> None:
    if vector.get("root") is False:
        place.require_permissions()
    await place.require(*vector.get("commands", ()))
    for fixture in vector.get("files", ()):
        await _make(place, fixture)
    for number, call in enumerate(vector["calls"], 1):
        form = "typed form" if typed else "custom form"
        where = f"call {number} ({call['tool']}, {form})"
        arguments = _in_folder(call["input"], place.folder)
        if typed:
            message = json_format.ParseDict(arguments, _TYPED[call["tool"]]())
            result = await place.call_typed(message)
        else:
            result = await place.call(call["tool"], arguments)
        place.with_shell(result)
        try:
            _compare(call["tool"], result, _in_folder(call["expect"], place.folder))
        except Broken as broken:
            raise Broken(f"{where}: {broken}") from None
    for state in vector.get("after", ()):
        await _look(place, state)


async def _make(place: Place, fixture: Vector) -> None:
    path, mode = fixture["path"], fixture.get("mode")
    if "link" in fixture:
        await place.link(path, _in_folder(fixture["link"], place.folder))
    elif fixture.get("directory"):
        await place.make_folder(path, _mode(mode))
    elif fixture.get("fifo"):
        await place.fifo(path)
    else:
        await place.put(path, content_of(fixture["content"]), _mode(mode))


async def _look(place: Place, state: Vector) -> None:
    path = state["path"]
    if state.get("absent"):
        expect.holds(not await place.exists(path), f"{path} exists and must not")
        return
    if "content" in state:
        wanted = content_of(state["content"])
        expect.equal(await place.content(path), wanted, f"content of {path} afterwards")
    if "mode" in state:
        expect.equal(await place.mode(path), _mode(state["mode"]), f"mode of {path} afterwards")


def content_of(pieces: str | Sequence[Any]) -> bytes:
    """The bytes that a content in a vector stands for.

    A text; or a list of pieces, each a text or an object with `text`, `base64` or
    `lines` (`[first, last, pattern]`, where `#` in the pattern is the number), and
    `times`.
    """
    if isinstance(pieces, str):
        return pieces.encode()
    return b"".join(_piece(piece) for piece in pieces)


def _piece(piece: str | Vector) -> bytes:
    if isinstance(piece, str):
        return piece.encode()
    if "base64" in piece:
        data = base64.b64decode(piece["base64"], validate=True)
    elif "lines" in piece:
        first, last, pattern = piece["lines"]
        numbered = (pattern.replace("#", str(number)) for number in range(first, last + 1))
        data = "".join(numbered).encode()
    else:
        data = piece["text"].encode()
    times: int = piece.get("times", 1)
    return data * times


def _compare(tool: str, result: tool_pb2.ToolResult, wanted: Vector) -> None:
    if "reason" in wanted:
        expect.refused(result, wanted["reason"])
    else:
        expect.fine(result)
    if "text" in wanted:
        expect.equal(result.text, content_of(wanted["text"]).decode(), "text")
    if "starts" in wanted:
        start = content_of(wanted["starts"]).decode()
        expect.equal(result.text[: len(start)], start, "start of the text")
    if "ends" in wanted:
        end = content_of(wanted["ends"]).decode()
        expect.equal(result.text[-len(end) :], end, "end of the text")
    expect.says(result.text, *wanted.get("contains", ()))
    for part in wanted.get("lacks", ()):
        expect.holds(part not in result.text, f"{expect.shown(part)} stands in the text")
    if "bytes_max" in wanted:
        size = len(result.text.encode())
        expect.holds(size <= wanted["bytes_max"], f"the text has {size} bytes")
    if "ending" in wanted:
        expect.ending_is(result, wanted["ending"])
    if "truncated" in wanted:
        expect.equal(result.truncated, wanted["truncated"], "truncated")
    for name in ("exit_code", "signal", "bytes_total", "lines_total"):
        if name in wanted:
            expect.equal(expect.given(result, name), wanted[name], name)
    if "details" in wanted:
        _compare_details(tool, result, wanted["details"])


def _compare_details(tool: str, result: tool_pb2.ToolResult, wanted: Vector) -> None:
    expect.equal(result.WhichOneof("details"), tool, "kind of the details")
    details: Message = getattr(result, tool)
    for name, value in wanted.items():
        expect.equal(_fact(details, _facts_of(tool)[name]), value, f"details.{name}")


def _facts_of(tool: str) -> Mapping[str, FieldDescriptor]:
    """Fields of the details of a tool, by their proto names."""
    details: Any = tool_pb2.ToolResult.DESCRIPTOR.fields_by_name[tool].message_type
    fields: Mapping[str, FieldDescriptor] = details.fields_by_name
    return fields


def _fact(message: Message, field: FieldDescriptor) -> Any:
    """A field as a vector writes it: enumerations by name, an absent one as None."""
    value = getattr(message, field.name)
    if field.is_repeated:
        return [_plain(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(value, field)


def _plain(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        if field.message_type.file.package == "google.protobuf":
            return json_format.MessageToDict(value)
        return {inner.name: _fact(value, inner) for inner in field.message_type.fields}
    if field.enum_type is not None:
        number = field.enum_type.values_by_number.get(value)
        return value if number is None else number.name
    return value


def _in_folder(value: Any, folder: str) -> Any:
    """The value with the folder's path for `$DIR` in every text, quoted for `$QDIR`."""
    if isinstance(value, str):
        return value.replace(_QUOTED_FOLDER, shlex.quote(folder)).replace(_FOLDER, folder)
    if isinstance(value, list):
        return [_in_folder(item, folder) for item in value]
    if isinstance(value, dict):
        return {name: _in_folder(item, folder) for name, item in value.items()}
    return value


def _mode(text: str | None) -> int | None:
    return None if text is None else int(text, 8)
