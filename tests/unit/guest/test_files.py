"""The ops read_lines and write (tool-cases 1.A and 1.B)."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandboxd.guest import files, opening, replace
from sandboxd.guest.lines import Window
from sandboxd.guest.ops import Machine, OpError, Request
from tests.unit.guest.direct import READ, ask, machine_in, read, refusal


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return machine_in(tmp_path)


@pytest.fixture
def work(machine: Machine) -> Path:
    return Path(machine.workdir)


def naive_lines(data: bytes) -> list[bytes]:
    """Lines as the contract has them, each with its newline, one CR hidden."""
    pieces = data.split(b"\n")
    lines = [piece.removesuffix(b"\r") + b"\n" for piece in pieces[:-1]]
    return lines + ([pieces[-1].removesuffix(b"\r")] if pieces[-1] else [])


def window_of(data: bytes, chunk: int, offset: int, lines_max: int, bytes_max: int) -> Window:
    window = Window(offset, lines_max, bytes_max)
    for start in range(0, len(data), chunk):
        window.feed(data[start : start + chunk])
    window.finish(complete=True)
    return window


TEXTS = st.lists(
    st.sampled_from(
        [b"a", b"bb", b"\n", b"\r\n", b"\r", "é".encode(), "\u2028\x0b\x0c\x1c".encode()]
    )
).map(b"".join)


@given(TEXTS, st.integers(1, 7), st.integers(1, 5), st.integers(4, 40))
@example(b"aabb\n\r", 1, 2, 4)
def test_paging_reconstructs_every_line(
    data: bytes, chunk: int, lines_max: int, bytes_max: int
) -> None:
    expected = naive_lines(data)
    offset, seen = 1, []
    while offset <= len(expected):
        window = window_of(data, chunk, offset, lines_max, bytes_max)
        assert window.total == len(expected)
        assert len(window.body) <= bytes_max
        page = expected[offset - 1 : window.last_line]
        assert 0 < len(page) <= lines_max
        if window.long_line:
            assert len(page) == 1
            assert len(page[0].rstrip(b"\n")) > bytes_max
            assert page[0].startswith(window.body)
            assert bytes_max - len(window.body) < 4
        elif len(window.body) == bytes_max and len(page) == 1:
            assert page[0].removesuffix(b"\n") == window.body.removesuffix(b"\n")
        else:
            assert window.body == b"".join(page)
        seen += page
        offset = window.last_line + 1
    assert seen == expected
    beyond = window_of(data, chunk, offset, lines_max, bytes_max)
    assert (beyond.last_line, beyond.body, beyond.total) == (0, b"", len(expected))


@given(st.binary(max_size=200), st.integers(1, 9), st.integers(1, 4), st.integers(4, 60))
def test_window_of_any_bytes_is_bounded_valid_text(
    data: bytes, chunk: int, offset: int, bytes_max: int
) -> None:
    window = window_of(data, chunk, offset, 3, bytes_max)
    text = window.body.decode("utf-8")
    assert len(window.body) <= bytes_max
    assert "\0" not in text
    assert window.total == len(naive_lines(data))


def test_read_counts_lines_and_shows_the_raw_text(machine: Machine, work: Path) -> None:
    (work / "f").write_bytes(b"a\nb\nc\n")
    facts, body = read(machine, "f")
    assert body == b"a\nb\nc\n"
    assert (facts["first"], facts["last"], facts["total"], facts["next"]) == (1, 3, 3, None)
    facts, body = read(machine, "f", offset=3)
    assert (body, facts["first"], facts["last"]) == (b"c\n", 3, 3)
    error = refusal(machine, "read_lines", {**READ, "path": "f", "offset": 4})
    assert (error.reason, error.facts) == ("OFFSET_BEYOND_END", {"total": 3})


def test_read_stops_at_exactly_two_thousand_lines(machine: Machine, work: Path) -> None:
    (work / "f").write_bytes(b"".join(b"%d\n" % n for n in range(1, 10_001)))
    offset, pages = 1, []
    while offset:
        facts, body = read(machine, "f", offset=offset)
        assert facts["last"] - facts["first"] + 1 == 2_000
        assert facts["total"] == 10_000
        pages.append(body)
        offset = facts["next"] or 0
    assert b"".join(pages) == (work / "f").read_bytes()


@pytest.mark.parametrize(("extra", "last"), [(0, 512), (1, 511)])
def test_read_stops_at_exactly_fifty_kilobytes(
    machine: Machine, work: Path, extra: int, last: int
) -> None:
    (work / "f").write_bytes(b"x" * extra + (b"y" * 99 + b"\n") * 600)
    facts, body = read(machine, "f")
    assert facts["last"] == last
    assert len(body) == last * 100 + extra
    assert len(body) <= 51_200


@pytest.mark.parametrize(
    ("size", "long_line"), [(51_199, False), (51_200, False), (51_201, True), (5_000_000, True)]
)
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b""])
def test_read_of_one_long_line(
    machine: Machine, work: Path, size: int, long_line: bool, ending: bytes
) -> None:
    (work / "f").write_bytes(b"x" * size + ending + (b"next" if ending else b""))
    facts, body = read(machine, "f")
    assert facts["long_line"] is long_line
    assert facts["total"] == (2 if ending else 1)
    assert body.startswith(b"x" * min(size, 51_200))
    assert len(body) <= 51_200
    assert facts["next"] == (2 if ending else None) or not long_line
    if ending and facts["next"]:
        assert read(machine, "f", offset=facts["next"])[1] == b"next"


def test_read_cuts_a_long_line_at_a_code_point(machine: Machine, work: Path) -> None:
    (work / "f").write_text("a" + "é" * 40_000 + "\n")
    facts, body = read(machine, "f")
    assert body == ("a" + "é" * 25_599).encode()
    assert not facts["replaced"]


def test_read_hides_marks_and_one_carriage_return(machine: Machine, work: Path) -> None:
    (work / "f").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\r\r\n")
    assert read(machine, "f")[1] == b"a\nb\rc\r\n"


def test_read_of_undecodable_bytes_counts_what_is_shown(machine: Machine, work: Path) -> None:
    (work / "f").write_bytes(b"\xe9" * 30_000 + b"\n" + b"ok\n")
    facts, body = read(machine, "f")
    assert facts["replaced"]
    assert facts["long_line"]
    assert body == "\ufffd".encode() * 17_066


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_read_decodes_wide_encodings_with_a_mark(
    machine: Machine, work: Path, encoding: str
) -> None:
    text = "héllo\r\nwörld 🙂\n"
    (work / "f").write_bytes(("\ufeff" + text * 60_000).encode(encoding))
    facts, body = read(machine, "f", limit=1)
    assert body.startswith("héllo\nwörld 🙂\nhéllo\n".encode())
    assert (facts["encoding"], facts["total"]) == (encoding, 120_000)


@pytest.mark.parametrize(
    ("data", "body", "replaced"),
    [
        (b"\xff\xfea\0\0\xd8b\0", "a\ufffdb", True),
        (b"\xff\xfea\0\n\0b", "a\n\ufffd", True),
        (b"\xff\xfe\0\0a\0\0\0\xff\xff\xff\xff", "a\ufffd", True),
        ("\ufeffa\ufffdb".encode("utf-16-le"), "a\ufffdb", False),
        ("\ufeffa\ufffdb".encode("utf-16-be") + b"\0\n" * 2_100 + b"\xd8\0", "", False),
    ],
)
def test_read_tells_of_wide_characters_that_are_broken(
    machine: Machine, work: Path, data: bytes, body: str, replaced: bool
) -> None:
    (work / "f").write_bytes(data)
    facts, shown = read(machine, "f", offset=1 if body else 2)
    assert shown.decode().strip("\n") == body
    assert facts["replaced"] is replaced


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "PNG image"),
        (b"a\0b", ""),
        (b"x" * 8_191 + b"\0", ""),
        (b"\x7fELF\2\1", "ELF program"),
        (b"RIFF\0\0\0\0WAVE", "RIFF media"),
        (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", "PDF document"),
        (b"%PDF-1.4\n\0", "PDF document"),
        (b"GIF89a\1\0\1\0", "GIF image"),
        (b"BZh91AY&SY\xe9\x1c", "bzip2 data"),
    ],
)
def test_read_refuses_binary_by_content(
    machine: Machine, work: Path, data: bytes, kind: str
) -> None:
    (work / "f.txt").write_bytes(data)
    error = refusal(machine, "read_lines", {**READ, "path": "f.txt"})
    assert error.reason == "BINARY_FILE"
    assert error.facts == {"size": len(data), "type": kind}


def test_read_goes_by_content_and_not_by_name(machine: Machine, work: Path) -> None:
    (work / "picture.png").write_text('{"json": true}')
    (work / "late").write_bytes(b"x\n" * 4_096 + b"\0\n")
    assert read(machine, "picture.png")[1] == b'{"json": true}'
    facts, body = read(machine, "late", offset=4_097)
    assert (body, facts["nul"]) == ("␀\n".encode(), True)


@pytest.mark.parametrize(
    "text",
    [
        "%PDF-1.7 is how such files begin\n",
        "%PDF-" + "é" * 10_000,
        "GIF89a, GIF87a\n",
        "BM\n",
        "MZ\n",
        "PACKAGE\n",
        "ID3 tags\n",
        "RIFF raff\n",
    ],
)
def test_read_shows_a_text_that_begins_as_a_binary_file_does(
    machine: Machine, work: Path, text: str
) -> None:
    (work / "f").write_text(text)
    assert read(machine, "f")[1].decode() == text


def test_read_of_an_empty_file_is_no_error(machine: Machine, work: Path) -> None:
    (work / "f").touch()
    facts, body = read(machine, "f")
    assert (body, facts["last"], facts["total"]) == (b"", 0, 0)
    assert refusal(machine, "read_lines", {**READ, "path": "f", "offset": 2}).facts == {"total": 0}


def test_read_of_a_pseudo_file_ignores_its_size(machine: Machine) -> None:
    assert os.stat("/proc/self/status").st_size == 0
    assert read(machine, "/proc/self/status")[1].startswith(b"Name:")


def test_read_gives_a_lower_bound_when_time_is_over(machine: Machine, work: Path) -> None:
    (work / "f").write_bytes(b"line\n" * 1_000_000)
    facts, _ = read(machine, "f", scan_s=0)
    assert not facts["total_exact"]
    assert facts["last"] == 2_000
    assert facts["next"] == 2_001
    assert 2_000 < facts["total"] < 1_000_000
    error = refusal(machine, "read_lines", {**READ, "path": "f", "offset": 900_000, "scan_s": 0})
    assert error.reason == "IO_ERROR"


def test_read_tells_no_size_that_a_number_cannot_hold(machine: Machine) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        os.truncate(file.name, 2**62)
        error = refusal(machine, "read_lines", {**READ, "path": file.name})
        assert error.facts == {"size": 2**53, "type": ""}
        found = ask(machine, "stat", {"path": file.name, "follow": True})[0]["stat"]
        assert found["size"] == 2**53


def test_read_memory_does_not_grow_with_the_file(machine: Machine, work: Path) -> None:
    # Sparse, so it costs no disk: 600 MB of one line, and a text line before it.
    with open(work / "f", "wb") as file:
        file.write(b"first\n" + b"x" * 20_000)
        file.truncate(600_000_000)
    before = _peak_kib()
    facts, body = read(machine, "f", lines_max=1)
    assert body == b"first\n"
    assert facts["total"] == 2
    assert _peak_kib() - before < 16 * 1024


def _peak_kib() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0])


LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
sys.stdin.read()
"""


def test_open_of_a_leased_file_is_bounded(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OPEN_S", 0.3)
    (work / "leased").write_text("x")
    with subprocess.Popen(
        [sys.executable, "-c", LEASE, str(work / "leased")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"leased\n"
        started = time.monotonic()
        error = refusal(machine, "read_lines", {**READ, "path": "leased"})
        assert error.reason == "FILE_BUSY"
        assert time.monotonic() - started < 5
        holder.communicate(b"")
    assert read(machine, "leased")[1] == b"x"


@contextlib.contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Drops root's rights for a while."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _file(path: Path, uid: int, mode: int) -> os.stat_result:
    path.write_text("old content")
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path.stat()


@pytest.mark.parametrize(
    ("folder_mode", "owner", "file_mode"),
    [(0o755, 12_345, 0o644), (0o777, 0, 0o666), (0o1777, 0, 0o666)],
    ids=["folder takes no file", "owner cannot be given", "sticky folder"],
)
def test_write_where_a_rename_would_be_seen_is_done_in_place(
    shared: Path, folder_mode: int, owner: int, file_mode: int
) -> None:
    machine = machine_in(shared)
    folder = Path(machine.workdir)
    before = _file(folder / "f", owner, file_mode)
    folder.chmod(folder_mode)
    with as_user(12_345):
        ask(machine, "write", {"path": "f"}, b"new")
    after = (folder / "f").stat()
    assert (folder / "f").read_text() == "new"
    assert (after.st_ino, after.st_uid, after.st_mode) == (
        before.st_ino,
        before.st_uid,
        before.st_mode,
    )
    assert os.listdir(folder) == ["f"]


@pytest.mark.parametrize(("owner", "mode"), [(0, 0o644), (12_345, 0o444)])
def test_write_never_gets_around_the_permission_of_the_file(
    shared: Path, owner: int, mode: int
) -> None:
    machine = machine_in(shared)
    folder = Path(machine.workdir)
    _file(folder / "f", owner, mode)
    folder.chmod(0o777)
    with as_user(12_345):
        error = refusal(machine, "write", {"path": "f"}, b"new")
        assert error.reason == "PERMISSION_DENIED"
        folder_error = refusal(machine, "write", {"path": "/etc/new-file"}, b"x")
        assert folder_error.reason == "PERMISSION_DENIED"
    assert (folder / "f").read_text() == "old content"
    assert os.listdir(folder) == ["f"]


def test_write_makes_parents_and_tells_whether_it_created(machine: Machine, work: Path) -> None:
    facts, _ = ask(machine, "write", {"path": "a/b/c"}, b"x\r\ny")
    assert (facts["bytes"], facts["created"]) == (4, True)
    assert (work / "a/b/c").read_bytes() == b"x\r\ny"
    assert not ask(machine, "write", {"path": "a/b/c"}, b"")[0]["created"]
    assert (work / "a/b/c").read_bytes() == b""
    assert os.listdir(work / "a/b") == ["c"]


def test_write_keeps_mode_owner_and_attributes(machine: Machine, work: Path) -> None:
    path = work / "f"
    path.write_text("old")
    path.chmod(0o4755)
    if os.geteuid() == 0:
        os.chown(path, 12_345, 23_456)
        path.chmod(0o4755)
    os.setxattr(path, "user.note", b"kept")
    before = path.stat()
    ask(machine, "write", {"path": "f"}, b"new")
    after = path.stat()
    assert after.st_ino != before.st_ino
    assert stat.S_IMODE(after.st_mode) == 0o4755
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert os.getxattr(path, "user.note") == b"kept"


def test_write_of_a_new_file_has_the_default_mode(machine: Machine, work: Path) -> None:
    ask(machine, "write", {"path": "f"}, b"x")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((work / "f").stat().st_mode) == 0o666 & ~umask


def test_write_takes_the_longest_path_that_the_kernel_takes(machine: Machine, work: Path) -> None:
    folder = str(work)
    while len(folder) < 3_800:
        folder += "/" + "d" * 200
    path = folder + "/" + "f" * (4_094 - len(folder))
    assert ask(machine, "write", {"path": path}, b"1")[0]["created"]
    assert not ask(machine, "write", {"path": path}, b"2")[0]["created"]
    assert Path(path).read_bytes() == b"2"
    # No room for a temporary name: in place.
    near = folder + "/" + "e" * (4_090 - len(folder))
    os.mkdir(near)
    Path(near + "/f").touch()
    ask(machine, "write", {"path": near + "/f"}, b"3")
    assert Path(near + "/f").read_bytes() == b"3"


def test_write_goes_through_links_and_keeps_them(machine: Machine, work: Path) -> None:
    (work / "d").mkdir()
    (work / "d/target").write_text("old")
    os.symlink("d/target", work / "link")
    os.symlink("e/f/new", work / "dangling")
    ask(machine, "write", {"path": "link"}, b"new")
    assert ask(machine, "write", {"path": "dangling"}, b"made")[0]["created"]
    assert (work / "link").is_symlink()
    assert (work / "d/target").read_text() == "new"
    assert (work / "e/f/new").read_text() == "made"


def test_write_keeps_hard_links_together(machine: Machine, work: Path) -> None:
    (work / "a").write_text("old content")
    os.link(work / "a", work / "b")
    ask(machine, "write", {"path": "a"}, b"new")
    assert (work / "b").read_text() == "new"
    assert (work / "a").stat().st_nlink == 2


@pytest.mark.parametrize("path", ["folder", "new/", "folder/..", "fifo", "file/x", "file/"])
def test_write_refuses_what_is_no_file(machine: Machine, work: Path, path: str) -> None:
    (work / "folder").mkdir()
    (work / "file").write_text("x")
    os.mkfifo(work / "fifo")
    error = refusal(machine, "write", {"path": path}, b"x")
    assert error.reason in ("IS_DIRECTORY", "NOT_REGULAR", "NOT_DIRECTORY")
    assert (work / "file").read_text() == "x"


def test_write_that_is_cancelled_changes_nothing(machine: Machine, work: Path) -> None:
    (work / "f").write_text("old")
    request = Request(machine, "write", {"path": "f"}, b"new")
    request.cancel()
    with pytest.raises(OpError):
        files.write(request)
    assert (work / "f").read_text() == "old"
    assert os.listdir(work) == ["f"]


def test_write_is_never_seen_half(machine: Machine, work: Path) -> None:
    contents = [bytes([letter]) * 300_000 for letter in b"ab"]
    ask(machine, "write", {"path": "f"}, contents[0])
    stop = threading.Event()
    torn: list[int] = []

    def look() -> None:
        while not stop.is_set():
            data = (work / "f").read_bytes()
            if data not in contents:
                torn.append(len(data))

    reader = threading.Thread(target=look)
    reader.start()
    for round_ in range(60):
        ask(machine, "write", {"path": "f"}, contents[round_ % 2])
    stop.set()
    reader.join()
    assert torn == []


@contextlib.contextmanager
def mounted(*arguments: str, at: Path) -> Iterator[None]:
    """Mounts something for a test; skips the test where this user may not."""
    command = ["mount", *arguments, str(at)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(at)], check=True)


@pytest.fixture
def small_disk(machine: Machine, work: Path) -> Iterator[Path]:
    """A file system of 1 MiB in the working directory."""
    mount = work / "disk"
    mount.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", at=mount):
        yield mount


def test_write_to_a_full_disk_keeps_the_old_content(machine: Machine, small_disk: Path) -> None:
    old = b"o" * 400_000
    (small_disk / "f").write_bytes(old)
    error = refusal(machine, "write", {"path": "disk/f"}, b"n" * 900_000)
    assert error.reason == "DISK_FULL"
    assert (small_disk / "f").read_bytes() == old
    assert refusal(machine, "write", {"path": "disk/g"}, b"n" * 900_000).reason == "DISK_FULL"
    assert os.listdir(small_disk) == ["f"]


@pytest.mark.parametrize("held", [1 << 20, 1_000])
def test_write_in_place_to_a_full_disk_keeps_the_old_content(
    machine: Machine, small_disk: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(replace, "HELD_IN_MEMORY_MAX", held)
    old = b"o" * 400_000
    (small_disk / "f").write_bytes(old)
    os.link(small_disk / "f", small_disk / "g")
    error = refusal(machine, "write", {"path": "disk/f"}, b"n" * 1_500_000)
    assert error.reason == "DISK_FULL"
    assert (small_disk / "g").read_bytes() == old
    assert sorted(os.listdir(small_disk)) == ["f", "g"]


def test_write_in_place_that_fails_half_way_puts_the_old_content_back(
    machine: Machine, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "f").write_bytes(b"old" * 100)
    os.link(work / "f", work / "g")
    calls: list[int] = []
    original = opening.write_all

    def failing(fd: int, data: bytes | memoryview) -> None:
        calls.append(len(data))
        if len(calls) == 1:
            original(fd, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        original(fd, data)

    monkeypatch.setattr(replace, "write_all", failing)
    assert refusal(machine, "write", {"path": "f"}, b"new" * 200).reason == "DISK_FULL"
    assert (work / "g").read_bytes() == b"old" * 100


def test_write_to_a_file_mounted_into_place_is_done_in_place(
    machine: Machine, work: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_text("old")
    (work / "file").write_text("")
    with mounted("--bind", str(source), at=work / "file"):
        ask(machine, "write", {"path": "file"}, b"new content")
        assert os.listdir(work) == ["file"]
    assert source.read_text() == "new content"


@given(st.binary(max_size=50))
@settings(max_examples=20)
def test_write_then_read_whole_gives_the_bytes(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = machine_in(Path(folder))
        ask(machine, "write", {"path": "f"}, data)
        assert Path(machine.workdir, "f").read_bytes() == data
