"""Who follows the output of a process while daemons come and go in good order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_adapter.client import AdapterClient
from tests.integration.conftest import BACKENDS
from tests.integration.daemon_process import DaemonProcess, until
from tests.integration.numbered_lines import Lines, script

COUNT = 600
BETWEEN_BYTES = 500
DRAIN_S_MAX = 10.0
"""No grace is waited for: a stream that has no end of its own must not hold up the daemon's."""


@pytest.fixture(params=BACKENDS)
def daemon(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[DaemonProcess]:
    """A daemon that the test may end, always at the same address."""
    listen = f"unix:{state_dir.parent / 'api.sock'}"
    started = DaemonProcess(request.param, state_dir, "--listen", listen)
    try:
        yield started.start()
    finally:
        started.end_for_good()


async def test_output_comes_whole_and_once_over_daemons_that_are_told_to_end(
    daemon: DaemonProcess,
) -> None:
    got, dropped = bytearray(), 0
    async with AdapterClient(daemon.address) as client:
        session_id = (await client.create_session()).session_id
        await client.processes.start(session_id, ["sh", "-c", script(COUNT)], process_id="p")

        async def follow() -> None:
            nonlocal dropped
            async for message in client.processes.output(session_id, "p"):
                got.extend(message.data)
                dropped += message.bytes_dropped

        following = asyncio.create_task(follow())
        for number in (1, 2):

            async def has_more(least: int = number * BETWEEN_BYTES) -> bool:
                return len(got) >= least

            await until(has_more, 30)
            async with asyncio.timeout(DRAIN_S_MAX):
                assert await asyncio.to_thread(daemon.terminate) == 0
            await asyncio.to_thread(daemon.start)
        await asyncio.wait_for(following, 60)
    lines = Lines(COUNT)
    lines.take(bytes(got))
    assert (lines.complete, dropped) == (True, 0)
