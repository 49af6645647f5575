"""The sweep of a container's cgroup: above all, what it must not end."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.backends.cgroups import COMMANDS, ContainerCgroup, belongs, cgroup_of

STRANGE_ID = secrets.token_hex(32)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_s3_process_that_is_not_in_the_cgroup_is_never_killed(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    # As if a number had been given anew between listing and killing.
    (tmp_path / "cgroup.procs").write_text(f"{bystander.pid}\n0\n")
    cgroup = ContainerCgroup(STRANGE_ID, (tmp_path,))
    assert cgroup.pids() == {bystander.pid}
    assert not cgroup.kill(0.1)
    assert bystander.poll() is None


def test_cgroup_of_a_process_outside_the_container_is_empty() -> None:
    found = cgroup_of(STRANGE_ID, os.getpid())
    assert found.folders == ()
    assert found.gone
    assert found.kill(0.1)
    assert not belongs(os.getpid(), STRANGE_ID)


def test_cgroup_that_vanished_has_no_processes(tmp_path: Path) -> None:
    cgroup = ContainerCgroup(STRANGE_ID, (tmp_path / "gone",))
    assert cgroup.gone
    assert cgroup.kill(0.1)


def test_folder_of_a_cgroup_is_removed_only_when_nothing_is_in_it(tmp_path: Path) -> None:
    left, used = tmp_path / "left", tmp_path / "used"
    left.mkdir()
    (used / "below").mkdir(parents=True)
    ContainerCgroup(STRANGE_ID, (left, used, tmp_path / "gone")).remove_empty()
    assert not left.exists()
    assert used.exists()


def test_v2_cgroup_is_killed_by_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "cgroup.kill").write_text("")
    assert ContainerCgroup(STRANGE_ID, (tmp_path,)).kill(0.1)
    assert (tmp_path / "cgroup.kill").read_text() == "1"


def test_s4_child_of_the_commands_is_swept_and_removed_with_its_container(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "own" / COMMANDS).mkdir(parents=True)
    cgroup = ContainerCgroup(STRANGE_ID, (tmp_path / "own",))
    listed = tmp_path / "own" / COMMANDS / "cgroup.procs"
    listed.write_text(f"{bystander.pid}\n")
    assert cgroup.pids() == {bystander.pid}
    listed.unlink()
    cgroup.remove_empty()
    assert cgroup.gone
