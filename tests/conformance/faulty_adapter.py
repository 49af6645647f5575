"""An adapter with one planted fault: a proxy that passes everything on but for that.

It forwards the bytes of every RPC to a real adapter. `CallTool` goes through a `Fault`,
which can change the request, the result, or the files behind the adapter's back; so does
`WatchCall`, where the fault has a `watch` (`watch_faults.py`). So
each fault is what a client would see of an implementation that has it, and all else is
right. It can also be an adapter that serves no files, as the contract allows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc
from google.protobuf.any_pb2 import Any as PackedDetail
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from sandbox_adapter import errors
from sandbox_adapter.client import AdapterClient
from sandbox_adapter.connection import MESSAGE_BYTES_MAX
from sandbox_adapter.v1 import adapter_pb2, file_pb2, process_pb2, session_pb2, tool_pb2

WATCH_CALL = "/sandbox_adapter.v1.ToolService/WatchCall"
CALL_TOOL = "/sandbox_adapter.v1.ToolService/CallTool"
GET_INFO = "/sandbox_adapter.v1.AdapterService/GetInfo"
FILE_SERVICE = "/sandbox_adapter.v1.FileService/"
_FILES = (adapter_pb2, session_pb2, tool_pb2, file_pb2, process_pb2)
_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
]

Send = Callable[[tool_pb2.CallToolRequest], Awaitable[tool_pb2.CallToolResponse]]


class Fault(Protocol):
    """What is wrong with the adapter."""

    async def call(
        self, request: tool_pb2.CallToolRequest, send: Send, behind: AdapterClient
    ) -> tool_pb2.CallToolResponse:
        """Answers a call. `send` asks the real adapter, `behind` is a client of it."""
        ...


class _Streams:
    """Which RPCs stream, by their full name, from the contract's own descriptors."""

    def __init__(self) -> None:
        self.kinds: dict[str, tuple[bool, bool]] = {
            # Served beside the contract, and unary but for these.
            "/grpc.health.v1.Health/Watch": (False, True),
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": (True, True),
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": (True, True),
        }
        for file in _FILES:
            for service in file.DESCRIPTOR.services_by_name.values():
                for method in service.methods:
                    name = f"/{service.full_name}/{method.name}"
                    self.kinds[name] = (method.client_streaming, method.server_streaming)


class _Proxy(grpc.GenericRpcHandler):
    def __init__(
        self, upstream: grpc.aio.Channel, behind: AdapterClient, fault: Fault, *, files: bool
    ) -> None:
        self._upstream = upstream
        self._behind = behind
        self._fault = fault
        self._files = files
        self._streams = _Streams()

    def service(self, call_details: grpc.HandlerCallDetails) -> Any:
        method = call_details.method
        if not self._files and method.startswith(FILE_SERVICE):
            # Refused before a message of it is looked at, so one kind serves for all.
            return grpc.stream_stream_rpc_method_handler(_not_served)
        client_streams, server_streams = self._streams.kinds.get(method, (False, False))
        if client_streams and server_streams:
            multi: Any = self._upstream.stream_stream(method)
            return grpc.stream_stream_rpc_method_handler(_streamed(multi))
        if client_streams:
            up: Any = self._upstream.stream_unary(method)
            return grpc.stream_unary_rpc_method_handler(_answered(up))
        if server_streams:
            down: Any = self._upstream.unary_stream(method)
            if method == WATCH_CALL and hasattr(self._fault, "watch"):
                return grpc.unary_stream_rpc_method_handler(_watched(down, self._fault))
            return grpc.unary_stream_rpc_method_handler(_streamed(down))
        if method == CALL_TOOL:
            return grpc.unary_unary_rpc_method_handler(self._call_tool)
        if method == GET_INFO and not self._files:
            return grpc.unary_unary_rpc_method_handler(self._info_without_files)
        return grpc.unary_unary_rpc_method_handler(_answered(self._upstream.unary_unary(method)))

    async def _info_without_files(self, data: bytes, context: Any) -> bytes:
        answer = await _answered(self._upstream.unary_unary(GET_INFO))(data, context)
        info = adapter_pb2.GetInfoResponse.FromString(answer)
        info.capabilities.remove(adapter_pb2.CAPABILITY_FILES)
        return info.SerializeToString()

    async def _call_tool(self, data: bytes, context: Any) -> bytes:
        passed_on = _answered(self._upstream.unary_unary(CALL_TOOL))

        async def send(request: tool_pb2.CallToolRequest) -> tool_pb2.CallToolResponse:
            answer = await passed_on(request.SerializeToString(), context)
            return tool_pb2.CallToolResponse.FromString(answer)

        request = tool_pb2.CallToolRequest.FromString(data)
        answer = await self._fault.call(request, send, self._behind)
        return answer.SerializeToString()


def _answered(method: Any) -> Callable[[Any, Any], Awaitable[Any]]:
    async def handle(request: Any, context: Any) -> Any:
        call = method(request, timeout=context.time_remaining())
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            await _fail(context, error)
        finally:
            call.cancel()

    return handle


def _streamed(method: Any) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
        call = method(request, timeout=context.time_remaining())
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            await _fail(context, error)
        finally:
            call.cancel()

    return handle


def _watched(method: Any, fault: Any) -> Callable[[Any, Any], AsyncIterator[Any]]:
    """A watch with what the fault makes of its request and its events."""
    passed_on = _streamed(method)

    async def handle(data: bytes, context: Any) -> AsyncIterator[bytes]:
        async def open_(
            request: tool_pb2.WatchCallRequest,
        ) -> AsyncIterator[tool_pb2.WatchCallResponse]:
            async for message in passed_on(request.SerializeToString(), context):
                yield tool_pb2.WatchCallResponse.FromString(message)

        async for event in fault.watch(tool_pb2.WatchCallRequest.FromString(data), open_):
            yield event.SerializeToString()

    return handle


async def _not_served(_: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    detail = PackedDetail()
    detail.Pack(error_details_pb2.ErrorInfo(domain=errors.DOMAIN, reason="NOT_SERVED"))
    code, text = grpc.StatusCode.UNIMPLEMENTED, "this adapter serves no files"
    status = status_pb2.Status(code=code.value[0], message=text, details=[detail])
    await context.abort(code, text, ((errors.DETAILS_KEY, status.SerializeToString()),))
    yield b""


async def _fail(context: Any, error: grpc.aio.AioRpcError) -> None:
    metadata = tuple((key, value) for key, value in error.trailing_metadata() or ())
    await context.abort(error.code(), error.details() or "", metadata)


@asynccontextmanager
async def serving(
    real: str, folder: Path, fault: Fault, *, files: bool = True
) -> AsyncIterator[str]:
    """Serves the adapter at `real` with the fault; gives the address.

    Without `files` FileService is neither claimed nor served; faults still use the real one.
    """
    address = f"unix:{folder}/faulty.sock"
    async with (
        grpc.aio.insecure_channel(real, options=_OPTIONS) as upstream,
        AdapterClient(real) as behind,
    ):
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((_Proxy(upstream, behind, fault, files=files),))
        server.add_insecure_port(address)
        await server.start()
        try:
            yield address
        finally:
            await server.stop(0)
