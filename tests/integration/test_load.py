"""The load measures in small, in containers; `make test-load` runs them in full."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_adapter.client import AdapterClient
from tests.integration.daemon_process import DaemonProcess
from tests.load import measures
from tests.load.measures import Bench
from tests.load.memory import resident_of_session

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.fixture
async def bench(state_dir: Path) -> AsyncIterator[Bench]:
    daemon = DaemonProcess("docker", state_dir).start()
    try:
        async with AdapterClient(daemon.address) as client:
            session = await client.create_session()
            yield Bench(client, session.session_id, resident_of_session(daemon))
    finally:
        daemon.end_for_good()


def _done(more: int) -> None:
    """Nobody watches."""


async def test_thousand_commands_keep_their_output_and_code(bench: Bench) -> None:
    await measures.exit_three(bench, 500, _done)
    await measures.exact_codes(bench, 500, _done)


async def test_thousand_parallel_edits_all_take_effect(bench: Bench) -> None:
    await measures.parallel_edits(bench, 1_000, _done)


async def test_pages_of_a_file_of_400_megabytes_are_right_in_flat_memory(bench: Bench) -> None:
    await measures.pages_of_a_big_file(bench, 400 * 1000**2, _done)


async def test_rare_word_is_found_in_path_order(bench: Bench) -> None:
    await measures.rare_word(bench, 2_000, 1, _done)
