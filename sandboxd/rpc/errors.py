"""The only place where an error becomes the status of an RPC.

A `CallerError` carries its status and reason; they leave as
`google.rpc.ErrorInfo`, with `RetryInfo` where waiting helps. Anything else that
is raised is a fault of this program: logged once, under a reference that the
caller gets instead of its words.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc import aio

from sandboxd.errors import CallerError, InvalidEnvelope, RetryLater
from sandboxd.log import TRACE, EventLog
from sandboxd.metrics import Metrics

DOMAIN: Final = "sandbox_adapter"
OWN_PREFIX: Final = "/sandbox_adapter.v1."
_DETAILS: Final = "grpc-status-details-bin"
_TEXT_BYTES_MAX: Final = 1_400
"""A text leaves twice: percent-encoded, up to three times as long, and in base64. Both
must fit the 8 KiB of trailers that a client takes; beyond it sees another status."""
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
"""W3C trace context; a version that is not known yet may have more behind it."""
_LOG: Final = EventLog("rpc")

Context = aio.ServicerContext[Any, Any]


def status_of(error: CallerError) -> status_pb2.Status:
    """The status, with its details, that a caller gets for an error."""
    text = _plain(str(error))
    status = status_pb2.Status(code=code_pb2.Code.Value(error.status), message=text)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    for key, value in error.metadata().items():
        info.metadata[key] = _plain(value)
    status.details.add().Pack(info)
    if isinstance(error, RetryLater):
        delay = Duration()
        delay.FromMilliseconds(round(error.retry_s * 1_000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


class InternalFault(CallerError):
    """What a caller learns of a fault of this program."""

    status = "INTERNAL"
    reason = "INTERNAL_ERROR"

    def __init__(self, reference: str) -> None:
        super().__init__(f"the adapter met a fault of its own; the log has it under {reference}")
        self.reference = reference

    def metadata(self) -> dict[str, str]:
        return {"reference": self.reference}


class Boundary(aio.ServerInterceptor):
    """Around every RPC of the contract: errors become statuses, and the time is measured.

    Cancellation passes untouched. `AbortError`, which is an ordinary exception,
    is raised only here, so it is never caught here.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or not method.startswith(OWN_PREFIX):
            return handler
        name = method.removeprefix(OWN_PREFIX)
        return self._wrapped(handler, name)

    def _wrapped(self, handler: Any, name: str) -> grpc.RpcMethodHandler[Any, Any]:
        if handler.response_streaming:
            make: Any = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
            behaviour: Any = self._stream(inner, name)
        else:
            make = (
                grpc.stream_unary_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_unary_rpc_method_handler
            )
            inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
            behaviour = self._unary(inner, name)
        wrapped: grpc.RpcMethodHandler[Any, Any] = make(
            behaviour, _tolerant(handler.request_deserializer), handler.response_serializer
        )
        return wrapped

    def _unary(self, inner: Any, name: str) -> Any:
        async def call(request: Any, context: Context) -> Any:
            began, code = time.monotonic(), "CANCELLED"
            # An RPC is a task of its own, so this ends with it.
            TRACE.set(_trace_id(context))
            try:
                response = await inner(_readable(request), context)
                code = "OK"
            except Exception as error:  # noqa: BLE001 - the one broad catch, see above
                fault = _as_caller_error(error, name)
                code = fault.status
                await _abort(context, fault)
            finally:
                self._metrics.rpc_ended(name, code, time.monotonic() - began)
            return response

        return call

    def _stream(self, inner: Any, name: str) -> Any:
        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            began, code = time.monotonic(), "CANCELLED"
            TRACE.set(_trace_id(context))
            responses = None
            self._metrics.stream_opened(name)
            try:
                responses = inner(_readable(request), context)
                async for response in responses:
                    yield response
                code = "OK"
            except Exception as error:  # noqa: BLE001 - as above
                fault = _as_caller_error(error, name)
                code = fault.status
                await _abort(context, fault)
            finally:
                # Now, not when it is collected: it holds a handle in the guest.
                if responses is not None:
                    await responses.aclose()
                self._metrics.stream_ended(name)
                self._metrics.rpc_ended(name, code, time.monotonic() - began)

        return stream


def _trace_id(context: Context) -> str:
    """The trace id of the caller's `traceparent` (contract.md 7), or nothing."""
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent" and isinstance(value, str):
            found = _TRACEPARENT.fullmatch(value)
            return found.group(1) if found and found.group(1).strip("0") else ""
    return ""


class _Unreadable:
    """In place of a request whose bytes are no message of the contract."""


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """The deserializer without its exception.

    gRPC would answer that with a status of its own, and log a traceback for every
    such message that anybody sends.
    """

    def parse(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except DecodeError:
            return _Unreadable()

    return parse


def _readable(request: Any) -> Any:
    """A request, or the messages of one. Raises `InvalidEnvelope` for what cannot be read."""
    if isinstance(request, _Unreadable):
        raise InvalidEnvelope("request", "must be a message as the contract defines it")
    return _readable_each(request) if isinstance(request, AsyncIterator) else request


async def _readable_each(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        yield _readable(message)


def _as_caller_error(error: Exception, name: str) -> CallerError:
    if isinstance(error, CallerError):
        if error.operator_text != str(error):
            _LOG.warning("rpc failed", rpc=name, reason=error.reason, detail=error.operator_text)
        else:
            _LOG.debug("rpc refused", rpc=name, reason=error.reason)
        return error
    reference = secrets.token_hex(6)
    _LOG.error("fault", rpc=name, reference=reference, cause=error)
    return InternalFault(reference)


async def _abort(context: Context, error: CallerError) -> NoReturn:
    status = status_of(error)
    await context.abort(
        getattr(grpc.StatusCode, error.status),
        status.message,
        ((_DETAILS, status.SerializeToString()),),
    )
    raise AssertionError("abort returns never")


def _plain(text: str) -> str:
    """Valid UTF-8 without NUL, bounded: what protobuf and a trailer take."""
    clean = text.encode("utf-8", "replace").replace(b"\0", "\ufffd".encode())
    return clean[:_TEXT_BYTES_MAX].decode("utf-8", "ignore")
