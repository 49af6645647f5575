"""`ProcessService`: envelopes checked, answers converted; the rest is the sessions' own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from sandbox_adapter.v1 import process_pb2, process_pb2_grpc
from sandboxd import limits
from sandboxd.errors import Draining, InvalidEnvelope
from sandboxd.rpc import envelope
from sandboxd.rpc.errors import Context
from sandboxd.rpc.file_facts import clean
from sandboxd.sessions.outcomes import timestamp
from sandboxd.sessions.process_view import ProcessView
from sandboxd.sessions.processes import Piece, Processes, ProcessSpecification
from sandboxd.sessions.specification import check_env

_STREAMS: Final = {
    process_pb2.OUTPUT_STREAM_STDOUT: "stdout",
    process_pb2.OUTPUT_STREAM_STDERR: "stderr",
}
_STATES: Final = {
    "RUNNING": process_pb2.PROCESS_STATE_RUNNING,
    "ENDED": process_pb2.PROCESS_STATE_ENDED,
    "LOST": process_pb2.PROCESS_STATE_LOST,
}
_SIGNAL_MAX: Final = 64


class ProcessService(process_pb2_grpc.ProcessServiceServicer):
    """Level full: capabilities PROCESSES and PTY."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolves when every reader that follows must come again, to the next daemon."""

    def end(self) -> None:
        """Ends the streams that follow an output: they would outlast every grace."""
        if not self._ending.done():
            self._ending.set_result(None)

    async def StartProcess(
        self, request: process_pb2.StartProcessRequest, context: Context
    ) -> process_pb2.StartProcessResponse:
        key = envelope.session_key(request.session_id)
        process_id = envelope.optional_id("process_id", request.process_id)
        epoch = request.epoch if request.HasField("epoch") else None
        view, replayed = await self._processes.start(
            key, process_id, epoch, _specification(request)
        )
        return process_pb2.StartProcessResponse(process=_process(view), replayed=replayed)

    async def ReadOutput(
        self, request: process_pb2.ReadOutputRequest, context: Context
    ) -> AsyncIterator[process_pb2.ReadOutputResponse]:
        key = envelope.session_key(request.session_id)
        process_id = envelope.required_id("process_id", request.process_id)
        stream = _STREAMS.get(request.stream)
        if stream is None:
            raise InvalidEnvelope("stream", "must be a value of OutputStream")
        offset = _offset(request.offset)
        if request.follow and self._ending.done():
            raise Draining
        pieces = self._processes.read(key, process_id, stream, offset, follow=request.follow)
        if request.follow:
            pieces = _for_its_life(pieces, self._ending)
        async with aclosing(pieces):
            async for piece in pieces:
                yield process_pb2.ReadOutputResponse(
                    offset=piece.offset,
                    data=piece.data,
                    bytes_dropped=piece.dropped,
                    closed=piece.closed,
                )

    async def WriteInput(
        self, request: process_pb2.WriteInputRequest, context: Context
    ) -> process_pb2.WriteInputResponse:
        key = envelope.session_key(request.session_id)
        process_id = envelope.required_id("process_id", request.process_id)
        if len(request.data) > limits.CHUNK_BYTES_MAX:
            raise InvalidEnvelope("data", f"must be at most {limits.CHUNK_BYTES_MAX} bytes")
        epoch = request.epoch if request.HasField("epoch") else None
        written, closed = await self._processes.write(
            key, process_id, epoch, _offset(request.offset), request.data, close=request.close
        )
        return process_pb2.WriteInputResponse(bytes_written=written, closed=closed)

    async def SignalProcess(
        self, request: process_pb2.SignalProcessRequest, context: Context
    ) -> process_pb2.SignalProcessResponse:
        key = envelope.session_key(request.session_id)
        process_id = envelope.required_id("process_id", request.process_id)
        if not 1 <= request.signal <= _SIGNAL_MAX:
            raise InvalidEnvelope("signal", f"must be from 1 to {_SIGNAL_MAX}")
        epoch = request.epoch if request.HasField("epoch") else None
        delivered = await self._processes.signal(key, process_id, epoch, request.signal)
        return process_pb2.SignalProcessResponse(delivered=delivered)

    async def WaitProcess(
        self, request: process_pb2.WaitProcessRequest, context: Context
    ) -> process_pb2.WaitProcessResponse:
        key = envelope.session_key(request.session_id)
        process_id = envelope.required_id("process_id", request.process_id)
        timeout_s = limits.PROCESS_WAIT_MAX_S
        if request.HasField("wait_timeout"):
            timeout_s = envelope.seconds("wait_timeout", request.wait_timeout)
            if timeout_s > limits.PROCESS_WAIT_MAX_S:
                rule = f"must be at most {limits.PROCESS_WAIT_MAX_S:g} s"
                raise InvalidEnvelope("wait_timeout", rule)
        view = await self._processes.wait(key, process_id, timeout_s)
        return process_pb2.WaitProcessResponse(process=_process(view))

    async def ListProcesses(
        self, request: process_pb2.ListProcessesRequest, context: Context
    ) -> process_pb2.ListProcessesResponse:
        views = await self._processes.list(envelope.session_key(request.session_id))
        return process_pb2.ListProcessesResponse(processes=map(_process, views))

    async def ResizeTerminal(
        self, request: process_pb2.ResizeTerminalRequest, context: Context
    ) -> process_pb2.ResizeTerminalResponse:
        key = envelope.session_key(request.session_id)
        process_id = envelope.required_id("process_id", request.process_id)
        if not request.HasField("terminal"):
            raise InvalidEnvelope("terminal", "must be given")
        rows, columns = _size(request.terminal)
        epoch = request.epoch if request.HasField("epoch") else None
        await self._processes.resize(key, process_id, epoch, rows, columns)
        return process_pb2.ResizeTerminalResponse()


async def _for_its_life(
    pieces: AsyncGenerator[Piece, None], ending: asyncio.Future[None]
) -> AsyncGenerator[Piece, None]:
    """The pieces until there are no more, until STREAM_LIFE_S are over, or until `ending`.

    The wait for the next piece is cut off, and what it may have fetched is dropped: the reader
    has not seen it and asks for it again, by its offset.
    """
    until = time.monotonic() + limits.STREAM_LIFE_S
    async with aclosing(pieces):
        while not ending.done() and (left_s := until - time.monotonic()) > 0:
            step: asyncio.Future[Piece | None] = asyncio.ensure_future(anext(pieces, None))
            either: set[asyncio.Future[Any]] = {step, ending}
            try:
                await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # Before the generator is closed it must have let go of its step.
                if not step.done():
                    step.cancel()
                    await asyncio.wait({step})
            piece = None if step.cancelled() else step.result()
            if piece is None:
                return
            yield piece


def _specification(request: process_pb2.StartProcessRequest) -> ProcessSpecification:
    if not request.argv or not request.argv[0]:
        raise InvalidEnvelope("argv", "must name a program")
    if any("\0" in word for word in request.argv):
        raise InvalidEnvelope("argv", "must not hold NUL")
    size = sum(len(word.encode()) + 1 for word in request.argv)
    if size > limits.PROCESS_ARGUMENT_BYTES_MAX:
        rule = f"must be at most {limits.PROCESS_ARGUMENT_BYTES_MAX} bytes in all"
        raise InvalidEnvelope("argv", rule)
    if "\0" in request.cwd:
        raise InvalidEnvelope("cwd", "must not hold NUL")
    check_env(request.env)
    timeout_s = None
    if request.HasField("timeout"):
        timeout_s = envelope.seconds("timeout", request.timeout)
        if timeout_s <= 0:
            raise InvalidEnvelope("timeout", "must be more than 0")
    return ProcessSpecification(
        argv=tuple(request.argv),
        cwd=request.cwd,
        env=dict(request.env),
        terminal=_size(request.terminal) if request.HasField("terminal") else None,
        timeout_s=timeout_s,
    )


def _size(size: process_pb2.TerminalSize) -> tuple[int, int]:
    for field, value in (("terminal.rows", size.rows), ("terminal.columns", size.columns)):
        if not 1 <= value <= limits.TERMINAL_CELLS_MAX:
            raise InvalidEnvelope(field, f"must be from 1 to {limits.TERMINAL_CELLS_MAX}")
    return size.rows, size.columns


def _offset(value: int) -> int:
    if value > limits.OFFSET_MAX:
        raise InvalidEnvelope("offset", f"must be at most {limits.OFFSET_MAX}")
    return value


def _process(view: ProcessView) -> process_pb2.Process:
    message = process_pb2.Process(
        process_id=view.process_id,
        pid=view.pid,
        argv=map(clean, view.argv),
        state=_STATES[view.state],
        exit_code=view.exit_code,
        signal=view.signal,
        call_id=view.call_id,
        generation=view.generation,
        started_at=timestamp(view.started_at),
    )
    if view.ended_at is not None:
        message.ended_at.CopyFrom(timestamp(view.ended_at))
    return message
