"""The daemon's end of a guest's connection.

Everything that comes in is hostile (security S7, S8). A frame is read only when
its sizes are within bounds, a reply only where a request of that id waits, its
bytes only up to what that request reserved. Whatever breaks a rule loses this
sandbox (`PROTOCOL`) and touches nothing else.

A connection that merely ends is no end of the sandbox, whose guest has a short time to
dial again (see `sandbox.py`). What was on its way is then asked for once more: of a call
that the guest reports, its answer; of one that it does not report, which it never started,
the call itself; and what is harmless to repeat. The rest fails, such as the steps of a file
verb, whose handles went with the connection.

Who is cancelled while waiting leaves its request outstanding: the guest works on it, and
its reply is taken and dropped. A reply that is overdue means a dead guest (`SILENT`),
whether somebody still waits for it or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.backends.guest_budget import Budget, BudgetClosed
from sandboxd.backends.outstanding import Outstanding
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.guest import protocol
from sandboxd.log import EventLog

_WRITE_BUFFER_BYTES: Final = 256 * limits.KIB
"""Bytes that may lie in the daemon's own write buffer before the writer waits."""

_NAMED_MAX: Final = 64
"""Calls that one request names as recorded."""
_RECORDED_MAX: Final = 4_096
"""Calls that wait to be named. Of one that is dropped the guest's next report tells."""
_STALL_S: Final = 2.0
"""Time that a deadline which has passed leaves for bytes that are here and were not read: after
a stall of the daemon itself the clock is looked at before the sockets are."""

_log = EventLog("backends")


@dataclass
class _Connection:
    """One connection, and what is to be written to it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    outbox: asyncio.Queue[list[bytes | memoryview]] = field(default_factory=asyncio.Queue)
    """Whole messages. Bounded by the budget, which every message has been charged to."""


class GuestLink:
    """`Channel` over whichever connection the guest has; see `backends/base.py`."""

    def __init__(
        self,
        boot_id: str,
        *,
        heartbeat_s: float = limits.GUEST_HEARTBEAT_S,
        answer_s: float = limits.GUEST_ANSWER_S,
        write_s: float = limits.GUEST_WRITE_S,
    ) -> None:
        """Needs a running loop. `attach` gives it its first connection."""
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[Exception] = self._loop.create_future()
        self.on_disconnect: Callable[[], None] = lambda: None
        """Called when a connection ended and the sandbox is not lost by it."""
        self._heartbeat_s = heartbeat_s
        self._answer_s = answer_s
        self._write_s = write_s
        self._budget = Budget(limits.GUEST_INFLIGHT_BYTES_MAX)
        self._boot_id = boot_id
        self._recorded: dict[str, None] = {}
        """Calls of which the guest has yet to learn that they are recorded."""
        self._outstanding: dict[int, Outstanding] = {}
        self._last_id = 0
        self._connection: _Connection | None = None
        self._usable = asyncio.Event()
        """Set while there is a connection, and for good once the sandbox is lost."""
        self._heartbeat: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        """Serves the connection, or the last one there was."""

    def attach(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        calls: Collection[str] = (),
    ) -> None:
        """Takes a connection whose guest has proved itself. There must be none.

        `calls` are those that the guest reports (security S7).
        """
        if self._connection is not None or self.lost.done():
            raise RuntimeError("a live connection is never displaced (security S5)")
        connection = self._connection = _Connection(reader, writer)
        writer.transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._serving = self._loop.create_task(self._serve(connection))
        if self._heartbeat is None:
            self._heartbeat = self._loop.create_task(self._beat())
        self._ask_again(connection, calls)
        self._usable.set()

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def recorded(self, call_id: str) -> None:
        """The next request tells the guest that it need not keep this call's answer."""
        self._recorded[call_id] = None
        if len(self._recorded) > _RECORDED_MAX:
            del self._recorded[next(iter(self._recorded))]

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        reply_bytes_max: int,
        timeout_s: float,
    ) -> Reply:
        """See `Channel.request`. `timeout_s` counts from when the request may leave.

        Before that it may wait for the session's byte budget, or for a guest that
        dials again. A request that fits no frame is INVALID_INPUT: only texts of
        a caller are that long, or hold lone surrogates.
        """
        if not 0 <= reply_bytes_max <= limits.GUEST_REPLY_BYTES_MAX:
            raise ValueError(f"reply_bytes_max {reply_bytes_max} is out of bounds")
        self._last_id += 1
        id_ = self._last_id
        try:
            protocol.encode_frames(self._header(id_, op, args), body)
        except (protocol.ProtocolError, UnicodeEncodeError, ValueError):
            raise GuestFault("INVALID_INPUT", "the arguments are too long", {}) from None
        cost = len(body) + reply_bytes_max
        connection = await self._reserve(cost)
        answer: asyncio.Future[Reply] = self._loop.create_future()
        deadline = self._loop.call_later(timeout_s, self._overdue, id_)
        self._outstanding[id_] = Outstanding(
            op, args, body, answer, cost, reply_bytes_max, deadline
        )
        # Put together only now: what it names as recorded must not be lost with a caller.
        connection.outbox.put_nowait(self._message(id_, op, args, body))
        return await answer

    def lose(self, cause: str, operator_text: str) -> None:
        """The sandbox is of no use any more. Only the first call has an effect."""
        if self.lost.done():
            return
        self.lost.set_result(SandboxLost(cause, operator_text))
        self._fail_outstanding()
        self._budget.close()
        self._usable.set()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._connection is not None:
            # Here, too: a task that is cancelled before its first step runs no `finally`.
            self._connection.writer.transport.abort()
            if self._serving is not None:
                self._serving.cancel()

    async def close(self, cause: str, operator_text: str) -> None:
        """`lose`, and waits until nothing of the link runs any more."""
        self.lose(cause, operator_text)
        tasks = [task for task in (self._heartbeat, self._serving) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection is not None:
            with contextlib.suppress(OSError):
                await self._connection.writer.wait_closed()
            self._connection = None

    # --- requests -------------------------------------------------------------

    def _header(self, id_: int, op: str, args: Mapping[str, Any]) -> protocol.Header:
        return {"id": id_, "boot": self._boot_id, "op": op, "args": dict(args)}

    def _message(
        self, id_: int, op: str, args: Mapping[str, Any], body: bytes
    ) -> list[bytes | memoryview]:
        header = self._header(id_, op, args)
        if not self._recorded:
            return protocol.encode_frames(header, body)
        named = list(itertools.islice(self._recorded, _NAMED_MAX))
        try:
            message = protocol.encode_frames({**header, "recorded": named}, body)
        except protocol.ProtocolError:
            # Beside arguments that fill a header they wait for the next request.
            return protocol.encode_frames(header, body)
        for call_id in named:
            del self._recorded[call_id]
        return message

    def _ask_again(self, connection: _Connection, calls: Collection[str]) -> None:
        """Sends what was on its way as the last connection ended, as far as that is safe."""
        for id_, waiting in list(self._outstanding.items()):
            if waiting.answer.done():
                # Nobody waits for it: what the guest may not have started is not started now.
                self._forget(id_)
                continue
            waiting.begin_again()
            op, args, body = waiting.op, waiting.args, waiting.body
            if args.get("call_id") in calls and op not in protocol.REPEATABLE:
                op, args, body = "attach", {"call_id": args["call_id"]}, b""
            connection.outbox.put_nowait(self._message(id_, op, args, body))

    async def _reserve(self, cost: int) -> _Connection:
        """Charges the budget and gives the connection to send on, in this very round."""
        while True:
            await self._usable.wait()
            self._check_lost()
            try:
                await self._budget.take(cost)
            except BudgetClosed:
                self._check_lost()
                raise
            if self._connection is not None and not self.lost.done():
                return self._connection
            # The connection went while this waited for its bytes.
            self._budget.give_back(cost)

    def _check_lost(self) -> None:
        if self.lost.done():
            found = self.lost.result()
            assert isinstance(found, SandboxLost)
            raise SandboxLost(found.cause, found.operator_text)

    def _overdue(self, id_: int, *, stalled: bool = True) -> None:
        waiting = self._outstanding.get(id_)
        if waiting is None:
            return
        if stalled:
            late = partial(self._overdue, id_, stalled=False)
            waiting.deadline = self._loop.call_later(_STALL_S, late)
        else:
            self.lose("SILENT", f"no reply to `{waiting.op}` within its time")

    def _forget(self, id_: int) -> Outstanding:
        waiting = self._outstanding.pop(id_)
        waiting.deadline.cancel()
        self._budget.give_back(waiting.cost)
        return waiting

    def _fail_unrepeatable(self) -> None:
        """After a connection: fails what cannot be asked for again."""
        for id_, waiting in list(self._outstanding.items()):
            if waiting.op in protocol.REPEATABLE or "call_id" in waiting.args:
                continue
            answer = self._forget(id_).answer
            if not answer.done():
                answer.set_exception(SandboxLost("ENDED", "the connection ended"))

    def _fail_outstanding(self) -> None:
        known = self.lost.result() if self.lost.done() else None
        cause = known.cause if isinstance(known, SandboxLost) else "ENDED"
        text = known.operator_text if isinstance(known, SandboxLost) else "the connection ended"
        for id_ in list(self._outstanding):
            answer = self._forget(id_).answer
            if not answer.done():
                answer.set_exception(SandboxLost(cause, text))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            try:
                await self.request("ping", {}, reply_bytes_max=0, timeout_s=self._answer_s)
            except SandboxLost:
                if self.lost.done():
                    return
            except GuestFault as fault:
                self.lose("PROTOCOL", f"the guest refuses a ping: {fault.reason}")
                return

    # --- one connection -------------------------------------------------------

    async def _serve(self, connection: _Connection) -> None:
        """Reads and writes until one of both fails; what that means is decided once."""
        halves = [
            self._loop.create_task(self._read(connection.reader)),
            self._loop.create_task(self._write(connection)),
        ]
        ended: BaseException | None = None
        try:
            done, _ = await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            # The reader's verdict first: it names a broken rule exactly.
            ended = next(half.exception() for half in halves if half in done)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            self._connection = None
            connection.writer.transport.abort()
            if not self.lost.done():
                self._usable.clear()
                self._ended(ended)
            # The descriptor is given back before anybody is told that this has ended.
            with contextlib.suppress(OSError):
                await connection.writer.wait_closed()

    def _ended(self, error: BaseException | None) -> None:
        match error:
            case protocol.ProtocolError():
                self.lose("PROTOCOL", f"the guest broke the protocol: {error}")
            case TimeoutError():
                self.lose("SILENT", "the guest does not take what is sent to it")
            case EOFError() | OSError() | None:
                self._fail_unrepeatable()
                self.on_disconnect()
            case _:
                _log.error("a guest's connection failed", cause=error)
                self.lose("PROTOCOL", f"serving the guest failed: {type(error).__name__}")

    async def _write(self, connection: _Connection) -> None:
        while True:
            message = await connection.outbox.get()
            for buffer in message:
                connection.writer.write(buffer)
                try:
                    async with asyncio.timeout(self._write_s):
                        await connection.writer.drain()
                except TimeoutError:
                    async with asyncio.timeout(_STALL_S):
                        await connection.writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            header_bytes, body_bytes = protocol.decode_prefix(
                await reader.readexactly(protocol.PREFIX.size)
            )
            header = protocol.decode_header(await reader.readexactly(header_bytes))
            # The body is read only once it is known whose it is and that it fits.
            id_, waiting = self._whose(header)
            more = waiting.take_header(header, body_bytes)
            body = await reader.readexactly(body_bytes) if body_bytes else b""
            if id_ not in self._outstanding:
                return
            waiting.take_body(body)
            if not more:
                self._settle(id_)

    def _whose(self, header: protocol.Header) -> tuple[int, Outstanding]:
        id_ = header.get("id")
        if not isinstance(id_, int) or isinstance(id_, bool):
            raise protocol.ProtocolError("a frame without an id")
        waiting = self._outstanding.get(id_)
        if waiting is None:
            raise protocol.ProtocolError("a reply that nobody asked for")
        return id_, waiting

    def _settle(self, id_: int) -> None:
        waiting = self._outstanding[id_]
        outcome = waiting.outcome()
        self._forget(id_)
        # Nobody waits any more where the caller was cancelled.
        if waiting.answer.done():
            return
        if isinstance(outcome, Reply):
            waiting.answer.set_result(outcome)
        else:
            waiting.answer.set_exception(outcome)
