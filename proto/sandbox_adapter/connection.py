"""The wire under the client: one channel, deadlines, and the one retry layer."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from sandbox_adapter import errors

MESSAGE_BYTES_MAX: Final = 20 * 1024 * 1024
SHORT_TIMEOUT_S: Final = 30.0
"""Default deadline of requests that only look something up."""
RETRY_S_MAX: Final = 30.0
"""Longest time from a request's first failure to its last repeat."""
BACKOFF_S_MIN: Final = 0.1
BACKOFF_S_MAX: Final = 2.0

Answer = TypeVar("Answer")

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_id(prefix: str) -> str:
    """A new id such as `call_01JD…`: time-ordered, 80 random bits (a ULID)."""
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    digits = [_ALPHABET[number >> shift & 31] for shift in range(125, -5, -5)]
    return f"{prefix}_{''.join(digits)}"


@dataclass(frozen=True)
class Credentials:
    """What a client shows an adapter, and by what it knows the adapter. Default: nothing."""

    token: str = field(default="", repr=False)
    """Bearer token, sent with every request. Empty: none."""
    tls_ca: bytes | None = None
    """PEM of the CA that signs the adapter's certificate. None: no TLS."""
    tls_certificate: bytes | None = None
    """PEM of the client's own certificate, for mutual TLS."""
    tls_key: bytes | None = field(default=None, repr=False)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


def _channel_options() -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # One retry layer, ours: the library's own does not know about ids.
        ("grpc.enable_retries", 0),
        # An adapter is addressed directly, whatever `http_proxy` says.
        ("grpc.enable_http_proxy", 0),
        # Two connections are two transports: a server may bound the streams of each.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    value = Duration()
    value.FromNanoseconds(round(seconds * 1e9))
    return value


def _may_repeat(error: errors.AdapterError) -> bool:
    """True where the contract says that the same request may be sent again."""
    if isinstance(error, errors.Unavailable):
        return True
    return isinstance(error, errors.Exhausted) and error.retry_after_s is not None


class Connection:
    """A channel to `target` (`HOST:PORT`, `unix:PATH`), open between enter and exit."""

    def __init__(
        self, target: str, retry_s_max: float, credentials: Credentials | None = None
    ) -> None:
        self._target = target
        self._retry_s_max = retry_s_max
        self._credentials = credentials or Credentials()
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        shown = self._credentials
        if shown.tls_ca is None:
            self._channel = grpc.aio.insecure_channel(self._target, options=_channel_options())
        else:
            tls = grpc.ssl_channel_credentials(shown.tls_ca, shown.tls_key, shown.tls_certificate)
            self._channel = grpc.aio.secure_channel(self._target, tls, options=_channel_options())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def another(self) -> Connection:
        """One more to the same target with the same credentials, not yet open."""
        return Connection(self._target, self._retry_s_max, self._credentials)

    @property
    def channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            raise RuntimeError("the client is used outside its `async with` block")
        return self._channel

    @property
    def retry_s_max(self) -> float:
        """Longest time from a request's first failure to its last repeat, in seconds."""
        return self._retry_s_max

    def open(self, method: Callable[..., Any], request: object) -> Any:
        """Opens a stream once, without a deadline. Its failures are gRPC's own."""
        return method(request, metadata=self._credentials.metadata)

    async def once(
        self, method: Callable[..., Awaitable[Any]], request: object, timeout_s: float
    ) -> Any:
        """Sends a request that must not be repeated."""
        try:
            return await method(request, timeout=timeout_s, metadata=self._credentials.metadata)
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error) from None

    async def repeat(
        self, method: Callable[..., Awaitable[Any]], request: object, timeout_s: float
    ) -> Any:
        """Sends a request that the contract allows to repeat, until `timeout_s` is over."""

        async def send(remaining_s: float) -> Any:
            return await method(request, timeout=remaining_s, metadata=self._credentials.metadata)

        return await self._attempts(send, timeout_s)

    async def repeat_open(
        self, method: Callable[..., Any], request: object, timeout_s: float
    ) -> tuple[Any, AsyncIterator[Any], Any]:
        """Opens a stream, repeating until its first message.

        Returns the call, the rest of its messages, and the first one, None where
        there was none. After the first message nothing is repeated: the reader has
        something that a second stream might contradict.
        """

        async def send(remaining_s: float) -> tuple[Any, AsyncIterator[Any], Any]:
            stream = method(request, timeout=remaining_s, metadata=self._credentials.metadata)
            try:
                messages = aiter(stream)
                first = await anext(messages, None)
            except BaseException:
                stream.cancel()
                raise
            return stream, messages, first

        return await self._attempts(send, timeout_s)

    async def _attempts(
        self, send: Callable[[float], Awaitable[Answer]], timeout_s: float
    ) -> Answer:
        deadline = time.monotonic() + timeout_s
        give_up: float | None = None
        backoff_s = BACKOFF_S_MIN
        while True:
            try:
                return await send(max(0.0, deadline - time.monotonic()))
            except grpc.aio.AioRpcError as rpc_error:
                error = errors.from_rpc(rpc_error)
            if not _may_repeat(error):
                raise error
            now = time.monotonic()
            give_up = give_up or min(deadline, now + self._retry_s_max)
            wait_s = backoff_s * random.uniform(0.75, 1.0)
            if error.retry_after_s is not None:
                wait_s = error.retry_after_s
            if now + wait_s >= give_up:
                raise error
            await asyncio.sleep(wait_s)
            backoff_s = min(BACKOFF_S_MAX, backoff_s * 2)
