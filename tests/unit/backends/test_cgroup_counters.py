"""Reading the counters of a container's cgroup, from folders that hold what kernels write.

Version 2 is not run live by the project's own tests: its files are recorded here as a
kernel 6.1 writes them, in plain folders. Version 1 is met live in `test_endings.py` of the
integration tests.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sandboxd.backends.base import Counted
from sandboxd.backends.cgroup_counters import CgroupCounters, can_tell
from sandboxd.backends.cgroups import ContainerCgroup

STRANGE_ID = "f" * 64

V1_MEMORY = {
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "memory.max_usage_in_bytes": "239079424\n",
    "commands/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "commands/memory.max_usage_in_bytes": "234881024\n",
}
V1_PIDS = {
    "pids.events": "max 2\n",
    "pids.peak": "64\n",
    "commands/pids.events": "max 40\n",
    "commands/pids.peak": "48\n",
}
V2 = {
    "memory.events": "low 0\nhigh 0\nmax 611\noom 2\noom_kill 2\noom_group_kill 0\n",
    "memory.peak": "268435456\n",
    "pids.events": "max 17\n",
    "pids.peak": "128\n",
}


def recorded(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def counters_of(*folders: Path) -> CgroupCounters:
    return CgroupCounters(ContainerCgroup(STRANGE_ID, folders))


def test_v1_counters_of_the_commands_are_added_to_the_containers_own(tmp_path: Path) -> None:
    memory = recorded(tmp_path / "memory", V1_MEMORY)
    pids = recorded(tmp_path / "pids", V1_PIDS)
    counters = counters_of(tmp_path / "freezer", memory, pids)
    assert counters.read() == Counted(
        oom_kills=4,
        own_oom_kills=1,
        forks_refused=42,
        memory_peak_bytes=239_079_424,
        pids_peak=64,
    )
    counters.close()


def test_v1_container_without_a_child_is_counted_alone(tmp_path: Path) -> None:
    own = {name: text for name, text in {**V1_MEMORY, **V1_PIDS}.items() if "/" not in name}
    counters = counters_of(recorded(tmp_path, own))
    found = counters.read()
    assert found is not None
    assert (found.oom_kills, found.own_oom_kills, found.forks_refused) == (1, 1, 2)
    counters.close()


def test_v2_counters_recorded_not_run_live(tmp_path: Path) -> None:
    counters = counters_of(recorded(tmp_path, V2))
    assert counters.read() == Counted(
        oom_kills=2,
        own_oom_kills=2,
        forks_refused=17,
        memory_peak_bytes=268_435_456,
        pids_peak=128,
    )
    (tmp_path / "memory.events").write_text(V2["memory.events"].replace("oom_kill 2", "oom_kill 3"))
    after = counters.read()
    assert after is not None
    assert after.oom_kills == 3
    counters.close()


def test_v2_of_an_older_kernel_has_no_peaks_recorded_not_run_live(tmp_path: Path) -> None:
    older = {name: text for name, text in V2.items() if not name.endswith("peak")}
    counters = counters_of(recorded(tmp_path, older))
    found = counters.read()
    assert found is not None
    assert (found.oom_kills, found.memory_peak_bytes, found.pids_peak) == (2, None, None)
    counters.close()


@pytest.mark.parametrize("text", ["", "oom_kill_disable 0\nunder_oom 0\n", "oom_kill many\n"])
def test_what_an_old_kernel_does_not_count_is_not_told(tmp_path: Path, text: str) -> None:
    counters = counters_of(recorded(tmp_path, {"memory.oom_control": text}))
    assert counters.read() is None
    counters.close()


def test_without_a_memory_controller_nothing_is_told(tmp_path: Path) -> None:
    counters = counters_of(recorded(tmp_path, {"cgroup.procs": ""}), tmp_path / "gone")
    assert counters.read() is None
    counters.close()


def test_closed_counters_leave_no_descriptor_and_tell_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    counters = counters_of(recorded(tmp_path, V2))
    assert len(os.listdir("/proc/self/fd")) > before
    counters.close()
    counters.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert counters.read() is None


def test_a_reading_costs_far_less_than_a_command(tmp_path: Path) -> None:
    memory = recorded(tmp_path / "memory", V1_MEMORY)
    counters = counters_of(memory, recorded(tmp_path / "pids", V1_PIDS))
    times = []
    for _ in range(200):
        begun = time.perf_counter()
        counters.read()
        times.append(time.perf_counter() - begun)
    # Two of them belong to a command, whose overhead they must stay below 0.2 ms of.
    assert sorted(times)[len(times) // 2] < 0.0001
    counters.close()


def test_whether_containers_can_be_seen_at_all(tmp_path: Path) -> None:
    v1 = recorded(tmp_path / "v1", {"memory.oom_control": "oom_kill_disable 0\noom_kill 0\n"})
    v1_old = recorded(tmp_path / "old", {"memory.oom_control": "oom_kill_disable 0\n"})
    v2 = recorded(tmp_path / "v2", {"cgroup.controllers": "cpu memory pids\n"})
    v2_without = recorded(tmp_path / "without", {"cgroup.controllers": "cpu pids\n"})
    assert can_tell([(tmp_path, "/"), (v1, "/")])
    assert can_tell([(v2, "/")])
    assert not can_tell([(v1_old, "/")])
    assert not can_tell([(v2_without, "/")])
    assert not can_tell([(v1, "/docker/abc"), (v2, "/../..")])
    assert not can_tell([])
