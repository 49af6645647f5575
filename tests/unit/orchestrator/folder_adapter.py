"""A small adapter over a folder: real gRPC, real files, real commands.

It implements what the orchestrator uses of the contract, and lets a test see what was
asked of it. It isolates nothing; tests give it harmless commands only.
"""

# ruff: noqa: ASYNC240  (its files are few and small)

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.any_pb2 import Any as PackedDetail
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]

from sandbox_adapter.v1 import (
    adapter_pb2,
    adapter_pb2_grpc,
    file_pb2,
    file_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    tool_pb2,
    tool_pb2_grpc,
)

Context = grpc.aio.ServicerContext[Any, Any]
ToolBody = Callable[[dict[str, Any]], Awaitable[tool_pb2.ToolResult]]


async def fail(
    context: Context, status: str, reason: str = "", text: str = "", retry_s: float | None = None
) -> None:
    """Ends an RPC as the contract says: ErrorInfo and RetryInfo in the status details."""
    details: list[Message] = []
    if reason:
        details.append(error_details_pb2.ErrorInfo(domain="sandbox_adapter", reason=reason))
    if retry_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(retry_s * 1e9))
        details.append(retry)
    packed = []
    for detail in details:
        entry = PackedDetail()
        entry.Pack(detail)
        packed.append(entry)
    whole = status_pb2.Status(code=code_pb2.Code.Value(status), message=text, details=packed)
    await context.abort(
        grpc.StatusCode[status],
        text or reason,
        trailing_metadata=(("grpc-status-details-bin", whole.SerializeToString()),),
    )


def text_result(text: str, **more: Any) -> tool_pb2.ToolResult:
    more.setdefault("ending", tool_pb2.ENDING_COMPLETED)
    return tool_pb2.ToolResult(text=text, **more)


class FolderAdapter:
    """Use as an async context manager; `target` is where it listens."""

    def __init__(self, folder: Path, socket: Path) -> None:
        self.folder = folder
        self.target = f"unix:{socket}"
        self.sessions: dict[str, session_pb2.Session] = {}
        self.deleted: list[str] = []
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        """(call id, tool, input) in the order in which they began."""
        self.results: dict[str, tool_pb2.ToolResult] = {}
        self.cancelled: list[str] = []
        self.versions_listed = True
        self.reads_until_lost: int | None = None
        """How many more files can be read before the session is gone. None: all."""
        self.tools: dict[str, tuple[tool_pb2.Tool, ToolBody]] = {}
        self.running: dict[str, asyncio.Task[tool_pb2.ToolResult]] = {}
        self._add_standard_tools()

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        adapter_pb2_grpc.add_AdapterServiceServicer_to_server(_Adapter(), self._server)
        session_pb2_grpc.add_SessionServiceServicer_to_server(_Sessions(self), self._server)
        tool_pb2_grpc.add_ToolServiceServicer_to_server(_Tools(self), self._server)
        file_pb2_grpc.add_FileServiceServicer_to_server(_Files(self), self._server)
        self._server.add_insecure_port(self.target)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    def add_tool(
        self,
        name: str,
        body: ToolBody,
        *,
        effect: tool_pb2.EffectClass = tool_pb2.EFFECT_CLASS_OPAQUE,
        parallel: bool = False,
        properties: dict[str, Any] | None = None,
        required: tuple[str, ...] = (),
    ) -> None:
        schema = {
            "type": "object",
            "properties": properties or {},
            "required": list(required),
            "additionalProperties": False,
        }
        tool = tool_pb2.Tool(
            name=name,
            description=f"The {name} tool.",
            input_schema_json=json.dumps(schema),
            effect=effect,
            parallel=parallel,
        )
        self.tools[name] = (tool, body)

    def _add_standard_tools(self) -> None:
        text = {"type": "string"}
        reading: dict[str, Any] = {"effect": tool_pb2.EFFECT_CLASS_READ, "parallel": True}
        self.add_tool("read", self._read, properties={"path": text}, required=("path",), **reading)
        self.add_tool(
            "write",
            self._write,
            effect=tool_pb2.EFFECT_CLASS_MUTATE,
            properties={"path": text, "content": text},
            required=("path", "content"),
        )
        self.add_tool("bash", self._bash, properties={"command": text}, required=("command",))

    async def _read(self, given: dict[str, Any]) -> tool_pb2.ToolResult:
        path = self.folder / given["path"]
        if not path.is_file():
            return text_result(f"File not found: {given['path']}", is_error=True, reason=101)
        return text_result(path.read_text())

    async def _write(self, given: dict[str, Any]) -> tool_pb2.ToolResult:
        path = self.folder / given["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(given["content"])
        return text_result(f"Wrote {len(given['content'].encode())} bytes to {given['path']}.")

    async def _bash(self, given: dict[str, Any]) -> tool_pb2.ToolResult:
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            given["command"],
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        code = process.returncode
        text = output.decode() + (f"[Command exited with code {code}]" if code else "")
        return text_result(text or "(no output)", ending=tool_pb2.ENDING_EXITED, exit_code=code)


class _Adapter(adapter_pb2_grpc.AdapterServiceServicer):
    async def GetInfo(self, request: Any, context: Context) -> adapter_pb2.GetInfoResponse:
        return adapter_pb2.GetInfoResponse(
            name="folder",
            version="1",
            boot_id="boot-1",
            ledger_id="ledger-1",
            backend="folder",
            contract_versions=["sandbox_adapter.v1"],
        )


class _Sessions(session_pb2_grpc.SessionServiceServicer):
    def __init__(self, adapter: FolderAdapter) -> None:
        self._adapter = adapter

    async def CreateSession(self, request: Any, context: Context) -> Any:
        session = session_pb2.Session(
            session_id=request.session_id,
            state=session_pb2.SESSION_STATE_READY,
            effective=session_pb2.Effective(working_directory=str(self._adapter.folder)),
        )
        self._adapter.sessions[request.session_id] = session
        return session_pb2.CreateSessionResponse(session=session)

    async def DeleteSession(self, request: Any, context: Context) -> Any:
        if self._adapter.sessions.pop(request.session_id, None) is None:
            await fail(context, "NOT_FOUND", "SESSION_UNKNOWN")
        self._adapter.deleted.append(request.session_id)
        return session_pb2.DeleteSessionResponse()


class _Tools(tool_pb2_grpc.ToolServiceServicer):
    def __init__(self, adapter: FolderAdapter) -> None:
        self._adapter = adapter

    async def ListTools(self, request: Any, context: Context) -> Any:
        return tool_pb2.ListToolsResponse(tools=[tool for tool, _ in self._adapter.tools.values()])

    async def CallTool(self, request: Any, context: Context) -> Any:
        adapter = self._adapter
        if request.session_id not in adapter.sessions:
            await fail(context, "NOT_FOUND", "SESSION_UNKNOWN", "no such session")
        running = adapter.running.get(request.call_id)
        if running is None:
            given = json.loads(request.custom.json)
            adapter.calls.append((request.call_id, request.custom.name, given))
            _, body = adapter.tools[request.custom.name]
            running = asyncio.ensure_future(body(given))
            adapter.running[request.call_id] = running
        result = await asyncio.shield(running)
        return tool_pb2.CallToolResponse(call_id=request.call_id, result=result)

    async def GetCall(self, request: Any, context: Context) -> Any:
        running = self._adapter.running.get(request.call_id)
        state, result = tool_pb2.CALL_STATE_NEVER_SEEN, None
        if running is not None:
            state = tool_pb2.CALL_STATE_RUNNING
            if running.done():
                state, result = tool_pb2.CALL_STATE_FINISHED, running.result()
        return tool_pb2.GetCallResponse(
            state=state, result=result, boot_id="boot-1", ledger_id="ledger-1"
        )

    async def CancelCall(self, request: Any, context: Context) -> Any:
        self._adapter.cancelled.append(request.call_id)
        running = self._adapter.running.get(request.call_id)
        if running is None:
            await fail(context, "NOT_FOUND", "CALL_UNKNOWN")
        else:
            running.cancel()
        result = text_result("cancelled", ending=tool_pb2.ENDING_CANCELLED, is_error=True)
        return tool_pb2.CancelCallResponse(result=result)


class _Files(file_pb2_grpc.FileServiceServicer):
    def __init__(self, adapter: FolderAdapter) -> None:
        self._adapter = adapter

    async def ReadFile(self, request: Any, context: Context) -> AsyncIterator[Any]:
        path = Path(request.path)
        if self._adapter.reads_until_lost is not None:
            if self._adapter.reads_until_lost == 0:
                await fail(context, "NOT_FOUND", "SESSION_UNKNOWN", "no such session")
            self._adapter.reads_until_lost -= 1
        if not path.exists():
            await fail(context, "NOT_FOUND", "FILE_NOT_FOUND", f"nothing at {path}")
        yield file_pb2.ReadFileResponse(stat=self._stat(path))
        content = path.read_bytes()
        for at in range(0, len(content), 1024):
            yield file_pb2.ReadFileResponse(data=content[at : at + 1024])

    async def WriteFile(self, requests: AsyncIterator[Any], context: Context) -> Any:
        header, content, size = None, b"", -1
        async for message in requests:
            part = message.WhichOneof("part")
            if part == "header":
                header = message.header
            elif part == "data":
                content += message.data
            else:
                size = message.end.size
        if header is None or size != len(content):
            await fail(context, "INVALID_ARGUMENT", "INVALID_ENVELOPE", "no end, or a wrong one")
        assert header is not None
        path = Path(header.path)
        if header.make_parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(header.mode)
        return file_pb2.WriteFileResponse(
            bytes_written=len(content), created=True, version=hashlib.sha256(content).hexdigest()
        )

    async def MakeDirectory(self, request: Any, context: Context) -> Any:
        Path(request.path).mkdir(parents=True, exist_ok=True)
        return file_pb2.MakeDirectoryResponse(created=True)

    async def ListDirectory(self, request: Any, context: Context) -> AsyncIterator[Any]:
        top = os.fsencode(request.path)
        pending = [b""]
        while pending:
            directory = pending.pop()
            entries = []
            for name in sorted(os.listdir(os.path.join(top, directory))):
                inside = os.path.join(directory, name)
                path = Path(os.fsdecode(os.path.join(top, inside)))
                entry = file_pb2.DirectoryEntry(raw_path=inside, stat=self._stat(path))
                entry.path = inside.decode(errors="backslashreplace")
                entries.append(entry)
                if entry.stat.kind == file_pb2.FILE_KIND_DIRECTORY:
                    pending.append(inside)
            yield file_pb2.ListDirectoryResponse(entries=entries)

    def _stat(self, path: Path) -> file_pb2.FileStat:
        status = path.lstat()
        kind, target, version = file_pb2.FILE_KIND_SPECIAL, "", ""
        if stat.S_ISREG(status.st_mode):
            kind = file_pb2.FILE_KIND_FILE
            if self._adapter.versions_listed:
                version = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISDIR(status.st_mode):
            kind = file_pb2.FILE_KIND_DIRECTORY
        elif stat.S_ISLNK(status.st_mode):
            kind, target = file_pb2.FILE_KIND_SYMLINK, os.readlink(path)
        return file_pb2.FileStat(
            kind=kind,
            size=status.st_size,
            mode=stat.S_IMODE(status.st_mode),
            version=version,
            link_target=target,
        )
