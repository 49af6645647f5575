"""Very many sessions made, used and deleted by parallel clients: afterwards nothing is left."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from sandbox_adapter.client import AdapterClient
from tests.integration.daemon_process import DaemonProcess, containers_of, docker
from tests.load.measures import Done, in_parallel

ENGINE_CONNECTIONS_MAX: Final = 16
"""The daemon keeps as many as engine calls may run at a time."""
SETTLE_S_MAX: Final = 30.0


async def many_sessions(
    daemon: DaemonProcess, sessions: int, clients: int, done: Done
) -> dict[str, float]:
    """All sessions exist at the same time. Raises `AssertionError` where anything is left.

    `done` is told three times of each: made, used, deleted.
    """
    before = await asyncio.to_thread(_engine_things)
    descriptors = _descriptors(daemon)
    seconds: dict[str, list[float]] = {"create": [], "call": [], "delete": []}
    opened = [AdapterClient(daemon.address) for _ in range(clients)]
    for client in opened:
        await client.__aenter__()
    try:
        containers: list[str] = []

        async def create(number: int) -> None:
            await opened[number % clients].create_session(session_id=f"many-{number}")

        async def use(number: int) -> None:
            client = opened[number % clients]
            arguments = {"command": f"echo {number} > own; cat own"}
            answer = await client.call_tool(f"many-{number}", "bash", arguments)
            assert answer.result.text == f"{number}\n", answer.result.text

        async def delete(number: int) -> None:
            await opened[number % clients].delete_session(f"many-{number}")

        for name, step in (("create", create), ("call", use), ("delete", delete)):
            timed = _timed(step, seconds[name])
            await in_parallel(range(sessions), timed, done, clients)
            if name == "create":
                containers = await asyncio.to_thread(containers_of, daemon.state_dir)
                assert len(containers) == sessions, len(containers)
    finally:
        for client in opened:
            await client.__aexit__(None, None, None)
    await asyncio.to_thread(_nothing_left, daemon, containers)
    assert await asyncio.to_thread(_engine_things) == before
    held = await _settled(lambda: _descriptors(daemon), descriptors + ENGINE_CONNECTIONS_MAX)
    figures = {"descriptors before": float(descriptors), "descriptors after": float(held)}
    for name, taken in seconds.items():
        figures[f"{name}, median s"] = round(statistics.median(taken), 3)
        figures[f"{name}, longest s"] = round(max(taken), 3)
    return figures


def _timed(
    step: Callable[[int], Awaitable[None]], taken: list[float]
) -> Callable[[int], Awaitable[None]]:
    async def timed(number: int) -> None:
        begun = time.monotonic()
        await step(number)
        taken.append(time.monotonic() - begun)

    return timed


def _engine_things() -> tuple[str, str]:
    """Networks with their address pools, and volumes."""
    networks = docker("network", "ls", "--quiet", "--no-trunc").split()
    pools = docker("network", "inspect", "--format", "{{.Id}} {{json .IPAM.Config}}", *networks)
    return pools, docker("volume", "ls", "--quiet")


def _nothing_left(daemon: DaemonProcess, containers: list[str]) -> None:
    """At once: a deletion that was answered has left nothing."""
    assert containers_of(daemon.state_dir) == []
    folder = daemon.state_dir / "s"
    assert os.listdir(folder) == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    loops = Path("/sys/block").glob("loop*/loop/backing_file")
    assert not [path for path in loops if str(folder) in path.read_text()]
    groups = [*Path("/sys/fs/cgroup").glob("*/docker/*"), *Path("/sys/fs/cgroup").glob("*/*.scope")]
    assert not [path for path in groups if any(id_ in path.name for id_ in containers)]


def _descriptors(daemon: DaemonProcess) -> int:
    assert daemon.process is not None
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


async def _settled(ask: Callable[[], int], most: int) -> int:
    """The figure once it is as small as it has to be; connections of clients end by themselves."""
    async with asyncio.timeout(SETTLE_S_MAX):
        while (found := ask()) > most:  # noqa: ASYNC110 - another process closes them
            await asyncio.sleep(0.1)
    return found
