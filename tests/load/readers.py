"""Readers of live output: slow beside fast, and one whose daemon dies again and again."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandbox_adapter.client import AdapterClient, new_id
from sandbox_adapter.connection import Connection
from sandbox_adapter.v1 import tool_pb2, tool_pb2_grpc
from sandbox_adapter.watching import CallWatcher
from tests.integration.daemon_process import DaemonProcess
from tests.integration.numbered_lines import Lines, script
from tests.load.measures import Bench, Done

LINE_BYTES: Final = 100
BLOCK_LINES: Final = 1_000
BLOCK_BYTES: Final = BLOCK_LINES * LINE_BYTES
REST_S: Final = 0.015
"""Between blocks: some 5 MB/s, which a Python client reads."""
SLOW_BYTES_S: Final = 1_024
GROWTH_BYTES_MAX: Final = 24 * 1024 * 1024
KEPT_AT_LEAST: Final = 0.75
"""Share of its speed that the fast reader keeps, with room for a busy machine."""


@dataclass
class Reader:
    """What one reader of the numbered blocks got, checked as it came."""

    place: int = 0
    """The byte of the output that comes next."""
    dropped: int = 0
    resumed: int = 0
    wrong: str = ""
    result: tool_pb2.ToolResult | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: it reads as fast as it can."""

    async def read(self, events: AsyncIterator[tool_pb2.WatchCallResponse], done: Done) -> None:
        async for event in events:
            kind = event.WhichOneof("event")
            if kind == "result":
                self.result = event.result
            if kind != "output":
                continue
            data = event.output.data
            if event.output.bytes_dropped:
                self.resumed += 1
            self.dropped += event.output.bytes_dropped
            self.place += event.output.bytes_dropped
            self._check(data)
            self.place += len(data)
            if event.sequence != 1 + self.place:
                self.wrong = self.wrong or f"number {event.sequence} at byte {self.place}"
            done(len(data) // BLOCK_BYTES)
            if not self.released.is_set():
                await self._rest(len(data) / SLOW_BYTES_S)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.released.wait()
        except TimeoutError:
            return

    def _check(self, data: bytes) -> None:
        first, last = self.place // LINE_BYTES, (self.place + len(data)) // LINE_BYTES
        lines = b"".join(b"%099d\n" % number for number in range(first, last + 1))
        start = self.place - first * LINE_BYTES
        if lines[start : start + len(data)] != data:
            self.wrong = self.wrong or f"other bytes at {self.place}"


def _watching(
    connection: Connection, session_id: str, call_id: str
) -> AsyncIterator[tool_pb2.WatchCallResponse]:
    request = tool_pb2.WatchCallRequest(session_id=session_id, call_id=call_id)
    stub = tool_pb2_grpc.ToolServiceStub(connection.channel)
    return CallWatcher(connection, stub, request, None).events()


async def slow_reader(bench: Bench, size_bytes: int, done: Done) -> dict[str, float]:
    """A fast reader alone and beside slow ones of 1 KB/s, and the growth of memory in MiB."""
    figures: dict[str, float] = {}
    alone_s = 0.0
    # The first run grows the heaps to their size: growth is what comes after it.
    before: dict[str, int] = {}
    for slow_count in (0, 0, 1, 16):
        fast, seconds, slow = await _round(bench, size_bytes, slow_count, done)
        assert not fast.wrong, fast.wrong
        assert fast.place == size_bytes, fast
        for each in slow:
            assert not each.wrong, each.wrong
            assert each.place == size_bytes, each
            assert each.dropped > 0, "a reader of 1 KB/s missed nothing"
        if not before:
            before = bench.memory()
            continue
        name = f"{slow_count} slow beside"
        figures[f"{name}: fast reader, s"] = round(seconds, 2)
        figures[f"{name}: fast reader, bytes dropped"] = fast.dropped
        if slow_count:
            share = round(slow[0].dropped / size_bytes, 3)
            figures[f"{name}: share that a slow one was told it missed"] = share
            assert seconds <= alone_s / KEPT_AT_LEAST, figures
        else:
            alone_s = seconds
    for name, size in bench.memory().items():
        figures[f"growth of the {name}, MiB"] = round((size - before[name]) / 2**20, 1)
        assert size - before[name] < GROWTH_BYTES_MAX, figures
    return figures


async def _round(
    bench: Bench, size_bytes: int, slow_count: int, done: Done
) -> tuple[Reader, float, list[Reader]]:
    call_id = new_id("call")
    blocks = size_bytes // BLOCK_BYTES
    command = (
        f"i=0; while [ $i -lt {blocks} ]; do "
        f"seq -f '%099.0f' $((i * {BLOCK_LINES})) $((i * {BLOCK_LINES} + {BLOCK_LINES - 1})); "
        f"i=$((i + 1)); sleep {REST_S}; done"
    )
    begun = time.monotonic()
    calling = asyncio.create_task(
        bench.client.call_tool(
            bench.session_id, "bash", {"command": command, "timeout": 600}, call_id=call_id
        )
    )
    fast, slow = Reader(), [Reader() for _ in range(slow_count)]
    fast.released.set()
    # On connections of their own: their flow control must not be the fast one's.
    async with AsyncExitStack() as stack:
        tasks = []
        for each in slow:
            own = await stack.enter_async_context(bench.client.connection.another())
            events = _watching(own, bench.session_id, call_id)
            tasks.append(asyncio.create_task(each.read(events, lambda _: None)))
        await fast.read(_watching(bench.client.connection, bench.session_id, call_id), done)
        seconds = time.monotonic() - begun
        answer = await calling
        assert answer.result.bytes_total == size_bytes, answer.result
        for each in slow:
            each.released.set()
        await asyncio.gather(*tasks)
    return fast, seconds, slow


async def lines_over_kills(lines: int, kills: int, done: Done) -> dict[str, float]:
    """A line every 10 ms is read complete and in order while the daemon is killed again and again.

    The daemon is one of its own, on a socket where its successors listen as well.
    """
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        listen = f"unix:{folder}/api.sock"
        daemon = DaemonProcess("docker", Path(folder) / "state", "--listen", listen).start()
        try:
            return await _lines_over_kills(daemon, lines, kills, done)
        finally:
            await asyncio.to_thread(daemon.end_for_good)


async def _lines_over_kills(
    daemon: DaemonProcess, lines: int, kills: int, done: Done
) -> dict[str, float]:
    took = Lines(lines)
    streams: list[int] = []
    kill_every_s = lines * 0.01 / (kills + 1)
    async with AdapterClient(daemon.address, retry_s_max=60.0) as client:
        session = await client.create_session()
        command = {"command": script(lines), "timeout": 600}
        calling = asyncio.create_task(
            client.call_tool(session.session_id, "bash", command, call_id="lines")
        )

        async def read() -> None:
            async for event in client.watch_call(session.session_id, "lines"):
                assert not event.output.bytes_dropped, event.output.bytes_dropped
                took.take(event.output.data)
                if event.sequence:
                    streams.append(event.sequence)

        reading = asyncio.create_task(read())
        away_s = []
        for _ in range(kills):
            await asyncio.sleep(kill_every_s)
            begun = time.monotonic()
            await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(daemon.start)
            away_s.append(time.monotonic() - begun)
            done(1)
        await asyncio.wait_for(reading, 120)
        result = (await asyncio.wait_for(calling, 60)).result
        await client.delete_session(session.session_id)
    assert took.complete, "lines are missing, doubled or out of order"
    assert streams == sorted(set(streams)), "numbers do not grow"
    assert (result.exit_code, result.lines_total) == (0, lines), result
    return {
        "lines": lines,
        "kills": kills,
        "events": len(streams),
        "longest time without a daemon, s": round(max(away_s), 2),
        "command ran, s": round(result.duration.ToMilliseconds() / 1000, 2),
    }
