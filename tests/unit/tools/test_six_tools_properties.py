"""Any input of any tool, over a real guest, is a result that can be sent (contract.md 4)."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.config import BashSettings
from sandboxd.tools.registry import six_tools
from tests.unit.guest.search_place import SearchPlace, a_ripgrep, search_place
from tests.unit.strategies import BROKEN, JSON, PIECES, TEXTS, pieces

TOOLS = {tool.name: tool for tool in six_tools(BashSettings()).all()}
PATHS = TEXTS | st.sampled_from(
    ["f", "d", "d/g", "d/../f", "~", "~/h", ".", "caf\\xe9", "no/such", "x" * 300, "d/" * 2_000]
)


def printing(text: str) -> str:
    """A command that does nothing but print a text: it runs on this machine."""
    return f"printf %b {shlex.quote(text)}; printf %s {shlex.quote(text)} >&2"


FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "read": {"path": PATHS, "offset": st.integers(-1, 9) | JSON, "limit": st.integers(-1, 3)},
    "write": {"path": PATHS, "content": TEXTS | JSON},
    "edit": {
        "path": PATHS,
        "oldText": TEXTS | st.sampled_from(["a", "needle", "\n"]),
        "newText": TEXTS,
        "replaceAll": st.booleans() | JSON,
    },
    "bash": {"command": TEXTS.map(printing), "timeout": st.sampled_from([1e-320, 0, -1, 10**400])},
    "grep": {
        "pattern": TEXTS | st.sampled_from(["a", ".", "(", "[[:alpha:]", "\\xe9", "$", "(?i)A"]),
        "path": PATHS,
        "include": TEXTS | st.sampled_from(["*", "[", "{a", "*.{b,c}", "[!a]"]),
        "literal": st.booleans(),
    },
    "glob": {"pattern": TEXTS | st.sampled_from(["*", "[a", "**/f", "{d,f}", "\\"]), "path": PATHS},
}


@st.composite
def inputs(draw: st.DrawFn, tool: str) -> dict[str, Any]:
    """Mostly right: some optional fields left out, now and then one of another kind or unknown."""
    fields = FIELDS[tool]
    raw = {
        name: draw(strategy)
        for number, (name, strategy) in enumerate(fields.items())
        if number == 0 or draw(st.booleans()) or name in ("content", "oldText", "newText")
    }
    if tool != "bash" and draw(st.integers(0, 9)) == 0:
        raw[draw(st.sampled_from(sorted(fields)))] = draw(JSON)
    if draw(st.integers(0, 19)) == 0:
        raw[draw(TEXTS)] = draw(JSON)
    return raw


@pytest.fixture(scope="module")
def place() -> Iterator[SearchPlace]:
    with search_place(a_ripgrep()) as made:
        yield made


def check(result: tool_pb2.ToolResult) -> None:
    raw = result.SerializeToString()
    assert len(raw) < limits.MESSAGE_BYTES_MAX
    assert tool_pb2.ToolResult.FromString(raw) == result
    assert "\0" not in result.text
    assert result.text
    assert result.ending != tool_pb2.ENDING_UNSPECIFIED
    assert bool(result.reason) >= result.is_error


@pytest.mark.parametrize("tool", [name for name in TOOLS if name != "bash"])
@settings(max_examples=40)
@given(data=st.data())
def test_any_input_is_a_result_that_can_be_sent(
    place: SearchPlace, tool: str, data: st.DataObject
) -> None:
    place.empty()
    content = data.draw(pieces([*PIECES, *BROKEN, b"\n", b"needle"], 20))
    place.write("f", content)
    place.write(b"d/g", b"a\n" * 3)
    place.write(b"caf\xe9", b"a\n")
    check(asyncio.run(place.use(TOOLS[tool], **data.draw(inputs(tool)))))


@settings(max_examples=25)
@given(data=st.data())
def test_any_text_that_a_command_prints_is_a_result_that_can_be_sent(
    place: SearchPlace, data: st.DataObject
) -> None:
    check(asyncio.run(place.use(TOOLS["bash"], **data.draw(inputs("bash")))))
