"""`ToolService`: a shell over the calls and those who watch them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Final

from sandbox_adapter.v1 import error_pb2, tool_pb2, tool_pb2_grpc
from sandboxd.errors import InvalidEnvelope
from sandboxd.rpc import convert, envelope
from sandboxd.rpc.errors import Context
from sandboxd.rpc.inputs import tool_input
from sandboxd.sessions.calls import Calls
from sandboxd.sessions.watches import Watches
from sandboxd.tools.registry import Registry

HEARTBEAT_MIN_S: Final = 1.0
HEARTBEAT_MAX_S: Final = 60.0
HEARTBEAT_DEFAULT_S: Final = 5.0
"""Between the heartbeats of a watched call, see `tool.proto`."""


class ToolService(tool_pb2_grpc.ToolServiceServicer):
    """Checks envelopes and converts; every decision is the calls' own."""

    def __init__(
        self,
        calls: Calls,
        watches: Watches,
        tools: Registry,
        boot_id: str,
        ledger_id: Callable[[], str],
    ) -> None:
        self._calls = calls
        self._watches = watches
        self._tools = [convert.tool(tool) for tool in tools.all()]
        self._boot_id = boot_id
        self._ledger_id = ledger_id

    async def ListTools(
        self, request: tool_pb2.ListToolsRequest, context: Context
    ) -> tool_pb2.ListToolsResponse:
        return tool_pb2.ListToolsResponse(tools=self._tools)

    async def CallTool(
        self, request: tool_pb2.CallToolRequest, context: Context
    ) -> tool_pb2.CallToolResponse:
        key = envelope.session_key(request.session_id)
        call_id = envelope.optional_id("call_id", request.call_id)
        name, raw = await tool_input(request)
        call_id, result = await self._calls.call(
            key,
            call_id,
            name,
            raw,
            epoch=request.epoch if request.HasField("epoch") else None,
            cancel_on_disconnect=request.cancel_on_disconnect,
        )
        return tool_pb2.CallToolResponse(call_id=call_id, result=result)

    async def GetCall(
        self, request: tool_pb2.GetCallRequest, context: Context
    ) -> tool_pb2.GetCallResponse:
        key = envelope.session_key(request.session_id)
        call_id = envelope.required_id("call_id", request.call_id)
        state, result, expired = await self._calls.get(key, call_id)
        return tool_pb2.GetCallResponse(
            state=state,
            result=result,
            reason=error_pb2.REASON_RESULT_EXPIRED if expired else error_pb2.REASON_UNSPECIFIED,
            boot_id=self._boot_id,
            ledger_id=self._ledger_id(),
        )

    async def CancelCall(
        self, request: tool_pb2.CancelCallRequest, context: Context
    ) -> tool_pb2.CancelCallResponse:
        result = await self._calls.cancel(
            envelope.session_key(request.session_id),
            envelope.required_id("call_id", request.call_id),
            request.epoch if request.HasField("epoch") else None,
        )
        return tool_pb2.CancelCallResponse(result=result)

    async def WatchCall(
        self, request: tool_pb2.WatchCallRequest, context: Context
    ) -> AsyncIterator[tool_pb2.WatchCallResponse]:
        events = self._watches.watch(
            envelope.session_key(request.session_id),
            envelope.required_id("call_id", request.call_id),
            request.after_sequence,
            _heartbeat_s(request),
        )
        # Closed now, not when it is collected: it holds a place of its session.
        async with aclosing(events):
            async for event in events:
                yield event


def _heartbeat_s(request: tool_pb2.WatchCallRequest) -> float:
    if not request.HasField("heartbeat_interval"):
        return HEARTBEAT_DEFAULT_S
    interval_s = envelope.seconds("heartbeat_interval", request.heartbeat_interval)
    if not HEARTBEAT_MIN_S <= interval_s <= HEARTBEAT_MAX_S:
        raise InvalidEnvelope(
            "heartbeat_interval", f"must be from {HEARTBEAT_MIN_S:g} s to {HEARTBEAT_MAX_S:g} s"
        )
    return interval_s
