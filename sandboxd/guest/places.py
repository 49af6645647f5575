"""What the image has put where the daemon mounts; `container` only (security S11, S12).

A runtime follows the image's links when it mounts. So a link can move what the daemon gives
into a folder that commands may rename, or have it cover something else.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Final

from .harden import NotHardened

_TAKEN: Final = ("/.sandboxd", "/dev", "/etc", "/proc", "/sys", "/tmp")


def check(workdir: str, home: str, own: tuple[str, ...]) -> None:
    """Raises `NotHardened` where a mount lies elsewhere than it should, by a link of the image.

    `own`: the folders of the toolbox and of the socket. The folder above the home may be a
    link: images do that.
    """
    for path in (workdir, home, *own):
        real = os.path.realpath(path)
        moved_well = path == home and not os.path.islink(home) and _is_free(real, workdir)
        if real != path and not moved_well:
            raise NotHardened(f"the image has a link at or above `{path}`, which leads to `{real}`")


def _is_free(path: str, workdir: str) -> bool:
    """Whether nothing else of ours, or of the system's, is mounted at or above a folder."""
    return not any(path == other or path.startswith(f"{other}/") for other in (workdir, *_TAKEN))


def make_writable() -> None:
    """Gives this user the folders in memory that are theirs and that they may not write to.

    Runtimes give such a mount the mode of the image's folder beneath, whatever was asked for.
    """
    for path in _memory_mounts():
        with contextlib.suppress(OSError):
            found = os.stat(path)
            if found.st_uid == os.geteuid() and found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(path, 0o1777)


def _memory_mounts() -> Iterator[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            columns, _, kind = line.partition(" - ")
            if kind.startswith("tmpfs "):
                # Octal escapes stand for the characters that would end a column.
                raw = os.fsencode(columns.split(" ")[4])
                yield os.fsdecode(raw.decode("unicode_escape").encode("latin-1"))
