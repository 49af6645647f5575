"""The file verbs of a client: whole contents, bytes, nothing cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from sandbox_adapter import errors
from sandbox_adapter.connection import SHORT_TIMEOUT_S, Connection
from sandbox_adapter.v1 import file_pb2, file_pb2_grpc

CHUNK_BYTES_MAX: Final = 256 * 1024
TRANSFER_TIMEOUT_S: Final = 600.0
"""Default deadline of one file transfer or listing."""


class FileReader:
    """An open ReadFile stream: the facts of the file, then its bytes."""

    def __init__(self, stat: file_pb2.FileStat, messages: AsyncIterator[Any]) -> None:
        self.stat = stat
        self._messages = messages

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for message in self._messages:
                if message.WhichOneof("part") == "data":
                    yield message.data
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error) from None


class FileClient:
    """FileService over a client's connection. Reached as `AdapterClient.files`.

    Reading, MakeDirectory and RemovePath are repeated after a lost connection;
    WriteFile and MovePath are not (file.proto).
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = file_pb2_grpc.FileServiceStub(connection.channel)

    @asynccontextmanager
    async def read(
        self,
        session_id: str,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        timeout_s: float = TRANSFER_TIMEOUT_S,
    ) -> AsyncIterator[FileReader]:
        """Opens a file for reading: `async with client.files.read(...) as reader`.

        Leaving the block ends the stream, read to its end or not.
        """
        request = file_pb2.ReadFileRequest(
            session_id=session_id, path=path, offset=offset, length=length
        )
        stream, messages, first = await self._connection.repeat_open(
            self._stub.ReadFile, request, timeout_s
        )
        try:
            if first is None or first.WhichOneof("part") != "stat":
                raise errors.AdapterBug(
                    errors.Failure("UNKNOWN", "the adapter began a file without its facts")
                )
            yield FileReader(first.stat, messages)
        finally:
            stream.cancel()

    async def write(
        self,
        session_id: str,
        path: str,
        content: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        make_parents: bool = False,
        expected_version: str | None = None,
        epoch: int | None = None,
        timeout_s: float = TRANSFER_TIMEOUT_S,
    ) -> file_pb2.WriteFileResponse:
        """Creates or replaces a file. Never repeated: it carries no id.

        `expected_version` is one that an answer or a tool's result gave, or `absent`.
        Raises `errors.VersionConflict` where the file is not at it.
        What `content` raises is raised here, and the file is not changed.
        """
        header = file_pb2.WriteFileHeader(
            session_id=session_id,
            path=path,
            epoch=epoch,
            mode=mode,
            make_parents=make_parents,
            expected_version=expected_version,
        )
        upload = _Upload(header, content)
        try:
            answer: file_pb2.WriteFileResponse = await self._connection.once(
                self._stub.WriteFile, upload.messages(), timeout_s
            )
        except asyncio.CancelledError:
            # gRPC answers a broken source with a cancel of its own, which must not pass
            # for one of the caller's task.
            task = asyncio.current_task()
            if upload.failure is None or (task is not None and task.cancelling()):
                raise
            raise upload.failure from None
        return answer

    async def stat(
        self,
        session_id: str,
        path: str,
        *,
        no_follow: bool = False,
        timeout_s: float = SHORT_TIMEOUT_S,
    ) -> file_pb2.FileStat:
        """What is at a path."""
        request = file_pb2.StatPathRequest(session_id=session_id, path=path, no_follow=no_follow)
        answer: file_pb2.StatPathResponse = await self._connection.repeat(
            self._stub.StatPath, request, timeout_s
        )
        return answer.stat

    async def list(
        self,
        session_id: str,
        path: str,
        *,
        recursive: bool = False,
        timeout_s: float = TRANSFER_TIMEOUT_S,
    ) -> AsyncIterator[file_pb2.ListDirectoryResponse]:
        """The entries of a directory or tree, in batches; the last counts the unreadable."""
        request = file_pb2.ListDirectoryRequest(
            session_id=session_id, path=path, recursive=recursive
        )
        stream, messages, first = await self._connection.repeat_open(
            self._stub.ListDirectory, request, timeout_s
        )
        try:
            if first is not None:
                yield first
                async for message in messages:
                    yield message
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error) from None
        finally:
            stream.cancel()

    async def make_directory(
        self,
        session_id: str,
        path: str,
        *,
        mode: int | None = None,
        epoch: int | None = None,
        timeout_s: float = SHORT_TIMEOUT_S,
    ) -> bool:
        """Makes a directory with its parents. False where it existed."""
        request = file_pb2.MakeDirectoryRequest(
            session_id=session_id, path=path, epoch=epoch, mode=mode
        )
        answer: file_pb2.MakeDirectoryResponse = await self._connection.repeat(
            self._stub.MakeDirectory, request, timeout_s
        )
        return answer.created

    async def move(
        self,
        session_id: str,
        source: str,
        target: str,
        *,
        replace: bool = False,
        epoch: int | None = None,
        timeout_s: float = SHORT_TIMEOUT_S,
    ) -> None:
        """Renames. Never repeated: after a lost answer ask `stat`."""
        request = file_pb2.MovePathRequest(
            session_id=session_id, source=source, target=target, epoch=epoch, replace=replace
        )
        await self._connection.once(self._stub.MovePath, request, timeout_s)

    async def remove(
        self,
        session_id: str,
        path: str,
        *,
        recursive: bool = False,
        epoch: int | None = None,
        timeout_s: float = SHORT_TIMEOUT_S,
    ) -> bool:
        """Removes a file, link or directory. False where nothing was there."""
        request = file_pb2.RemovePathRequest(
            session_id=session_id, path=path, epoch=epoch, recursive=recursive
        )
        answer: file_pb2.RemovePathResponse = await self._connection.repeat(
            self._stub.RemovePath, request, timeout_s
        )
        return answer.removed


class _Upload:
    """The messages of one WriteFile. `failure` is what reading its content raised."""

    def __init__(
        self, header: file_pb2.WriteFileHeader, content: bytes | AsyncIterable[bytes]
    ) -> None:
        self._header = header
        self._content = content
        self.failure: Exception | None = None

    async def messages(self) -> AsyncIterator[file_pb2.WriteFileRequest]:
        yield file_pb2.WriteFileRequest(header=self._header)
        size = 0
        try:
            async for block in _blocks(self._content):
                for chunk in _cut(block):
                    size += len(chunk)
                    yield file_pb2.WriteFileRequest(data=chunk)
        except Exception as failure:
            self.failure = failure
            raise
        yield file_pb2.WriteFileRequest(end=file_pb2.WriteFileEnd(size=size))


async def _blocks(content: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    async for block in content:
        yield block


def _cut(block: bytes) -> list[bytes]:
    return [block[at : at + CHUNK_BYTES_MAX] for at in range(0, len(block), CHUNK_BYTES_MAX)]
