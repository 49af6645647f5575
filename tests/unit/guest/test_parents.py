"""A change that is refused leaves no folder that was made for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd.guest import parents, replace, verbs
from sandboxd.guest.ops import Machine, OpError, Request
from tests.unit.guest.direct import OPS, ask, machine_in, refusal

LONG = "n" * 256
CHANGES = ["write", "upload_open", "mkdir"]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    yield machine_in(tmp_path)
    verbs.drop_handles()
    assert not parents._needed
    assert not parents._made


@pytest.fixture
def work(machine: Machine) -> Path:
    return Path(machine.workdir)


def at(path: str) -> dict[str, Any]:
    return {"path": path, "make_parents": True}


@pytest.mark.parametrize("op", CHANGES)
@pytest.mark.parametrize("path", [f"q/r/{LONG}", f"q/{LONG}/s"])
def test_refused_change_takes_its_folders_along_and_no_others(
    machine: Machine, work: Path, op: str, path: str
) -> None:
    assert refusal(machine, op, at(path)).reason == "PATH_TOO_LONG"
    assert os.listdir(work) == []
    (work / "q").mkdir()
    assert refusal(machine, op, at(path)).reason == "PATH_TOO_LONG"
    assert os.listdir(work) == ["q"]
    assert os.listdir(work / "q") == []


def test_write_without_room_takes_its_folders_along(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(replace, "stage_beside", full)
    assert refusal(machine, "write", at("q/r/f"), b"x").reason == "DISK_FULL"
    assert os.listdir(work) == []


def test_cancelled_write_takes_its_folders_along(machine: Machine, work: Path) -> None:
    request = Request(machine, "write", at("q/r/f"), b"x")
    request.cancel()
    with pytest.raises(OpError) as caught:
        OPS["write"].handler(request)
    assert caught.value.reason == "CANCELLED_BY_CALLER"
    assert os.listdir(work) == []


def test_upload_that_breaks_off_takes_its_folders_along(machine: Machine, work: Path) -> None:
    handle = ask(machine, "upload_open", at("q/r/f"))[0]
    assert (work / "q/r").is_dir()
    ask(machine, "upload_abort", handle)
    assert os.listdir(work) == []


def test_folders_stay_for_a_change_that_goes_through(machine: Machine, work: Path) -> None:
    handle = ask(machine, "upload_open", at("q/r/f"))[0]
    assert refusal(machine, "write", at(f"q/r/{LONG}")).reason == "PATH_TOO_LONG"
    ask(machine, "upload_commit", handle)
    assert os.listdir(work / "q/r") == ["f"]
    ask(machine, "mkdir", {"path": "a/b"})
    ask(machine, "write", at("c/d/f"))
    assert (work / "a/b").is_dir()
    assert (work / "c/d/f").exists()


def test_folders_stay_while_another_change_needs_them_and_go_with_the_last(
    machine: Machine, work: Path
) -> None:
    first, second = (ask(machine, "upload_open", at(path))[0] for path in ("q/r/a", "q/r/s/b"))
    ask(machine, "upload_abort", first)
    assert (work / "q/r/s").is_dir()
    ask(machine, "upload_abort", second)
    assert os.listdir(work) == []


def test_folder_that_a_command_used_meanwhile_stays(machine: Machine, work: Path) -> None:
    handle = ask(machine, "upload_open", at("q/r/f"))[0]
    (work / "q/r/mine").write_text("x")
    ask(machine, "upload_abort", handle)
    assert os.listdir(work / "q/r") == ["mine"]
