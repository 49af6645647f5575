"""A channel to the real ops of the guest, run in this process."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox_adapter.v1 import error_pb2, tool_pb2
from sandboxd.backends.base import Channel, Reply
from sandboxd.errors import GuestFault
from sandboxd.guest.ops import OpError
from sandboxd.tools.base import InvalidInput, JsonObject, Tool, answer_of, refused
from tests.unit.guest.direct import ask, machine_in

_numbers = itertools.count(1)


class DirectChannel:
    """Answers as a guest with its folders in `folder` does."""

    def __init__(self, folder: Path) -> None:
        self.machine = machine_in(folder)
        self.work = Path(self.machine.workdir)

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        reply_bytes_max: int,
        timeout_s: float,
    ) -> Reply:
        try:
            async with asyncio.timeout(timeout_s):
                facts, answer = await asyncio.to_thread(ask, self.machine, op, dict(args), body)
        except OpError as error:
            raise GuestFault(error.reason, error.text, error.facts) from None
        assert len(answer) <= reply_bytes_max
        return Reply(facts, answer)

    async def call(self, tool: Tool, **raw: Any) -> tool_pb2.ToolResult:
        """Runs a tool as the session manager does."""
        return await run_tool(tool, self, raw)


class FixedChannel:
    """Answers every request with the same reply or fault, as a hostile guest could."""

    def __init__(self, answer: Reply | GuestFault) -> None:
        self.answer = answer

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
        return self.answer


async def run_unworded(tool: Tool, channel: Channel, raw: JsonObject) -> tool_pb2.ToolResult:
    """One call from its input to its result; faults are raised."""
    ask = tool.ask(raw)
    # As the ledger keeps it.
    memo = json.loads(json.dumps(ask.memo))
    answer = await answer_of(channel, ask, {"call_id": f"call-{next(_numbers)}"})
    return tool.word(memo, answer)


async def run_tool(tool: Tool, channel: Channel, raw: JsonObject) -> tool_pb2.ToolResult:
    """The same, with every fault of the call as a result."""
    try:
        return await run_unworded(tool, channel, raw)
    except (InvalidInput, GuestFault) as error:
        return refused(error)


def reason_of(result: tool_pb2.ToolResult) -> str:
    return error_pb2.Reason.Name(result.reason).removeprefix("REASON_")
