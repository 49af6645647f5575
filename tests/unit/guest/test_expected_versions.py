"""Changes that expect a version: one goes through, the others change nothing (contract.md 6)."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sandboxd.guest import replace, verbs
from sandboxd.guest.ops import Machine, OpError
from tests.unit.guest.direct import EDIT_BYTES_MAX, ask, machine_in, read, refusal
from tests.unit.guest.real_guest import Guest, GuestSaidNo
from tests.unit.guest.versioned import CHANGES, Change, conflict, edit, stat_of, upload, write


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    yield machine_in(tmp_path)
    verbs.drop_handles()


@pytest.fixture
def work(machine: Machine) -> Path:
    return Path(machine.workdir)


def everything(folder: Path) -> dict[str, Any]:
    """What a refused change must leave: names, contents, modes, times, inodes."""
    out: dict[str, Any] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        found = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(found.st_mode) else None
        out[str(path)] = (
            found.st_mode,
            found.st_ino,
            found.st_mtime_ns,
            found.st_ctime_ns,
            content,
        )
    return out


@pytest.mark.parametrize("change", CHANGES)
def test_change_at_its_expected_version_goes_through(
    machine: Machine, work: Path, change: Change
) -> None:
    (work / "f").write_text("old")
    version = read(machine, "f")[0]["version"]
    done = change(machine, "f", version)
    assert (work / "f").read_text() == "new"
    assert done["version"] == stat_of(machine, "f")["version"]
    conflict(machine, change, "f", version)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("expected", ["absent", "v", "c-" + "0" * 60, " ", "~" * 64])
@pytest.mark.parametrize("path", ["f", "link", "twin"])
def test_change_at_another_version_changes_nothing_at_all(
    machine: Machine, work: Path, change: Change, expected: str, path: str
) -> None:
    (work / "f").write_text("old")
    (work / "f").chmod(0o640)
    (work / "twin").write_text("old")
    os.link(work / "twin", work / "second")
    os.symlink("f", work / "link")
    before = everything(work)
    conflict(machine, change, path, expected)
    assert everything(work) == before


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("path", ["gone", "no/such/folder/f", "dangling"])
def test_missing_file_is_at_no_version_and_no_parent_is_made(
    machine: Machine, work: Path, change: Change, path: str
) -> None:
    os.symlink("not/there", work / "dangling")
    before = everything(work)
    conflict(machine, change, path, "c-" + "0" * 60)
    assert everything(work) == before


@pytest.mark.parametrize("change", [write, upload])
def test_change_that_expects_no_file_makes_one_once(
    machine: Machine, work: Path, change: Change
) -> None:
    assert change(machine, "a/b/f", "absent")["created"]
    assert os.listdir(work / "a/b") == ["f"]
    conflict(machine, change, "a/b/f", "absent")
    os.symlink("nowhere", work / "dangling")
    assert change(machine, "dangling", "absent")["created"]
    assert (work / "nowhere").read_text() == "new"


def test_edit_that_expects_no_file_finds_none(machine: Machine, work: Path) -> None:
    with pytest.raises(OpError) as caught:
        edit(machine, "f", "absent")
    assert caught.value.reason == "FILE_NOT_FOUND"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("expected", ["", "x" * 65, "é", "a\nb", "a\0", "\x7f"])
def test_value_that_can_be_no_version_is_refused_by_its_rule(
    machine: Machine, work: Path, change: Change, expected: str
) -> None:
    (work / "f").write_text("old")
    with pytest.raises(OpError) as caught:
        change(machine, "f", expected)
    assert caught.value.reason == "INVALID_INPUT"
    assert "1 to 64 characters" in caught.value.text
    assert (work / "f").read_text() == "old"


@pytest.mark.parametrize("path", ["d", "p", "f/x"])
def test_what_is_no_file_keeps_its_own_reason(machine: Machine, work: Path, path: str) -> None:
    (work / "d").mkdir()
    (work / "f").write_text("x")
    os.mkfifo(work / "p")
    for expected in ("absent", "c-0"):
        error = refusal(machine, "write", {"path": path, "expected_version": expected}, b"x")
        assert error.reason in ("IS_DIRECTORY", "NOT_REGULAR", "NOT_DIRECTORY")


def test_edit_compares_before_it_looks_for_its_text(machine: Machine, work: Path) -> None:
    (work / "f").write_text("nothing of it")
    conflict(machine, edit, "f", "c-0")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("linked", [False, True], ids=["renamed", "in place"])
def test_change_of_a_command_right_before_the_replacement_is_seen(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch, change: Change, linked: bool
) -> None:
    path = work / "f"
    path.write_text("old")
    if linked:
        os.link(path, work / "g")
    version = stat_of(machine, "f")["version"]
    name = "_hold_back" if linked else "_carry_over"
    original = getattr(replace, name)

    def overtaken(*args: Any) -> Any:
        path.write_text("by a command")
        return original(*args)

    monkeypatch.setattr(replace, name, overtaken)
    conflict(machine, change, "f", version)
    assert path.read_text() == "by a command"
    assert sorted(os.listdir(work)) == (["f", "g"] if linked else ["f"])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("linked", [False, True], ids=["renamed", "in place"])
def test_change_through_a_mapping_that_shows_in_no_time_is_seen(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch, change: Change, linked: bool
) -> None:
    path = work / "f"
    path.write_text("old")
    if linked:
        os.link(path, work / "g")
    name = "_hold_back" if linked else "_carry_over"
    original = getattr(replace, name)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        # Of a page that is dirty already, the kernel notes no further change.
        mapped[:] = b"old"
        version = stat_of(machine, "f")["version"]
        times = path.stat().st_mtime_ns, path.stat().st_ctime_ns

        def overtaken(*args: Any) -> Any:
            mapped[:] = b"odd"
            assert (path.stat().st_mtime_ns, path.stat().st_ctime_ns) == times
            return original(*args)

        monkeypatch.setattr(replace, name, overtaken)
        conflict(machine, change, "f", version)
    assert path.read_text() == "odd"


def test_change_through_a_mapping_during_an_upload_is_seen(machine: Machine, work: Path) -> None:
    path = work / "f"
    path.write_text("old")
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:] = b"old"
        version = stat_of(machine, "f")["version"]
        args = {"path": "f", "make_parents": False, "expected_version": version}
        handle = ask(machine, "upload_open", args)[0]
        ask(machine, "upload_append", handle, b"mine")
        mapped[:] = b"odd"
        assert refusal(machine, "upload_commit", handle).reason == "VERSION_CONFLICT"
    assert path.read_text() == "odd"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EMLINK, errno.EPERM])
@pytest.mark.parametrize("change", [write, upload])
def test_new_file_is_made_where_the_file_system_has_no_links(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch, number: int, change: Change
) -> None:
    taken = work / "taken"

    def refused(source: str, target: str, **_: Any) -> None:
        if target == str(taken):
            taken.write_text("by a command")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    assert change(machine, "f", "absent")["created"]
    assert (work / "f").read_text() == "new"
    conflict(machine, change, "taken", "absent")
    assert taken.read_text() == "by a command"
    assert sorted(os.listdir(work)) == ["f", "taken"]


def test_upload_that_was_overtaken_while_it_streamed_is_refused(
    machine: Machine, work: Path
) -> None:
    (work / "f").write_text("old")
    version = stat_of(machine, "f")["version"]
    args = {"path": "f", "make_parents": False, "expected_version": version}
    handle = ask(machine, "upload_open", args)[0]
    ask(machine, "upload_append", handle, b"mine")
    write(machine, "f", version)
    assert refusal(machine, "upload_commit", handle).reason == "VERSION_CONFLICT"
    assert (work / "f").read_text() == "new"
    assert os.listdir(work) == ["f"]


@pytest.mark.parametrize("expected", ["absent", "known"])
def test_of_many_writers_with_one_expected_version_one_wins(guest: Guest, expected: str) -> None:
    path = guest.workdir / "f"
    if expected == "known":
        path.write_text("old")
        os.link(path, guest.workdir / "hard")
        expected = guest.request("stat", {"path": "f", "follow": True})[0]["stat"]["version"]
    os.symlink("f", guest.workdir / "soft")
    hard = "hard" if (guest.workdir / "hard").exists() else str(path)
    names = ["f", "soft", hard, "./f"]
    wins: list[str] = []
    losses: list[str] = []
    guard = threading.Lock()

    def attempt(number: int) -> None:
        name, text = names[number % 4], f"by {number}"
        try:
            if number % 3 == 0:
                args = {"path": name, "make_parents": False, "expected_version": expected}
                handle = guest.request("upload_open", args)[0]
                guest.request("upload_append", handle, text.encode())
                guest.request("upload_commit", handle)
            elif number % 3 == 1 and expected != "absent":
                args = {"path": name, "old_bytes": 3, "replace_all": False}
                args |= {"file_bytes_max": EDIT_BYTES_MAX, "expected_version": expected}
                call = {"call_id": f"c{number}", **args}
                guest.request("edit", call, b"old" + text.encode())
            else:
                call = {"call_id": f"c{number}", "path": name, "expected_version": expected}
                guest.request("write", call, text.encode())
            with guard:
                wins.append(text)
        except GuestSaidNo as error:
            with guard:
                losses.append(error.reason)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert set(losses) == {"VERSION_CONFLICT"}
    assert path.read_text() == wins[0]
    assert not [name for name in os.listdir(guest.workdir) if name.endswith(".tmp")]


@pytest.mark.parametrize("first", CHANGES)
@pytest.mark.parametrize("second", CHANGES)
def test_second_change_waits_for_the_first_and_is_refused(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch, first: Change, second: Change
) -> None:
    (work / "f").write_text("old")
    os.symlink("f", work / "link")
    version = stat_of(machine, "f")["version"]
    compared, ended = threading.Event(), threading.Event()
    original = replace._place

    def slow(*args: Any, **options: Any) -> None:
        if not compared.is_set():
            compared.set()
            assert not ended.wait(0.15)
        original(*args, **options)

    def follow() -> None:
        compared.wait(10)
        try:
            conflict(machine, second, "link", version)
        finally:
            ended.set()

    monkeypatch.setattr(replace, "_place", slow)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        first(machine, "f", version)
        following.result(10)
    assert (work / "f").read_text() == "new"
