"""Watching a call: one stream of events out of as many connections as it takes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import grpc

from sandbox_adapter import errors
from sandbox_adapter.connection import BACKOFF_S_MAX, BACKOFF_S_MIN, Connection, duration
from sandbox_adapter.v1 import tool_pb2, tool_pb2_grpc

SILENCE_S_MAX: Final = 30.0
"""Over the interval of heartbeats: after it a stream that says nothing counts as lost."""
HEARTBEAT_DEFAULT_S: Final = 5.0


class CallWatcher:
    """Attaches to a call again and again until its result is there.

    Where the connection is lost, the daemon restarts, or this reader is told to resume, the
    next stream goes on behind the last event, so none comes twice. Gives up, with the error
    of the last try, once nothing has come for `retry_s_max`.
    """

    def __init__(
        self,
        connection: Connection,
        stub: tool_pb2_grpc.ToolServiceStub,
        request: tool_pb2.WatchCallRequest,
        heartbeat_s: float | None,
    ) -> None:
        self._connection = connection
        self._stub = stub
        self._request = request
        if (interval := duration(heartbeat_s)) is not None:
            self._request.heartbeat_interval.CopyFrom(interval)
        self._silence_s = (heartbeat_s or HEARTBEAT_DEFAULT_S) + SILENCE_S_MAX

    async def events(self) -> AsyncGenerator[tool_pb2.WatchCallResponse, None]:
        """Every event once, without `resume_from`; `result` is the last."""
        heard_at, backoff_s = time.monotonic(), BACKOFF_S_MIN
        while True:
            lost: errors.AdapterError = _ended()
            seen = self._request.after_sequence
            # One stream. It is cancelled however this is left, by the reader too.
            stream = self._connection.open(self._stub.WatchCall, self._request)
            try:
                async with aclosing(self._messages(stream)) as messages:
                    async for event in messages:
                        if event.WhichOneof("event") == "resume_from":
                            self._go_on_after(event.resume_from.after_sequence)
                            break
                        self._go_on_after(event.sequence)
                        yield event
                        if event.WhichOneof("event") == "result":
                            return
                        # Now: the reader's own time is no silence of the adapter.
                        heard_at, backoff_s = time.monotonic(), BACKOFF_S_MIN
            except errors.Unavailable as error:
                lost = error
            except errors.Exhausted as error:
                if error.retry_after_s is None:
                    raise
                lost = error
            finally:
                stream.cancel()
            if self._request.after_sequence > seen and isinstance(lost, errors.ConnectionLost):
                continue  # at once: a reader that was too slow loses more while it waits
            wait_s = lost.retry_after_s or backoff_s * random.uniform(0.75, 1.0)
            if time.monotonic() + wait_s >= heard_at + self._connection.retry_s_max:
                raise lost
            await asyncio.sleep(wait_s)
            backoff_s = min(BACKOFF_S_MAX, backoff_s * 2)

    def _go_on_after(self, sequence: int) -> None:
        # Heartbeats have no number.
        if sequence > self._request.after_sequence:
            self._request.after_sequence = sequence

    async def _messages(self, stream: Any) -> AsyncGenerator[tool_pb2.WatchCallResponse, None]:
        messages = aiter(stream)
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    event = await anext(messages, None)
            except TimeoutError:
                return
            except grpc.aio.AioRpcError as error:
                raise errors.from_rpc(error) from None
            if event is None:
                return
            yield event


def _ended() -> errors.AdapterError:
    text = "the stream ended before the call's result"
    return errors.ConnectionLost(errors.Failure("UNAVAILABLE", text))
