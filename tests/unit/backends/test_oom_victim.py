"""The kernel's log of victims, from recorded rows: names in it are hostile."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sandboxd.backends import oom_victim
from sandboxd.backends.oom_victim import Victim, last_victims

OWN = "ab" * 32
OTHER = "cd" * 32


def row(name: str, pid: int, container: str = OWN, below: str = "/commands") -> str:
    path = f"/docker/{container}{below}"
    return (
        f"6,1234,13145900814,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),"
        f"cpuset={container},mems_allowed=0,oom_memcg={path},task_memcg={path},"
        f"task={name},pid={pid},uid=60001\n SUBSYSTEM=x\n"
    )


def log_of(tmp_path: Path, record: str) -> Path:
    """A file is read like the log's one record."""
    path = tmp_path / "log"
    path.write_bytes(record.encode())
    return path


def test_victim_is_named_with_its_number(tmp_path: Path) -> None:
    assert last_victims(OWN, log_of(tmp_path, row("python3", 2476))) == [Victim("python3", 2476)]


def test_victim_in_the_containers_own_cgroup_is_named(tmp_path: Path) -> None:
    found = last_victims(OWN, log_of(tmp_path, row("python3", 1, below="")))
    assert found == [Victim("python3", 1)]


def test_victim_of_another_container_is_nobody(tmp_path: Path) -> None:
    assert last_victims(OWN, log_of(tmp_path, row("python3", 2476, OTHER))) == []


@pytest.mark.parametrize(
    "name", ["a,pid=1,uid=0", f"task_memcg={OWN}"[:15], "x,task=y", "oom-kill:", "a b", ""]
)
def test_name_may_hold_what_the_row_is_made_of(tmp_path: Path, name: str) -> None:
    assert last_victims(OWN, log_of(tmp_path, row(name, 77))) == [Victim(name, 77)]
    assert last_victims(OWN, log_of(tmp_path, row(name, 77, OTHER))) == []


def test_name_is_printable_and_bounded(tmp_path: Path) -> None:
    (found,) = last_victims(OWN, log_of(tmp_path, row("a\x1b[31m" + "b" * 200, 5)))
    assert found.name.isprintable()
    assert len(found.name) == 64


@pytest.mark.parametrize("record", ["", "garbage", ";", "6,1,2,-;", row("x", 1)[:-40]])
def test_other_records_are_passed_over(tmp_path: Path, record: str) -> None:
    assert last_victims(OWN, log_of(tmp_path, record)) == []


def test_log_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    assert last_victims(OWN, tmp_path / "gone") == []
    assert last_victims(OWN, tmp_path) == []


def test_pass_through_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A log that never ends: a device that always has more.
    monkeypatch.setattr(oom_victim, "READ_S_MAX", 0.05)
    begun = time.monotonic()
    assert last_victims(OWN, Path("/dev/zero")) == []
    assert time.monotonic() - begun < 2


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel's log is closed")
def test_real_log_is_read_to_its_end_without_waiting() -> None:
    begun = time.monotonic()
    assert last_victims("0" * 64) == []
    assert time.monotonic() - begun < 2
