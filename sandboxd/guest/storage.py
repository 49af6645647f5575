"""Storage that is full: which it is, and how much it holds. Asked after something has failed."""

from __future__ import annotations

import os
from typing import Any, Final

from .ops import Machine

_IN_MEMORY: Final = ("/tmp", "/dev/shm")
_KIB: Final = 1024
FREE_BYTES_MIN: Final = 64 * _KIB
FREE_BYTES_MAX: Final = 16 * 1024 * _KIB


def full(machine: Machine) -> list[dict[str, Any]]:
    """`{"mount", "size"}` of each full mount: where it is, and how many bytes it holds.

    Full is less than a hundredth left, within bounds: what did not fit may have been
    one large piece, or was removed again in part. No free file counts as well. Only in a
    container: elsewhere the mounts are the host's.
    """
    if machine.mode != "container":
        return []
    found: dict[int, dict[str, Any]] = {}
    for folder in (machine.workdir, machine.home, *_IN_MEMORY):
        try:
            device, state = os.stat(folder).st_dev, os.statvfs(folder)
        except OSError:
            continue
        size = state.f_blocks * state.f_frsize
        free = state.f_bavail * state.f_frsize
        least = min(max(FREE_BYTES_MIN, size // 100), FREE_BYTES_MAX)
        if size and (free < least or (state.f_files and not state.f_favail)):
            found.setdefault(device, {"mount": folder, "size": size})
    return list(found.values())


def size_at(path: str) -> int | None:
    """Bytes that the storage of a path holds; of one that does not exist, its parents'."""
    while True:
        try:
            state = os.statvfs(path)
        except OSError:
            parent = os.path.dirname(path)
            if parent == path:
                return None
            path = parent
        else:
            return state.f_blocks * state.f_frsize
