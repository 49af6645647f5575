"""The model behind HTTP, against servers that a script cannot play."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest

from orchestrator.config import ModelSettings
from orchestrator.errors import ModelError
from orchestrator.messages import ModelMessage, ModelRequest, Reply
from orchestrator.models import chat_completions
from orchestrator.models.chat_completions import ChatCompletions

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
REQUEST = ModelRequest(messages=(ModelMessage(role="user", text="hello"),), tools=())
HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def complete(base_url: str, *, streamed: bool, response_bytes_max: int = 100_000) -> Reply:
    settings = ModelSettings(
        name="m", base_url=base_url, total_timeout_s=20, response_bytes_max=response_bytes_max
    )
    ids = count(1)
    async with ChatCompletions(settings, lambda: f"own_{next(ids)}") as model:
        return await model.complete(REQUEST, lambda fragment: None, streamed=streamed)


async def test_reply_that_has_ended_waits_once_for_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_completions, "USAGE_WAIT_S", 0.3)

    async def answer(writer: asyncio.StreamWriter) -> None:
        chunk = b'{"choices": [{"delta": {"content": "whole"}, "finish_reason": "stop"}]}'
        writer.write(HEAD + b"data: " + chunk + b"\n\n")
        # Signs of life for longer than the whole call may take.
        for _ in range(600):
            writer.write(b": still here\n\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with serving(answer) as base_url:
        reply = await complete(base_url, streamed=True)
    assert (reply.text, reply.usage.reported) == ("whole", False)


@pytest.mark.parametrize("streamed", [True, False])
async def test_endless_reply_is_refused(streamed: bool) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while not writer.is_closing():
            writer.write(b": padding\n\n" * 1000)
            await writer.drain()

    async with serving(answer) as base_url:
        with pytest.raises(ModelError, match="larger than 100000 bytes"):
            await complete(base_url, streamed=streamed)


async def test_whole_reply_that_is_cut_is_never_used() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b'{"choices": [{"message": {"content": "half')
        await writer.drain()

    async with serving(answer) as base_url:
        with pytest.raises(ModelError) as caught:
            await complete(base_url, streamed=False)
    assert caught.value.retryable
