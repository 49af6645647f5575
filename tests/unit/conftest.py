"""Fixtures of the unit tests of the rooms above the backends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.worker import Worker, running


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    """A daemon over the fake backend; it has no session yet."""
    async with running(tmp_path) as found:
        yield found
