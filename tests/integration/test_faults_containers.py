"""Others take a session's container away, or stop it, behind the daemon's back."""

from __future__ import annotations

import asyncio

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.v1 import session_pb2, tool_pb2
from tests.integration.daemon_process import DaemonProcess, containers_of, docker, until

pytestmark = pytest.mark.docker


async def made(client: AdapterClient, daemon: DaemonProcess) -> tuple[str, str]:
    """A new session, and its container."""
    before = set(containers_of(daemon.state_dir))
    session = await client.create_session()
    (container,) = set(containers_of(daemon.state_dir)) - before
    return session.session_id, container


@pytest.mark.parametrize("outside", [("kill",), ("rm", "-f"), ("stop", "-t", "0")])
async def test_container_taken_away_is_a_visible_restart(
    docker_daemon: DaemonProcess, outside: tuple[str, ...]
) -> None:
    async with AdapterClient(docker_daemon.address) as client:
        name, container = await made(client, docker_daemon)
        await client.call_tool(name, "write", {"path": "f", "content": "kept"})
        await asyncio.to_thread(docker, *outside, container)

        async def next_generation() -> bool:
            found = await client.get_session(name)
            return found.generation == 2 and found.state == session_pb2.SESSION_STATE_READY

        await until(next_generation, 30)
        result = (await client.call_tool(name, "read", {"path": "f"})).result
        assert result.text.startswith("[The sandbox was restarted: ")
        assert result.text.split("\n")[1] == "kept"
        await client.delete_session(name)


async def test_frozen_container_holds_up_nobody_and_can_be_deleted(
    docker_daemon: DaemonProcess,
) -> None:
    async with AdapterClient(docker_daemon.address) as client:
        name, container = await made(client, docker_daemon)
        neighbour, _ = await made(client, docker_daemon)
        await asyncio.to_thread(docker, "pause", container)
        stuck = asyncio.create_task(client.call_tool(name, "bash", {"command": "echo"}))
        async with asyncio.timeout(5):
            other = await client.call_tool(neighbour, "bash", {"command": "echo other"})
        assert other.result.text == "other\n"
        async with asyncio.timeout(30):
            await client.delete_session(name)
            assert (await stuck).result.ending == tool_pb2.ENDING_CANCELLED
        assert container not in containers_of(docker_daemon.state_dir)
        await client.delete_session(neighbour)
