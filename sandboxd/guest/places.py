"""What the image has put where the daemon mounts; `container` only (security S11, S12).

A runtime follows the image's links when it mounts. So a link can move what the daemon gives
into a folder that commands may rename, or have it cover something else.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final

from .harden import NotHardened

_MOUNTS: Final = "/proc/self/mountinfo"
_TAKEN: Final = ("/.sandboxd", "/dev", "/etc", "/proc", "/sys", "/tmp")


def check(workdir: str, home: str, own: tuple[str, ...]) -> None:
    """Raises `NotHardened` where a mount lies elsewhere than it should, by a link of the image.

    `own`: the folders of the toolbox and of the socket. The folder above the home may be a
    link: images do that. Then the home must not lie below another mount.
    """
    for path in (workdir, home, *own):
        real = os.path.realpath(path)
        if real == path:
            continue
        where = f"the image has a link at or above `{path}`, which leads to `{real}`"
        if path != home or os.path.islink(home) or not _is_free(real, workdir):
            raise NotHardened(where)
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
            if not is_visible_mount(real, mounts):
                raise NotHardened(f"{where}, below another mount")


def is_visible_mount(path: str, mountinfo: Iterable[str]) -> bool:
    """Whether a mount begins at a real path and none hides it; `mountinfo`: the kernel's table.

    Goes the kernel's way down: of the mounts that stand on the one where it is, the path comes
    first through the uppermost.
    """
    mounts: dict[str, tuple[str, str]] = {}
    for line in mountinfo:
        own, parent, _, _, place = line.split(" ")[:5]
        mounts[own] = (parent, _decoded(place))
    here, place = "", ""
    for own, (parent, root) in mounts.items():
        if root == "/" and (parent == own or parent not in mounts):
            here, place = own, root
    while here:
        following = [
            (len(at), at, own)
            for own, (parent, at) in mounts.items()
            if parent == here and own != here and _is_below(path, at)
        ]
        _, place, here = min(following, default=(0, place, ""))
    return place == path


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _is_free(path: str, workdir: str) -> bool:
    """Whether nothing else of ours, or of the system's, is mounted at or above a folder."""
    return not any(_is_below(path, other) for other in (workdir, *_TAKEN))


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
    with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            columns, _, kind = line.partition(" - ")
            if kind.startswith("tmpfs "):
                yield _decoded(columns.split(" ")[4])


def _decoded(place: str) -> str:
    # Octal escapes stand for the characters that would end a column.
    return os.fsdecode(os.fsencode(place).decode("unicode_escape").encode("latin-1"))
