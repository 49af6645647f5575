"""`FileService`: whole contents, streamed; the daemon holds one piece at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from sandbox_adapter.v1 import file_pb2, file_pb2_grpc
from sandboxd import limits
from sandboxd.errors import CallerError, GuestFault, InvalidEnvelope, SandboxLost
from sandboxd.metrics import Metrics
from sandboxd.rpc import envelope
from sandboxd.rpc.errors import Context
from sandboxd.rpc.file_facts import (
    AnyStatFacts,
    CommitFacts,
    CreatedFacts,
    HandleFacts,
    OpenFacts,
    PageFacts,
    ReadFacts,
    RemovedFacts,
)
from sandboxd.sessions.verbs import VerbChannel, Verbs
from sandboxd.tools.facts import parse_facts

READ_BYTES_MAX: Final = limits.MIB
"""Bytes of one step of a read; each leaves as several messages."""
CLOSE_S_MAX: Final = 10.0
"""Longest time that closing a handle may hold up the end of an RPC."""
REFUSED_BYTES_MAX: Final = 64 * limits.MIB
REFUSED_S: Final = 5.0
REFUSED_QUIET_S: Final = 0.25
"""How much of a refused upload is still read, for how long, and the silence that ends it."""


class FileService(file_pb2_grpc.FileServiceServicer):
    """Verbs over `guest/README.md`. Handles are closed however an RPC ends."""

    def __init__(self, verbs: Verbs, metrics: Metrics) -> None:
        self._verbs = verbs
        self._metrics = metrics

    async def ReadFile(
        self, request: file_pb2.ReadFileRequest, context: Context
    ) -> AsyncIterator[file_pb2.ReadFileResponse]:
        key = envelope.session_key(request.session_id)
        path = envelope.path("path", request.path)
        if request.offset < 0:
            raise InvalidEnvelope("offset", "must be 0 or more")
        left = request.length if request.HasField("length") else None
        if left is not None and left < 0:
            raise InvalidEnvelope("length", "must be 0 or more")
        async with self._verbs.verb(key) as channel:
            args = {"path": path, "offset": request.offset, "part": left is not None}
            async with _opened(channel, "file_open", args, "file_close") as file:
                facts = parse_facts(OpenFacts, file.facts)
                yield file_pb2.ReadFileResponse(stat=facts.stat.message())
                while left is None or left > 0:
                    most = READ_BYTES_MAX if left is None else min(READ_BYTES_MAX, left)
                    reply = await channel.request(
                        "file_read",
                        {"handle": file.handle, "bytes_max": most},
                        reply_bytes_max=most,
                    )
                    for start in range(0, len(reply.body), limits.CHUNK_BYTES_MAX):
                        piece = reply.body[start : start + limits.CHUNK_BYTES_MAX]
                        yield file_pb2.ReadFileResponse(data=piece)
                    if left is not None:
                        left -= len(reply.body)
                    if parse_facts(ReadFacts, reply.facts).eof:
                        return
                    if not reply.body:
                        raise SandboxLost("PROTOCOL", "a read gave nothing and no end")

    async def WriteFile(
        self, request: AsyncIterator[file_pb2.WriteFileRequest], context: Context
    ) -> file_pb2.WriteFileResponse:
        messages = aiter(request)
        try:
            return await self._write_file(messages)
        except CallerError:
            # A client that is in the middle of a message when the status comes may
            # take its broken write for the outcome, and never see why it was refused.
            await _read_on(messages)
            raise

    async def _write_file(
        self, messages: AsyncIterator[file_pb2.WriteFileRequest]
    ) -> file_pb2.WriteFileResponse:
        first = await _next(messages)
        if first is None or first.WhichOneof("part") != "header":
            raise InvalidEnvelope("header", "must be the first message")
        header = first.header
        key = envelope.session_key(header.session_id)
        args: dict[str, Any] = {
            "path": envelope.path("path", header.path),
            "make_parents": header.make_parents,
        }
        if header.HasField("mode"):
            args["mode"] = envelope.mode(header.mode)
        if header.HasField("expected_version"):
            args["expected_version"] = header.expected_version
        epoch = header.epoch if header.HasField("epoch") else None
        async with self._verbs.verb(key, epoch) as channel:
            async with _opened(channel, "upload_open", args, "upload_abort") as upload:
                await _take_data(messages, channel, upload.handle)
                # The last moment before the effect: a new owner may have come
                # while this stream ran.
                channel.check_epoch()
                reply = await channel.request("upload_commit", {"handle": upload.handle})
                upload.ended = True
            done = parse_facts(CommitFacts, reply.facts)
        if done.lock_wait_s is not None:
            self._metrics.lock_waited(done.lock_wait_s)
        return file_pb2.WriteFileResponse(
            bytes_written=done.bytes, created=done.created, version=done.version
        )

    async def StatPath(
        self, request: file_pb2.StatPathRequest, context: Context
    ) -> file_pb2.StatPathResponse:
        key = envelope.session_key(request.session_id)
        args = {"path": envelope.path("path", request.path), "follow": not request.no_follow}
        async with self._verbs.verb(key) as channel:
            reply = await channel.request("stat", args)
            facts = parse_facts(AnyStatFacts, reply.facts)
        return file_pb2.StatPathResponse(stat=facts.stat.message())

    async def ListDirectory(
        self, request: file_pb2.ListDirectoryRequest, context: Context
    ) -> AsyncIterator[file_pb2.ListDirectoryResponse]:
        key = envelope.session_key(request.session_id)
        args = {"path": envelope.path("path", request.path), "recursive": request.recursive}
        async with self._verbs.verb(key) as channel:
            async with _opened(channel, "list_open", args, "list_close") as listing:
                done = False
                while not done:
                    reply = await channel.request("list_next", {"handle": listing.handle})
                    page = parse_facts(PageFacts, reply.facts)
                    done = page.done
                    if not done and not page.entries:
                        raise SandboxLost("PROTOCOL", "a listing gave nothing and no end")
                    yield file_pb2.ListDirectoryResponse(
                        entries=[entry.message() for entry in page.entries],
                        unreadable=page.unreadable if done else 0,
                    )

    async def MakeDirectory(
        self, request: file_pb2.MakeDirectoryRequest, context: Context
    ) -> file_pb2.MakeDirectoryResponse:
        key = envelope.session_key(request.session_id)
        args: dict[str, Any] = {"path": envelope.path("path", request.path)}
        if request.HasField("mode"):
            args["mode"] = envelope.mode(request.mode)
        epoch = request.epoch if request.HasField("epoch") else None
        async with self._verbs.verb(key, epoch) as channel:
            reply = await channel.request("mkdir", args)
            facts = parse_facts(CreatedFacts, reply.facts)
        return file_pb2.MakeDirectoryResponse(created=facts.created)

    async def MovePath(
        self, request: file_pb2.MovePathRequest, context: Context
    ) -> file_pb2.MovePathResponse:
        key = envelope.session_key(request.session_id)
        args = {
            "source": envelope.path("source", request.source),
            "target": envelope.path("target", request.target),
            "replace": request.replace,
        }
        epoch = request.epoch if request.HasField("epoch") else None
        async with self._verbs.verb(key, epoch) as channel:
            await channel.request("move", args)
        return file_pb2.MovePathResponse()

    async def RemovePath(
        self, request: file_pb2.RemovePathRequest, context: Context
    ) -> file_pb2.RemovePathResponse:
        key = envelope.session_key(request.session_id)
        args = {"path": envelope.path("path", request.path), "recursive": request.recursive}
        epoch = request.epoch if request.HasField("epoch") else None
        async with self._verbs.verb(key, epoch) as channel:
            reply = await channel.request("remove", args)
            facts = parse_facts(RemovedFacts, reply.facts)
        return file_pb2.RemovePathResponse(removed=facts.removed)


class _Handle:
    """A handle in the guest, and what the guest said of it when it opened it."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self.handle = parse_facts(HandleFacts, facts).handle
        self.ended = False
        """Whether the guest has ended the handle by itself, as a commit does."""


@asynccontextmanager
async def _opened(
    channel: VerbChannel, open_op: str, args: Mapping[str, Any], close_op: str
) -> AsyncIterator[_Handle]:
    """A handle in the guest, closed at the end of the block, also when that is cancelled.

    The opening goes on when the RPC is cancelled meanwhile: only its answer names
    the handle that has to be closed then.
    """
    opening = asyncio.create_task(_open(channel, open_op, args))
    ended = False
    try:
        handle = await asyncio.shield(opening)
        yield handle
        ended = handle.ended
    finally:
        if not ended:
            await asyncio.shield(asyncio.create_task(_close(channel, opening, close_op)))


async def _open(channel: VerbChannel, op: str, args: Mapping[str, Any]) -> _Handle:
    return _Handle((await channel.request(op, args)).facts)


async def _close(channel: VerbChannel, opening: asyncio.Task[_Handle], close_op: str) -> None:
    # Whatever stands in the way ends the handle too: the guest's idle time, or
    # the end of the sandbox.
    try:
        async with asyncio.timeout(CLOSE_S_MAX):
            await channel.request(close_op, {"handle": (await opening).handle})
    except (GuestFault, SandboxLost, TimeoutError):
        pass


async def _take_data(
    messages: AsyncIterator[file_pb2.WriteFileRequest], channel: VerbChannel, handle: str
) -> None:
    """Passes data on until the client says that it is complete.

    gRPC ends a stream that broke off as it ends a complete one: only the client's
    own end tells them apart.
    """
    size = 0
    while (message := await _next(messages)) is not None:
        part = message.WhichOneof("part")
        if part == "end":
            if message.end.size != size:
                raise InvalidEnvelope("end.size", f"must be the {size} bytes that arrived")
            return
        if part != "data":
            raise InvalidEnvelope("data", "must follow the header")
        if len(message.data) > limits.CHUNK_BYTES_MAX:
            raise InvalidEnvelope(
                "data", f"must be at most {limits.CHUNK_BYTES_MAX} bytes a message"
            )
        size += len(message.data)
        await channel.request("upload_append", {"handle": handle}, message.data)
    raise InvalidEnvelope("end", "must be the last message")


async def _next(
    messages: AsyncIterator[file_pb2.WriteFileRequest],
) -> file_pb2.WriteFileRequest | None:
    """The next message of a client's stream, or None at its proper end."""
    try:
        async with asyncio.timeout(limits.UPLOAD_IDLE_S):
            return await anext(messages, None)
    except TimeoutError:
        raise InvalidEnvelope("data", f"must follow within {limits.UPLOAD_IDLE_S:g} s") from None


async def _read_on(messages: AsyncIterator[file_pb2.WriteFileRequest]) -> None:
    """Reads what a refused client still sends, within bounds, and drops it."""
    left = REFUSED_BYTES_MAX
    try:
        async with asyncio.timeout(REFUSED_S):
            while left > 0:
                async with asyncio.timeout(REFUSED_QUIET_S):
                    message = await anext(messages, None)
                if message is None:
                    return
                left -= message.ByteSize()
    except (TimeoutError, CallerError):
        return
