"""Reading the process table."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.guest import tree


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose name tries to look like the rest of its line."""
    program = tmp_path / ") Z 1 (x\n)"
    shutil.copy("/bin/sleep", program)
    environment = {"A": "1", tree.MARKER: "cafe", "B": "2"}
    process = subprocess.Popen([program, "300"], env=environment, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_process_is_read_whatever_its_name(odd: subprocess.Popen[bytes]) -> None:
    found = tree.read(odd.pid)

    assert found is not None
    assert found.name == ") Z 1 (x?)"
    assert (found.parent, found.session, found.group) == (os.getpid(), odd.pid, odd.pid)
    assert found.alive
    assert tree.scan()[odd.pid].started == found.started


def test_marker_is_found_in_the_environment(odd: subprocess.Popen[bytes]) -> None:
    # A program that has just been executed has no environment for a moment.
    deadline = time.monotonic() + 10.0
    while tree.marker_of(odd.pid) is None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert tree.marker_of(odd.pid) == "cafe"
    assert tree.marker_of(2**22 + 1) is None
    assert tree.read(2**22 + 1) is None


def test_signal_goes_to_exactly_the_process_that_was_seen(odd: subprocess.Popen[bytes]) -> None:
    found = tree.read(odd.pid)
    assert found is not None
    reused = tree.Process(**{**found.__dict__, "started": found.started - 1})

    tree.send(reused, signal.SIGKILL)
    assert odd.poll() is None

    tree.send(found, signal.SIGKILL)
    assert odd.wait(10) == -signal.SIGKILL


def test_zombies_are_the_dead_children_of_one_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert child.pid in [process.pid for process in tree.zombies_of(os.getpid())]

    child.wait()
    assert child.pid not in [process.pid for process in tree.zombies_of(os.getpid())]


def test_descendants_are_found_by_parents_and_loops_end() -> None:
    def process(pid: int, parent: int) -> tree.Process:
        return tree.Process(pid, parent, pid, pid, "S", 0, "x")

    table = {pid: process(pid, parent) for pid, parent in [(2, 1), (3, 2), (4, 9), (9, 4)]}

    assert tree.descendants(table, [2]) == {2, 3}
    assert tree.descendants(table, [4]) == {4, 9}
