"""An engine that refuses or hangs: sessions that run go on, everything else says so."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.errors import AdapterError
from sandbox_adapter.v1 import session_pb2
from tests.integration.daemon_process import DaemonProcess, containers_of, docker, until

pytestmark = pytest.mark.docker
ENGINE = "/var/run/docker.sock"


class Proxy:
    """Stands between the daemon and the engine, and can take the engine away."""

    def __init__(self) -> None:
        self._passes = asyncio.Event()
        self._passes.set()
        self._refuses = False
        self._tasks: set[asyncio.Task[None]] = set()

    def hang(self) -> None:
        self._passes.clear()

    def refuse(self) -> None:
        self._refuses = True
        self.cut()

    def work(self) -> None:
        self._refuses = False
        self._passes.set()

    def cut(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        engine_reader, engine_writer = await asyncio.open_unix_connection(ENGINE)
        halves = [
            asyncio.create_task(self._pump(reader, engine_writer)),
            asyncio.create_task(self._pump(engine_reader, writer)),
        ]
        self._tasks.update(halves)
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            self._tasks.difference_update(halves)
            for end in (writer, engine_writer):
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()


@pytest.fixture
async def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    made = Proxy()
    # A socket's path has to be short, and those of tests are not.
    folder = Path("/tmp") / f"sandboxd-proxy-{time.monotonic_ns()}"
    folder.mkdir(mode=0o700)
    server = await asyncio.start_unix_server(made.serve, folder / "s")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/s")
    yield made
    server.close()
    made.cut()
    await server.wait_closed()
    (folder / "s").unlink(missing_ok=True)
    folder.rmdir()


@pytest.fixture
async def daemon(proxy: Proxy, state_dir: Path) -> AsyncIterator[DaemonProcess]:
    made = DaemonProcess("docker", state_dir, config="engine_timeout_s = 2\n")
    try:
        await asyncio.to_thread(made.start)
        yield made
    finally:
        proxy.work()
        await asyncio.to_thread(made.end_for_good)


@pytest.mark.parametrize("how", ["refuse", "hang"])
async def test_engine_that_is_away_stops_no_call_and_loses_no_session(
    proxy: Proxy, daemon: DaemonProcess, how: str
) -> None:
    async with AdapterClient(daemon.address, retry_s_max=0) as client:
        await client.create_session(session_id="kept")
        await client.create_session(session_id="hit")
        ids = await asyncio.to_thread(containers_of, daemon.state_dir)
        getattr(proxy, how)()
        with pytest.raises(AdapterError) as refused:
            await client.create_session(session_id="new")
        assert refused.value.reason == "ENGINE_DOWN"
        assert refused.value.retry_after_s
        async with asyncio.timeout(2):
            assert (await client.call_tool("kept", "bash", {"command": "echo on"})).result.text
        proxy.work()
        assert len(ids) == 2

        async def made() -> bool:
            with contextlib.suppress(AdapterError):
                await client.create_session(session_id="new")
                return True
            return False

        await until(made, 30)
        for name in ("kept", "hit", "new"):
            await client.delete_session(name)

        async def nothing_left() -> bool:
            left = await asyncio.to_thread(containers_of, daemon.state_dir)
            return not left and not list((daemon.state_dir / "s").iterdir())

        # What a start that was cut off may have made is found by the sweeper.
        await until(nothing_left, 30)


async def test_sandbox_that_dies_while_the_engine_hangs_is_started_when_it_is_back(
    proxy: Proxy, daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AdapterClient(daemon.address, retry_s_max=0) as client:
        await client.create_session(session_id="s")
        (container,) = await asyncio.to_thread(containers_of, daemon.state_dir)
        proxy.hang()
        with monkeypatch.context() as direct:
            direct.delenv("DOCKER_HOST")
            await asyncio.to_thread(docker, "kill", container)

        async def in_state(wanted: session_pb2.SessionState) -> None:
            async def reached() -> bool:
                return (await client.get_session("s")).state == wanted

            await until(reached, 30)

        await in_state(session_pb2.SESSION_STATE_RESTARTING)

        async def waits_for_the_engine() -> bool:
            return (await client.get_session("s")).reason == "ENGINE_DOWN"

        # When its first question is overdue.
        await until(waits_for_the_engine, 10)
        with pytest.raises(AdapterError) as refused:
            await client.call_tool("s", "bash", {"command": "echo"})
        assert refused.value.reason == "ENGINE_DOWN"
        proxy.work()
        await in_state(session_pb2.SESSION_STATE_READY)
        assert (await client.get_session("s")).generation == 2


async def test_start_with_a_hanging_engine_is_one_clear_line(proxy: Proxy, state_dir: Path) -> None:
    """Regression: the overdue call's own failure was logged as never retrieved."""
    proxy.hang()
    daemon = DaemonProcess("docker", state_dir, config="engine_timeout_s = 2\n")
    with pytest.raises(AssertionError, match="ended with 4"):
        await asyncio.to_thread(daemon.start)
    assert daemon.log.rstrip().split("\n")[-1].startswith("sandboxd: error: ")
    assert "raceback" not in daemon.log
