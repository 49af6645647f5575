"""A call's input as the object that a tool takes: the same for both forms (contract.md 2).

The typed form becomes what its JSON would be, so that a call has one digest
however it was spelled. What is wrong with a field of the object is the tool's to
say, in a result; that there is no object is a fault of the envelope.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.errors import InvalidEnvelope

_TYPED: Final[Mapping[str, type[Message]]] = {
    "read": tool_pb2.ReadInput,
    "write": tool_pb2.WriteInput,
    "edit": tool_pb2.EditInput,
    "bash": tool_pb2.BashInput,
    "grep": tool_pb2.GrepInput,
    "glob": tool_pb2.GlobInput,
}
_JSON_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    name: {field.name: field.json_name for field in message.DESCRIPTOR.fields}
    for name, message in _TYPED.items()
}
# A string that never ends is a token up to the end: tried anew from each of its
# quotes it would take the square of the input's size.
_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
PARSE_INLINE_CHARS_MAX: Final = 256 * limits.KIB
_INTEGER_CHARS_MAX: Final = 400
"""Digits of a number in the input: more is no number that a tool takes."""


async def tool_input(request: tool_pb2.CallToolRequest) -> tuple[str, dict[str, Any]]:
    """The tool's name and its input. Raises `InvalidEnvelope`."""
    which = request.WhichOneof("input")
    if which is None:
        raise InvalidEnvelope("input", "must be given")
    if which == "custom":
        text = request.custom.json
        if len(text) <= PARSE_INLINE_CHARS_MAX:
            return request.custom.name, _parsed(text)
        # Megabytes of small items take long enough to hold up every other call.
        return request.custom.name, await asyncio.to_thread(_parsed, text)
    message = getattr(request, which)
    names = _JSON_NAMES[which]
    out: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        # Fields without presence are the required ones: empty is their value,
        # which the tool refuses or takes as it would in JSON.
        if not field.has_presence or message.HasField(field.name):
            out[names[field.name]] = getattr(message, field.name)
    return which, out


def _parsed(text: str) -> dict[str, Any]:
    _check_depth(text)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_integer,
        )
    except (ValueError, RecursionError):
        raise InvalidEnvelope("custom.json", "must be valid JSON, without NaN") from None
    if not isinstance(value, dict):
        raise InvalidEnvelope("custom.json", "must be an object")
    return value


def _check_depth(text: str) -> None:
    """Counted before the parser recurses; brackets inside strings do not count."""
    if text.count("{") + text.count("[") <= limits.INPUT_DEPTH_MAX:
        return
    depth = 0
    for token in _TOKENS.finditer(text):
        mark = token.group()
        if mark in "[{":
            depth += 1
            if depth > limits.INPUT_DEPTH_MAX:
                rule = f"must be nested at most {limits.INPUT_DEPTH_MAX} deep"
                raise InvalidEnvelope("custom.json", rule)
        elif mark in "]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        # Which one counts would be this parser's taste; an approval may have
        # been given for the other.
        raise InvalidEnvelope("custom.json", "must not name a field twice")
    return out


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _integer(digits: str) -> int:
    if len(digits) > _INTEGER_CHARS_MAX:
        raise ValueError("number too long")
    return int(digits)
