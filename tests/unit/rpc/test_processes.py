"""`ProcessService` over a scripted guest: envelopes, statuses, streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc import aio

from sandbox_adapter.processes import STDERR, STDOUT
from sandbox_adapter.v1 import process_pb2, session_pb2
from sandboxd import limits
from sandboxd.errors import GuestFault
from tests.unit.sessions.scripted_processes import ENDED, ScriptedProcesses, piece
from tests.unit.worker import Worker, error_info, reason_of, running, until

IDS: dict[str, Any] = {"session_id": "s1", "process_id": "p"}
FOLLOW = process_pb2.ReadOutputRequest(**IDS, stream=STDOUT, follow=True)


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    async with running(tmp_path) as serving:
        await serving.create()
        yield serving


@pytest.fixture
async def guest(worker: Worker) -> ScriptedProcesses:
    scripted = ScriptedProcesses()
    worker.backend.on_request = scripted.answer
    return scripted


async def start(worker: Worker, **fields: Any) -> process_pb2.StartProcessResponse:
    asked = {"session_id": "s1", "process_id": "p", "argv": ["sh"], **fields}
    answer: process_pb2.StartProcessResponse = await worker.processes.StartProcess(
        process_pb2.StartProcessRequest(**asked)
    )
    return answer


async def refused(call: Any) -> aio.AioRpcError:
    with pytest.raises(aio.AioRpcError) as failed:
        await call
    return failed.value


def streams_open(worker: Worker) -> float | None:
    labels = {"method": "ProcessService/ReadOutput"}
    return worker.metrics.registry.get_sample_value("sandboxd_rpc_streams_open", labels)


async def test_start_passes_on_what_was_asked(worker: Worker, guest: ScriptedProcesses) -> None:
    answer = await start(
        worker,
        argv=["sh", "-c", "é"],
        cwd="d",
        env={"A": "1"},
        terminal=process_pb2.TerminalSize(rows=24, columns=80),
        timeout=Duration(seconds=1, nanos=500_000_000),
    )
    assert (answer.process.pid, answer.replayed) == (7, False)
    assert answer.process.state == process_pb2.PROCESS_STATE_RUNNING
    assert not answer.process.HasField("exit_code")
    assert not answer.process.HasField("ended_at")
    (asked,) = [request for request in guest.asked if request.op == "process_start"]
    assert guest.bodies["p"] == {"argv": ["sh", "-c", "é"], "env": {"A": "1"}}
    wanted = {"process_id": "p", "cwd": "d", "rows": 24, "columns": 80, "timeout_s": 1.5}
    assert {**asked.args, "wait_s": None} == {**wanted, "wait_s": None}


async def test_start_without_an_id_makes_one(worker: Worker, guest: ScriptedProcesses) -> None:
    first, second = await start(worker, process_id=""), await start(worker, process_id="")
    assert first.process.process_id
    assert first.process.process_id != second.process.process_id


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("session_id", {"session_id": ""}),
        ("process_id", {"process_id": "-"}),
        ("argv", {"argv": []}),
        ("argv", {"argv": [""]}),
        ("argv", {"argv": ["a", "\0"]}),
        ("argv", {"argv": ["x" * limits.PROCESS_ARGUMENT_BYTES_MAX]}),
        ("cwd", {"cwd": "\0"}),
        ("env", {"env": {"1": "x"}}),
        ("env", {"env": {"A": "x" * limits.ENV_BYTES_MAX}}),
        ("terminal.rows", {"terminal": process_pb2.TerminalSize(columns=1)}),
        ("terminal.columns", {"terminal": process_pb2.TerminalSize(rows=1, columns=10_001)}),
        ("timeout", {"timeout": Duration()}),
        ("timeout", {"timeout": Duration(seconds=-1)}),
    ],
)
async def test_malformed_start_names_its_field(
    worker: Worker, guest: ScriptedProcesses, field: str, fields: dict[str, Any]
) -> None:
    error = await refused(start(worker, **fields))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_info(error).metadata["field"] == field
    assert guest.ops == []


async def test_other_malformed_requests_name_their_field(
    worker: Worker, guest: ScriptedProcesses
) -> None:
    await start(worker)
    stub, ids = worker.processes, dict(IDS)
    size = process_pb2.TerminalSize(rows=0, columns=1)
    calls = {
        "stream": stub.ReadOutput(process_pb2.ReadOutputRequest(**ids)).read(),
        "offset": stub.ReadOutput(
            process_pb2.ReadOutputRequest(**ids, stream=STDOUT, offset=2**64 - 1)
        ).read(),
        "data": stub.WriteInput(
            process_pb2.WriteInputRequest(**ids, data=b"x" * (limits.CHUNK_BYTES_MAX + 1))
        ),
        "signal": stub.SignalProcess(process_pb2.SignalProcessRequest(**ids, signal=65)),
        "wait_timeout": stub.WaitProcess(
            process_pb2.WaitProcessRequest(**ids, wait_timeout=Duration(seconds=60, nanos=1))
        ),
        "terminal": stub.ResizeTerminal(process_pb2.ResizeTerminalRequest(**ids)),
        "terminal.rows": stub.ResizeTerminal(
            process_pb2.ResizeTerminalRequest(**ids, terminal=size)
        ),
        "process_id": stub.WaitProcess(process_pb2.WaitProcessRequest(session_id="s1")),
    }
    for field, call in calls.items():
        error = await refused(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error_info(error).metadata["field"] == field


@pytest.mark.parametrize(
    ("reason", "code", "told"),
    [
        ("FILE_NOT_FOUND", grpc.StatusCode.FAILED_PRECONDITION, "FILE_NOT_FOUND"),
        ("PERMISSION_DENIED", grpc.StatusCode.FAILED_PRECONDITION, "PERMISSION_DENIED"),
        ("SPAWN_FAILED", grpc.StatusCode.FAILED_PRECONDITION, "SPAWN_FAILED"),
        ("INVALID_INPUT", grpc.StatusCode.FAILED_PRECONDITION, "INVALID_INPUT"),
        ("PROCESS_UNKNOWN", grpc.StatusCode.NOT_FOUND, "PROCESS_UNKNOWN"),
        ("CALLS_EXHAUSTED", grpc.StatusCode.RESOURCE_EXHAUSTED, "CALLS_EXHAUSTED"),
        ("INTERNAL_ERROR", grpc.StatusCode.INTERNAL, "INTERNAL_ERROR"),
        ("NO_REASON_OF_OURS", grpc.StatusCode.FAILED_PRECONDITION, "IO_ERROR"),
        ("SESSION_DELETED", grpc.StatusCode.FAILED_PRECONDITION, "IO_ERROR"),
        ("UNAUTHENTICATED", grpc.StatusCode.FAILED_PRECONDITION, "IO_ERROR"),
        ("EPOCH_STALE", grpc.StatusCode.FAILED_PRECONDITION, "IO_ERROR"),
    ],
)
async def test_fault_of_the_guest_is_a_failed_rpc(
    worker: Worker, guest: ScriptedProcesses, reason: str, code: grpc.StatusCode, told: str
) -> None:
    guest.fault = GuestFault(reason, "no\0 way", {})
    error = await refused(start(worker))
    assert (error.code(), reason_of(error)) == (code, told)


async def test_conflict_is_already_exists(worker: Worker, guest: ScriptedProcesses) -> None:
    await start(worker)
    error = await refused(start(worker, argv=["other"]))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert reason_of(error) == "ID_CONFLICT"


async def test_wait_tells_the_end(worker: Worker, guest: ScriptedProcesses) -> None:
    await start(worker)
    guest.known["p"] = {**ENDED, "exit_code": None, "signal": 15}
    answer = await worker.processes.WaitProcess(process_pb2.WaitProcessRequest(**IDS))
    process = answer.process
    assert (process.exit_code, process.signal) == (143, 15)
    assert process.state == process_pb2.PROCESS_STATE_ENDED
    assert process.HasField("ended_at")
    listed = await worker.processes.ListProcesses(process_pb2.ListProcessesRequest(session_id="s1"))
    assert list(listed.processes) == [process]


async def test_output_streams_until_it_is_closed(worker: Worker, guest: ScriptedProcesses) -> None:
    await start(worker)
    guest.outputs = [piece(b"ab", 10, dropped=10), piece(b"c", 12, closed=True)]
    request = process_pb2.ReadOutputRequest(
        session_id="s1", process_id="p", stream=STDERR, follow=True
    )
    messages = [message async for message in worker.processes.ReadOutput(request)]
    assert [(m.offset, m.data, m.bytes_dropped, m.closed) for m in messages] == [
        (10, b"ab", 10, False),
        (12, b"c", 0, True),
    ]
    assert {r.args["stream"] for r in guest.asked if r.op == "process_read"} == {"stderr"}


async def test_follower_that_leaves_gives_its_place_back(
    worker: Worker, guest: ScriptedProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROCESS_VERBS_MAX", 1)
    await start(worker)
    guest.gate.clear()
    request = process_pb2.ReadOutputRequest(
        session_id="s1", process_id="p", stream=STDOUT, follow=True
    )
    stream = worker.processes.ReadOutput(request)
    reading = asyncio.create_task(stream.read())
    await until(lambda: "process_read" in guest.ops)
    assert reason_of(await refused(start(worker))) == "CALLS_EXHAUSTED"
    stream.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    guest.gate.set()

    async def free() -> bool:
        try:
            return (await start(worker)).replayed
        except aio.AioRpcError:
            return False

    await until(free)


async def test_follower_is_sent_away_in_good_order_after_the_life_of_its_stream(
    worker: Worker, guest: ScriptedProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAM_LIFE_S", 0.3)
    await start(worker)
    guest.outputs = [piece(b"ab", 0)]
    stream = worker.processes.ReadOutput(FOLLOW)
    assert (await stream.read()).data == b"ab"
    async with asyncio.timeout(10):
        assert await stream.read() is aio.EOF
    assert await stream.code() is grpc.StatusCode.OK
    again = process_pb2.ReadOutputRequest()
    again.CopyFrom(FOLLOW)
    again.offset = 2
    guest.outputs = [piece(b"c", 2, closed=True)]
    (message,) = [message async for message in worker.processes.ReadOutput(again)]
    assert (message.offset, message.data, message.bytes_dropped) == (2, b"c", 0)


async def test_followers_are_sent_away_when_the_daemon_drains(
    worker: Worker, guest: ScriptedProcesses
) -> None:
    await start(worker)
    guest.outputs = [piece(b"ab", 0)]
    stream = worker.processes.ReadOutput(FOLLOW)
    assert (await stream.read()).data == b"ab"
    await worker.parts.server.announce_end()
    async with asyncio.timeout(10):
        assert await stream.read() is aio.EOF
    assert await stream.code() is grpc.StatusCode.OK
    assert reason_of(await refused(worker.processes.ReadOutput(FOLLOW).read())) == "DRAINING"


async def test_follower_of_a_silent_output_does_not_hold_off_idle_expiry(
    worker: Worker, guest: ScriptedProcesses
) -> None:
    await start(worker)
    (live,) = worker.parts.directory.all()
    guest.outputs = [piece(b"ab", 0)]
    used_at = live.record.used_at
    stream = worker.processes.ReadOutput(FOLLOW)
    assert (await stream.read()).data == b"ab"
    assert live.record.used_at > used_at, "output that comes is use"
    await until(lambda: guest.ops.count("process_read") == 2)
    used_at = live.record.used_at
    assert not live.busy
    stream.cancel()
    await until(lambda: streams_open(worker) == 0)
    assert live.record.used_at == used_at


async def test_open_streams_are_counted(worker: Worker, guest: ScriptedProcesses) -> None:
    await start(worker)
    guest.outputs = [piece(b"ab", 0)]
    stream = worker.processes.ReadOutput(FOLLOW)
    await stream.read()
    assert streams_open(worker) == 1
    stream.cancel()
    await until(lambda: streams_open(worker) == 0)


async def test_stale_owner_is_refused(worker: Worker, guest: ScriptedProcesses) -> None:
    await start(worker, epoch=3)
    update = session_pb2.UpdateSessionRequest(session_id="s1", epoch=4)
    await worker.sessions.UpdateSession(update)
    stub, ids = worker.processes, {**IDS, "epoch": 3}
    size = process_pb2.TerminalSize(rows=1, columns=1)
    asked = len(guest.ops)
    for call in (
        start(worker, process_id="q", epoch=3),
        stub.WriteInput(process_pb2.WriteInputRequest(**ids)),
        stub.SignalProcess(process_pb2.SignalProcessRequest(**ids, signal=9)),
        stub.ResizeTerminal(process_pb2.ResizeTerminalRequest(**ids, terminal=size)),
    ):
        error = await refused(call)
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.ABORTED, "EPOCH_STALE")
    assert len(guest.ops) == asked


def test_announced_limits_are_those_that_the_guest_keeps() -> None:
    from sandboxd.guest import process_ends, process_ring, process_table, process_terminal

    assert limits.PROCESSES_MAX == process_table.PROCESSES_MAX
    assert limits.PROCESSES_ENDED_MAX == process_table.ENDED_MAX
    assert limits.PROCESSES_RECORDED_MAX == process_table.REMEMBERED_MAX
    assert limits.PROCESS_OUTPUT_BYTES_MAX == process_ring.STREAM_BYTES_MAX
    assert limits.PROCESS_OUTPUT_TOTAL_BYTES_MAX == process_table.OUTPUT_BYTES_MAX
    assert limits.KILL_GRACE_S == process_ends.KILL_GRACE_S
    assert limits.TERMINAL_CELLS_MAX == process_terminal.CELLS_MAX
