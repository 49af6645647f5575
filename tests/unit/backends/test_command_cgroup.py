"""The child cgroup for commands, in plain folders with threads of this process.

What the kernel makes of it is tried live in `test_endings.py` of the integration tests.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd import limits
from sandboxd.backends.cgroups import COMMANDS, ContainerCgroup
from sandboxd.backends.command_cgroup import confine

STRANGE_ID = "e" * 64


@pytest.fixture
def worker() -> Iterator[int]:
    """A thread of this process, by its number in its own namespace, which is the host's here."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id is not None
    yield thread.native_id
    end.set()
    thread.join()


def container(folder: Path, memory: int = 256 * limits.MIB, pids: str = "128") -> ContainerCgroup:
    """A v1 cgroup with the files that a kernel would have made, the child's included."""
    files = {
        "memory/memory.oom_control": "",
        "memory/memory.use_hierarchy": "1\n",
        "memory/memory.limit_in_bytes": f"{memory}\n",
        f"memory/{COMMANDS}/memory.limit_in_bytes": "",
        f"memory/{COMMANDS}/tasks": "",
        "pids/pids.max": f"{pids}\n",
        "pids/tasks": "",
        f"pids/{COMMANDS}/pids.max": "",
        f"pids/{COMMANDS}/tasks": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return ContainerCgroup(STRANGE_ID, (folder / "memory", folder / "pids"))


def child(folder: Path, name: str) -> str:
    return (folder / name.replace("/", f"/{COMMANDS}/")).read_text()


def test_s4_commands_get_32_mib_and_16_pids_less(tmp_path: Path, worker: int) -> None:
    assert confine(container(tmp_path), os.getpid(), [worker]) == ""
    assert child(tmp_path, "memory/memory.limit_in_bytes") == str(224 * limits.MIB)
    assert child(tmp_path, "pids/pids.max") == "112"
    assert child(tmp_path, "memory/tasks") == child(tmp_path, "pids/tasks") == str(worker)


def test_s4_first_thread_and_strange_threads_are_never_moved(tmp_path: Path, worker: int) -> None:
    named = [os.getpid(), 1, worker, 2**31 - 1]
    assert confine(container(tmp_path), os.getpid(), named) == ""
    assert child(tmp_path, "memory/tasks") == str(worker)


@pytest.mark.parametrize("threads", [[], [1], [2**31 - 1]])
def test_guest_that_names_no_thread_of_its_own_is_left_alone(
    tmp_path: Path, threads: list[int]
) -> None:
    assert confine(container(tmp_path), os.getpid(), threads) == "the guest names no threads"
    assert child(tmp_path, "memory/memory.limit_in_bytes") == ""


def test_process_that_has_ended_has_no_threads(tmp_path: Path, worker: int) -> None:
    assert confine(container(tmp_path), 2**22 - 1, [worker]) == "the guest names no threads"


def test_memory_that_is_not_counted_by_hierarchy_is_not_divided(
    tmp_path: Path, worker: int
) -> None:
    cgroup = container(tmp_path)
    (tmp_path / "memory/memory.use_hierarchy").write_text("0\n")
    assert "hierarchy" in confine(cgroup, os.getpid(), [worker])
    assert child(tmp_path, "memory/tasks") == ""
    assert child(tmp_path, "pids/tasks") == str(worker)


@pytest.mark.parametrize(
    ("memory", "pids", "why"),
    [(48 * limits.MIB, "128", "memory"), (256 * limits.MIB, "32", "process")],
)
def test_limit_that_is_too_small_is_not_divided(
    tmp_path: Path, worker: int, memory: int, pids: str, why: str
) -> None:
    told = confine(container(tmp_path, memory, pids), os.getpid(), [worker])
    assert told == f"the {why} limit is too small to be divided"


def test_v2_has_no_child(tmp_path: Path, worker: int) -> None:
    for name in ("memory.events", "pids.max"):
        (tmp_path / name).write_text("")
    cgroup = ContainerCgroup(STRANGE_ID, (tmp_path,))
    assert confine(cgroup, os.getpid(), [worker]) == "cgroups are not of version 1"
    assert not (tmp_path / COMMANDS).exists()


def test_kernel_that_refuses_leaves_the_container_as_it_was(tmp_path: Path, worker: int) -> None:
    cgroup = container(tmp_path)
    (tmp_path / f"memory/{COMMANDS}/memory.limit_in_bytes").unlink()
    assert "No such file" in confine(cgroup, os.getpid(), [worker])
    assert child(tmp_path, "memory/tasks") == ""
