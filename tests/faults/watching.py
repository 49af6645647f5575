"""A reader of a call's live output, which comes back wherever its stream breaks off."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from sandbox_adapter.errors import AdapterError, CallUnknown, Exhausted, Unavailable
from sandbox_adapter.v1 import tool_pb2
from tests.faults.worker import INSIST_S_MAX, Box, Violation, Worker, demand

HEARTBEAT_S: Final = 1.0


class Watch:
    """What one reader was told of one call, checked as it comes."""

    def __init__(self, worker: Worker, box: Box, call_id: str, text: bytes) -> None:
        """`text` is what the command prints when nothing happens to it."""
        self._worker = worker
        self._box = box
        self._call_id = call_id
        self._text = text
        self._last = 0
        """The last number seen; every number is a place in the output."""
        self.dropped = 0
        """Bytes that could no longer be told."""
        self.seen = 0
        """Bytes that were told."""

    async def result(self) -> tool_pb2.ToolResult:
        """Reads until the call's result, from the last number on each time."""
        end = time.monotonic() + INSIST_S_MAX
        while True:
            try:
                async with asyncio.timeout(INSIST_S_MAX):
                    if (found := await self._read()) is not None:
                        return found
            except (Unavailable, Exhausted, CallUnknown) as error:
                # The call may not be reserved yet, or not be taken up again.
                demand(time.monotonic() < end, f"a call cannot be watched: {error!r}")
            except AdapterError as error:
                raise Violation(f"a call cannot be watched: {error!r}") from error
            await asyncio.sleep(0.05)

    async def _read(self) -> tool_pb2.ToolResult | None:
        """One stream, to its end; None where that was not the call's."""
        events = self._worker.client.watch_call(
            self._box.session_id, self._call_id, self._last, heartbeat_s=HEARTBEAT_S
        )
        async for event in events:
            kind = event.WhichOneof("event")
            if kind == "output":
                self._take(event)
            elif kind == "started":
                demand(event.sequence == 1 and self._last == 0, "`started` came again")
                self._last = 1
            elif kind == "result":
                demand(event.sequence > self._last, "the result's number is no new one")
                demand(event.result.replayed, "a watched result is not told as a repeat")
                return event.result
        return None

    def _take(self, event: tool_pb2.WatchCallResponse) -> None:
        data, dropped = event.output.data, event.output.bytes_dropped
        begin = max(self._last - 1, 0) + dropped
        end = begin + len(data)
        demand(event.sequence == 1 + end, f"output up to byte {end} has number {event.sequence}")
        right = self._text[begin:end]
        demand(data == right, f"bytes {begin} to {end} are {data!r}, the command's are {right!r}")
        self._last = event.sequence
        self.dropped += dropped
        self.seen += len(data)
