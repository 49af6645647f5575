"""The file locks: one writer at a time for each file, whatever name it goes by.

A lock is keyed by what a path resolves to: device and inode, or, for a file that
does not exist yet, the inode of its directory and its name. `write`, `edit` and
the writing file verbs take it around reading, changing and replacing; commands
do not. Waiters are served in the order in which they came.

A rename puts another inode under the name, so whoever gets a lock resolves the
path again and starts over where the key has changed. That is safe because a
holder changes nothing any more once its rename made the new inode visible.

Every hold is bounded: nothing under a lock waits for a peer, a FIFO or a lease
without a deadline (security S17).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from .ops import OpError, Request

Key: TypeAlias = tuple[int, int, str]
"""Device, inode, and a name where the inode is that of the directory."""

WAIT_S = 120.0
"""Longest wait for a lock; beyond it FILE_BUSY."""
LARGE: Key = (-1, -1, "large")
"""Lock of the work that needs much memory. Taken after a file's lock, never before."""


class _Turn:
    __slots__ = ("called",)

    def __init__(self) -> None:
        self.called = threading.Event()


class FileLocks:
    """A table of queues; a queue exists only while somebody holds or waits."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queues: dict[Key, deque[_Turn]] = {}

    def __len__(self) -> int:
        with self._guard:
            return len(self._queues)

    @contextmanager
    def hold(self, identify: Callable[[], tuple[Key, ...]], request: Request) -> Iterator[float]:
        """Holds the locks of what `identify` names; gives the seconds that it waited.

        Several keys are taken in one order everywhere, so two holders never wait
        for each other. Raises CANCELLED_BY_CALLER where the request is cancelled
        first, FILE_BUSY after `WAIT_S`, and whatever `identify` raises.
        """
        started = time.monotonic()
        while True:
            keys = sorted(set(identify()))
            held: list[Key] = []
            try:
                for key in keys:
                    self._acquire(key, request, started + WAIT_S)
                    held.append(key)
                # Between asking and getting, a rename may have put another inode
                # there: its lock is the one that counts.
                if sorted(set(identify())) == keys:
                    yield time.monotonic() - started
                    return
            finally:
                for key in reversed(held):
                    self._release(key)

    def _acquire(self, key: Key, request: Request, deadline: float) -> None:
        turn = _Turn()
        with self._guard:
            queue = self._queues.setdefault(key, deque())
            queue.append(turn)
            if queue[0] is turn:
                turn.called.set()
        if not turn.called.is_set():
            request.on_cancel(turn.called.set)
            turn.called.wait(max(0.0, deadline - time.monotonic()))
        with self._guard:
            if queue[0] is turn and not request.cancelled:
                return
            if queue[0] is turn:
                self._pop(key, queue)
            else:
                queue.remove(turn)
        request.stop_if_cancelled()
        raise OpError("FILE_BUSY", f"Other calls hold the file since {WAIT_S:g} seconds.")

    def _release(self, key: Key) -> None:
        with self._guard:
            self._pop(key, self._queues[key])

    def _pop(self, key: Key, queue: deque[_Turn]) -> None:
        queue.popleft()
        if queue:
            queue[0].called.set()
        else:
            del self._queues[key]


def identity(path: str) -> Key:
    """Key of the file that a path resolves to, links followed, existing or not.

    Raises `OSError` where the directory that would hold it does not exist.
    """
    real = os.path.realpath(path)
    try:
        found = os.stat(real)
        return (found.st_dev, found.st_ino, "")
    except FileNotFoundError:
        return _entry(real)


def entry_identity(path: str) -> Key:
    """Like `identity`, but a link as last component is meant itself."""
    try:
        found = os.lstat(path)
        return (found.st_dev, found.st_ino, "")
    except FileNotFoundError:
        return _entry(path)


def _entry(path: str) -> Key:
    parent, name = os.path.split(path.rstrip("/") or "/")
    found = os.stat(parent)
    return (found.st_dev, found.st_ino, name)


FILE_LOCKS = FileLocks()
"""The locks of this guest: tools and verbs share them."""
