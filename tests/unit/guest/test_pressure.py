"""When the guest feels its process limit: in its own cgroup, and in that of its commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.guest import pressure
from sandboxd.guest.pressure import RESERVE, Pressure


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pids controller with room, in place of the kernel's."""
    monkeypatch.setattr(pressure, "_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(pressure, "_opened", {})
    counts(tmp_path, 128, 30, 0)
    return tmp_path


def counts(folder: Path, limit: int | str, current: int, refused: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "pids.max").write_text(f"{limit}\n")
    (folder / "pids.current").write_text(f"{current}\n")
    (folder / "pids.events").write_text(f"max {refused}\n")


def test_room_is_no_pressure(folder: Path) -> None:
    assert not Pressure().felt()


def test_little_room_is_pressure(folder: Path) -> None:
    counts(folder, 128, 128 - RESERVE + 1, 0)
    assert Pressure().felt()


def test_limit_of_the_commands_is_felt_although_it_is_made_later(folder: Path) -> None:
    felt = Pressure()
    assert not felt.felt()
    counts(folder / "commands", 112, 112 - RESERVE + 1, 0)
    assert felt.felt()
    counts(folder / "commands", 112, 30, 0)
    assert not felt.felt()


@pytest.mark.parametrize("level", ["", "commands"])
def test_refusal_is_felt_once_and_not_when_it_was_noted(folder: Path, level: str) -> None:
    counts(folder / "commands", 112, 30, 0)
    felt = Pressure()
    felt.note()
    counts(folder / level, 128, 30, 3)
    assert felt.felt()
    assert not felt.felt()
    counts(folder / level, 128, 30, 5)
    felt.note()
    assert not felt.felt()


def test_no_limit_and_no_controller_are_no_pressure(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts(folder, "max", 30_000, 0)
    assert not Pressure().felt()
    monkeypatch.setattr(pressure, "_opened", {})
    monkeypatch.setattr(pressure, "_FOLDERS", (str(tmp_path / "gone"),))
    assert not Pressure().felt()
