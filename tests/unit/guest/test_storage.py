"""Which mounts the guest calls full, by what the kernel says of them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxd.guest import storage
from sandboxd.guest.ops import Machine

MIB = 1024 * 1024
BLOCK = 4096


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(mode="container", workdir=str(tmp_path), home=str(tmp_path))


def found(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, size: int, free: int, **files: int
) -> list[dict[str, Any]]:
    state = SimpleNamespace(
        f_blocks=size // BLOCK,
        f_frsize=BLOCK,
        f_bavail=free // BLOCK,
        f_files=files.get("files", 100),
        f_favail=files.get("files_free", 50),
    )
    real = os.statvfs

    def statvfs(path: str) -> object:
        return state if path == machine.workdir else real("/proc")

    monkeypatch.setattr(os, "statvfs", statvfs)
    return storage.full(machine)


@pytest.mark.parametrize(
    ("size", "free", "full"),
    [
        (64 * MIB, 0, True),
        (64 * MIB, MIB // 2, True),
        (64 * MIB, MIB, False),
        (2 * MIB, 60 * 1024, True),
        (2 * MIB, 100 * 1024, False),
        (100_000 * MIB, 15 * MIB, True),
        (100_000 * MIB, 17 * MIB, False),
    ],
)
def test_full_is_little_left_within_bounds(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, size: int, free: int, full: bool
) -> None:
    expected = [{"mount": machine.workdir, "size": size}] if full else []
    assert found(monkeypatch, machine, size, free) == expected


def test_mount_without_a_free_file_is_full(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    got = found(monkeypatch, machine, 64 * MIB, 32 * MIB, files=10, files_free=0)
    assert got == [{"mount": machine.workdir, "size": 64 * MIB}]
    # What counts no files has zero of both.
    assert found(monkeypatch, machine, 64 * MIB, 32 * MIB, files=0, files_free=0) == []


def test_mounts_of_the_host_are_not_judged(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    machine.mode = "local"
    assert found(monkeypatch, machine, 64 * MIB, 0) == []


def test_folder_that_is_gone_is_passed_over(machine: Machine, tmp_path: Path) -> None:
    machine.workdir = str(tmp_path / "gone")
    assert all(each["mount"] != machine.workdir for each in storage.full(machine))


def test_size_of_what_is_full_is_found_through_parents(tmp_path: Path) -> None:
    state = os.statvfs(tmp_path)
    size = state.f_blocks * state.f_frsize
    assert storage.size_at(str(tmp_path)) == size
    assert storage.size_at(str(tmp_path / "not" / "there")) == size
    assert storage.size_at("relative") is None
