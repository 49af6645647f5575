"""The process verbs of a client: start, follow, feed, signal, wait."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

import grpc

from sandbox_adapter import errors
from sandbox_adapter.connection import SHORT_TIMEOUT_S, Connection, duration, new_id
from sandbox_adapter.v1 import process_pb2, process_pb2_grpc

CHUNK_BYTES_MAX: Final = 256 * 1024
FOLLOW_TIMEOUT_S: Final = 3_600.0
"""Default deadline of reading an output, or of waiting for an end."""
WAIT_S_MAX: Final = 60.0
"""Longest wait of one WaitProcess."""
INPUT_REST_S: Final = 0.05
"""Between two writes to a process that takes nothing."""
REOPEN_REST_S: Final = 0.05
"""Before a stream is opened again that ended without anything new."""
_HARMLESS: Final = (signal.SIGKILL, signal.SIGTERM)

STDOUT: Final = process_pb2.OUTPUT_STREAM_STDOUT
STDERR: Final = process_pb2.OUTPUT_STREAM_STDERR


class ProcessClient:
    """ProcessService over a client's connection. Reached as `AdapterClient.processes`.

    Everything is repeated after a lost connection except signals other than KILL and
    TERM (process.proto): a start by its id, input and output by their offsets.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.stub = process_pb2_grpc.ProcessServiceStub(connection.channel)

    async def start(
        self,
        session_id: str,
        argv: Sequence[str],
        *,
        process_id: str | None = None,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        terminal: tuple[int, int] | None = None,
        run_s_max: float | None = None,
        epoch: int | None = None,
        timeout_s: float = SHORT_TIMEOUT_S,
    ) -> process_pb2.StartProcessResponse:
        """Starts a program. Makes the id where none is given.

        `terminal`: rows and columns of the terminal to give it. `run_s_max`: most time
        that it may run.
        """
        request = process_pb2.StartProcessRequest(
            session_id=session_id,
            process_id=process_id or new_id("proc"),
            epoch=epoch,
            argv=argv,
            cwd=cwd,
            env=env or {},
            terminal=_size(terminal),
            timeout=duration(run_s_max),
        )
        answer: process_pb2.StartProcessResponse = await self._connection.repeat(
            self.stub.StartProcess, request, timeout_s
        )
        return answer

    async def output(
        self,
        session_id: str,
        process_id: str,
        *,
        stream: process_pb2.OutputStream = STDOUT,
        offset: int = 0,
        follow: bool = True,
        timeout_s: float = FOLLOW_TIMEOUT_S,
    ) -> AsyncGenerator[process_pb2.ReadOutputResponse, None]:
        """One output from an offset, until it is closed, or only what is there now.

        A stream that breaks, or whose life is over, is opened again where it stopped, so
        that every byte comes once, or is told as dropped. Messages without news are left
        out. Raises `TimeoutError`, or the stream's own `DeadlineExceeded`, where the output
        is not closed in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            request = process_pb2.ReadOutputRequest(
                session_id=session_id,
                process_id=process_id,
                stream=stream,
                offset=offset,
                follow=follow,
            )
            call, messages, message = await self._connection.repeat_open(
                self.stub.ReadOutput, request, deadline - time.monotonic()
            )
            begun = offset
            try:
                while message is not None:
                    offset = message.offset + len(message.data)
                    if message.data or message.bytes_dropped or message.closed:
                        yield message
                    if message.closed:
                        return
                    message = await anext(messages, None)
                if not follow:
                    return
                if time.monotonic() + REOPEN_REST_S >= deadline:
                    raise TimeoutError(f"the output was not closed within {timeout_s:g} s")
                if offset == begun:
                    # One that ends streams as fast as they come is not asked in a circle.
                    await asyncio.sleep(REOPEN_REST_S)
            except grpc.aio.AioRpcError as rpc_error:
                error = errors.from_rpc(rpc_error)
                if not isinstance(error, errors.Unavailable):
                    raise error from None
            finally:
                call.cancel()

    async def write(
        self,
        session_id: str,
        process_id: str,
        data: bytes,
        *,
        offset: int,
        close: bool = False,
        epoch: int | None = None,
        timeout_s: float = FOLLOW_TIMEOUT_S,
    ) -> process_pb2.WriteInputResponse:
        """Writes all of `data` at an offset of the whole input, in as many requests as it takes.

        Raises `TimeoutError` where the process does not take it in time.
        """
        deadline = time.monotonic() + timeout_s
        end = offset + len(data)
        at = offset
        while True:
            chunk = data[at - offset : at - offset + CHUNK_BYTES_MAX]
            last = at + len(chunk) == end
            request = process_pb2.WriteInputRequest(
                session_id=session_id,
                process_id=process_id,
                epoch=epoch,
                offset=at,
                data=chunk,
                close=close and last,
            )
            answer: process_pb2.WriteInputResponse = await self._connection.repeat(
                self.stub.WriteInput, request, deadline - time.monotonic()
            )
            taken = min(max(answer.bytes_written, at), end)
            if taken == end and last:
                return answer
            if taken == at:
                if time.monotonic() + INPUT_REST_S >= deadline:
                    raise TimeoutError(f"the process took {at - offset} of {len(data)} bytes")
                await asyncio.sleep(INPUT_REST_S)
            at = taken

    async def signal(
        self,
        session_id: str,
        process_id: str,
        number: int,
        *,
        epoch: int | None = None,
        timeout_s: float = SHORT_TIMEOUT_S,
    ) -> bool:
        """Signals the process's group. False where it had ended."""
        request = process_pb2.SignalProcessRequest(
            session_id=session_id, process_id=process_id, epoch=epoch, signal=number
        )
        send = self._connection.repeat if number in _HARMLESS else self._connection.once
        answer: process_pb2.SignalProcessResponse = await send(
            self.stub.SignalProcess, request, timeout_s
        )
        return answer.delivered

    async def wait(
        self, session_id: str, process_id: str, *, wait_s: float = FOLLOW_TIMEOUT_S
    ) -> process_pb2.Process:
        """The process once it has ended, or as it is after `wait_s`."""
        deadline = time.monotonic() + wait_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            request = process_pb2.WaitProcessRequest(
                session_id=session_id,
                process_id=process_id,
                wait_timeout=duration(min(left_s, WAIT_S_MAX)),
            )
            answer: process_pb2.WaitProcessResponse = await self._connection.repeat(
                self.stub.WaitProcess, request, min(left_s, WAIT_S_MAX) + SHORT_TIMEOUT_S
            )
            running = answer.process.state == process_pb2.PROCESS_STATE_RUNNING
            if not running or time.monotonic() >= deadline:
                return answer.process

    async def list(
        self, session_id: str, *, timeout_s: float = SHORT_TIMEOUT_S
    ) -> list[process_pb2.Process]:
        """Processes of the session, background jobs of calls included, oldest first."""
        request = process_pb2.ListProcessesRequest(session_id=session_id)
        answer: process_pb2.ListProcessesResponse = await self._connection.repeat(
            self.stub.ListProcesses, request, timeout_s
        )
        return [*answer.processes]

    async def resize(
        self,
        session_id: str,
        process_id: str,
        rows: int,
        columns: int,
        *,
        epoch: int | None = None,
        timeout_s: float = SHORT_TIMEOUT_S,
    ) -> None:
        """Sets the size of the process's terminal."""
        request = process_pb2.ResizeTerminalRequest(
            session_id=session_id,
            process_id=process_id,
            epoch=epoch,
            terminal=_size((rows, columns)),
        )
        await self._connection.repeat(self.stub.ResizeTerminal, request, timeout_s)


def _size(size: tuple[int, int] | None) -> process_pb2.TerminalSize | None:
    if size is None:
        return None
    return process_pb2.TerminalSize(rows=size[0], columns=size[1])
