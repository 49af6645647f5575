"""The scripted model: an HTTP server that replies from a script.

It speaks what `chat_completions.py` speaks, over a real socket, streams cut into pieces
on purpose, so that demo and tests go the way that a live model goes. One request a
connection; every bound is small, since its clients are tests and demos.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from orchestrator.errors import UsageError
from orchestrator.escape import printable
from orchestrator.models.script import Fault, Script, ScriptCall, ScriptMismatch, Turn, play

HEAD_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
REQUEST_TIMEOUT_S: Final = 30.0
FAULTS_REMEMBERED_MAX: Final = 10_000

_log = logging.getLogger(__name__)


class _Cut(Exception):
    """The script says that the connection ends here."""


class ScriptedModel:
    """Serves a script. Use it as an async context manager; `port` is the bound port."""

    def __init__(self, script: Script, host: str, port: int) -> None:
        self._script = script
        self._host = host
        self._port = port
        self._faults_met: dict[str, int] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.requests: int = 0
        """Requests that were answered, failures included."""

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(
                self._accept, self._host, self._port, limit=HEAD_BYTES_MAX
            )
        except OSError as error:
            raise UsageError(
                f"cannot listen on `{self._host}:{self._port}`: {error.strerror or error}"
            ) from None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    @property
    def base_url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/v1"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: one of the library's is called a fault when it is cancelled.
        task = asyncio.ensure_future(self._connected(reader, writer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await _read_request(reader)
            if request is not None:
                self.requests += 1
                await self._answer(writer, *request)
        except (_Cut, ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            _log.debug("connection ended early")
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(
        self, writer: asyncio.StreamWriter, method: str, path: str, body: bytes
    ) -> None:
        if method == "GET" and path.endswith("/models"):
            models = [
                {"id": self._script.model, "object": "model", "created": 0, "owned_by": "script"}
            ]
            return await _send_json(writer, 200, {"object": "list", "data": models})
        if method != "POST" or not path.endswith("/chat/completions"):
            return await _send_error(writer, 404, "not_found", f"nothing at {method} {path}")
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            request = None
        if not _is_request(request):
            return await _send_error(
                writer, 400, "invalid_request", "the body must be an object with `messages`"
            )
        try:
            number, turn = play(self._script, request)
        except ScriptMismatch as error:
            print(f"scripted model: {printable(str(error))}", file=sys.stderr, flush=True)  # noqa: T201
            return await _send_error(writer, 400, "script_mismatch", str(error))
        fault = self._fault(turn, number, request)
        if fault is not None and fault.kind == "status":
            return await _send_error(
                writer, fault.status, fault.code, fault.message, fault.retry_after
            )
        if request.get("stream") is True:
            return await self._stream(writer, turn, request, fault)
        whole = self._whole(turn, request)
        if fault is not None:
            whole = await _meet(writer, fault, whole)
        return await _send(writer, 200, whole)

    def _fault(self, turn: Turn, number: int, request: dict[str, Any]) -> Fault | None:
        if turn.fault is None:
            return None
        # The first call's id tells conversations apart; it is new in each.
        calls = [
            call.get("id", "")
            for entry in request["messages"]
            for call in entry.get("tool_calls", [])
        ]
        key = f"{number} {calls[0] if calls else ''}"
        met = self._faults_met.get(key, 0)
        if met >= turn.fault.times or len(self._faults_met) > FAULTS_REMEMBERED_MAX:
            return None
        self._faults_met[key] = met + 1
        return turn.fault

    async def _stream(
        self,
        writer: asyncio.StreamWriter,
        turn: Turn,
        request: dict[str, Any],
        fault: Fault | None,
    ) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"cache-control: no-store\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for sent, event in enumerate(self._events(turn, request)):
            payload = event
            if fault is not None and sent == fault.after_events:
                payload = await _meet(writer, fault, event)
            await self._write(writer, f"data: {payload}\n\n".encode())
            if self._script.chunking.pause_s:
                await asyncio.sleep(self._script.chunking.pause_s)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _write(self, writer: asyncio.StreamWriter, payload: bytes) -> None:
        size = self._script.chunking.write_bytes
        for at in range(0, len(payload), size):
            piece = payload[at : at + size]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()

    def _events(self, turn: Turn, request: dict[str, Any]) -> Iterator[str]:
        """The data of each event, in order."""
        envelope = self._envelope("chat.completion.chunk")

        def event(choices: list[dict[str, Any]], **more: Any) -> str:
            return json.dumps({**envelope, "choices": choices, **more}, ensure_ascii=False)

        def delta(content: dict[str, Any], finish: str | None = None) -> str:
            return event([{"index": 0, "delta": content, "finish_reason": finish}])

        yield delta({"role": "assistant", "content": ""})
        for piece in self._pieces(turn.reasoning):
            yield delta({"reasoning_content": piece})
        for piece in self._pieces(turn.text):
            yield delta({"content": piece})
        for index, call in enumerate(turn.calls):
            head = {"name": call.name, "arguments": ""}
            start = {"index": index, "id": f"call_{index}", "type": "function", "function": head}
            yield delta({"tool_calls": [start]})
            for piece in self._pieces(_raw(call)):
                yield delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        if finish := _finish(turn):
            yield delta({}, finish)
        options = request.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage") is True:
            yield event([], usage=_usage(turn, request))
        yield "[DONE]"

    def _whole(self, turn: Turn, request: dict[str, Any]) -> str:
        """The body of a reply that is not streamed."""
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": _raw(call)},
                }
                for index, call in enumerate(turn.calls)
            ]
        choice = {"index": 0, "message": message, "finish_reason": _finish(turn) or None}
        envelope = self._envelope("chat.completion")
        usage = _usage(turn, request)
        return json.dumps({**envelope, "choices": [choice], "usage": usage}, ensure_ascii=False)

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{time.time_ns():x}",
            "object": kind,
            "created": int(time.time()),
            "model": self._script.model,
        }

    def _pieces(self, text: str) -> Iterator[str]:
        size = self._script.chunking.fragment_chars
        return (text[at : at + size] for at in range(0, len(text), size))


def _is_request(value: Any) -> bool:
    messages = value.get("messages") if isinstance(value, dict) else None
    return isinstance(messages, list) and all(isinstance(entry, dict) for entry in messages)


def _raw(call: ScriptCall) -> str:
    if call.raw_arguments is not None:
        return call.raw_arguments
    return json.dumps(call.arguments, ensure_ascii=False)


def _finish(turn: Turn) -> str:
    if turn.finish is not None:
        return turn.finish
    return "tool_calls" if turn.calls else "stop"


async def _meet(writer: asyncio.StreamWriter, fault: Fault, event: str) -> str:
    """What is sent in the place of `event`, or of a whole reply."""
    if fault.kind == "cut":
        raise _Cut
    if fault.kind == "delay":
        await writer.drain()
        await asyncio.sleep(fault.seconds)
    if fault.kind == "garble":
        return '{"choices": [{"delta": {"content": "\ufffd'
    if fault.kind == "error":
        return json.dumps({"error": {"type": fault.code, "message": fault.message}})
    return event


def _usage(turn: Turn, request: dict[str, Any]) -> dict[str, Any]:
    said = len(json.dumps(request["messages"], ensure_ascii=False))
    offered = len(json.dumps(request.get("tools", []), ensure_ascii=False))
    wrote = len(turn.text) + len(turn.reasoning)
    wrote += sum(len(call.name) + len(_raw(call)) for call in turn.calls)
    inside = turn.input_tokens if turn.input_tokens is not None else -(-(said + offered) // 4)
    outside = turn.output_tokens if turn.output_tokens is not None else -(-wrote // 4)
    return {
        "prompt_tokens": inside,
        "completion_tokens": outside,
        "total_tokens": inside + outside,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": -(-len(turn.reasoning) // 4)},
    }


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, bytes] | None:
    """Method, path and body; None where what came is no request that is served."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError:
        return None
    first, *lines = head.split("\r\n")
    parts = first.split(" ")
    fields = {
        name.strip().lower(): value.strip()
        for name, colon, value in (line.partition(":") for line in lines)
        if colon
    }
    length = fields.get("content-length", "0")
    if len(parts) != 3 or not length.isascii() or not length.isdigit():
        return None
    if int(length) > BODY_BYTES_MAX:
        return None
    return parts[0], parts[1].partition("?")[0], await reader.readexactly(int(length))


async def _send_error(
    writer: asyncio.StreamWriter,
    status: int,
    kind: str,
    message: str,
    retry_after: str | None = None,
) -> None:
    error = {"error": {"type": kind, "code": kind, "message": message}}
    await _send_json(writer, status, error, retry_after)


async def _send_json(
    writer: asyncio.StreamWriter,
    status: int,
    value: dict[str, Any],
    retry_after: str | None = None,
) -> None:
    await _send(writer, status, json.dumps(value, ensure_ascii=False), retry_after)


async def _send(
    writer: asyncio.StreamWriter, status: int, text: str, retry_after: str | None = None
) -> None:
    body = text.encode()
    advice = f"retry-after: {retry_after}\r\n" if retry_after is not None else ""
    writer.write(
        f"HTTP/1.1 {status} scripted\r\ncontent-type: application/json\r\n{advice}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
        + body
    )
    await writer.drain()
