"""File versions: what they stand for, and where none is given (contract.md 4)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd.guest import replace, verbs, versions
from sandboxd.guest.ops import Machine, OpError, Request
from tests.unit.guest.direct import READ, ask, edit_file, machine_in, read, refusal
from tests.unit.guest.versioned import conflict, stat_of, upload, write


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    yield machine_in(tmp_path)
    verbs.drop_handles()


@pytest.fixture
def work(machine: Machine) -> Path:
    return Path(machine.workdir)


@pytest.fixture
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every file over 1,000 bytes were over 64 MiB."""
    for module in (versions, replace):
        monkeypatch.setattr(module, "DIGEST_BYTES_MAX", 1_000)


@pytest.mark.parametrize("content", [b"", b"a", b"\xff\0\r\n" * 30_000, b"x" * 3_000_000])
def test_one_content_has_one_version_wherever_it_is_told(
    machine: Machine, work: Path, content: bytes
) -> None:
    told = {ask(machine, "write", {"path": "a"}, content)[0]["version"]}
    told.add(upload(machine, "d/b", None, content)["version"])
    told.add(stat_of(machine, "a")["version"])
    told.add(ask(machine, "file_open", {"path": "d/b", "offset": 0})[0]["stat"]["version"])
    if b"\0" not in content:
        told.add(read(machine, "a")[0]["version"])
    (version,) = told
    assert 0 < len(version) <= 64
    assert version.isascii()
    assert version.isprintable()
    assert version != versions.ABSENT
    (work / "c").write_bytes(content + b" ")
    assert stat_of(machine, "c")["version"] != version


@pytest.mark.parametrize("args", [{"offset": 1}, {"offset": 0, "part": True}])
def test_opening_for_a_part_hashes_nothing_and_gives_no_version(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch, args: dict[str, Any]
) -> None:
    (work / "f").write_text("abc")

    def hashed(*_: object) -> tuple[str, int]:
        raise AssertionError("was hashed")

    monkeypatch.setattr(verbs, "file_version", hashed)
    found = ask(machine, "file_open", {"path": "f", **args})[0]["stat"]
    assert (found["size"], found["version"]) == (3, "")


@pytest.mark.parametrize("op", ["file_open", "stat", "read_lines"])
def test_file_that_is_written_in_place_while_it_is_hashed_has_no_version(
    machine: Machine, work: Path, op: str
) -> None:
    (work / "f").write_text("old")
    os.utime(work / "f", ns=(1, 1))
    original = versions.Reading.feed

    def overtaken(self: versions.Reading, piece: bytes) -> None:
        original(self, piece)
        (work / "f").write_text("odd")

    args = {**READ, "path": "f", "offset": int(op == "read_lines"), "follow": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions.Reading, "feed", overtaken)
        facts = ask(machine, op, args)[0]
    assert facts.get("stat", facts)["version"] == ""


def test_edit_gives_the_version_of_its_result(machine: Machine, work: Path) -> None:
    (work / "f").write_text("a old b")
    version = edit_file(machine, "f", "old", "new")["version"]
    assert version == stat_of(machine, "f")["version"] != ""


@pytest.mark.parametrize(("offset", "limit"), [(1, 1), (3, 1), (2, 2_000)])
def test_part_of_a_file_has_the_version_of_the_whole(
    machine: Machine, work: Path, offset: int, limit: int
) -> None:
    (work / "f").write_bytes(b"\xef\xbb\xbfa\r\nb\nc\n" * 400_000)
    facts, _ = read(machine, "f", offset=offset, lines_max=limit)
    assert facts["version"] == stat_of(machine, "f")["version"]


def test_read_that_stopped_counting_gives_no_version(machine: Machine, work: Path) -> None:
    (work / "f").write_bytes(b"line\n" * 1_000_000)
    facts, _ = read(machine, "f", scan_s=0)
    assert (facts["total_exact"], facts["version"]) == (False, "")


def test_read_gives_the_version_of_the_bytes_it_showed(machine: Machine, work: Path) -> None:
    (work / "f").write_text("old")
    before = stat_of(machine, "f")["version"]
    seen: list[bytes] = []
    original = versions.Reading.feed

    def slow(self: versions.Reading, piece: bytes) -> None:
        original(self, piece)
        if not seen:
            (work / "other").write_text("later")
            os.rename(work / "other", work / "f")
        seen.append(piece)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions.Reading, "feed", slow)
        facts, body = read(machine, "f")
    assert (body, facts["version"]) == (b"old", before)
    conflict(machine, write, "f", before)


def test_what_is_no_readable_file_has_no_version(machine: Machine, work: Path) -> None:
    (work / "f").write_text("x")
    os.symlink("f", work / "l")
    os.mkfifo(work / "p")
    assert stat_of(machine, "l", follow=False)["version"] == ""
    assert stat_of(machine, "l")["version"] == stat_of(machine, "f")["version"] != ""
    assert stat_of(machine, "p")["version"] == ""
    assert stat_of(machine, ".")["version"] == ""
    assert stat_of(machine, "/proc/self/status")["version"] == ""
    assert stat_of(machine, "/dev/zero")["version"] == ""
    handle = ask(machine, "list_open", {"path": ".", "recursive": False})[0]
    page = ask(machine, "list_next", handle)[0]
    assert {entry["stat"]["version"] for entry in page["entries"]} == {""}


def test_stat_of_a_file_that_may_not_be_read_tells_the_rest(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "f").write_text("abc")

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sandboxd.guest.opening._open", refused)
    found = stat_of(machine, "f")
    assert (found["size"], found["version"]) == (3, "")
    error = refusal(machine, "write", {"path": "f", "expected_version": "c-0"}, b"x")
    assert error.reason == "PERMISSION_DENIED"


@pytest.mark.usefixtures("small_bound")
@pytest.mark.parametrize("linked", [False, True], ids=["renamed", "in place"])
def test_large_file_has_a_version_by_its_stamp(machine: Machine, work: Path, linked: bool) -> None:
    (work / "f").write_bytes(b"x" * 5_000)
    if linked:
        os.link(work / "f", work / "g")
    version = upload(machine, "f", stat_of(machine, "f")["version"], b"y" * 4_000)["version"]
    assert version == stat_of(machine, "f")["version"] == read(machine, "f")[0]["version"]
    assert version != ""
    (work / "same").write_bytes(b"y" * 4_000)
    assert stat_of(machine, "same")["version"] != version
    (work / "f").write_bytes(b"z" * 4_000)
    conflict(machine, write, "f", version)
    assert write(machine, "f", stat_of(machine, "f")["version"])["version"].startswith("c-")


@pytest.mark.usefixtures("small_bound")
def test_large_new_file_has_its_version_once_it_bears_its_name(
    machine: Machine, work: Path
) -> None:
    version = upload(machine, "f", "absent", b"y" * 4_000)["version"]
    assert version == stat_of(machine, "f")["version"] != ""
    assert os.listdir(work) == ["f"]


@pytest.mark.usefixtures("small_bound")
def test_large_file_that_changes_while_it_is_read_has_no_version(
    machine: Machine, work: Path
) -> None:
    (work / "f").write_bytes(b"x\n" * 5_000)
    original = versions.Reading.feed

    def growing(self: versions.Reading, piece: bytes) -> None:
        original(self, piece)
        with open(work / "f", "ab") as file:
            file.write(b"more\n" if file.tell() < 10_020 else b"")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions.Reading, "feed", growing)
        assert read(machine, "f")[0]["version"] == ""
    assert read(machine, "f")[0]["version"] != ""


@pytest.mark.usefixtures("small_bound")
def test_stamp_that_a_later_change_could_bear_too_is_not_given(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "f").write_bytes(b"x" * 5_000)
    version = stat_of(machine, "f")["version"]
    changed = (work / "f").stat().st_ctime_ns
    # A clock in whose tick the file was changed, and that stands still or goes on.
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: changed)
    assert stat_of(machine, "f")["version"] == ""
    ticks = iter([changed, changed, changed + 1])
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: next(ticks))
    assert stat_of(machine, "f")["version"] == version
    assert list(ticks) == []


@pytest.mark.usefixtures("small_bound")
def test_every_change_of_a_large_file_shows_in_its_version(machine: Machine, work: Path) -> None:
    # Two changes of one tick of the kernel's clock bear the same times.
    seen = set()
    for number in range(30):
        with open(work / "f", "wb") as file:
            file.write(b"%04d" % number * 500)
        seen.add(stat_of(machine, "f")["version"])
    assert len(seen) == 30


def test_hashing_memory_does_not_grow_with_the_file(machine: Machine, work: Path) -> None:
    with open(work / "f", "wb") as file:
        file.truncate(versions.DIGEST_BYTES_MAX)
    # Else the peak is that of the tests before, which nothing here could raise.
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak_kib()
    version = stat_of(machine, "f")["version"]
    assert version.startswith("c-")
    conflict(machine, write, "f", "c-0")
    write(machine, "f", version)
    assert _peak_kib() - before < 16 * 1024
    with open(work / "f", "wb") as file:
        file.truncate(versions.DIGEST_BYTES_MAX + 1)
    assert stat_of(machine, "f")["version"].startswith("s-")


def _peak_kib() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0])


def test_cancel_ends_the_hashing(machine: Machine, work: Path) -> None:
    with open(work / "f", "wb") as file:
        file.truncate(versions.DIGEST_BYTES_MAX)
    request = Request(machine, "stat", {"path": "f", "follow": True})
    request.cancel()
    with pytest.raises(OpError) as caught:
        verbs.stat_path(request)
    assert caught.value.reason == "CANCELLED_BY_CALLER"
