"""Handles: what a file verb keeps open between two requests, and how each ends.

A handle ends when its work is done, with the connection that made it, or after
`IDLE_S` without use. It is used by one request at a time. A handle that is dropped
while a request uses it is closed by that request.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from .ops import OpError

HANDLES_MAX = 64
IDLE_S = 120.0
EXPIRY_INTERVAL_S = 10.0


class Closeable(Protocol):
    def close(self) -> None:
        """Lets go of everything. Called once; must not raise `OSError`."""
        ...


CloseableT = TypeVar("CloseableT", bound=Closeable)


class _Entry:
    __slots__ = ("busy", "content", "dropped", "used_at")

    def __init__(self, content: Closeable, now: float) -> None:
        self.content = content
        self.busy = False
        self.dropped = False
        self.used_at = now


class Handles:
    """The open handles of a guest, by name."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        # Guards the table and the marks of its entries, never a `close`.
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def add(self, content: Closeable) -> str:
        """Gives `content` a name; closes it and raises where there are too many."""
        self.expire()
        name = secrets.token_hex(8)
        with self._lock:
            if len(self._entries) < HANDLES_MAX:
                self._entries[name] = _Entry(content, time.monotonic())
                return name
        content.close()
        raise OpError("CALLS_EXHAUSTED", f"{HANDLES_MAX} files and listings are open already.")

    @contextmanager
    def use(self, name: str, kind: type[CloseableT], *, last: bool = False) -> Iterator[CloseableT]:
        """Lends a handle to one request; with `last` it ends afterwards, whatever happens."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or not isinstance(entry.content, kind):
                raise OpError("INVALID_INPUT", "There is no such handle, or it has ended.")
            if entry.busy:
                raise OpError("FILE_BUSY", "Another request uses this handle.")
            entry.busy = True
            if last:
                del self._entries[name]
                entry.dropped = True
        try:
            yield entry.content
        finally:
            with self._lock:
                entry.busy = False
                entry.used_at = time.monotonic()
                close = entry.dropped
            if close:
                entry.content.close()

    def end(self, name: str) -> None:
        """Ends a handle. One that is not there has ended already."""
        with self._lock:
            entry = self._entries.pop(name, None)
        self._close([] if entry is None else [entry])

    def drop_all(self) -> None:
        """Ends every handle, when the connection that made them is lost."""
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        self._close(entries)

    def expire(self) -> None:
        """Ends the handles that were not used for too long."""
        oldest = time.monotonic() - self._idle_s
        with self._lock:
            idle = [
                name
                for name, entry in self._entries.items()
                if not entry.busy and entry.used_at <= oldest
            ]
            entries = [self._entries.pop(name) for name in idle]
        self._close(entries)

    def run_expiry(self) -> None:
        """Thread: lets idle handles end also where no request comes any more."""
        while True:
            time.sleep(EXPIRY_INTERVAL_S)
            self.expire()

    def _close(self, entries: list[_Entry]) -> None:
        for entry in entries:
            with self._lock:
                entry.dropped = True
                busy = entry.busy
            if not busy:
                entry.content.close()


HANDLES = Handles()
"""The handles of this guest."""
