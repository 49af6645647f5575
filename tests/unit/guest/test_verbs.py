"""The ops under FileService."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.guest import listing, removal, verbs
from sandboxd.guest.handles import HANDLES, HANDLES_MAX, Handles
from sandboxd.guest.listing import Listing
from sandboxd.guest.locks import FILE_LOCKS, identity
from sandboxd.guest.ops import Facts, Machine, OpError, Request
from tests.unit.guest.direct import ask, machine_in, refusal
from tests.unit.guest.real_guest import Guest, GuestSaidNo


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    yield machine_in(tmp_path)
    verbs.drop_handles()


@pytest.fixture
def work(machine: Machine) -> Path:
    return Path(machine.workdir)


def upload(machine: Machine, path: str, pieces: list[bytes], **args: object) -> Facts:
    opened = ask(machine, "upload_open", {"path": path, "make_parents": True, **args})[0]
    for piece in pieces:
        ask(machine, "upload_append", opened, piece)
    return ask(machine, "upload_commit", opened)[0]


def entries_of(machine: Machine, path: str, *, recursive: bool) -> tuple[list[Facts], int]:
    handle = ask(machine, "list_open", {"path": path, "recursive": recursive})[0]
    entries: list[Facts] = []
    while True:
        page = ask(machine, "list_next", handle)[0]
        entries += page["entries"]
        if page["done"]:
            ask(machine, "list_close", handle)
            return entries, page["unreadable"]


def test_file_is_read_in_pieces_from_an_offset(machine: Machine, work: Path) -> None:
    data = os.urandom(2_500_000)
    (work / "f").write_bytes(data)
    opened = ask(machine, "file_open", {"path": "f", "offset": 100})[0]
    assert opened["stat"]["size"] == len(data)
    got = b""
    while True:
        facts, body = ask(
            machine, "file_read", {"handle": opened["handle"], "bytes_max": 1024 * 1024}
        )
        got += body
        if facts["eof"]:
            break
    assert got == data[100:]
    ask(machine, "file_close", opened)
    ask(machine, "file_close", opened)
    assert refusal(machine, "file_read", {**opened, "bytes_max": 1}).reason == "INVALID_INPUT"


@pytest.mark.parametrize(
    ("path", "reason"),
    [("no", "FILE_NOT_FOUND"), (".", "IS_DIRECTORY"), ("/dev/zero", "NOT_REGULAR")],
)
def test_file_open_refuses_what_is_no_file(machine: Machine, path: str, reason: str) -> None:
    assert refusal(machine, "file_open", {"path": path, "offset": 0}).reason == reason


def test_upload_appears_at_commit_only(machine: Machine, work: Path) -> None:
    (work / "f").write_text("old")
    (work / "f").chmod(0o640)
    opened = ask(machine, "upload_open", {"path": "f", "make_parents": False})[0]
    assert ask(machine, "upload_append", opened, b"new ")[0] == {"bytes": 4}
    assert ask(machine, "upload_append", opened, b"content")[0] == {"bytes": 11}
    assert (work / "f").read_text() == "old"
    facts = ask(machine, "upload_commit", opened)[0]
    assert (facts["bytes"], facts["created"]) == (11, False)
    assert (work / "f").read_text() == "new content"
    assert stat.S_IMODE((work / "f").stat().st_mode) == 0o640
    assert os.listdir(work) == ["f"]
    assert refusal(machine, "upload_commit", opened).reason == "INVALID_INPUT"


def test_upload_of_a_new_file_has_the_mode_asked_for(machine: Machine, work: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    assert upload(machine, "a/b/plain", [b"x"])["created"]
    assert upload(machine, "a/script", [b"x"], mode=0o755)["created"]
    assert stat.S_IMODE((work / "a/b/plain").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE((work / "a/script").stat().st_mode) == 0o755
    error = refusal(machine, "upload_open", {"path": "c/d", "make_parents": False})
    assert error.reason == "FILE_NOT_FOUND"


@pytest.mark.parametrize("op", ["upload_abort", "drop"])
def test_upload_that_breaks_off_changes_nothing(machine: Machine, work: Path, op: str) -> None:
    (work / "f").write_text("old")
    opened = ask(machine, "upload_open", {"path": "f", "make_parents": False})[0]
    ask(machine, "upload_append", opened, b"new")
    assert len(os.listdir(work)) == 2
    if op == "drop":
        verbs.drop_handles()
    else:
        ask(machine, op, opened)
    assert os.listdir(work) == ["f"]
    assert (work / "f").read_text() == "old"


def test_upload_that_expects_no_file_never_replaces_one(machine: Machine, work: Path) -> None:
    assert upload(machine, "f", [b"1"], expected_version="absent")["created"]
    opened = ask(
        machine,
        "upload_open",
        {"path": "g", "make_parents": False, "expected_version": "absent"},
    )[0]
    (work / "g").write_text("faster")
    assert refusal(machine, "upload_commit", opened).reason == "VERSION_CONFLICT"
    assert (work / "g").read_text() == "faster"
    assert sorted(os.listdir(work)) == ["f", "g"]


def test_upload_onto_a_hard_link_is_written_in_place(machine: Machine, work: Path) -> None:
    (work / "f").write_bytes(b"old" * 1_000_000)
    os.link(work / "f", work / "g")
    upload(machine, "f", [b"new"] * 3)
    assert (work / "g").read_bytes() == b"newnewnew"
    assert sorted(os.listdir(work)) == ["f", "g"]


def test_upload_waits_for_the_lock_of_the_file(machine: Machine, work: Path) -> None:
    (work / "f").write_text("old")
    opened = ask(machine, "upload_open", {"path": "f", "make_parents": False})[0]
    ask(machine, "upload_append", opened, b"new")
    done = threading.Event()

    def commit() -> None:
        ask(machine, "upload_commit", opened)
        done.set()

    key = identity(str(work / "f"))
    with FILE_LOCKS.hold(lambda: (key,), Request(machine, "write", {})):
        thread = threading.Thread(target=commit)
        thread.start()
        assert not done.wait(0.1)
        assert (work / "f").read_text() == "old"
    thread.join(10)
    assert (work / "f").read_text() == "new"


def test_handles_are_bounded_and_the_refused_one_leaves_nothing(
    machine: Machine, work: Path
) -> None:
    for _ in range(HANDLES_MAX):
        ask(machine, "list_open", {"path": ".", "recursive": False})
    error = refusal(machine, "upload_open", {"path": "f", "make_parents": False})
    assert error.reason == "CALLS_EXHAUSTED"
    assert os.listdir(work) == []
    verbs.drop_handles()
    assert len(HANDLES) == 0


class Thing:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_handle_ends_when_idle_but_not_while_used() -> None:
    handles = Handles(idle_s=0)
    thing = Thing()
    name = handles.add(thing)
    with handles.use(name, Thing):
        handles.expire()
        with pytest.raises(OpError) as caught, handles.use(name, Thing):
            pass
        assert caught.value.reason == "FILE_BUSY"
        assert thing.closed == 0
    handles.expire()
    assert thing.closed == 1
    assert len(handles) == 0


def test_handle_dropped_while_used_is_closed_once_by_its_user() -> None:
    handles = Handles()
    thing = Thing()
    name = handles.add(thing)
    with handles.use(name, Thing):
        handles.drop_all()
        handles.end(name)
        assert thing.closed == 0
    assert thing.closed == 1


def test_handles_end_with_the_connection(guest: Guest) -> None:
    handle, _ = guest.request("upload_open", {"path": "f", "make_parents": False})
    guest.request("upload_append", handle, b"x" * 3_000_000)
    assert len(os.listdir(guest.workdir)) == 1
    guest.disconnect()
    guest.accept()
    assert os.listdir(guest.workdir) == []
    with pytest.raises(GuestSaidNo):
        guest.request("upload_commit", handle)


def test_stat_tells_links_from_what_they_point_to(machine: Machine, work: Path) -> None:
    (work / "f").write_text("abc")
    os.symlink(b"f", work / "l")
    os.symlink(b"nowhere\xff", work / "broken")
    os.mkfifo(work / "p")
    followed = ask(machine, "stat", {"path": "l", "follow": True})[0]["stat"]
    assert (followed["kind"], followed["size"], followed["link_target"]) == ("file", 3, "")
    itself = ask(machine, "stat", {"path": "l", "follow": False})[0]["stat"]
    assert (itself["kind"], itself["link_target"]) == ("symlink", "f")
    broken = ask(machine, "stat", {"path": "broken", "follow": False})[0]["stat"]
    assert broken["link_target"] == "nowhere\\xff"
    assert ask(machine, "stat", {"path": "p", "follow": True})[0]["stat"]["kind"] == "special"
    assert refusal(machine, "stat", {"path": "broken", "follow": True}).reason == "FILE_NOT_FOUND"


def test_listing_is_in_order_and_follows_no_link(machine: Machine, work: Path) -> None:
    for path in ("b/z/1", "b/a", "b.txt", "a", "é"):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).touch()
    os.symlink("b", work / "c")
    os.mkdir(os.fsencode(work) + b"/\xff")
    entries, unreadable = entries_of(machine, ".", recursive=True)
    paths = [base64.b64decode(entry["raw"]) for entry in entries]
    assert paths == [b"a", b"b", b"b/a", b"b/z", b"b/z/1", b"b.txt", b"c", "é".encode(), b"\xff"]
    assert entries[-1]["path"] == "\\xff"
    assert unreadable == 0
    assert entries[6]["stat"]["link_target"] == "b"
    flat, _ = entries_of(machine, ".", recursive=False)
    assert [entry["path"] for entry in flat] == ["a", "b", "b.txt", "c", "é", "\\xff"]
    assert refusal(machine, "list_open", {"path": "a", "recursive": False}).reason == (
        "NOT_DIRECTORY"
    )


TREES = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), max_size=25)


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_listing_in_small_batches_equals_a_full_sort(tree: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "BATCH_NAMES", 2)
        patch.setattr(listing, "KEPT_NAMES_MAX", 3)
        for parts in tree:
            os.makedirs(os.path.join(folder, *parts), exist_ok=True)
        walker = Listing(folder, recursive=True)
        seen = []
        while (entry := walker.next_entry()) is not None:
            seen.append(entry[0])
        every = {"/".join(parts[:n]) for parts in tree for n in range(1, len(parts) + 1)}
        assert seen == [p.encode() for p in sorted(every, key=lambda path: path.split("/"))]


def test_listing_of_many_long_names_keeps_pages_small(machine: Machine, work: Path) -> None:
    for number in range(300):
        open(os.fsencode(work) + b"/%03d" % number + b"\xff" * 250, "wb").close()
    handle = ask(machine, "list_open", {"path": ".", "recursive": False})[0]
    seen = 0
    while True:
        page = ask(machine, "list_next", handle)[0]
        assert len(json.dumps(page, ensure_ascii=False)) < 48 * 1024
        seen += len(page["entries"])
        if page["done"]:
            break
    assert seen == 300


def test_listing_tells_of_directories_that_it_could_not_read(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "shut").mkdir()
    (work / "then").touch()
    original = os.scandir

    def guarded(path: bytes) -> object:
        if path.endswith(b"/shut/"):
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(os, "scandir", guarded)
    entries, unreadable = entries_of(machine, ".", recursive=True)
    assert [entry["path"] for entry in entries] == ["shut", "then"]
    assert unreadable == 1


def test_mkdir_makes_parents_and_is_idempotent(machine: Machine, work: Path) -> None:
    assert ask(machine, "mkdir", {"path": "a/b/c", "mode": 0o700})[0] == {"created": True}
    assert stat.S_IMODE((work / "a/b/c").stat().st_mode) == 0o700
    assert ask(machine, "mkdir", {"path": "a/b/c/"})[0] == {"created": False}
    (work / "f").touch()
    assert refusal(machine, "mkdir", {"path": "f"}).reason == "FILE_EXISTS"
    assert refusal(machine, "mkdir", {"path": "f/g"}).reason == "NOT_DIRECTORY"


def test_move_replaces_only_when_asked(machine: Machine, work: Path) -> None:
    (work / "a").write_text("a")
    (work / "b").write_text("b")
    error = refusal(machine, "move", {"source": "a", "target": "b", "replace": False})
    assert error.reason == "FILE_EXISTS"
    ask(machine, "move", {"source": "a", "target": "b", "replace": True})
    assert (work / "b").read_text() == "a"
    assert os.listdir(work) == ["b"]


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("no", "x", "FILE_NOT_FOUND"),
        ("d", "d/inside", "INVALID_INPUT"),
        ("d", "full", "NOT_EMPTY"),
        ("f", "full", "IS_DIRECTORY"),
        ("d", "f", "NOT_DIRECTORY"),
        ("f", "no/x", "FILE_NOT_FOUND"),
        ("f", "/dev/shm/x", "CROSS_DEVICE"),
        (".", "../y", "INVALID_INPUT"),
    ],
)
def test_move_fault_has_its_own_reason(
    machine: Machine, work: Path, source: str, target: str, reason: str
) -> None:
    (work / "d").mkdir()
    (work / "full").mkdir()
    (work / "full" / "x").touch()
    (work / "f").touch()
    error = refusal(machine, "move", {"source": source, "target": target, "replace": True})
    assert error.reason == reason
    assert sorted(os.listdir(work)) == ["d", "f", "full"]


def test_move_of_one_name_of_a_file_onto_another_leaves_one(machine: Machine, work: Path) -> None:
    (work / "a").write_text("x")
    os.link(work / "a", work / "b")
    ask(machine, "move", {"source": "a", "target": "b", "replace": True})
    assert os.listdir(work) == ["b"]
    ask(machine, "move", {"source": "b", "target": "./b", "replace": True})
    assert (work / "b").read_text() == "x"


def test_move_moves_a_link_itself(machine: Machine, work: Path) -> None:
    (work / "f").write_text("x")
    os.symlink("f", work / "l")
    ask(machine, "move", {"source": "l", "target": "m", "replace": False})
    assert (work / "m").is_symlink()
    assert (work / "f").read_text() == "x"


def test_remove_of_a_tree_follows_no_link(machine: Machine, work: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (work / "d/e").mkdir(parents=True)
    os.symlink(outside, work / "d/e/link")
    os.symlink(outside, work / "top")
    assert refusal(machine, "remove", {"path": "d", "recursive": False}).reason == "NOT_EMPTY"
    assert ask(machine, "remove", {"path": "d", "recursive": True})[0] == {"removed": True}
    assert ask(machine, "remove", {"path": "top", "recursive": True})[0] == {"removed": True}
    assert ask(machine, "remove", {"path": "top", "recursive": True})[0] == {"removed": False}
    assert os.listdir(outside) == ["kept"]
    assert os.listdir(work) == []


@pytest.mark.parametrize("confined", [False, True])
def test_slash_behind_a_link_does_not_lead_to_what_it_names(tmp_path: Path, confined: bool) -> None:
    # `link/` once removed the directory behind the link, outside the session's folder too.
    (tmp_path / "session").mkdir()
    machine = machine_in(tmp_path / "session", confined=confined)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    os.symlink(outside, Path(machine.workdir) / "link")
    for op, args in (
        ("remove", {"path": "link/", "recursive": True}),
        ("remove", {"path": "link//", "recursive": False}),
        ("stat", {"path": "link/", "follow": False}),
        ("move", {"source": "link/", "target": "x", "replace": True}),
    ):
        error = refusal(machine, op, args)
        assert (error.reason, "slash" in error.text) == ("NOT_DIRECTORY", True)
    assert os.listdir(outside) == ["kept"]


def test_remove_looks_at_each_of_many_directories_a_few_times(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Reading the whole directory anew for each one in it took minutes for a few ten thousand.
    monkeypatch.setattr(removal, "NAMES_MAX", 50)
    count = 400
    for number in range(count):
        (work / f"d/{number}").mkdir(parents=True)
    looked = 0
    scan = os.scandir

    @contextlib.contextmanager
    def counting(fd: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        def each(entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
            nonlocal looked
            for entry in entries:
                looked += 1
                yield entry

        with scan(fd) as entries:
            yield each(entries)

    monkeypatch.setattr(os, "scandir", counting)
    assert ask(machine, "remove", {"path": "d", "recursive": True})[0] == {"removed": True}
    assert count <= looked < 5 * count
    assert not (work / "d").exists()


def test_remove_of_a_tree_of_any_depth_needs_few_descriptors(machine: Machine, work: Path) -> None:
    fd = os.open(work, os.O_RDONLY)
    top = os.dup(fd)
    for _ in range(3_000):
        os.mkdir("d", dir_fd=fd)
        open(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd), "wb").close()
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    os.close(top)
    assert removal.DEPTH_MAX < 3_000
    assert ask(machine, "remove", {"path": "d", "recursive": True})[0] == {"removed": True}
    assert os.listdir(work) == ["f"]


@pytest.mark.parametrize("path", [".", "..", "/", "~", "d/.."])
def test_remove_keeps_the_folders_of_the_session(machine: Machine, work: Path, path: str) -> None:
    (work / "d").mkdir()
    error = refusal(machine, "remove", {"path": path, "recursive": True})
    assert error.reason == "INVALID_INPUT"
    assert (work / "d").is_dir()


def test_verbs_in_local_mode_stay_in_the_session_folder(tmp_path: Path) -> None:
    machine = machine_in(tmp_path, confined=True)
    os.symlink("/etc", Path(machine.workdir) / "out")
    for op, args in (
        ("file_open", {"path": "out/passwd", "offset": 0}),
        ("upload_open", {"path": "out/new", "make_parents": True}),
        ("stat", {"path": "out", "follow": True}),
        ("list_open", {"path": "/", "recursive": True}),
        ("mkdir", {"path": "/nowhere"}),
        ("move", {"source": "out/passwd", "target": "x", "replace": True}),
        ("move", {"source": "out", "target": "../../x", "replace": True}),
        ("remove", {"path": "out/passwd", "recursive": True}),
    ):
        assert refusal(machine, op, args).reason == "PATH_OUTSIDE"
    assert ask(machine, "remove", {"path": "out", "recursive": False})[0] == {"removed": True}
