"""The client's process verbs: repeated by id and offset, so that nothing is lost or done twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.errors import AdapterError
from sandbox_adapter.v1 import process_pb2, process_pb2_grpc

OUTPUT = bytes(range(256)) * 4


class Adapter(process_pb2_grpc.ProcessServiceServicer):
    """One process whose output breaks off after each message, and whose pipe is narrow."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.started: list[process_pb2.StartProcessRequest] = []
        self.signals = 0
        self.taken = b""
        self.closed = False
        self.waits: list[float] = []
        self.breaks = 3
        self.status: grpc.StatusCode | None = grpc.StatusCode.UNAVAILABLE
        """None: the stream ends with OK."""
        self.empty = 0
        """Streams that end before anything comes."""

    async def StartProcess(self, request: Any, context: Any) -> Any:
        self.started.append(request)
        if len(self.started) == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        return process_pb2.StartProcessResponse(replayed=True)

    async def ReadOutput(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.offsets.append(request.offset)
        if self.empty > 0:
            self.empty -= 1
            return
        yield process_pb2.ReadOutputResponse(offset=request.offset)
        at = request.offset
        while at < len(OUTPUT):
            data = OUTPUT[at : at + 100]
            yield process_pb2.ReadOutputResponse(offset=at, data=data)
            at += len(data)
            if self.breaks > 0:
                self.breaks -= 1
                if self.status is None:
                    return
                await context.abort(self.status, "gone")
        yield process_pb2.ReadOutputResponse(offset=at, closed=True)

    async def WriteInput(self, request: Any, context: Any) -> Any:
        assert request.offset <= len(self.taken)
        rest = request.data[len(self.taken) - request.offset :]
        self.taken += rest[:70_000]
        if request.offset + len(request.data) == len(self.taken):
            self.closed = self.closed or request.close
        return process_pb2.WriteInputResponse(bytes_written=len(self.taken), closed=self.closed)

    async def SignalProcess(self, request: Any, context: Any) -> Any:
        self.signals += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async def WaitProcess(self, request: Any, context: Any) -> Any:
        self.waits.append(request.wait_timeout.ToNanoseconds() / 1e9)
        running = len(self.waits) < 3
        state = process_pb2.PROCESS_STATE_RUNNING if running else process_pb2.PROCESS_STATE_ENDED
        return process_pb2.WaitProcessResponse(process=process_pb2.Process(state=state))


@asynccontextmanager
async def serving(folder: Path, adapter: Adapter) -> AsyncIterator[AdapterClient]:
    server = grpc.aio.server()
    process_pb2_grpc.add_ProcessServiceServicer_to_server(adapter, server)
    address = f"unix:{folder}/adapter.sock"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with AdapterClient(address, retry_s_max=1.0) as client:
            yield client
    finally:
        await server.stop(0)


async def test_output_goes_on_by_offset_after_its_stream_broke(tmp_path: Path) -> None:
    adapter = Adapter()
    async with serving(tmp_path, adapter) as client:
        messages = [message async for message in client.processes.output("s", "p")]
    assert b"".join(message.data for message in messages) == OUTPUT
    assert [message.closed for message in messages][-1]
    assert adapter.offsets == [0, 100, 200, 300]


async def test_output_goes_on_by_offset_after_the_life_of_its_stream(tmp_path: Path) -> None:
    adapter = Adapter()
    adapter.status, adapter.empty = None, 2
    async with serving(tmp_path, adapter) as client:
        messages = [message async for message in client.processes.output("s", "p")]
    assert b"".join(message.data for message in messages) == OUTPUT
    assert [message.closed for message in messages][-1]
    assert adapter.offsets == [0, 0, 0, 100, 200, 300]


async def test_output_that_is_not_followed_ends_with_its_stream(tmp_path: Path) -> None:
    adapter = Adapter()
    adapter.status = None
    async with serving(tmp_path, adapter) as client:
        messages = [message async for message in client.processes.output("s", "p", follow=False)]
    assert b"".join(message.data for message in messages) == OUTPUT[:100]
    assert adapter.offsets == [0]


async def test_output_whose_streams_never_end_closed_ends_with_the_time(tmp_path: Path) -> None:
    adapter = Adapter()
    adapter.empty = 1_000_000
    async with serving(tmp_path, adapter) as client:
        with pytest.raises((AdapterError, TimeoutError)):
            [message async for message in client.processes.output("s", "p", timeout_s=0.5)]
    assert 2 <= len(adapter.offsets) <= 11


async def test_output_that_fails_for_a_reason_is_not_opened_again(tmp_path: Path) -> None:
    adapter = Adapter()
    adapter.status = grpc.StatusCode.ABORTED
    async with serving(tmp_path, adapter) as client:
        with pytest.raises(AdapterError) as failed:
            [message async for message in client.processes.output("s", "p")]
    assert failed.value.status == "ABORTED"
    assert adapter.offsets == [0]


async def test_write_goes_on_until_all_is_taken(tmp_path: Path) -> None:
    adapter = Adapter()
    data = OUTPUT * 1_000
    async with serving(tmp_path, adapter) as client:
        answer = await client.processes.write("s", "p", data, offset=0, close=True)
        assert adapter.taken == data
        assert (answer.bytes_written, answer.closed) == (len(data), True)
        # The same again has no effect.
        answer = await client.processes.write("s", "p", data, offset=0, close=True)
    assert adapter.taken == data
    assert answer.closed


async def test_start_is_repeated_with_the_same_id(tmp_path: Path) -> None:
    adapter = Adapter()
    async with serving(tmp_path, adapter) as client:
        answer = await client.processes.start("s", ["x"])
    assert answer.replayed
    first, second = adapter.started
    assert first == second
    assert first.process_id


@pytest.mark.parametrize(("number", "repeated"), [(9, True), (15, True), (10, False)])
async def test_signals_are_repeated_only_where_that_is_harmless(
    tmp_path: Path, number: int, repeated: bool
) -> None:
    adapter = Adapter()
    async with serving(tmp_path, adapter) as client:
        with pytest.raises(AdapterError):
            await client.processes.signal("s", "p", number)
    assert (adapter.signals > 1) is repeated


async def test_wait_asks_again_in_steps_that_the_contract_allows(tmp_path: Path) -> None:
    adapter = Adapter()
    async with serving(tmp_path, adapter) as client:
        process = await client.processes.wait("s", "p", wait_s=1_000)
    assert process.state == process_pb2.PROCESS_STATE_ENDED
    assert adapter.waits == [60.0, 60.0, 60.0]
