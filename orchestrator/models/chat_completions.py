"""A model behind an HTTP server that speaks chat completions, streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
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


class ChatCompletions:
    """`Model` over HTTP. Use it as an async context manager.

    `mint_id` makes the ids of calls: those of servers repeat.
    """

    def __init__(self, settings: ModelSettings, mint_id: Callable[[], str]) -> None:
        self._settings = settings
        self._mint_id = mint_id

    async def __aenter__(self) -> Self:
        settings = self._settings
        headers = {"accept": "text/event-stream"}
        if settings.api_key is not None:
            headers["authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(settings.idle_timeout_s, connect=settings.connect_timeout_s),
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

    async def complete(self, request: ModelRequest, on_fragment: OnFragment) -> Reply:
        settings = self._settings
        body = encode_request(request, settings.name, settings.output_tokens_max)
        try:
            async with asyncio.timeout(settings.total_timeout_s):
                return await self._stream(body, on_fragment)
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

    async def _stream(self, body: dict[str, Any], on_fragment: OnFragment) -> Reply:
        url = f"{self._settings.base_url}/chat/completions"
        async with self._client.stream("POST", url, json=body) as response:
            if response.status_code != 200:
                raise failures.from_status(
                    response.status_code, response.headers, await _beginning(response)
                )
            accumulator = Accumulator(self._mint_id)
            try:
                await self._read(response, accumulator, on_fragment)
            except (httpx.TransportError, httpx.StreamError):
                # After the server's terminal mark only usage can be missing.
                if not accumulator.finished:
                    raise
            return accumulator.reply()

    async def _read(
        self, response: httpx.Response, accumulator: Accumulator, on_fragment: OnFragment
    ) -> None:
        parser = SseParser()
        received = 0
        async with aclosing(_chunks(response)) as chunks:
            while True:
                limit_s = USAGE_WAIT_S if accumulator.finished else None
                try:
                    async with asyncio.timeout(limit_s):
                        chunk = await anext(chunks, b"")
                except TimeoutError:
                    return
                if not chunk:
                    return
                received += len(chunk)
                if received > self._settings.response_bytes_max:
                    raise ModelError(
                        "garbled",
                        f"the reply is larger than {self._settings.response_bytes_max} bytes",
                    )
                for event in parser.feed(chunk):
                    for fragment in accumulator.feed(event.name, event.data):
                        on_fragment(fragment)
                    if accumulator.done:
                        return


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
