"""The engine itself ends and comes back: one of the tests' own, never the machine's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.errors import AdapterError
from sandbox_adapter.v1 import session_pb2, tool_pb2
from tests import machine
from tests.faults.own_engine import OwnEngine
from tests.integration.daemon_process import DaemonProcess, containers_of, docker, until

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    machine.OWN_ENGINE,
]
LINE = "[The sandbox was restarted: files in the workspace are kept, running processes are gone.]\n"
LONG = "echo begun; sleep 100"
SESSIONS = 12
READY = session_pb2.SESSION_STATE_READY


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEngine]:
    made = OwnEngine(tmp_path_factory.mktemp("engine") / "e")
    try:
        made.start()
        made.load("sandboxd/base:dev", "sandboxd/toolbox:dev")
        yield made
    finally:
        made.end()


@pytest.fixture
def daemon(
    engine: OwnEngine, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DaemonProcess]:
    if engine.pid is None:
        engine.start()
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    made = DaemonProcess("docker", state_dir)
    try:
        yield made.start()
    finally:
        if engine.pid is None:
            engine.start()
        made.end_for_good()


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def containerd_of(engine: OwnEngine) -> int:
    """The engine starts it as its child, and anew when it dies."""
    # Listed by the thread that started it.
    rows = [path.read_text() for path in Path(f"/proc/{engine.pid}/task").glob("*/children")]
    (child,) = [
        int(pid)
        for pid in " ".join(rows).split()
        if Path(f"/proc/{pid}/comm").read_text().strip() == "containerd"
    ]
    return child


def gauge(daemon: DaemonProcess) -> float:
    """`sandboxd_engine_up` as Prometheus sees it."""
    with urllib.request.urlopen(f"http://{daemon.metrics}/metrics", timeout=5) as answer:
        shown = re.search(r"^sandboxd_engine_up (\S+)$", answer.read().decode(), re.MULTILINE)
    assert shown is not None
    return float(shown[1])


async def health(daemon: DaemonProcess) -> int:
    async with aio.insecure_channel(daemon.address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    status: int = answer.status
    return status


async def ready(client: AdapterClient, name: str) -> session_pb2.Session:
    async def reached() -> bool:
        return (await client.get_session(name)).state == READY

    await until(reached, 30)
    return await client.get_session(name)


async def takes_new_sessions(client: AdapterClient) -> None:
    async def made() -> bool:
        with contextlib.suppress(AdapterError):
            await client.create_session(session_id="new")
            return True
        return False

    await until(made, 10)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_engine_that_restores_its_containers_takes_nothing_with_it(
    engine: OwnEngine, daemon: DaemonProcess, how: str
) -> None:
    await asyncio.to_thread(engine.stop)
    await asyncio.to_thread(engine.start, True)
    async with AdapterClient(daemon.address, retry_s_max=0) as client:
        await takes_new_sessions(client)
        running = asyncio.create_task(
            client.call_tool(
                "new", "bash", {"command": "for i in $(seq 60); do echo $i; sleep 0.1; done"}
            )
        )
        await asyncio.to_thread(getattr(engine, how))
        with pytest.raises(AdapterError) as refused:
            await client.create_session(session_id="other")
        assert refused.value.reason == "ENGINE_DOWN"
        assert refused.value.retry_after_s
        # The engine is not in the way of a call.
        async with asyncio.timeout(2):
            assert (await client.call_tool("new", "bash", {"command": "echo on"})).result.text
        await asyncio.to_thread(engine.start, True)
        result = (await running).result
        assert result.text == "".join(f"{number}\n" for number in range(1, 61))
        assert (result.ending, result.generation) == (tool_pb2.ENDING_EXITED, 1)
        found = await client.get_session("new")
        assert (found.state, found.generation, found.reason) == (READY, 1, "")
        await client.delete_session("new")
    assert containers_of(daemon.state_dir) == []
    await asyncio.to_thread(engine.stop)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_engine_that_takes_its_containers_along_is_a_visible_restart(
    engine: OwnEngine, daemon: DaemonProcess, how: str
) -> None:
    async with AdapterClient(daemon.address, retry_s_max=0) as client:
        await client.create_session(session_id="s")
        await client.call_tool("s", "write", {"path": "f", "content": "kept"})
        running = asyncio.create_task(client.call_tool("s", "bash", {"command": LONG}, call_id="r"))

        async def begun() -> bool:
            with contextlib.suppress(AdapterError):
                known = await client.get_call("s", "r")
                return known.state == tool_pb2.CALL_STATE_RUNNING
            return False

        await until(begun, 10)
        await asyncio.to_thread(getattr(engine, how))
        if how == "stop":
            await _waits_for_the_engine(client)
            assert await health(daemon) == health_pb2.HealthCheckResponse.SERVING
            assert await asyncio.to_thread(gauge, daemon) == 0
            # It ended with its container, and nobody waits for the engine.
            assert running.done()
        await asyncio.to_thread(engine.start)
        back = time.monotonic()
        # After a kill the containers live on, until the next engine ends them.
        async with asyncio.timeout(5):
            lost = (await running).result
        assert lost.ending == tool_pb2.ENDING_SANDBOX_LOST

        async def next_generation() -> bool:
            found = await client.get_session("s")
            return (found.state, found.generation, found.reason) == (READY, 2, "")

        await until(next_generation, 30)
        assert time.monotonic() - back < 10
        assert await asyncio.to_thread(gauge, daemon) == 1
        result = (await client.call_tool("s", "read", {"path": "f"})).result
        assert result.text == f"{LINE}kept"
        again = await client.call_tool("s", "bash", {"command": LONG}, call_id="r")
        assert again.result.replayed
        assert again.result.text == lost.text
        await client.delete_session("s")
    assert containers_of(daemon.state_dir) == []


async def _waits_for_the_engine(client: AdapterClient) -> None:
    async def waits() -> bool:
        return (await client.get_session("s")).reason == "ENGINE_DOWN"

    await until(waits, 10)
    found = await client.get_session("s")
    assert found.state == session_pb2.SESSION_STATE_RESTARTING
    assert "engine does not answer" in found.message
    asks = [
        client.call_tool("s", "bash", {"command": "echo"}),
        client.files.stat("s", "f"),
        client.create_session(session_id="other"),
    ]
    for asked in asks:
        with pytest.raises(AdapterError) as refused:
            await asked
        assert refused.value.reason == "ENGINE_DOWN"
        assert refused.value.status == "UNAVAILABLE"
        assert refused.value.retry_after_s


async def test_session_deleted_without_an_engine_is_dead_at_once_and_gone_when_it_is_back(
    engine: OwnEngine, daemon: DaemonProcess
) -> None:
    async with AdapterClient(daemon.address, retry_s_max=0) as client:
        await client.create_session(session_id="s")
        (container,) = containers_of(daemon.state_dir)
        pid = int(docker("inspect", "--format", "{{.State.Pid}}", container))
        await asyncio.to_thread(engine.kill)
        assert runs(pid)
        with pytest.raises(AdapterError) as unfinished:
            await client.delete_session("s")
        assert unfinished.value.reason == "ENGINE_DOWN"

        async def dead() -> bool:
            return not runs(pid)

        await until(dead, 5)
        with pytest.raises(AdapterError) as deleted:
            await client.call_tool("s", "bash", {"command": "echo"})
        assert deleted.value.reason == "SESSION_DELETED"
        await asyncio.to_thread(engine.start)

        async def nothing_left() -> bool:
            left = await asyncio.to_thread(containers_of, daemon.state_dir)
            return not left and not list((daemon.state_dir / "s").iterdir())

        await until(nothing_left, 15)


async def test_daemon_that_dies_while_the_engine_is_away_goes_on_when_both_are_back(
    engine: OwnEngine, daemon: DaemonProcess
) -> None:
    async with AdapterClient(daemon.address) as client:
        await client.create_session(session_id="s")
        await client.call_tool("s", "write", {"path": "f", "content": "kept"})
    await asyncio.to_thread(engine.kill)
    daemon.kill()
    with pytest.raises(AssertionError, match="ended with 4"):
        await asyncio.to_thread(daemon.start)
    assert daemon.log.rstrip().split("\n")[-1].startswith("sandboxd: error: ")
    await asyncio.to_thread(engine.start)
    await asyncio.to_thread(daemon.start)
    async with AdapterClient(daemon.address) as client:
        assert (await ready(client, "s")).generation == 2
        result = (await client.call_tool("s", "read", {"path": "f"})).result
        assert result.text == f"{LINE}kept"
        await client.delete_session("s")


async def test_engine_whose_containerd_is_away_refuses_with_a_delay_and_goes_on(
    engine: OwnEngine, daemon: DaemonProcess
) -> None:
    async with AdapterClient(daemon.address, retry_s_max=0) as client:
        await client.create_session(session_id="s")
        os.kill(containerd_of(engine), signal.SIGKILL)
        reasons: list[str] = []

        async def made() -> bool:
            try:
                await client.create_session(session_id="new")
            except AdapterError as error:
                reasons.append(error.reason)
                return False
            return True

        await until(made, 60)
        assert set(reasons) == {"ENGINE_DOWN"}
        result = (await client.call_tool("s", "bash", {"command": "echo on"})).result
        assert (result.text, result.generation) == ("on\n", 1)
        for name in ("s", "new"):
            await client.delete_session(name)


async def test_sessions_that_an_engine_took_along_all_come_back(
    engine: OwnEngine, daemon: DaemonProcess
) -> None:
    names = [f"s{number}" for number in range(SESSIONS)]
    async with AdapterClient(daemon.address) as client:
        await asyncio.gather(*[client.create_session(session_id=name) for name in names])
        for name in names:
            await client.call_tool(name, "write", {"path": "own", "content": name})
        await asyncio.to_thread(engine.stop)
        await asyncio.to_thread(engine.start)

        async def all_ready() -> bool:
            found = [session async for session in client.list_sessions()]
            return all((each.state, each.generation) == (READY, 2) for each in found)

        await until(all_ready, 90)
        for name in names:
            result = (await client.call_tool(name, "read", {"path": "own"})).result
            assert result.text == f"{LINE}{name}"
        await asyncio.gather(*[client.delete_session(name) for name in names])
    assert containers_of(daemon.state_dir) == []
    assert "stuck" not in daemon.log


async def test_many_engine_restarts_count_one_each_and_the_sixth_fails_the_session(
    engine: OwnEngine, daemon: DaemonProcess
) -> None:
    async with AdapterClient(daemon.address, retry_s_max=0) as client:
        await client.create_session(session_id="s")
        await client.call_tool("s", "write", {"path": "f", "content": "kept"})
        for number in range(2, 7):
            await asyncio.to_thread(engine.kill if number % 2 else engine.stop)
            await asyncio.to_thread(engine.start)

            async def again(wanted: int = number) -> bool:
                found = await client.get_session("s")
                return found.state == READY and found.generation == wanted

            await until(again, 30)
        await asyncio.to_thread(engine.stop)
        await asyncio.to_thread(engine.start)

        async def failed() -> bool:
            return (await client.get_session("s")).state == session_pb2.SESSION_STATE_FAILED

        await until(failed, 30)
        assert (await client.get_session("s")).reason == "RESTART_LIMIT"
        with pytest.raises(AdapterError) as refused:
            await client.call_tool("s", "bash", {"command": "echo"})
        assert refused.value.reason == "SESSION_FAILED"
        (folder,) = (daemon.state_dir / "s").iterdir()
        assert (folder / "store" / "workspace" / "f").read_text() == "kept"

        async def ended() -> bool:
            return not await asyncio.to_thread(containers_of, daemon.state_dir)

        await until(ended, 20)
        await client.delete_session("s")
        assert list((daemon.state_dir / "s").iterdir()) == []
