"""Fixtures: a real guest in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.guest.real_guest import Guest, pack


@pytest.fixture(scope="session")
def guest_zipapp() -> Iterator[Path]:
    """The guest as one file."""
    with tempfile.TemporaryDirectory(prefix="guest-zip-") as folder:
        path = Path(folder) / "guest.pyz"
        pack(path)
        yield path


@pytest.fixture
def guest(guest_zipapp: Path) -> Iterator[Guest]:
    """A guest of its own for one test; whatever it started is gone afterwards."""
    running = Guest(guest_zipapp)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def shared_guest(guest_zipapp: Path) -> Iterator[Guest]:
    """One guest for all tests of a module that leave nothing behind."""
    running = Guest(guest_zipapp)
    try:
        yield running
    finally:
        running.close()
