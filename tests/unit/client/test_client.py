"""The client against real gRPC servers over a Unix socket."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from sandbox_adapter import errors
from sandbox_adapter.client import AdapterClient, new_id
from sandbox_adapter.connection import MESSAGE_BYTES_MAX
from sandbox_adapter.v1 import (
    error_pb2,
    file_pb2,
    file_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    tool_pb2,
    tool_pb2_grpc,
)
from tests.unit.orchestrator.folder_adapter import Context, fail

Handler = Callable[[Any, Context], Awaitable[Any]]


class Scripted(
    tool_pb2_grpc.ToolServiceServicer,
    session_pb2_grpc.SessionServiceServicer,
    file_pb2_grpc.FileServiceServicer,
):
    """Answers with what a test wants, and keeps what was asked."""

    def __init__(self, handler: Handler) -> None:
        self.requests: list[Any] = []
        self._handler = handler

    async def _answer(self, request: Any, context: Context) -> Any:
        self.requests.append(request)
        return await self._handler(request, context)

    async def CallTool(self, request: Any, context: Context) -> Any:
        return await self._answer(request, context)

    async def CreateSession(self, request: Any, context: Context) -> Any:
        return await self._answer(request, context)

    async def MovePath(self, request: Any, context: Context) -> Any:
        return await self._answer(request, context)

    async def WriteFile(self, requests: Any, context: Context) -> Any:
        return await self._answer([message async for message in requests], context)

    async def ReadFile(self, request: Any, context: Context) -> AsyncIterator[Any]:
        for message in await self._answer(request, context):
            yield message


@asynccontextmanager
async def serving(socket: Path, service: Scripted) -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)])
    tool_pb2_grpc.add_ToolServiceServicer_to_server(service, server)
    session_pb2_grpc.add_SessionServiceServicer_to_server(service, server)
    file_pb2_grpc.add_FileServiceServicer_to_server(service, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield f"unix:{socket}"
    finally:
        await server.stop(0)


def done(request: Any) -> tool_pb2.CallToolResponse:
    return tool_pb2.CallToolResponse(
        call_id=request.call_id, result=tool_pb2.ToolResult(text="done")
    )


async def test_call_is_repeated_with_the_same_id_after_unavailable(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        if len(service.requests) < 3:
            await fail(context, "UNAVAILABLE", "SESSION_NOT_READY", retry_s=0.01)
        return done(request)

    service = Scripted(handler)
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        response = await client.call_tool("ses", "read", {"path": "a"})
    assert response.result.text == "done"
    assert len(service.requests) == 3
    assert len({request.call_id for request in service.requests}) == 1
    assert service.requests[0].call_id == response.call_id


async def test_call_survives_a_restart_of_the_adapter(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def hangs(request: Any, context: Context) -> Any:
        begun.set()
        await asyncio.sleep(60)

    async def answers(request: Any, context: Context) -> Any:
        return done(request)

    first, second = Scripted(hangs), Scripted(answers)
    async with AdapterClient(f"unix:{tmp_path / 's'}") as client:
        async with serving(tmp_path / "s", first):
            call = asyncio.ensure_future(client.call_tool("ses", "bash", {"command": "x"}))
            await asyncio.wait_for(begun.wait(), 10)
        async with serving(tmp_path / "s", second):
            response = await asyncio.wait_for(call, 20)
    assert response.result.text == "done"
    assert second.requests[-1].call_id == first.requests[0].call_id


async def test_retry_info_is_honoured(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        if len(service.requests) == 1:
            await fail(context, "RESOURCE_EXHAUSTED", "CALLS_EXHAUSTED", retry_s=0.4)
        return done(request)

    service = Scripted(handler)
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        begun = time.monotonic()
        await client.call_tool("ses", "read", {})
    assert time.monotonic() - begun >= 0.4


async def test_a_wait_beyond_the_deadline_is_not_waited(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        await fail(context, "UNAVAILABLE", "DRAINING", "shutting down", retry_s=30)

    service = Scripted(handler)
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        begun = time.monotonic()
        with pytest.raises(errors.Draining) as caught:
            await client.call_tool("ses", "read", {}, timeout_s=2)
    assert time.monotonic() - begun < 2
    assert caught.value.retry_after_s == 30
    assert len(service.requests) == 1


async def test_unreachable_adapter_is_given_up_within_the_retry_time(tmp_path: Path) -> None:
    async with AdapterClient(f"unix:{tmp_path / 'nobody'}", retry_s_max=0.5) as client:
        begun = time.monotonic()
        with pytest.raises(errors.ConnectionLost):
            await client.get_session("ses")
    assert 0.2 < time.monotonic() - begun < 5


async def test_effects_without_an_id_are_never_repeated(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        await fail(context, "UNAVAILABLE", "", "connection lost")

    service = Scripted(handler)
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        with pytest.raises(errors.ConnectionLost):
            await client.files.move("ses", "a", "b")
        with pytest.raises(errors.ConnectionLost):
            await client.files.write("ses", "a", b"content")
    assert len(service.requests) == 2


async def test_failures_that_waiting_cannot_help_are_not_repeated(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        await fail(context, "FAILED_PRECONDITION", "SESSION_FAILED", "it failed")

    service = Scripted(handler)
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        with pytest.raises(errors.SessionFailed, match="it failed"):
            await client.call_tool("ses", "read", {})
    assert len(service.requests) == 1


async def test_call_over_the_message_bound_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        return done(request)

    service = Scripted(handler)
    # As JSON each of them has two bytes.
    lines = "\n" * (11 * 1024 * 1024)
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        with pytest.raises(errors.InvalidRequest, match=r"20 MiB.*FileService") as by_json:
            await client.call_tool("ses", "write", {"path": "a", "content": lines})
        typed = tool_pb2.WriteInput(path="a", content=lines * 2)
        with pytest.raises(errors.InvalidRequest, match=r"20 MiB.*FileService") as by_type:
            await client.call_typed("ses", typed)
    for caught, field in ((by_json, "custom.json"), (by_type, "write")):
        assert caught.value.reason == "INVALID_ENVELOPE"
        assert caught.value.failure.metadata == {
            "field": field, "rule": "must fit in a message of 20 MiB"
        }  # fmt: skip
    assert service.requests == []


async def test_call_with_half_a_character_reaches_the_adapter(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        return done(request)

    service = Scripted(handler)
    arguments = {"path": "é\U0001f600", "content": "a\ud800"}
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        await client.call_tool("ses", "write", arguments)
    assert json.loads(service.requests[0].custom.json) == arguments


async def test_write_passes_the_expected_version_and_tells_of_a_conflict(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        if request[0].header.expected_version == "v1":
            return file_pb2.WriteFileResponse(version="v2")
        return await fail(context, "ABORTED", "VERSION_CONFLICT")

    service = Scripted(handler)
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        assert (await client.files.write("ses", "a", b"x", expected_version="v1")).version == "v2"
        with pytest.raises(errors.VersionConflict):
            await client.files.write("ses", "a", b"x", expected_version="")
        with pytest.raises(errors.VersionConflict):
            await client.files.write("ses", "a", b"x")
    headers = [request[0].header for request in service.requests]
    assert [header.HasField("expected_version") for header in headers] == [True, True, False]


async def test_call_of_exactly_the_message_bound_is_sent(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        return done(request)

    service = Scripted(handler)
    typed = tool_pb2.WriteInput(content="x")
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        await client.call_typed("ses", typed, call_id="c")
        # What stands around the content grows with the length of its lengths.
        around = service.requests.pop().ByteSize() - 1
        typed.content = "x" * (MESSAGE_BYTES_MAX - around - 2 * 3)
        await client.call_typed("ses", typed, call_id="c")
        assert service.requests.pop().ByteSize() == MESSAGE_BYTES_MAX
        typed.content += "x"
        with pytest.raises(errors.InvalidRequest):
            await client.call_typed("ses", typed, call_id="c")
    assert service.requests == []


async def test_create_session_makes_an_id_and_keeps_it_across_repeats(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        if len(service.requests) < 2:
            await fail(context, "UNAVAILABLE", "ENGINE_DOWN", retry_s=0.01)
        return session_pb2.CreateSessionResponse(
            session=session_pb2.Session(session_id=request.session_id)
        )

    service = Scripted(handler)
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        session = await client.create_session()
    assert {request.session_id for request in service.requests} == {session.session_id}
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", session.session_id)


async def test_malformed_status_details_leave_the_status_code(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        await context.abort(
            grpc.StatusCode.NOT_FOUND,
            "gone",
            trailing_metadata=(("grpc-status-details-bin", b"\xff\xfe garbage"),),
        )

    async with serving(tmp_path / "s", Scripted(handler)) as target:
        async with AdapterClient(target) as client:
            with pytest.raises(errors.AdapterError) as caught:
                await client.call_tool("ses", "read", {})
    assert (caught.value.status, caught.value.reason) == ("NOT_FOUND", "")


async def test_write_is_cut_into_chunks_of_at_most_256_kib(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        return file_pb2.WriteFileResponse(bytes_written=700_000)

    service = Scripted(handler)
    content = bytes(range(250)) * 2_800
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        await client.files.write("ses", "a", content)
    header, *pieces, end = service.requests[0]
    assert header.header.path == "a"
    assert b"".join(piece.data for piece in pieces) == content
    assert max(len(piece.data) for piece in pieces) == 256 * 1024
    assert end.end.size == len(content)


async def test_write_whose_source_breaks_raises_what_the_source_raised(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        return file_pb2.WriteFileResponse(bytes_written=1)

    async def source() -> AsyncIterator[bytes]:
        yield b"the beginning"
        raise OSError(5, "Input/output error")

    service = Scripted(handler)
    async with serving(tmp_path / "s", service) as target, AdapterClient(target) as client:
        with pytest.raises(OSError, match="Input/output error"):
            await client.files.write("ses", "a", source())
    # To the server a broken stream may look complete: it is the end that is missing.
    sent = [message.WhichOneof("part") for request in service.requests for message in request]
    assert "end" not in sent


async def test_read_gives_the_facts_before_the_content(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        return [
            file_pb2.ReadFileResponse(stat=file_pb2.FileStat(size=6)),
            file_pb2.ReadFileResponse(data=b"abc"),
            file_pb2.ReadFileResponse(data=b"def"),
        ]

    async with serving(tmp_path / "s", Scripted(handler)) as target:
        async with AdapterClient(target) as client, client.files.read("ses", "a") as reader:
            assert reader.stat.size == 6
            assert b"".join([piece async for piece in reader]) == b"abcdef"


async def test_read_of_a_missing_file_says_so(tmp_path: Path) -> None:
    async def handler(request: Any, context: Context) -> Any:
        await fail(context, "NOT_FOUND", "FILE_NOT_FOUND", "nothing there")

    async with serving(tmp_path / "s", Scripted(handler)) as target:
        async with AdapterClient(target) as client:
            with pytest.raises(errors.FileNotFound):
                async with client.files.read("ses", "a"):
                    pytest.fail("the file was opened")


def test_every_reason_of_a_failed_rpc_has_a_class_of_its_own() -> None:
    # In these two ranges a reason names the ending, or a fault, of a tool that ran.
    of_results = {*range(71, 90), 105, 123, 126, 128, 129, *range(112, 117), 118, 119}
    for name, number in error_pb2.Reason.items():
        if number == 0 or number in of_results:
            continue
        reason = name.removeprefix("REASON_")
        assert errors.error_class("FAILED_PRECONDITION", reason) is not errors.AdapterError, reason


def test_unknown_reason_falls_back_to_the_status() -> None:
    assert errors.error_class("INVALID_ARGUMENT", "FROM_THE_FUTURE") is errors.InvalidRequest
    # A reason means that the adapter answered: the connection was not lost.
    assert errors.error_class("UNAVAILABLE", "FROM_THE_FUTURE") is errors.Unavailable
    assert errors.error_class("UNAVAILABLE", "") is errors.ConnectionLost


def test_ids_are_new_and_ordered_by_time() -> None:
    first = new_id("call")
    time.sleep(0.002)
    second = new_id("call")
    assert re.fullmatch(r"call_[0-9A-Z]{26}", first)
    assert first < second
