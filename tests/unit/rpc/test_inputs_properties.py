"""A call's input: any text is an object or a bad envelope, both forms are one (contract.md 2)."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.errors import InvalidEnvelope
from sandboxd.rpc.inputs import tool_input
from sandboxd.sessions.digest import call_digest
from tests.unit.strategies import JSON, TEXTS, json_texts

KEY = b"k" * 32
SENDABLE = st.text(max_size=12) | st.sampled_from(["\0", "\ufeff", "\x1b[31m", "\u2028", "a\nb"])
INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, 2**53, 2**53 + 1, 2**62])


def parsed(text: str) -> dict[str, Any] | None:
    """The input of a custom call, or None for a bad envelope."""
    custom = tool_pb2.CustomInput(name="read", json=text)
    try:
        name, value = asyncio.run(tool_input(tool_pb2.CallToolRequest(custom=custom)))
    except InvalidEnvelope as error:
        str(error).encode("utf-8")
        return None
    assert name == "read"
    return value


def depth_of(value: Any) -> int:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth_of, items), default=0)
    return 0


@given(json_texts().map(lambda text: text.encode("utf-8", "replace").decode()))
@example('{"a":1,"a":1}')
@example('{"a":{"b":1,"b":2}}')
@example('{"a":NaN}')
@example('{"a":1e400,"b":' + "9" * 400 + "}")
@example('{"a":' + "9" * 401 + "}")
@example('{"a":"\\ud800"}')
@example("[" * 31 + "]" * 31)
@example('{"a":' + "[" * 31 + "]" * 31 + "}")
@example('{"a":' + "[" * 32 + "]" * 32 + "}")
@example("\ufeff{}")
@example("")
def test_text_of_a_custom_input_is_an_object_or_a_bad_envelope(text: str) -> None:
    value = parsed(text)
    if value is None:
        return
    assert depth_of(value) <= limits.INPUT_DEPTH_MAX
    # No field was named twice: as many are here as a parser sees that drops none.
    pairs: list[list[tuple[str, Any]]] = []

    def keep(found: list[tuple[str, Any]]) -> dict[str, Any]:
        pairs.append(found)
        return dict(found)

    json.loads(text, object_pairs_hook=keep)
    assert len(pairs[-1]) == len(value)
    # Whatever was taken has a digest, and it is that of the value and not of its spelling.
    respelled = parsed(json.dumps(value, ensure_ascii=True, sort_keys=True, indent=1))
    if respelled is not None:
        assert call_digest(KEY, "read", value) == call_digest(KEY, "read", respelled)


@given(st.dictionaries(TEXTS, JSON, max_size=3), st.dictionaries(TEXTS, JSON, max_size=3))
def test_inputs_of_one_digest_are_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    same = call_digest(KEY, "t", one) == call_digest(KEY, "t", other)
    if repr(one) == repr(other):
        assert same
    elif same:
        # JSON has one kind of number; NaN is nothing that an input holds.
        plain = [json.loads(json.dumps(each), parse_int=float) for each in (one, other)]
        assert plain[0] == plain[1] or "nan" in repr(one)


TYPED: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "read": {"path": SENDABLE, "offset": INT64, "limit": INT64},
    "write": {"path": SENDABLE, "content": SENDABLE},
    "edit": {
        "path": SENDABLE,
        "old_text": SENDABLE,
        "new_text": SENDABLE,
        "replace_all": st.booleans(),
    },
    "bash": {
        "command": SENDABLE,
        "timeout_seconds": st.floats(allow_nan=False, allow_infinity=False) | INT64.map(float),
    },
    "grep": {
        "pattern": SENDABLE,
        "path": SENDABLE,
        "include": SENDABLE,
        "literal": st.booleans(),
    },
    "glob": {"pattern": SENDABLE, "path": SENDABLE},
}
JSON_NAMES = {
    "old_text": "oldText",
    "new_text": "newText",
    "replace_all": "replaceAll",
    "timeout_seconds": "timeout",
}
MESSAGES: dict[str, Any] = {
    "read": tool_pb2.ReadInput,
    "write": tool_pb2.WriteInput,
    "edit": tool_pb2.EditInput,
    "bash": tool_pb2.BashInput,
    "grep": tool_pb2.GrepInput,
    "glob": tool_pb2.GlobInput,
}
REQUIRED = {"read": 1, "write": 2, "edit": 3, "bash": 1, "grep": 1, "glob": 1}


@pytest.mark.parametrize("tool", TYPED)
@given(data=st.data())
def test_typed_and_custom_form_of_an_input_have_one_digest(tool: str, data: st.DataObject) -> None:
    names = list(TYPED[tool])
    kept = names[: REQUIRED[tool]] + [
        name for name in names[REQUIRED[tool] :] if data.draw(st.booleans())
    ]
    fields = {name: data.draw(TYPED[tool][name]) for name in kept}
    spelled = {JSON_NAMES.get(name, name): value for name, value in fields.items()}
    for key, value in spelled.items():
        # A writer of JSON may spell whole numbers either way.
        if isinstance(value, float) and value.is_integer() and data.draw(st.booleans()):
            spelled[key] = int(value)
        elif type(value) is int and int(float(value)) == value and data.draw(st.booleans()):
            spelled[key] = float(value)
    order = data.draw(st.permutations(list(spelled)))
    text = json.dumps({key: spelled[key] for key in order}, ensure_ascii=data.draw(st.booleans()))

    request = tool_pb2.CallToolRequest()
    getattr(request, tool).CopyFrom(MESSAGES[tool](**fields))
    name, typed = asyncio.run(tool_input(request))
    custom = parsed(text)

    assert name == tool
    assert custom is not None
    assert call_digest(KEY, tool, typed) == call_digest(KEY, tool, custom)


def test_input_that_is_one_endless_text_is_refused_at_once() -> None:
    # It was minutes of the event loop: each quote was tried as the beginning of a text.
    started = time.monotonic()
    for unit in ('\\"', '"\\', '""', "\\\n"):
        assert parsed('{"a":"' + unit * 100_000 + "[" * 40) is None
    assert time.monotonic() - started < 5.0
