"""Spill files: when there is one, what it holds, and what becomes of it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sandboxd.guest import spill
from sandboxd.guest.spill import FILE_BYTES_MAX, HEAD_BYTES_MAX, Spill, SpillFolder

MIB = 1024 * 1024


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    return tmp_path / "made" / "when needed"


@pytest.fixture
def folder(parent: Path) -> SpillFolder:
    return SpillFolder(str(parent))


def files(parent: Path) -> list[Path]:
    return sorted(parent.rglob("*.txt")) if parent.exists() else []


def spilled(folder: SpillFolder, size: int, piece: int = MIB) -> spill.Spilled | None:
    one = Spill(folder)
    for start in range(0, size, piece):
        one.feed(b"x" * min(piece, size - start))
    return one.finish(wanted=True)


def test_spill_makes_no_file_before_it_is_needed(parent: Path, folder: SpillFolder) -> None:
    one = Spill(folder)
    one.feed(b"x" * HEAD_BYTES_MAX)
    assert files(parent) == []

    assert one.finish(wanted=False) is None
    assert files(parent) == []


def test_spill_is_complete_from_the_first_byte(parent: Path, folder: SpillFolder) -> None:
    one = Spill(folder)
    data = os.urandom(HEAD_BYTES_MAX * 3)
    for start in range(0, len(data), 1000):
        one.feed(data[start : start + 1000])

    done = one.finish(wanted=True)

    assert done is not None
    assert (done.bytes, done.complete) == (len(data), True)
    assert Path(done.path).read_bytes() == data
    assert Path(done.path).stat().st_mode & 0o777 == 0o600
    assert Path(done.path).parent.stat().st_mode & 0o777 == 0o700
    assert files(parent) == [Path(done.path)]


def test_spill_of_little_output_is_written_at_the_end(folder: SpillFolder) -> None:
    one = Spill(folder)
    one.feed(b"many short lines\n")

    done = one.finish(wanted=True)

    assert done is not None
    assert Path(done.path).read_bytes() == b"many short lines\n"


def test_spill_that_is_not_wanted_is_removed(parent: Path, folder: SpillFolder) -> None:
    one = Spill(folder)
    one.feed(b"x" * MIB)
    assert len(files(parent)) == 1

    assert one.finish(wanted=False) is None
    assert files(parent) == []


def test_spill_is_capped_and_says_so(folder: SpillFolder) -> None:
    done = spilled(folder, FILE_BYTES_MAX + 1, piece=3_000_000)

    assert done is not None
    assert (done.bytes, done.complete) == (FILE_BYTES_MAX, False)
    assert os.path.getsize(done.path) == FILE_BYTES_MAX


def test_spill_folder_drops_the_oldest_files(parent: Path, folder: SpillFolder) -> None:
    made = [spilled(folder, FILE_BYTES_MAX) for _ in range(5)]

    kept = [Path(done.path) for done in made[1:] if done is not None]
    assert files(parent) == sorted(kept)


def test_spill_that_is_dropped_while_it_is_written_reports_none(folder: SpillFolder) -> None:
    slow = Spill(folder)
    slow.feed(b"x" * MIB)
    for _ in range(4):
        spilled(folder, FILE_BYTES_MAX)

    slow.feed(b"x")

    assert slow.finish(wanted=True) is None


def test_spills_of_sixteen_commands_stay_below_the_total(parent: Path, folder: SpillFolder) -> None:
    threads = [threading.Thread(target=spilled, args=(folder, 6 * MIB, 100_000)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 0 < sum(path.stat().st_size for path in files(parent)) <= spill.TOTAL_BYTES_MAX


def test_spill_does_without_a_file_where_none_can_be_made(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("")
    one = Spill(SpillFolder(str(blocked)))
    one.feed(b"x" * MIB)

    assert one.finish(wanted=True) is None


def test_spill_does_without_a_file_where_the_disk_is_full(
    parent: Path, folder: SpillFolder
) -> None:
    one = Spill(folder)
    one.feed(b"x" * MIB)
    # The kernel's own full disk, under the descriptor that is being written.
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, one._fd)
    os.close(full)

    one.feed(b"x" * MIB)

    assert one.finish(wanted=True) is None
    assert files(parent) == []


def test_spill_folder_is_made_anew_where_a_command_removed_it(
    parent: Path, folder: SpillFolder
) -> None:
    first = spilled(folder, MIB)
    assert first is not None
    Path(first.path).unlink()
    Path(first.path).parent.rmdir()

    second = spilled(folder, MIB)

    assert second is not None
    assert os.path.getsize(second.path) == MIB
