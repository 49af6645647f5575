"""`WatchCall`: what a call does, from any point, to any number of readers (contract.md 4).

Numbers of events come from places in the output: `started` is 1, an output event that ends
at byte k of the raw output is 1 + k, and `result` comes after all of it. So nobody counts,
every number is a place to go on from, and they mean the same after a restart of the daemon.

Nothing is buffered for a watcher. One that does not read stands still, behind its client's
flow control; the ring in the guest moves on, and when it has left the watcher behind, the
stream ends with the place to resume from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Sandbox
from sandboxd.errors import (
    CallsExhausted,
    CallUnknown,
    Draining,
    GuestFault,
    ResultExpired,
    SandboxLost,
)
from sandboxd.log import EventLog
from sandboxd.sessions import outcomes, output_feed
from sandboxd.sessions.call import Call, Step
from sandboxd.sessions.calls import Calls
from sandboxd.sessions.directory import Directory
from sandboxd.sessions.ledger import Begun, Ledger
from sandboxd.sessions.live import LiveSession
from sandboxd.sessions.output_feed import OutputFeed
from sandboxd.sessions.records import SessionKey
from sandboxd.tools.bash import BashTool

_LOG: Final = EventLog("watches")
_PLACE_MAX: Final = 2**53
_SEQUENCE_MAX: Final = 2**64 - 1

Event = tool_pb2.WatchCallResponse


class Watches:
    """Gives watchers their streams, and ends them all before the daemon does."""

    def __init__(self, directory: Directory, ledger: Ledger, calls: Calls) -> None:
        self.directory = directory
        self.ledger = ledger
        self.calls = calls
        self.ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolves when every stream must end."""
        self._feeds: dict[tuple[SessionKey, str], OutputFeed] = {}

    async def watch(
        self, key: SessionKey, call_id: str, after: int, heartbeat_s: float
    ) -> AsyncGenerator[Event, None]:
        """The events behind `after`, to the result or to the place to resume from.

        Raises `CallUnknown`, `ResultExpired`, `CallsExhausted`, `Draining`, and what a
        session raises that is gone. Close it: it holds a place of `WATCHERS_PARALLEL_MAX`.
        """
        live = await self.directory.find(key)
        if self.ending.done():
            raise Draining
        if live.watches >= limits.WATCHERS_PARALLEL_MAX:
            raise CallsExhausted("watchers", limits.WATCHERS_PARALLEL_MAX)
        live.watches += 1
        watch = _Watch(self, live, call_id, after, heartbeat_s)
        try:
            while (event := await watch.next()) is not None:
                yield event
        finally:
            live.watches -= 1
            watch.leave()

    def end(self) -> None:
        """Every stream ends with the place to resume from, at the next daemon."""
        if not self.ending.done():
            self.ending.set_result(None)

    def join(self, key: SessionKey, call_id: str, sandbox: Sandbox) -> OutputFeed:
        """The feed of a running command. Pair with its `watchers -= 1`."""
        feed = self._feeds.get((key, call_id))
        if feed is None or feed.over or feed.sandbox is not sandbox:
            self._feeds = {name: each for name, each in self._feeds.items() if not each.over}
            feed = self._feeds[key, call_id] = OutputFeed(sandbox, call_id)
        feed.watchers += 1
        return feed


class _Watch:
    """One stream. It is somewhere in `started`, output, `result`, and goes on from there."""

    def __init__(
        self, watches: Watches, live: LiveSession, call_id: str, after: int, heartbeat_s: float
    ) -> None:
        self._watches = watches
        self._live = live
        self._call_id = call_id
        self._heartbeat_s = heartbeat_s
        now = time.monotonic()
        self._awaited_until = now + limits.CALL_AWAITED_S
        self._until = now + limits.STREAM_LIFE_S
        self._beat_at = now + heartbeat_s
        self._last = after
        """The last number that the reader has."""
        self._place = min(max(0, after - 1), _PLACE_MAX)
        """The byte of the output from which it goes on."""
        self._has_read = False
        self._call: Call | None = None
        self._begun: Begun | None = None
        self._feed: OutputFeed | None = None
        self._result: tool_pb2.ToolResult | None = None
        self._over = False

    async def next(self) -> Event | None:
        """The next event; None after the last one."""
        while not self._over:
            if self._watches.ending.done():
                return self._cut_loose("SHUTDOWN")
            if time.monotonic() >= self._until:
                return self._cut_loose("AGE")
            event = await self._step()
            if event is not None:
                self._last = max(self._last, event.sequence)
                return event
        return None

    def leave(self) -> None:
        """Lets go of the feed. Nothing waits here, so a reader that is gone is gone at once."""
        if self._feed is not None:
            self._feed.watchers -= 1
            self._feed = None

    async def _step(self) -> Event | None:
        if self._result is not None:
            return await self._ended_step(self._result)
        if self._call is None:
            await self._find()
            return None
        if self._call.done.done():
            self._conclude(self._call)
            return None
        return await self._running_step(self._call)

    # --- finding the call ----------------------------------------------------

    async def _find(self) -> None:
        live, call_id = self._live, self._call_id
        arrival = live.arrival  # before the look, so that none is missed
        call = live.calls.get(call_id)
        if call is not None and not call.done.done():
            self._call = call
            return
        _, result, expired = await self._watches.calls.get(live.record.key, call_id)
        if expired:
            raise ResultExpired(call_id)
        if result is not None:
            self._result = _recorded(result)
        elif call_id not in live.calls and not arrival.done():
            await self._await_call(arrival)

    async def _await_call(self, arrival: asyncio.Future[None]) -> None:
        left_s = self._awaited_until - time.monotonic()
        if left_s > 0:
            await self._wait(arrival, timeout_s=left_s)
            return
        await self._watches.directory.find(self._live.record.key)
        if self._watches.directory.draining:
            raise Draining
        raise CallUnknown(self._call_id)

    def _conclude(self, call: Call) -> None:
        self.leave()
        self._call = None
        # One that was refused has no result here: the ledger says what there is of it.
        if call.done.exception() is None:
            self._result = _recorded(call.done.result().result)

    # --- while it waits or runs ----------------------------------------------

    async def _running_step(self, call: Call) -> Event | None:
        if time.monotonic() >= self._beat_at:
            return self._heartbeat()
        if self._begun is None and call.step is Step.RUNNING:
            self._begun = await self._find_begun()
        if self._begun is None:
            await self._wait(call.working, call.done)
            return None
        if self._last == 0:
            return _started(self._begun)
        if call.tool != BashTool.name:
            await self._wait(call.done)
            return None
        if not self._follow():
            # Of a call that is resumed, its guest is on its way back.
            await self._wait(*([] if call.working.done() else [call.working]), call.done)
            return None
        return await self._follow_output(call)

    def _follow(self) -> bool:
        """Whether there is a guest to follow."""
        sandbox = self._live.sandbox
        if self._feed is None and sandbox is not None and not sandbox.lost.done():
            self._feed = self._watches.join(self._live.record.key, self._call_id, sandbox)
        return self._feed is not None

    async def _follow_output(self, call: Call) -> Event | None:
        feed = self._feed
        assert feed is not None
        news = feed.news
        if feed.fault is not None:
            self._judge(feed.fault)
        elif self._place < feed.end:
            try:
                event = await self._read(feed.sandbox, feed.end)
                if event is not None:
                    return event
            except SandboxLost as error:
                self._judge(error)
            except GuestFault:
                # Such as too many requests that wait: with the next news.
                await self._wait(news, call.done)
                return None
        if feed.over:
            await self._wait(call.done)
        else:
            await self._wait(news, call.done)
        return None

    def _judge(self, error: SandboxLost) -> None:
        if error.cause == "PROTOCOL":
            self._live.condemn(error)

    async def _read(self, sandbox: Sandbox, known_end: int) -> Event | None:
        """The next bytes. None where there are none, although the guest spoke of them."""
        piece = await output_feed.read(sandbox, self._call_id, self._place, limits.CHUNK_BYTES_MAX)
        if piece is None:
            # It has ended, and its ring had to make room. What is known is the total.
            return None
        if not piece.data and piece.start == self._place < known_end:
            raise SandboxLost("PROTOCOL", "feed: output that was announced is not there")
        dropped = piece.start - self._place
        if dropped and self._has_read:
            # The ring went past this reader while it read: it was too slow.
            return self._cut_loose("SLOW")
        return self._output(piece.data, dropped)

    # --- once it has ended -----------------------------------------------------

    async def _ended_step(self, result: tool_pb2.ToolResult) -> Event | None:
        if self._last == 0:
            begun = self._begun or await self._find_begun()
            if begun is not None:
                return _started(begun)
        total = result.bytes_total if result.WhichOneof("details") == "bash" else 0
        if self._place < total:
            return await self._read_rest(result, total)
        self._over = True
        number = max(max(total, self._place) + 2, self._last + 1)
        return Event(sequence=min(number, _SEQUENCE_MAX), result=result)

    async def _read_rest(self, result: tool_pb2.ToolResult, total: int) -> Event | None:
        """What the guest still has of an ended command's output; what it lacks is dropped."""
        sandbox = self._live.sandbox
        if sandbox is not None and sandbox.generation == result.generation:
            try:
                event = await self._read(sandbox, total)
                if event is not None:
                    return event
            except GuestFault:
                pass
            except SandboxLost:
                # Gone with its sandbox, or to make room for others.
                pass
        return self._output(b"", total - self._place)

    # --- events ----------------------------------------------------------------

    async def _find_begun(self) -> Begun | None:
        return await self._watches.ledger.begun(self._live.record.key, self._call_id)

    def _output(self, data: bytes, dropped: int) -> Event:
        self._has_read = True
        self._place += dropped + len(data)
        output = tool_pb2.CallOutput(data=data, bytes_dropped=dropped)
        return Event(sequence=1 + self._place, output=output)

    def _heartbeat(self) -> Event:
        self._beat_at = time.monotonic() + self._heartbeat_s
        event = Event(heartbeat=tool_pb2.CallHeartbeat())
        if self._begun is not None:
            running_s = max(0.0, time.time() - self._begun.started_at)
            event.heartbeat.running.FromMicroseconds(round(running_s * 1e6))
        return event

    def _cut_loose(self, why: str) -> Event:
        self._over = True
        _LOG.info("a watcher must resume", session=self._live.session_id, why=why)
        return Event(resume_from=tool_pb2.CallResumeFrom(after_sequence=self._last))

    async def _wait(self, *futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
        """Waits for one of them, the next heartbeat, or the end of the stream."""
        now = time.monotonic()
        until = min(self._beat_at, self._until) if timeout_s is None else now + timeout_s
        await asyncio.wait(
            {*futures, self._watches.ending},
            timeout=max(0.0, until - now),
            return_when=asyncio.FIRST_COMPLETED,
        )


def _started(begun: Begun) -> Event:
    started_at = outcomes.timestamp(begun.started_at)
    started = tool_pb2.CallStarted(started_at=started_at, generation=begun.generation)
    return Event(sequence=1, started=started)


def _recorded(result: tool_pb2.ToolResult) -> tool_pb2.ToolResult:
    """A copy of the recorded result, marked as that of an earlier request, which it is."""
    copy = tool_pb2.ToolResult()
    copy.CopyFrom(result)
    copy.replayed = True
    return copy
