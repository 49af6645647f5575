"""Daemons and sessions that the integration tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.v1 import session_pb2, tool_pb2
from tests.integration.daemon_process import DaemonProcess

BACKENDS = [pytest.param("docker", marks=pytest.mark.docker), "local"]


@dataclass
class OpenSession:
    """A session of the daemon under test, with the client that made it."""

    client: AdapterClient
    session: session_pb2.Session
    daemon: DaemonProcess

    @property
    def id(self) -> str:
        return self.session.session_id

    @property
    def backend(self) -> str:
        return self.daemon.backend

    @property
    def workdir(self) -> str:
        return self.session.effective.working_directory

    async def tool(self, name: str, **arguments: Any) -> tool_pb2.ToolResult:
        call_id = arguments.pop("call_id", None)
        answer = await self.client.call_tool(self.id, name, arguments, call_id=call_id)
        return answer.result

    async def bash(self, command: str, **arguments: Any) -> tool_pb2.ToolResult:
        return await self.tool("bash", command=command, **arguments)


@pytest.fixture(scope="session")
def docker_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    yield from _serve("docker", tmp_path_factory.mktemp("docker") / "state")


@pytest.fixture(scope="session")
def local_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    yield from _serve("local", tmp_path_factory.mktemp("local") / "state")


def _serve(backend: str, state_dir: Path) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(backend, state_dir).start()
    try:
        yield daemon
    finally:
        daemon.end_for_good()


@pytest.fixture(params=BACKENDS)
def daemon(request: pytest.FixtureRequest) -> DaemonProcess:
    """A running daemon, once for each backend."""
    found: DaemonProcess = request.getfixturevalue(f"{request.param}_daemon")
    return found


@pytest.fixture
async def session(daemon: DaemonProcess) -> AsyncIterator[OpenSession]:
    """A fresh session, once for each backend."""
    async for opened in open_session(daemon):
        yield opened


@pytest.fixture
async def docker_session(docker_daemon: DaemonProcess) -> AsyncIterator[OpenSession]:
    """A fresh session in a container, for what would harm the machine elsewhere."""
    async for opened in open_session(docker_daemon):
        yield opened


async def open_session(daemon: DaemonProcess, **arguments: Any) -> AsyncIterator[OpenSession]:
    async with AdapterClient(daemon.address) as client:
        created = await client.create_session(**arguments)
        try:
            yield OpenSession(client, created, daemon)
        finally:
            await client.delete_session(created.session_id)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Where a daemon of the test's own keeps its state."""
    return tmp_path / "state"
