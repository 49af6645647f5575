"""Mounts and loop devices below a folder of ours: found in the kernel's own tables, let go.

A folder on which something is mounted cannot be removed, and a file behind a loop
device keeps its space after it was deleted. Nothing is walked: what exists is read
from `/proc/self/mountinfo` and `/sys/block`, in a moment.

Call these only when nothing of the session runs any more: nobody can then exchange
what a path leads through (security S10).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOUNTINFO: Final = Path("/proc/self/mountinfo")
_BLOCK: Final = Path("/sys/block")
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8
_LOOP_CLR_FD: Final = 0x4C01
_LOOP_GET_STATUS64: Final = 0x4C05
_LOOP_INFO_BYTES: Final = 232
_DEVICE_AND_INODE: Final = struct.Struct("=QQ")
"""How the kernel's `loop_info64` begins."""
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")
_DELETED: Final = b" (deleted)"
MOUNTS_MAX: Final = 1_000
"""Detached at one time; more are the next round's."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class LoopDevice:
    """A loop device that has a file behind it."""

    name: str
    """As in `/dev`, such as `loop3`."""
    file: Path
    deleted: bool


def mounts_below(folder: Path) -> list[Path]:
    """Mount points at or below a folder, the one that was mounted last first.

    `folder` is absolute and without links, as the kernel's table has it.
    """
    return [point for point in reversed(_mount_points()) if _is_below(point, folder)]


def loops_below(folder: Path) -> list[LoopDevice]:
    """Loop devices whose file lies, or lay before it was deleted, below a folder."""
    found = []
    for device in _loop_devices():
        if _is_below(device.file, folder):
            with contextlib.suppress(OSError), _opened(device) as handle:
                if _has_file_here(handle, device, folder):
                    found.append(device)
    return found


def names_in_use(root: Path) -> set[str]:
    """Names directly below `root` at or below which something is mounted or behind a loop device.

    Nothing is said of `root` itself, which the operator may have mounted.
    """
    below = [point for point in _mount_points() if _is_below(point, root)]
    below += [device.file for device in loops_below(root)]
    return {path.relative_to(root).parts[0] for path in below if path != root}


def detach(folder: Path) -> list[str]:
    """Unmounts lazily all that is mounted at or below a folder, and frees its loop devices.

    Returns what could not be let go, in words for the operator. Safe to repeat.
    """
    failed: list[str] = []
    for _ in range(MOUNTS_MAX):
        # Read anew each time: one mount can hide another, and lazy ones take those below along.
        points = mounts_below(folder)
        if not points:
            break
        if not _libc.umount2(os.fsencode(points[0]), _MNT_DETACH | _UMOUNT_NOFOLLOW):
            continue
        failed.append(f"`{points[0]}` is not unmounted: {os.strerror(ctypes.get_errno())}")
        break
    for device in loops_below(folder):
        try:
            _free(device, folder)
        except OSError as error:
            failed.append(f"`/dev/{device.name}` is not freed: {error.strerror}")
    return failed


def _free(device: LoopDevice, folder: Path) -> None:
    """Detaches it from its file; one that is still used goes with its last user."""
    with _opened(device) as handle:
        # Once more: before it was open, it could have become somebody else's.
        if device in _loop_devices() and _has_file_here(handle, device, folder):
            fcntl.ioctl(handle, _LOOP_CLR_FD, 0)


@contextlib.contextmanager
def _opened(device: LoopDevice) -> Iterator[int]:
    handle = os.open(f"/dev/{device.name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _has_file_here(handle: int, device: LoopDevice, folder: Path) -> bool:
    """Whether its file is the one that this process finds at that path.

    The table names a file as whoever attached it saw it: a daemon in a container has the
    same path for another file.
    """
    status = bytearray(_LOOP_INFO_BYTES)
    fcntl.ioctl(handle, _LOOP_GET_STATUS64, status)
    of_file = _DEVICE_AND_INODE.unpack_from(status)
    if device.deleted:
        here = next(place for place in (folder, *folder.parents) if place.exists())
        return bool(of_file[0] == here.stat().st_dev)
    stat = device.file.stat(follow_symlinks=False)
    return of_file == (stat.st_dev, stat.st_ino)


def _mount_points() -> list[Path]:
    points = []
    for row in _MOUNTINFO.read_bytes().splitlines():
        escaped = row.split(b" ")[4]
        plain = _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), escaped)
        points.append(Path(os.fsdecode(plain)))
    return points


def _loop_devices() -> Iterator[LoopDevice]:
    for entry in sorted(_BLOCK.glob("loop*")):
        try:
            raw = (entry / "loop" / "backing_file").read_bytes()
        except OSError:
            continue  # it has no file
        raw = raw.removesuffix(b"\n")
        path = Path(os.fsdecode(raw.removesuffix(_DELETED)))
        yield LoopDevice(entry.name, path, raw.endswith(_DELETED))


def _is_below(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents
