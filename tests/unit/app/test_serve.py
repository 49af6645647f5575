"""The daemon's whole run in one process, over the fake backend: start, signals, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from sandbox_adapter.v1 import (
    session_pb2,
    session_pb2_grpc,
    tool_pb2,
    tool_pb2_grpc,
)
from sandboxd import app
from sandboxd.backends.base import Reply
from sandboxd.backends.fake import FakeBackend, FakeRequest
from sandboxd.config import Settings
from sandboxd.errors import EXIT_ENGINE, StartupError
from tests.unit.worker import reason_of, until


class Run:
    """A daemon in a task, with stubs of a client."""

    def __init__(self, backend: FakeBackend, task: asyncio.Task[int], ready: str) -> None:
        self.backend = backend
        self.task = task
        self.metrics = ready.split("metrics on ")[1]
        self.channel = aio.insecure_channel(ready.split("listening on ")[1].split(maxsplit=1)[0])
        self.sessions: Any = session_pb2_grpc.SessionServiceStub(self.channel)
        self.tools: Any = tool_pb2_grpc.ToolServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)

    async def bash(self, call_id: str) -> tool_pb2.ToolResult:
        answer = await self.tools.CallTool(
            tool_pb2.CallToolRequest(
                session_id="s1", call_id=call_id, bash=tool_pb2.BashInput(command="x")
            )
        )
        result: tool_pb2.ToolResult = answer.result
        return result


@asynccontextmanager
async def _run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, backend: FakeBackend, **settings: Any
) -> AsyncIterator[Run]:
    monkeypatch.setattr(app, "build_backend", lambda settings, metrics, boot_id: backend)
    ready: asyncio.Queue[str] = asyncio.Queue()
    given = Settings(
        listen="127.0.0.1:0", metrics="127.0.0.1:0", state_dir=folder / "state", **settings
    )
    task = asyncio.create_task(app.serve(given, ready.put_nowait, ready.put_nowait))
    line = asyncio.create_task(ready.get())
    await asyncio.wait({task, line}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    if not line.done():
        line.cancel()
        await task
    run = Run(backend, task, line.result())
    try:
        yield run
    finally:
        await run.channel.close()
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 20)


def _hanging(backend: FakeBackend) -> asyncio.Event:
    """Commands hang in the guest until the event is set."""
    gate = asyncio.Event()

    async def answer(request: FakeRequest) -> Reply:
        if request.op == "run":
            await gate.wait()
        return Reply({})

    backend.on_request = answer
    return gate


async def _running_call(run: Run) -> asyncio.Task[tool_pb2.ToolResult]:
    await run.sessions.CreateSession(session_pb2.CreateSessionRequest(session_id="s1"))
    waiting = asyncio.create_task(run.bash("c1"))
    await until(
        lambda: any(x.op == "run" for s in run.backend.running.values() for x in s.requests)
    )
    return waiting


async def _not_serving(run: Run) -> bool:
    answer = await run.health.Check(health_pb2.HealthCheckRequest())
    return bool(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING)


async def test_sigterm_goes_through_the_documented_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FakeBackend(tmp_path)
    _hanging(backend)
    async with _run(tmp_path, monkeypatch, backend, shutdown_grace_s=1.0) as run:
        waiting = await _running_call(run)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: _not_serving(run))
        with pytest.raises(aio.AioRpcError, match="shutting down"):
            await run.bash("c2")
        with pytest.raises(aio.AioRpcError, match="shutting down"):
            await run.sessions.CreateSession(session_pb2.CreateSessionRequest(session_id="s2"))
        assert not waiting.done()
        # It is left to the next daemon, so its caller learns of the connection's end alone.
        with pytest.raises(aio.AioRpcError) as cut:
            await waiting
        assert cut.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert "shutting down" not in str(cut.value.details())
        assert await run.task == 0
    assert len(backend.containers) == 1
    assert backend.calls[-1] == ("stop", "")
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / "state.db")) as state:
        assert state.execute("SELECT call_id, phase FROM calls").fetchall() == [("c1", "reserved")]


async def test_call_that_ends_within_the_grace_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FakeBackend(tmp_path)
    gate = _hanging(backend)
    async with _run(tmp_path, monkeypatch, backend) as run:
        waiting = await _running_call(run)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: _not_serving(run))
        gate.set()
        # The fake's empty facts are none of a command's: a typed ending all the same.
        assert (await waiting).ending == tool_pb2.ENDING_SANDBOX_LOST
        assert await run.task == 0


async def test_create_that_outlasts_the_grace_is_told_of_the_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FakeBackend(tmp_path)
    backend.hold("create")
    async with _run(tmp_path, monkeypatch, backend, shutdown_grace_s=0.1) as run:
        creating = asyncio.ensure_future(
            run.sessions.CreateSession(session_pb2.CreateSessionRequest(session_id="s1"))
        )
        await until(lambda: "create" in [step for step, _ in backend.calls])
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(aio.AioRpcError) as failed:
            await creating
        assert reason_of(failed.value) == "DRAINING"
        assert await run.task == 0


async def test_second_signal_forces_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FakeBackend(tmp_path)
    _hanging(backend)
    async with _run(tmp_path, monkeypatch, backend, shutdown_grace_s=600.0) as run:
        waiting = await _running_call(run)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        assert not run.task.done()
        # What would end a process that hangs must not end the one that tests it.
        monkeypatch.setattr(os, "_exit", lambda code: None)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(run.task, 5) == app.EXIT_FORCED
        with pytest.raises(aio.AioRpcError):
            await waiting
    assert len(backend.containers) == 1


async def test_shutdown_with_delete_leaves_nothing_and_ends_calls_as_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FakeBackend(tmp_path)
    _hanging(backend)
    async with _run(
        tmp_path, monkeypatch, backend, shutdown_grace_s=0.1, on_shutdown="delete"
    ) as run:
        waiting = await _running_call(run)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await waiting).ending == tool_pb2.ENDING_CANCELLED
        assert await run.task == 0
    assert backend.stores == set()


async def test_metrics_are_served_on_their_own_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _run(tmp_path, monkeypatch, FakeBackend(tmp_path)) as run:
        await run.sessions.CreateSession(session_pb2.CreateSessionRequest(session_id="s1"))
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://{run.metrics}/metrics")).text
        assert 'sandboxd_sessions{state="READY"} 1.0' in text
        assert "sandboxd_build_info" in text
        assert "python_info" not in text


async def test_start_that_fails_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FakeBackend(tmp_path)
    backend.fail_next("start", StartupError("no engine", EXIT_ENGINE))
    with pytest.raises(StartupError):
        async with _run(tmp_path, monkeypatch, backend):
            pass
    async with _run(tmp_path, monkeypatch, backend) as run:
        await run.sessions.CreateSession(session_pb2.CreateSessionRequest(session_id="s1"))
