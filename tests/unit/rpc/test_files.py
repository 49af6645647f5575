"""`FileService` over a scripted guest: streams, handles, faults."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

from sandbox_adapter.v1 import file_pb2, session_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.backends.fake import FakeRequest
from sandboxd.errors import GuestFault
from tests.unit.worker import Worker, error_info, reason_of, until

STAT: dict[str, Any] = {
    "kind": "file",
    "size": 3,
    "mode": 0o644,
    "uid": 1,
    "gid": 2,
    "mtime_ns": 1_700_000_000_123_456_789,
    "version": "",
    "link_target": "",
}
NOT_ITS_TO_SAY = ["SESSION_DELETED", "UNAUTHENTICATED", "EPOCH_STALE", "LEDGER_FULL"]
"""Reasons of the contract that are no faults of a verb."""


class FakeFiles:
    """One file, and what was asked of it."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = content
        self.position = 0
        self.uploaded = bytearray()
        self.committed: bytes | None = None
        self.closed: list[str] = []
        self.read_gate = asyncio.Event()
        self.read_gate.set()
        self.facts: dict[str, dict[str, Any]] = {}
        self.fault: GuestFault | None = None
        self.pages: list[dict[str, Any]] = []

    async def answer(self, request: FakeRequest) -> Reply:
        if self.fault is not None:
            raise self.fault
        if request.op in self.facts:
            return Reply(self.facts[request.op])
        if request.op == "file_open":
            self.position = int(request.args["offset"])
            return Reply({"handle": "h", "stat": STAT})
        if request.op == "file_read":
            await self.read_gate.wait()
            most = int(request.args["bytes_max"])
            assert most <= limits.MIB
            piece = self.content[self.position : self.position + most]
            self.position += len(piece)
            return Reply({"eof": len(piece) < most}, piece)
        if request.op == "upload_open":
            return Reply({"handle": "u"})
        if request.op == "upload_append":
            self.uploaded += request.body
            return Reply({"bytes": len(self.uploaded)})
        if request.op == "upload_commit":
            self.committed = bytes(self.uploaded)
            facts = {"bytes": len(self.committed), "created": True, "version": ""}
            return Reply({**facts, "lock_wait_s": 0.5})
        if request.op == "list_open":
            return Reply({"handle": "l"})
        if request.op == "list_next":
            return Reply(self.pages.pop(0))
        if request.op in ("file_close", "upload_abort", "list_close"):
            self.closed.append(request.op)
        return Reply({})


@pytest.fixture
async def files(worker: Worker) -> FakeFiles:
    found = FakeFiles()
    worker.guest.files = found.answer
    await worker.create()
    return found


async def _read(worker: Worker, **fields: Any) -> tuple[file_pb2.FileStat, list[bytes]]:
    request = file_pb2.ReadFileRequest(session_id="s1", path="f", **fields)
    messages = [message async for message in worker.files.ReadFile(request)]
    assert messages[0].WhichOneof("part") == "stat"
    return messages[0].stat, [message.data for message in messages[1:]]


def _upload(*parts: bytes, **header: Any) -> AsyncIterator[file_pb2.WriteFileRequest]:
    async def messages() -> AsyncIterator[file_pb2.WriteFileRequest]:
        fields = {"session_id": "s1", "path": "f", **header}
        yield file_pb2.WriteFileRequest(header=file_pb2.WriteFileHeader(**fields))
        for part in parts:
            yield file_pb2.WriteFileRequest(data=part)
        end = file_pb2.WriteFileEnd(size=sum(map(len, parts)))
        yield file_pb2.WriteFileRequest(end=end)

    return messages()


async def test_read_streams_the_whole_file_in_bounded_pieces(
    worker: Worker, files: FakeFiles
) -> None:
    files.content = bytes(range(256)) * 12_000
    stat, pieces = await _read(worker)
    assert b"".join(pieces) == files.content
    assert max(map(len, pieces)) == limits.CHUNK_BYTES_MAX
    assert stat.modified_at.ToNanoseconds() == STAT["mtime_ns"]
    assert files.closed == ["file_close"]


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (10, 5), (0, limits.MIB), (999_990, 100)])
async def test_read_gives_exactly_the_range(
    worker: Worker, files: FakeFiles, offset: int, length: int
) -> None:
    files.content = bytes(range(250)) * 4_000
    _, pieces = await _read(worker, offset=offset, length=length)
    assert b"".join(pieces) == files.content[offset : offset + length]
    assert files.closed == ["file_close"]


async def test_read_that_is_cancelled_closes_its_handle(worker: Worker, files: FakeFiles) -> None:
    files.content = b"x" * 10_000_000
    files.read_gate.clear()
    stream = worker.files.ReadFile(file_pb2.ReadFileRequest(session_id="s1", path="f"))
    await stream.read()
    (live,) = worker.parts.directory.all()
    assert live.busy
    stream.cancel()
    await until(lambda: files.closed == ["file_close"])
    await until(lambda: not live.busy)


async def test_reader_that_takes_nothing_holds_off_no_idle_expiry(
    worker: Worker, files: FakeFiles
) -> None:
    """Seen: a client that never read on kept its session until the end of its lifetime."""
    files.content = b"x" * 40_000_000
    update = session_pb2.UpdateSessionRequest(session_id="s1")
    update.idle_timeout.FromMilliseconds(300)
    await worker.sessions.UpdateSession(update)
    stream = worker.files.ReadFile(file_pb2.ReadFileRequest(session_id="s1", path="f"))
    await stream.read()
    (live,) = worker.parts.directory.all()

    async def gone() -> bool:
        await worker.parts.sweeper.sweep()
        return len(worker.parts.directory) == 0

    await until(gone)
    assert files.position < len(files.content)
    assert live.verbs == 1
    stream.cancel()
    await until(lambda: live.verbs == 0)


async def test_write_commits_what_was_streamed(worker: Worker, files: FakeFiles) -> None:
    parts = [b"a" * limits.CHUNK_BYTES_MAX, b"", b"end"]
    answer = await worker.files.WriteFile(_upload(*parts, mode=0o600))
    assert files.committed == b"".join(parts)
    assert (answer.bytes_written, answer.created) == (limits.CHUNK_BYTES_MAX + 3, True)
    assert files.closed == []
    registry = worker.metrics.registry
    assert registry.get_sample_value("sandboxd_lock_wait_seconds_sum") == 0.5


async def test_write_that_breaks_off_commits_nothing(worker: Worker, files: FakeFiles) -> None:
    stream = worker.files.WriteFile()
    header = file_pb2.WriteFileHeader(session_id="s1", path="f")
    await stream.write(file_pb2.WriteFileRequest(header=header))
    await stream.write(file_pb2.WriteFileRequest(data=b"half"))
    await until(lambda: files.uploaded == b"half")
    stream.cancel()
    await until(lambda: files.closed == ["upload_abort"])
    assert files.committed is None


async def test_write_is_fenced_once_more_before_it_commits(
    worker: Worker, files: FakeFiles
) -> None:
    stream = worker.files.WriteFile()
    header = file_pb2.WriteFileHeader(session_id="s1", path="f", epoch=1)
    await stream.write(file_pb2.WriteFileRequest(header=header))
    await stream.write(file_pb2.WriteFileRequest(data=b"late"))
    await until(lambda: files.uploaded == b"late")
    end = file_pb2.WriteFileEnd(size=4)
    await worker.sessions.UpdateSession(session_pb2.UpdateSessionRequest(session_id="s1", epoch=2))
    await stream.write(file_pb2.WriteFileRequest(end=end))
    with pytest.raises(aio.AioRpcError) as failed:
        await stream
    assert reason_of(failed.value) == "EPOCH_STALE"
    assert files.committed is None


async def _messages(
    *messages: file_pb2.WriteFileRequest,
) -> AsyncIterator[file_pb2.WriteFileRequest]:
    for message in messages:
        yield message


async def test_write_without_a_header_or_with_two_is_refused(
    worker: Worker, files: FakeFiles
) -> None:
    header = file_pb2.WriteFileRequest(header=file_pb2.WriteFileHeader(session_id="s1", path="f"))
    data = file_pb2.WriteFileRequest(data=b"x")
    for stream in (_messages(), _messages(data), _messages(header, header)):
        with pytest.raises(aio.AioRpcError) as failed:
            await worker.files.WriteFile(stream)
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert files.committed is None


@pytest.mark.parametrize(
    ("last", "field"),
    [
        ([], "end"),
        ([file_pb2.WriteFileRequest(end=file_pb2.WriteFileEnd(size=3))], "end.size"),
        ([file_pb2.WriteFileRequest(end=file_pb2.WriteFileEnd())], "end.size"),
    ],
)
async def test_write_without_its_whole_end_changes_nothing(
    worker: Worker, files: FakeFiles, last: list[file_pb2.WriteFileRequest], field: str
) -> None:
    header = file_pb2.WriteFileRequest(header=file_pb2.WriteFileHeader(session_id="s1", path="f"))
    data = file_pb2.WriteFileRequest(data=b"half")
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.files.WriteFile(_messages(header, data, *last))
    assert error_info(failed.value).metadata["field"] == field
    assert files.committed is None
    assert files.closed == ["upload_abort"]


async def test_write_refuses_a_piece_over_the_bound(worker: Worker, files: FakeFiles) -> None:
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.files.WriteFile(_upload(b"x" * (limits.CHUNK_BYTES_MAX + 1)))
    assert error_info(failed.value).metadata["field"] == "data"
    assert files.committed is None


def _entry(path: bytes) -> dict[str, Any]:
    shown = path.decode("utf-8", "backslashreplace")
    return {"path": shown, "raw": base64.b64encode(path).decode(), "stat": STAT}


async def test_listing_streams_its_pages(worker: Worker, files: FakeFiles) -> None:
    files.pages = [
        {"entries": [_entry(b"a"), _entry(b"b\xff")], "done": False, "unreadable": 0},
        {"entries": [], "done": True, "unreadable": 3},
    ]
    request = file_pb2.ListDirectoryRequest(session_id="s1", path=".")
    messages = [message async for message in worker.files.ListDirectory(request)]
    entries = [entry for message in messages for entry in message.entries]
    assert [entry.raw_path for entry in entries] == [b"a", b"b\xff"]
    assert messages[-1].unreadable == 3
    assert files.closed == ["list_close"]


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("FILE_NOT_FOUND", grpc.StatusCode.NOT_FOUND),
        ("IS_DIRECTORY", grpc.StatusCode.FAILED_PRECONDITION),
        ("VERSION_CONFLICT", grpc.StatusCode.ABORTED),
        ("INVALID_INPUT", grpc.StatusCode.INVALID_ARGUMENT),
        ("CALLS_EXHAUSTED", grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("NO_REASON_OF_OURS", grpc.StatusCode.FAILED_PRECONDITION),
        *((reason, grpc.StatusCode.FAILED_PRECONDITION) for reason in NOT_ITS_TO_SAY),
    ],
)
async def test_fault_of_the_guest_is_a_failed_rpc(
    worker: Worker, files: FakeFiles, reason: str, code: grpc.StatusCode
) -> None:
    """Security S8: of sessions, callers and the worker a guest has nothing to say."""
    files.fault = GuestFault(reason, "no\0 \ud800 way", {})
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.files.StatPath(file_pb2.StatPathRequest(session_id="s1", path="f"))
    assert failed.value.code() is code
    foreign = reason in NOT_ITS_TO_SAY or "OURS" in reason
    assert reason_of(failed.value) == ("IO_ERROR" if foreign else reason)


async def test_fault_of_the_guests_own_code_is_logged_under_its_reference(
    worker: Worker, files: FakeFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.fault = GuestFault("INTERNAL_ERROR", "the guest failed: KeyError", {})
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.files.StatPath(file_pb2.StatPathRequest(session_id="s1", path="f"))
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert reason_of(failed.value) == "INTERNAL_ERROR"
    (row,) = [row for row in caplog.records if row.getMessage() == "fault"]
    fields = row.sandboxd_fields  # type: ignore[attr-defined]
    assert fields["reference"] == error_info(failed.value).metadata["reference"]
    assert "KeyError" in (row.exc_text or str(row.exc_info))
    assert "KeyError" not in str(failed.value.details())


async def test_lost_sandbox_aborts_a_verb(worker: Worker, files: FakeFiles) -> None:
    files.read_gate.clear()
    stream = worker.files.ReadFile(file_pb2.ReadFileRequest(session_id="s1", path="f"))
    await stream.read()
    worker.sandbox().lose("ENDED")
    with pytest.raises(aio.AioRpcError) as failed:
        await stream.read()
    assert failed.value.code() is grpc.StatusCode.ABORTED
    assert reason_of(failed.value) == "SANDBOX_LOST"


@pytest.mark.parametrize(
    "facts",
    [
        {"stat": {**STAT, "size": -1}},
        {"stat": {**STAT, "kind": "door"}},
        {"stat": {**STAT, "mode": float("nan")}},
        {"stat": []},
        {},
    ],
)
async def test_facts_that_do_not_fit_fail_the_session(
    worker: Worker, files: FakeFiles, facts: dict[str, Any]
) -> None:
    """Security S8: what a guest answers is hostile until checked, and ends its session alone."""
    await worker.create("other")
    files.facts["stat"] = facts
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.files.StatPath(file_pb2.StatPathRequest(session_id="s1", path="f"))
    assert reason_of(failed.value) == "SANDBOX_LOST"
    await worker.state_is(session_pb2.SESSION_STATE_FAILED)
    assert (await worker.get("other")).state == session_pb2.SESSION_STATE_READY
