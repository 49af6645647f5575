"""A model behind an HTTP server that speaks chat completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Self, cast

import httpx

from orchestrator.config import ModelSettings
from orchestrator.errors import ModelError
from orchestrator.messages import ModelRequest, Reply
from orchestrator.models import failures
from orchestrator.models.base import OnFragment
from orchestrator.models.chat_wire import Accumulator, encode_request
from orchestrator.models.sse import SseParser

ERROR_BYTES_MAX: Final = 64 * 1024
USAGE_WAIT_S: Final = 10.0
"""Longest wait for usage after the reply has ended: it is wanted, not needed."""

_Reader = Callable[[httpx.Response, Accumulator, OnFragment], Awaitable[None]]


class ChatCompletions:
    """`Model` over HTTP. Use it as an async context manager.

    `mint_id` makes the ids of calls: those of servers repeat.
    """

    def __init__(self, settings: ModelSettings, mint_id: Callable[[], str]) -> None:
        self._settings = settings
        self._mint_id = mint_id

    async def __aenter__(self) -> Self:
        settings = self._settings
        headers = {"accept": "text/event-stream, application/json"}
        if settings.api_key is not None:
            headers["authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
        self._client = httpx.AsyncClient(
            headers=headers,
            # A redirect would carry the key and the conversation to somewhere else.
            follow_redirects=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def complete(
        self, request: ModelRequest, on_fragment: OnFragment, *, streamed: bool
    ) -> Reply:
        settings = self._settings
        body = encode_request(request, settings.name, settings.output_tokens_max, streamed=streamed)
        read = self._read_stream if streamed else self._read_whole
        try:
            async with asyncio.timeout(settings.total_timeout_s):
                return await self._ask(body, read, on_fragment)
        except TimeoutError:
            raise ModelError(
                "network",
                f"the reply was not complete after {settings.total_timeout_s:g} seconds",
                retryable=True,
            ) from None
        except httpx.ConnectError as error:
            raise ModelError(
                "network",
                f"cannot reach the model server at `{settings.base_url}`: {_words(error)}",
                retryable=True,
            ) from None
        except (httpx.TransportError, httpx.StreamError) as error:
            raise ModelError(
                "network",
                f"the connection to the model server failed: {_words(error)}",
                retryable=True,
            ) from None
        except httpx.InvalidURL as error:
            raise ModelError("invalid_request", f"the model's base URL is wrong: {error}") from None

    async def _ask(self, body: dict[str, Any], read: _Reader, on_fragment: OnFragment) -> Reply:
        settings = self._settings
        # A server is silent until a reply that is not streamed is complete.
        idle_s = settings.idle_timeout_s if body["stream"] else settings.total_timeout_s
        timeout = httpx.Timeout(idle_s, connect=settings.connect_timeout_s)
        url = f"{settings.base_url}/chat/completions"
        async with self._client.stream("POST", url, json=body, timeout=timeout) as response:
            if response.status_code != 200:
                raise failures.from_status(
                    response.status_code, response.headers, await _beginning(response)
                )
            accumulator = Accumulator(self._mint_id)
            try:
                await read(response, accumulator, on_fragment)
            except (httpx.TransportError, httpx.StreamError):
                # After the server's terminal mark only usage can be missing.
                if not accumulator.finished:
                    raise
            return accumulator.reply()

    async def _read_stream(
        self, response: httpx.Response, accumulator: Accumulator, on_fragment: OnFragment
    ) -> None:
        parser = SseParser()
        # The wait for usage is one wait, however many signs of life come meanwhile.
        until: float | None = None
        async with aclosing(self._bounded(response)) as chunks:
            while True:
                try:
                    async with asyncio.timeout_at(until):
                        chunk = await anext(chunks, b"")
                except TimeoutError:
                    return
                if not chunk:
                    return
                for event in parser.feed(chunk):
                    for fragment in accumulator.feed(event.name, event.data):
                        on_fragment(fragment)
                    if accumulator.done:
                        return
                if accumulator.finished and until is None:
                    until = asyncio.get_running_loop().time() + USAGE_WAIT_S

    async def _read_whole(
        self, response: httpx.Response, accumulator: Accumulator, on_fragment: OnFragment
    ) -> None:
        async with aclosing(self._bounded(response)) as chunks:
            body = b"".join([chunk async for chunk in chunks])
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise ModelError("garbled", "the reply is not UTF-8", retryable=True) from None
        for fragment in accumulator.feed("", text):
            on_fragment(fragment)

    async def _bounded(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        bytes_max = self._settings.response_bytes_max
        received = 0
        async with aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                received += len(chunk)
                if received > bytes_max:
                    raise ModelError("garbled", f"the reply is larger than {bytes_max} bytes")
                yield chunk


async def _beginning(response: httpx.Response) -> bytes:
    held = b""
    async with aclosing(_chunks(response)) as chunks:
        async for chunk in chunks:
            held += chunk
            if len(held) >= ERROR_BYTES_MAX:
                break
    return held[:ERROR_BYTES_MAX]


def _chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    # httpx declares the iterator and returns a generator, which has to be closed.
    return cast("AsyncGenerator[bytes, None]", response.aiter_bytes())


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
