"""Hostile and careless clients, against a real daemon on the local backend."""

from __future__ import annotations

import asyncio
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from grpc import aio
from prometheus_client.parser import text_string_to_metric_families

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.errors import AdapterError
from sandbox_adapter.v1 import file_pb2, session_pb2, tool_pb2, tool_pb2_grpc
from sandboxd import limits
from tests.integration.conftest import OpenSession, open_session
from tests.integration.daemon_process import DaemonProcess, until


@pytest.fixture
async def session(local_daemon: DaemonProcess) -> AsyncIterator[OpenSession]:
    async for opened in open_session(local_daemon):
        yield opened


@pytest.fixture
async def channel(session: OpenSession) -> AsyncIterator[aio.Channel]:
    async with aio.insecure_channel(session.daemon.address) as opened:
        yield opened


@pytest.fixture
def tools(channel: aio.Channel) -> Any:
    return tool_pb2_grpc.ToolServiceStub(channel)


def bash(session: OpenSession, command: str, **fields: Any) -> tool_pb2.CallToolRequest:
    return tool_pb2.CallToolRequest(
        session_id=session.id, bash=tool_pb2.BashInput(command=command), **fields
    )


async def status(attempt: Awaitable[Any]) -> str:
    try:
        await attempt
    except aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


@pytest.mark.parametrize("size", [600_000, 4 * limits.MIB])
async def test_refused_upload_says_why_however_much_is_under_way(
    session: OpenSession, size: int
) -> None:
    """Regression: half of the refused uploads ended as gRPC's own INTERNAL in the client."""
    reasons: Counter[str] = Counter()
    for turn in range(20):
        known = turn % 2 == 0
        with pytest.raises(AdapterError) as refused:
            await session.client.files.write(
                session.id if known else "never", "no/parent", b"x" * size
            )
        reasons[refused.value.reason] += 1
    assert reasons == {"FILE_NOT_FOUND": 10, "SESSION_UNKNOWN": 10}


async def test_bytes_that_are_no_message_are_the_clients_fault_and_not_logged(
    session: OpenSession, channel: aio.Channel
) -> None:
    """Regression: each such message got UNKNOWN, and a traceback in the log."""
    before = len(session.daemon.log)
    header = file_pb2.WriteFileRequest(
        header=file_pb2.WriteFileHeader(session_id=session.id, path="partial")
    ).SerializeToString()

    async def upload() -> AsyncIterator[bytes]:
        yield header
        yield b"\xff\xff\xff"

    unary: Any = channel.unary_unary("/sandbox_adapter.v1.ToolService/CallTool")
    write: Any = channel.stream_unary("/sandbox_adapter.v1.FileService/WriteFile")
    stream: Any = channel.unary_stream("/sandbox_adapter.v1.FileService/ReadFile")

    async def read() -> None:
        async for _ in stream(b"\xff"):
            raise AssertionError("answered")

    answers = [await status(unary(b"\xff\xff")), await status(write(upload()))]
    answers.append(await status(read()))
    assert answers == ["INVALID_ARGUMENT"] * 3
    assert (await session.bash("ls -A")).text == "(no output)"
    assert "raceback" not in session.daemon.log[before:]


async def test_flood_of_calls_is_queued_and_then_refused_with_a_time(
    session: OpenSession, tools: Any
) -> None:
    flood = [asyncio.create_task(status(tools.CallTool(bash(session, "sleep 30"))))]
    flood += [
        asyncio.create_task(status(tools.CallTool(bash(session, "sleep 30")))) for _ in range(299)
    ]

    async def refused() -> bool:
        return sum(task.done() for task in flood) == 300 - 16 - limits.CALLS_QUEUED_MAX

    try:
        await until(refused, 20)
        assert {task.result() for task in flood if task.done()} == {"RESOURCE_EXHAUSTED"}
        # Somebody else's calls are not held up by it.
        async for other in open_session(session.daemon):
            async with asyncio.timeout(3):
                assert (await other.bash("echo other")).text == "other\n"
    finally:
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)


async def test_fifty_clients_with_one_call_id_run_one_call(
    session: OpenSession, tools: Any
) -> None:
    request = bash(session, "echo once >> effects; sleep 0.3; date +%N", call_id="same")
    answers = await asyncio.gather(*[tools.CallTool(request) for _ in range(50)])
    assert len({answer.result.text for answer in answers}) == 1
    assert sum(answer.result.replayed for answer in answers) == 49
    assert (await session.bash("wc -l < effects")).text.strip() == "1"


async def test_hundreds_of_cancelled_requests_leave_the_session_working(
    session: OpenSession, tools: Any
) -> None:
    for _ in range(3):
        tasks = [
            asyncio.create_task(
                status(tools.CallTool(bash(session, "sleep 40.25", cancel_on_disconnect=True)))
            )
            for _ in range(150)
        ]
        # In the middle of it, wherever that is: some run, some wait, some have not arrived.
        await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def gone() -> bool:
        shown = await session.bash("pgrep -cf '[s]leep 40.25'")
        return shown.text.startswith("0\n")

    await until(gone, 20)


async def test_metrics_are_valid_and_name_no_session(session: OpenSession) -> None:
    await session.bash("echo counted")

    def scrape() -> str:
        with urllib.request.urlopen(f"http://{session.daemon.metrics}/metrics", timeout=10) as got:
            return str(got.read().decode())

    families = list(text_string_to_metric_families(await asyncio.to_thread(scrape)))
    samples = [sample for family in families for sample in family.samples]
    assert any(sample.name.startswith("sandboxd_") for sample in samples)
    assert not any(
        session.id in value or ("/" in value and "Service/" not in value)
        for sample in samples
        for value in sample.labels.values()
    )


async def test_twenty_creates_and_deletes_of_one_id_make_one_session(
    local_daemon: DaemonProcess,
) -> None:
    async with AdapterClient(local_daemon.address) as client:
        made = await asyncio.gather(*[client.create_session(session_id="crowd") for _ in range(20)])
        assert {session.generation for session in made} == {1}
        assert {session.state for session in made} == {session_pb2.SESSION_STATE_READY}
        await asyncio.gather(*[client.delete_session("crowd") for _ in range(20)])
        with pytest.raises(AdapterError) as refused:
            await client.create_session(session_id="crowd")
        assert refused.value.reason == "SESSION_DELETED"
