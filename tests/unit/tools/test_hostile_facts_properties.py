"""Whatever a guest answers, a tool gives a result that can be sent, or the sandbox is lost (S8)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.config import BashSettings
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.sessions import outcomes
from sandboxd.tools.base import FAULT_CHARS_MAX
from sandboxd.tools.registry import six_tools
from tests.unit.strategies import JSON, TEXTS, mutated
from tests.unit.tools.direct_channel import run_tool

TOOLS = {tool.name: tool for tool in six_tools(BashSettings()).all()}
INPUTS: dict[str, dict[str, Any]] = {
    "read": {"path": "f", "offset": 3, "limit": 5},
    "write": {"path": "f", "content": "text"},
    "edit": {"path": "f", "oldText": "a", "newText": "b"},
    "bash": {"command": "true", "timeout": 7},
    "grep": {"pattern": "a(", "path": "d"},
    "glob": {"pattern": "*.py"},
}
_SEARCH = {
    "capped": True,
    "timed_out": False,
    "cancelled": False,
    "unsearched": 1,
    "first_error": "d/x: permission denied",
}
FACTS: dict[str, dict[str, Any]] = {
    "read": {
        "first": 3,
        "last": 4,
        "total": 9,
        "total_exact": True,
        "next": 5,
        "long_line": False,
        "replaced": True,
        "nul": False,
        "encoding": "utf-8",
        "size": 90,
        "version": "",
    },
    "write": {"bytes": 4, "created": True, "version": "", "lock_wait_s": 0.1},
    "edit": {"replacements": 12, "lines": list(range(1, 12)), "version": "", "lock_wait_s": 0.1},
    "bash": {
        "ended": "exited",
        "exit_code": 3,
        "signal": None,
        "bytes_total": 900_000,
        "lines_total": 90,
        "lines_shown": 2,
        "cut": True,
        "binary": False,
        "spill": {"path": "/tmp/x", "bytes": 9, "complete": False},
        "survivors": [[7, "sleep"], [8, "cat"]],
        "survivors_total": 2,
        "output_open": False,
        "swept": True,
        "freed": 1,
    },
    "grep": {
        **_SEARCH,
        "cut": 1,
        "binary": True,
        "ignored": {"matches": 3, "exact": False, "under": ["build"]},
        "other_case": True,
    },
    "glob": {**_SEARCH, "entries_over": True, "other_case": "A.PY"},
}
BODIES = st.binary(max_size=60) | st.sampled_from(
    [
        b"",
        b"a\nb\n",
        b"a\0\x1b[31m\r\n\xff",
        "\x85\u2028é\n".encode(),
        b"d/f:\0007\0text\n",
        b"d/f\x0012\0a\tb\x01\x85\nd/g\x0013\0\n",
        b"d/f\x00999999999999999\0t\n" * 100,
        b"d/f\0009\0t\n" * 101,
        b"a.py\nb\x01\x9b.py\n",
        b"/" * 3_000 + b"\n",
        b"x\n" * 1_000,
        b"x\n" * 1_001,
    ]
)
FLOODS = {
    "controls": b"\x01",
    "broken": b"\xff",
    "newlines": b"\n",
    "c1": "\x9b".encode(),
    "paths of controls": b"\x01" * 5_240 + b"\n",
    "rows of controls": b"\x01" * 20_000 + b"\0001\0t\n",
    "rows of long texts": b"p\0001\0" + b"\x02" * 20_000 + b"\n",
}
REASONS = st.sampled_from(
    [
        *("FILE_NOT_FOUND", "BINARY_FILE", "OFFSET_BEYOND_END", "SEVERAL_MATCHES", "NO_MATCH"),
        *("IDENTICAL_TEXT", "INVALID_PATTERN", "VERSION_CONFLICT", "DISK_FULL", "IS_DIRECTORY"),
        *("CANCELLED_BY_CALLER", "INTERNAL_ERROR", "NO_SUCH_REASON", "UNSPECIFIED"),
    ]
)
FAULT_FACTS = {
    "near": ["g", "h\0"],
    "size": 9,
    "type": "PNG image",
    "total": 4,
    "count": 3,
    "lines": [1, 2, 3],
    "kind": "case",
    "line": 2,
    "nearest_line": 3,
    "nearest_text": "te\0xt",
}
FAULTS = st.builds(
    GuestFault, REASONS, TEXTS | TEXTS.map(lambda text: text * 5_000), mutated(FAULT_FACTS)
)
TEXT_BYTES_MAX = {
    # What is shown, and after it lines of their own that name paths.
    "read": limits.READ_BYTES_MAX + 2_000,
    "write": 8_000,
    "edit": 8_000,
    "bash": limits.BASH_BYTES_MAX + 20_000,
    "grep": limits.MESSAGE_BYTES_MAX // 2,
    "glob": limits.MESSAGE_BYTES_MAX // 2,
}


class HostileChannel:
    """Answers anything, within the bytes that the link lets through."""

    def __init__(self, answer: GuestFault | Mapping[str, Any], body: bytes) -> None:
        self.answer = answer
        self.body = body

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        reply_bytes_max: int,
        timeout_s: float,
    ) -> Reply:
        if isinstance(self.answer, GuestFault):
            raise self.answer
        return Reply(self.answer, self.body[:reply_bytes_max])


def check_result(result: tool_pb2.ToolResult, text_bytes_max: int) -> None:
    """A result of the contract: it can be sent, and its text is fit for a model."""
    outcomes.stamp(result, 1, 1e9, 0.5)
    raw = result.SerializeToString()
    assert tool_pb2.ToolResult.FromString(raw) == result
    assert len(raw) < limits.MESSAGE_BYTES_MAX
    text = result.text.encode("utf-8")
    assert b"\0" not in text
    assert len(text) <= text_bytes_max, len(text)
    assert result.text or not result.is_error, "a model is told nothing"
    assert result.ending != tool_pb2.ENDING_UNSPECIFIED
    assert bool(result.reason) >= result.is_error


def outcome_of(name: str, channel: HostileChannel) -> tool_pb2.ToolResult | None:
    """The tool's result, or None where the sandbox is lost for a broken protocol."""
    try:
        return asyncio.run(run_tool(TOOLS[name], channel, INPUTS[name]))
    except SandboxLost as lost:
        found = lost
    assert found.cause == "PROTOCOL"
    # For the operator's log: one line, and nothing of what the guest said.
    assert len(found.operator_text.encode("utf-8")) < 1_000
    return None


@pytest.mark.parametrize("name", TOOLS)
@given(data=st.data())
def test_s8_any_facts_and_bytes_are_a_result_or_the_loss_of_the_sandbox(
    name: str, data: st.DataObject
) -> None:
    hostile = mutated(FACTS[name]) | st.dictionaries(TEXTS, JSON, max_size=3)
    channel = HostileChannel(data.draw(hostile | FAULTS), data.draw(BODIES))
    result = outcome_of(name, channel)
    if result is None:
        return
    bound = TEXT_BYTES_MAX[name]
    if isinstance(channel.answer, GuestFault):
        bound = 4 * FAULT_CHARS_MAX + 8
    check_result(result, bound)


@pytest.mark.parametrize("name", TOOLS)
def test_facts_that_the_examples_start_from_are_taken(name: str) -> None:
    bodies = {"read": b"a\nb\n", "bash": b"a\n", "grep": b"d/f\0007\0text\n", "glob": b"a.py\n"}
    result = outcome_of(name, HostileChannel(FACTS[name], bodies.get(name, b"")))
    assert result is not None
    assert not result.is_error
    check_result(result, 2_000)


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("name", ["read", "bash", "grep", "glob"])
def test_s8_flood_of_what_grows_when_it_is_made_visible_is_bounded(name: str, flood: str) -> None:
    unit = FLOODS[flood]
    lines = {"grep": 100, "glob": 1_000}.get(name, limits.READ_BYTES_MAX) if unit != b"\n" else 9
    result = outcome_of(name, HostileChannel(FACTS[name], unit * lines))
    if result is not None:
        check_result(result, TEXT_BYTES_MAX[name])


@given(JSON | st.lists(st.lists(JSON, max_size=3), max_size=90))
def test_s8_survivors_of_a_cancel_are_named_only_where_they_are_processes(survivors: Any) -> None:
    result = outcomes.cancelled(started=True)
    outcomes.mark_cancelled(result, survivors)
    check_result(result, 1_000)
    assert len(result.survivors) <= 64
    assert all(each.pid > 0 for each in result.survivors)
