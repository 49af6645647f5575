"""A whole daemon in the test's process: real SQLite, a real gRPC server on a Unix socket.

Only what lies below the rooms under test is scripted: the backend is the fake
one, and `probe` and `poke` are tools whose behaviour a test sets.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc import aio
from grpc_status import rpc_status  # type: ignore[import-untyped]

from sandbox_adapter.v1 import (
    adapter_pb2_grpc,
    file_pb2_grpc,
    process_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    tool_pb2,
    tool_pb2_grpc,
)
from sandboxd import app
from sandboxd.backends.base import Reply
from sandboxd.backends.fake import FakeBackend, FakeRequest
from sandboxd.config import Settings
from sandboxd.errors import GuestFault
from sandboxd.metrics import Metrics
from sandboxd.rpc.address import Address
from sandboxd.sessions.store import Store
from sandboxd.tools.base import Ask, InvalidInput, JsonObject, Tool
from sandboxd.tools.registry import Registry

DEADLINE_S = 10.0


class ScriptedTool:
    """Sends one `op` of its own name to the guest and shows the text that comes back."""

    def __init__(self, name: str, effect: tool_pb2.EffectClass) -> None:
        self.name = name
        self.description = "For tests."
        self.schema: JsonObject = {"type": "object"}
        self.parallel = True
        self.timeout_default_s: float | None = None
        self.timeout_max_s: float | None = None
        self.effect = effect
        self.raised: Exception | None = None

    def ask(self, raw: JsonObject) -> Ask:
        if raw.get("bad"):
            raise InvalidInput("`bad` must not be set.")
        path = raw.get("path", "")
        return Ask(self.name, {"path": path}, {"path": path}, reply_bytes_max=1024)

    def word(self, memo: JsonObject, answer: Reply | GuestFault) -> tool_pb2.ToolResult:
        if self.raised is not None:
            raise self.raised
        if isinstance(answer, GuestFault):
            raise answer
        cut = answer.facts.get("cancelled")
        ending = tool_pb2.ENDING_CANCELLED if cut else tool_pb2.ENDING_COMPLETED
        return tool_pb2.ToolResult(text=str(answer.facts.get("text", "done")), ending=ending)


class Guest:
    """What the fake sandboxes answer. Calls of `probe` and `poke` wait while `gate` is closed."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.started: list[str] = []
        """Ids of the calls that reached the guest: each is one effect."""
        self.cancelled: set[str] = set()
        self.survivors: list[Any] = []
        self.changed = asyncio.Event()
        self.files: Callable[[FakeRequest], Awaitable[Reply]] | None = None

    async def answer(self, request: FakeRequest) -> Reply:
        if request.op in ("probe", "poke", "attach"):
            call_id = str(request.args["call_id"])
            if request.op != "attach":
                self.started.append(call_id)
            while not self.gate.is_set() and call_id not in self.cancelled:
                self.changed.clear()
                gate = asyncio.create_task(self.gate.wait())
                change = asyncio.create_task(self.changed.wait())
                try:
                    await asyncio.wait({gate, change}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    gate.cancel()
                    change.cancel()
            if call_id in self.cancelled:
                return Reply({"cancelled": True, "text": "cut"})
            return Reply({"text": f"run {len(self.started)}"})
        if request.op == "cancel":
            self.cancelled.add(str(request.args["call_id"]))
            self.changed.set()
            return Reply({"found": True, "survivors": self.survivors})
        if self.files is not None and request.op != "configure":
            return await self.files(request)
        return Reply({})


class Worker:
    """The daemon, its scripted parts, and stubs of a client that is connected to it."""

    def __init__(self, folder: Path, backend: FakeBackend, **settings: Any) -> None:
        self.folder = folder
        self.settings = Settings(state_dir=folder / "state", **settings)
        self.backend = backend
        self.guest = Guest()
        backend.on_request = self.guest.answer
        self.probe = ScriptedTool("probe", tool_pb2.EFFECT_CLASS_READ)
        self.poke = ScriptedTool("poke", tool_pb2.EFFECT_CLASS_OPAQUE)
        self.offered: list[Tool] = [self.probe, self.poke]
        """What clients can call; a test adds to it before the start."""
        self.metrics = Metrics()
        self.store = Store(self.settings.state_dir)
        self.parts: app.Parts
        self._clean = True

    async def start(self) -> None:
        await self.store.open()
        tools = Registry(self.offered)
        await self.backend.start()
        boot_id = f"b{uuid.uuid4().hex}"
        self.parts = app.build(
            self.settings, self.metrics, self.store, self.backend, tools, boot_id
        )
        await self.parts.sweeper.recover()
        socket = self.folder / f"{uuid.uuid4().hex[:8]}.sock"
        text = await self.parts.server.start(Address(socket, "", 0))
        self.channel = aio.insecure_channel(text)
        self.adapter: Any = adapter_pb2_grpc.AdapterServiceStub(self.channel)
        self.sessions: Any = session_pb2_grpc.SessionServiceStub(self.channel)
        self.tools: Any = tool_pb2_grpc.ToolServiceStub(self.channel)
        self.files: Any = file_pb2_grpc.FileServiceStub(self.channel)
        self.processes: Any = process_pb2_grpc.ProcessServiceStub(self.channel)

    async def stop(self) -> None:
        """The end of a daemon in order, without grace."""
        await self.channel.close()
        await self.parts.server.stop(0)
        await app._let_go(self.parts)
        await self.backend.stop()
        await self.store.close()

    async def create(self, session_id: str = "s1", **fields: Any) -> session_pb2.Session:
        request = session_pb2.CreateSessionRequest(session_id=session_id, **fields)
        answer: session_pb2.CreateSessionResponse = await self.sessions.CreateSession(request)
        return answer.session

    async def get(self, session_id: str = "s1") -> session_pb2.Session:
        answer = await self.sessions.GetSession(
            session_pb2.GetSessionRequest(session_id=session_id)
        )
        found: session_pb2.Session = answer.session
        return found

    def call(self, call_id: str, tool: str = "poke", json: str = "{}", **fields: Any) -> Any:
        """A call as an awaitable that can be cancelled, as a client's RPC can."""
        fields.setdefault("session_id", "s1")
        return self.tools.CallTool(
            tool_pb2.CallToolRequest(
                call_id=call_id, custom=tool_pb2.CustomInput(name=tool, json=json), **fields
            )
        )

    async def get_call(self, call_id: str, session_id: str = "s1") -> tool_pb2.GetCallResponse:
        found: tool_pb2.GetCallResponse = await self.tools.GetCall(
            tool_pb2.GetCallRequest(session_id=session_id, call_id=call_id)
        )
        return found

    async def cancel(self, call_id: str, **fields: Any) -> tool_pb2.ToolResult:
        answer = await self.tools.CancelCall(
            tool_pb2.CancelCallRequest(session_id="s1", call_id=call_id, **fields)
        )
        result: tool_pb2.ToolResult = answer.result
        return result

    async def delete(self, session_id: str = "s1", **fields: Any) -> None:
        await self.sessions.DeleteSession(
            session_pb2.DeleteSessionRequest(session_id=session_id, **fields)
        )

    def sandbox(self, session_id: str = "s1") -> Any:
        """The session's sandbox, as the backend made it."""
        (live,) = [x for x in self.parts.directory.all() if x.session_id == session_id]
        return live.sandbox

    async def state_is(self, state: session_pb2.SessionState, session_id: str = "s1") -> None:
        async def reached() -> bool:
            return (await self.get(session_id)).state == state

        await until(reached)


async def until(condition: Callable[[], Any]) -> None:
    """Waits for a condition, sync or async, and fails after `DEADLINE_S`."""
    end = time.monotonic() + DEADLINE_S
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < end, "the condition was not met in time"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def running(
    folder: Path, backend: FakeBackend | None = None, **settings: Any
) -> AsyncIterator[Worker]:
    """A worker that serves until the block ends."""
    worker = Worker(folder, backend or FakeBackend(folder), **settings)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


def reason_of(error: aio.AioRpcError) -> str:
    """The reason in a failed RPC's ErrorInfo."""
    return str(error_info(error).reason)


def error_info(error: aio.AioRpcError) -> Any:
    return _detail(error, error_details_pb2.ErrorInfo)


def retry_s(error: aio.AioRpcError) -> float:
    """The delay in a failed RPC's RetryInfo, 0 where there is none."""
    info = _detail(error, error_details_pb2.RetryInfo)
    return 0.0 if info is None else info.retry_delay.ToMilliseconds() / 1000


def _detail(error: aio.AioRpcError, kind: Any) -> Any:
    status = rpc_status.from_call(error)
    assert status is not None, error
    for packed in status.details:
        if packed.Is(kind.DESCRIPTOR):
            found = kind()
            packed.Unpack(found)
            return found
    return None
