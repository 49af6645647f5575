"""Removing a tree without following a link and without a bound on its depth.

Every step goes through the descriptor of a directory that was opened without
following links, so a link that is put in a directory's place meanwhile is
removed itself. Where the tree is deeper than descriptors should be held, what
lies below is moved up into the top directory, under a name of our own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable

DEPTH_MAX = 64
NAMES_MAX = 1_000
"""Names of a directory that are read at a time."""
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str, check: Callable[[], None]) -> None:
    """Removes the directory `path` and everything in it.

    Calls `check` before each directory; it may raise. Raises the `OSError` of the
    first entry that cannot be removed; what was removed before is gone.
    """
    parent, name = os.path.split(path)
    parent_fd = os.open(parent or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        top_fd = os.open(name, _FLAGS, dir_fd=parent_fd)
        try:
            _empty(top_fd, check)
        finally:
            os.close(top_fd)
        os.rmdir(name, dir_fd=parent_fd)
    finally:
        os.close(parent_fd)


def _empty(top_fd: int, check: Callable[[], None]) -> None:
    """Empties a directory. The stack holds the open ones from it down to where work goes on."""
    stack: list[tuple[int, str]] = [(top_fd, "")]
    try:
        while True:
            check()
            fd, name = stack[-1]
            below = _remove_files(fd)
            if below is None:
                if len(stack) == 1:
                    return
                stack.pop()
                os.close(fd)
                os.rmdir(name, dir_fd=stack[-1][0])
            elif len(stack) < DEPTH_MAX:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    # Gone or something else by now: the next look tells.
                    stack.append((os.open(below, _FLAGS, dir_fd=fd), below))
            else:
                moved = f".{secrets.token_hex(8)}.removing"
                os.rename(below, moved, src_dir_fd=fd, dst_dir_fd=top_fd)
    finally:
        for fd, _ in stack[1:]:
            os.close(fd)


def _remove_files(fd: int) -> str | None:
    """Removes all that is no directory; gives the name of a directory that is left."""
    while True:
        removed = 0
        directory: str | None = None
        with os.scandir(fd) as entries:
            names: list[str] = []
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directory = entry.name
                else:
                    names.append(entry.name)
                if len(names) >= NAMES_MAX:
                    break
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                _unlink(name, fd)
            removed += 1
        if not removed:
            return directory


def _unlink(name: str, fd: int) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except OSError as error:
        # It became a directory meanwhile: the next look finds it as one.
        if error.errno != errno.EISDIR:
            raise
