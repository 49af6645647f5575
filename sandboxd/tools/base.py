"""What a tool is.

A tool takes the model's input as a JSON object, checks it, asks the guest for
facts, and words the result. It opens no file and starts no process itself: the
machine is an argument (`Channel`). Results are messages of the contract
(`tool_pb2.ToolResult`); there is no second set of classes to keep in step. The
session manager fills in what it alone knows: generation, times, `replayed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from sandbox_adapter.v1 import error_pb2, tool_pb2
from sandboxd.backends.base import Channel
from sandboxd.errors import GuestFault
from sandboxd.tools.wording import plain

JsonObject = Mapping[str, Any]
FAULT_CHARS_MAX: Final = 20_000
"""Of a fault's text: a path of the greatest length, and three more that may be meant."""


@dataclass(frozen=True)
class CallContext:
    """What a tool may use while it runs."""

    call_id: str
    channel: Channel
    working_directory: str
    home_directory: str
    shell: str
    """Path of the shell, empty where there is none."""
    search_engine: str
    """Engine behind grep and its version, empty where there is none."""


class InvalidInput(Exception):
    """A field of the input breaks its rule: a result with `is_error`, not a failed RPC.

    The text is for the model: what is wrong, the value, what to do.
    """

    def __init__(self, text: str, reason: str = "INVALID_INPUT") -> None:
        super().__init__(text)
        self.reason = reason


class Tool(Protocol):
    """One tool. Instances hold settings only and are shared by all calls."""

    name: str
    description: str
    """Written for a model: what it does, its limits, the habit that avoids failures."""
    schema: JsonObject
    """JSON Schema 2020-12 of the input; `additionalProperties` is false."""
    effect: tool_pb2.EffectClass
    parallel: bool
    timeout_default_s: float | None
    timeout_max_s: float | None

    async def run(self, context: CallContext, raw: JsonObject) -> tool_pb2.ToolResult:
        """Checks `raw` and runs the call.

        Raises `InvalidInput` for a fault of the input and lets `GuestFault`,
        `SandboxLost` and cancellation pass: `run_tool` words them once for all.
        """
        ...


def failed(reason: str, text: str) -> tool_pb2.ToolResult:
    """The result of a tool that could not do what it was asked.

    Both arguments may come from a guest and are hostile: a reason that the
    contract does not have becomes IO_ERROR, the text is cut and made fit for a result.
    """
    name = f"REASON_{reason}"
    if not dict(error_pb2.Reason.items()).get(name):
        # Zero, which says that there is no reason, is none for a fault either.
        name = "REASON_IO_ERROR"
    ending = tool_pb2.ENDING_COMPLETED
    if reason == "DISK_FULL":
        ending = tool_pb2.ENDING_DISK_FULL
    elif reason == "CANCELLED_BY_CALLER":
        ending = tool_pb2.ENDING_CANCELLED
    return tool_pb2.ToolResult(
        text=plain(text, FAULT_CHARS_MAX) or "The sandbox refused this and did not say why.",
        is_error=True,
        reason=cast("error_pb2.Reason", name),
        ending=ending,
    )


async def run_tool(tool: Tool, context: CallContext, raw: JsonObject) -> tool_pb2.ToolResult:
    """Runs a tool and turns every fault of the call into a result.

    `SandboxLost` passes: what it means for the call is the session manager's to
    say.
    """
    try:
        return await tool.run(context, raw)
    except InvalidInput as error:
        return failed(error.reason, str(error))
    except GuestFault as error:
        return failed(error.reason, str(error))
