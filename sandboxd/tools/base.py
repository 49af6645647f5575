"""What a tool is.

A tool is two pure functions. `ask` takes the model's input as a JSON object, checks it,
and says what the guest is to do: one op. `word` takes the guest's answer and words the
result. Between the two stand the guest and, maybe, the end of one daemon and the start of
the next: so what `word` needs of the input is a small memo that the ledger keeps
(contract.md 2).

Results are messages of the contract (`tool_pb2.ToolResult`); there is no second set of
classes to keep in step. The session manager fills in what it alone knows: generation,
times, `replayed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from sandbox_adapter.v1 import error_pb2, tool_pb2
from sandboxd.backends.base import Channel, Reply
from sandboxd.errors import GuestFault
from sandboxd.tools.wording import plain

JsonObject = Mapping[str, Any]
FAULT_CHARS_MAX: Final = 20_000
"""Of a fault's text: a path of the greatest length, and three more that may be meant."""


@dataclass(frozen=True)
class Ask:
    """One op of the guest, see `guest/README.md`; `call_id` is added by who sends it."""

    op: str
    args: Mapping[str, Any]
    memo: JsonObject
    """What `word` needs of the input: a few short texts and numbers, as JSON."""
    body: bytes = b""
    reply_bytes_max: int = 0
    timeout_s: float = 60.0
    """After which a missing answer means a dead guest."""


class InvalidInput(Exception):
    """A field of the input breaks its rule: a result with `is_error`, not a failed RPC.

    The text is for the model: what is wrong, the value, what to do.
    """

    def __init__(
        self, text: str, reason: str = "INVALID_INPUT", limit: tool_pb2.Limit | None = None
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.limit = limit
        """The bound that the op met, where that is why."""


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

    def ask(self, raw: JsonObject) -> Ask:
        """Checks the input. Raises `InvalidInput` for a fault of it; then nothing runs."""
        ...

    def word(self, memo: JsonObject, answer: Reply | GuestFault) -> tool_pb2.ToolResult:
        """Words what the guest answered to the op of `ask`.

        Raises `InvalidInput` for faults of the input that only the guest could see, lets
        other `GuestFault`s pass, and raises `SandboxLost` where the facts are none.
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


def refused(error: InvalidInput | GuestFault) -> tool_pb2.ToolResult:
    """The result of a call whose input, or whose op, was refused."""
    result = failed(error.reason, str(error))
    if isinstance(error, InvalidInput) and error.limit is not None:
        result.limit.CopyFrom(error.limit)
    return result


def worded(tool: Tool, memo: JsonObject, answer: Reply | GuestFault) -> tool_pb2.ToolResult:
    """`Tool.word`, with every fault of the call as a result. Lets `SandboxLost` pass."""
    try:
        return tool.word(memo, answer)
    except (InvalidInput, GuestFault) as error:
        return refused(error)


async def answer_of(channel: Channel, ask: Ask, call: Mapping[str, Any]) -> Reply | GuestFault:
    """Sends an op for a call. `call` names it: `call_id`, and `sequence` where it has one."""
    try:
        return await channel.request(
            ask.op,
            {**ask.args, **call},
            ask.body,
            reply_bytes_max=ask.reply_bytes_max,
            timeout_s=ask.timeout_s,
        )
    except GuestFault as fault:
        return fault
