"""Removing a tree without following a link and without a bound on its depth.

Every step goes through the descriptor of a directory that was opened without
following links, so a link that is put in a directory's place meanwhile is
removed itself. Where the tree is deeper than descriptors should be held, what
lies below is moved up into the top directory, under a name of our own.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
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
    """Empties a directory. The stack holds the open ones from it down to where work goes on.

    With each go the directories in it that are known and not removed yet.
    """
    stack: list[tuple[int, str, list[str]]] = [(top_fd, "", [])]
    try:
        while True:
            check()
            fd, name, known = stack[-1]
            if not known:
                known += _remove_files(fd)
            if not known:
                if len(stack) == 1:
                    return
                stack.pop()
                os.close(fd)
                os.rmdir(name, dir_fd=stack[-1][0])
                continue
            below = known.pop()
            # Gone or something else by now: the next look tells.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if len(stack) < DEPTH_MAX:
                    stack.append((os.open(below, _FLAGS, dir_fd=fd), below, []))
                else:
                    moved = f".{secrets.token_hex(8)}.removing"
                    os.rename(below, moved, src_dir_fd=fd, dst_dir_fd=top_fd)
    finally:
        for fd, _, _ in stack[1:]:
            os.close(fd)


def _remove_files(fd: int) -> list[str]:
    """Removes all that is no directory; gives names of directories that are left."""
    while True:
        files: list[str] = []
        directories: list[str] = []
        with os.scandir(fd) as entries:
            for entry in itertools.islice(entries, NAMES_MAX):
                kind = directories if entry.is_dir(follow_symlinks=False) else files
                kind.append(entry.name)
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                _unlink(name, fd)
        if not files:
            return directories


def _unlink(name: str, fd: int) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except OSError as error:
        # It became a directory meanwhile: the next look finds it as one.
        if error.errno != errno.EISDIR:
            raise
