"""Many sessions, calls and streams in small; `make test-load` runs them in full."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_adapter.client import AdapterClient
from tests.integration.daemon_process import DaemonProcess
from tests.load import endurance
from tests.load.many_sessions import ENGINE_CONNECTIONS_MAX, many_sessions
from tests.load.measures import Bench
from tests.load.memory import resident_of_session

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
SESSIONS = 24
CLIENTS = 8


@pytest.fixture
async def daemon(state_dir: Path) -> AsyncIterator[DaemonProcess]:
    made = DaemonProcess("docker", state_dir)
    try:
        yield made.start()
    finally:
        made.end_for_good()


@pytest.fixture
async def bench(daemon: DaemonProcess) -> AsyncIterator[Bench]:
    async with AdapterClient(daemon.address) as client:
        session = await client.create_session()
        yield Bench(client, session.session_id, resident_of_session(daemon))


def _done(more: int) -> None:
    """Nobody watches."""


async def test_many_sessions_by_parallel_clients_leave_nothing(daemon: DaemonProcess) -> None:
    # More sessions than the engine's connections: one that kept a descriptor would show.
    assert SESSIONS > ENGINE_CONNECTIONS_MAX
    await many_sessions(daemon, SESSIONS, CLIENTS, _done)


async def test_two_thousand_mixed_calls_are_right_in_flat_memory(bench: Bench) -> None:
    await endurance.mixed_calls(bench, 2_000, _done)


async def test_streams_that_are_left_cost_nothing(bench: Bench) -> None:
    await endurance.cancelled_streams(bench, 500, _done)
