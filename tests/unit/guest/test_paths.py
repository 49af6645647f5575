"""Path arguments and what goes wrong with them (tool-cases R26 to R34)."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from sandboxd.guest.ops import Machine, OpError
from sandboxd.guest.paths import fault, missing, resolve, shown
from tests.unit.guest.direct import machine_in, read, refusal


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return machine_in(tmp_path)


@pytest.fixture
def confined(tmp_path: Path) -> Machine:
    return machine_in(tmp_path, confined=True)


def test_path_starts_at_the_working_directory_or_home(machine: Machine) -> None:
    assert resolve(machine, "a/b") == machine.workdir + "/a/b"
    assert resolve(machine, "/etc/hosts") == "/etc/hosts"
    assert resolve(machine, "~") == machine.home
    assert resolve(machine, "~/a") == machine.home + "/a"
    assert resolve(machine, "~a") == machine.workdir + "/~a"
    assert resolve(machine, " @a'") == machine.workdir + "/ @a'"


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_path_that_no_call_takes_is_invalid_input(machine: Machine, path: str) -> None:
    with pytest.raises(OpError) as caught:
        resolve(machine, path)
    assert caught.value.reason == "INVALID_INPUT"


def test_path_in_local_mode_must_stay_in_the_session_folder(
    confined: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("s")
    os.symlink(outside, confined.workdir + "/link")
    os.symlink(outside / "secret", confined.workdir + "/file")
    os.symlink("/nowhere/at/all", confined.workdir + "/dangling")
    for path in ("/etc/passwd", "../../..", "link/secret", "file", "dangling", "link/new/file"):
        assert refusal(confined, "stat", {"path": path, "follow": True}).reason == "PATH_OUTSIDE"
    for path in ("../home", "~/new", "new/deep", "link/../workspace"):
        # The last leads through the link, hence outside, as the kernel sees it.
        if path.startswith("link"):
            with pytest.raises(OpError):
                resolve(confined, path)
        else:
            resolve(confined, path)


def test_path_in_local_mode_may_name_a_link_itself(confined: Machine) -> None:
    os.symlink("/etc/passwd", confined.workdir + "/link")
    assert resolve(confined, "link", follow=False) == confined.workdir + "/link"
    with pytest.raises(OpError):
        resolve(confined, "link/..", follow=False)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing", "FILE_NOT_FOUND"),
        ("file/x", "NOT_DIRECTORY"),
        ("n" * 300, "PATH_TOO_LONG"),
        ("loop", "SYMLINK_LOOP"),
        ("folder", "IS_DIRECTORY"),
        ("fifo", "NOT_REGULAR"),
        ("/dev/zero", "NOT_REGULAR"),
        ("/dev/tty", "NOT_REGULAR"),
    ],
)
def test_read_fault_has_a_reason_of_its_own_and_one_line(
    machine: Machine, path: str, reason: str
) -> None:
    work = Path(machine.workdir)
    (work / "file").write_text("x")
    (work / "folder").mkdir()
    os.symlink("loop", work / "loop")
    os.mkfifo(work / "fifo")
    error = refusal(
        machine,
        "read_lines",
        {"path": path, "offset": 1, "lines_max": 1, "bytes_max": 9, "scan_s": 1},
    )
    assert error.reason == reason
    assert path in error.text
    assert "Errno" not in error.text
    assert "\n" not in error.text


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, "PERMISSION_DENIED"),
        (errno.EROFS, "READ_ONLY"),
        (errno.EDQUOT, "DISK_FULL"),
        (errno.ETXTBSY, "FILE_BUSY"),
        (errno.EXDEV, "CROSS_DEVICE"),
        (errno.EIO, "IO_ERROR"),
    ],
)
def test_fault_maps_the_error_number(number: int, reason: str) -> None:
    assert fault(OSError(number, os.strerror(number)), "p").reason == reason


def test_missing_file_names_at_most_three_near_names(machine: Machine) -> None:
    work = Path(machine.workdir)
    (work / "src").mkdir()
    for name in ("Config.yaml", "config.yml", "config.toml", "config.ini", "other.py"):
        (work / "src" / name).write_text("")
    near = missing(machine, "src/config.yaml").facts["near"]
    assert near[0] == "src/Config.yaml"
    assert len(near) == 3
    assert "src/other.py" not in near
    for name in near:
        read(machine, name)


@pytest.mark.parametrize("path", ['"a.txt"', "@a.txt", "a.txt ", "a.txt\n", "'a.txt'"])
def test_missing_file_names_the_stripped_form_where_it_exists(machine: Machine, path: str) -> None:
    Path(machine.workdir, "a.txt").write_text("x")
    assert missing(machine, path).facts["near"][0] == "a.txt"


def test_missing_file_among_many_long_names_is_said_soon(machine: Machine) -> None:
    # Comparing took milliseconds a name, and nothing ended it.
    alike = ["ab" * 90 + f"{number:05}" for number in range(3_000)]
    for name in alike:
        Path(machine.workdir, name).touch()
    started = time.monotonic()
    near = missing(machine, "ab" * 90).facts["near"]
    assert time.monotonic() - started < 3.0
    assert len(near) == 3
    assert set(near) <= set(alike)


def test_missing_file_in_a_missing_folder_has_no_near_names(machine: Machine) -> None:
    assert missing(machine, "no/such/file").facts["near"] == []


def test_undecodable_name_is_shown_with_escapes() -> None:
    assert shown(b"caf\xe9.txt") == "caf\\xe9.txt"
    assert shown("grün") == "grün"
