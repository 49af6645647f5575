"""The output of commands while they run, for whoever follows them (contract.md 4, WatchCall).

Each command has a ring: the last of its raw bytes, in the order in which they were read. The
command's own thread fills it and waits for no reader: one that is slower than the ring finds
its place gone and is told how much. Places are byte offsets from the start of the output, so
they mean the same to every reader, before and after the daemon was restarted.

Two ops, both of which wait for news (`polls`): `feed` gives bytes from an offset on, `peek`
the tail that the result would show if the command ended now.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from .ops import Answer, PollOp, Request
from .output import Output, Tail
from .polls import POLLS

RING_BYTES: Final = 1024 * 1024
"""What is kept of one command's output, at most a piece more."""
RINGS_BYTES_MAX: Final = 8 * 1024 * 1024
"""All rings of the session: those of ended commands go first, then the others shrink."""
ENDED_MAX: Final = 256
"""Ended commands whose output can still be read."""
PIECE_BYTES: Final = 64 * 1024
"""Small writes are joined up to this, so that a ring of single bytes costs no more."""
CHUNK_BYTES_MAX: Final = 256 * 1024
"""Most bytes of one answer."""


class Feed:
    """One command's output. `take` and `finish` belong to its thread, the rest to anybody."""

    def __init__(self, feeds: Feeds, output: Output, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        """The command's time limit."""
        self.ended = False
        """Whether nothing more will come. Set once."""
        self._feeds = feeds
        # Guards everything below. Held while one piece is taken in, or copied out.
        self._lock = threading.Lock()
        self._output: Output | None = output
        self._pieces: deque[bytearray] = deque()
        self._start = 0
        self._end = 0

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        with self._lock:
            return self._end - self._start

    def take(self, data: bytes) -> None:
        """Takes the next bytes, for the ring and for the result."""
        with self._lock:
            if self._output is not None:
                self._output.feed(data)
            before = self._start
            self._append(data)
            self._cut(self._feeds.ring_bytes)
            grown = len(data) - (self._start - before)
        self._feeds.grown(grown)
        POLLS.notify()

    def finish(self) -> None:
        """Nothing more will come."""
        with self._lock:
            self.ended = True
            self._output = None
        POLLS.notify()

    def read(self, after: int, bytes_max: int) -> tuple[int, int, bytes]:
        """Where the bytes start, where the output ends so far, and bytes from `after` on.

        They start later than asked for where what was asked for is gone.
        """
        with self._lock:
            start = max(after, self._start)
            out = bytearray()
            at = self._start
            for piece in self._pieces:
                left = bytes_max - len(out)
                if left <= 0:
                    break
                if at + len(piece) > start:
                    offset = max(0, start - at)
                    out += piece[offset : offset + left]
                at += len(piece)
            return start, self._end, bytes(out)

    def peek(self) -> tuple[Output, Tail] | None:
        """Totals, and what the result would show now. None once it has ended."""
        with self._lock:
            if self._output is None:
                return None
            copy = self._output.copy()
        return copy, copy.tail()

    def shrink(self, bytes_max: int) -> int:
        """Drops the oldest bytes; returns how many."""
        with self._lock:
            before = self._start
            self._cut(bytes_max)
            return self._start - before

    def _append(self, data: bytes) -> None:
        self._end += len(data)
        if self._pieces and len(self._pieces[-1]) + len(data) <= PIECE_BYTES:
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))

    def _cut(self, bytes_max: int) -> None:
        """Drops whole pieces, as long as `bytes_max` are left."""
        while self._pieces and self._end - self._start - len(self._pieces[0]) >= bytes_max:
            self._start += len(self._pieces.popleft())


class Feeds:
    """The feeds of the session, by call id."""

    def __init__(self) -> None:
        # Guards everything here. Taken before a feed's own lock, never after it.
        self._lock = threading.Lock()
        self._running: dict[str, Feed] = {}
        self._ended: dict[str, Feed] = {}
        """Oldest first."""
        self._bytes = 0
        self.ring_bytes = RING_BYTES
        """What one ring may hold now: less where many commands run."""

    def begin(self, call_id: str, output: Output, timeout_s: float) -> Feed:
        """A feed for a command that has just been started."""
        feed = Feed(self, output, timeout_s)
        with self._lock:
            self._running[call_id] = feed
            self._share_locked()
        POLLS.notify()
        return feed

    def finish(self, call_id: str) -> None:
        """Ends the feed of a command; what it holds can still be read."""
        with self._lock:
            feed = self._running.pop(call_id)
            self._ended[call_id] = feed
            self._share_locked()
            while len(self._ended) > ENDED_MAX:
                self._drop_oldest_locked()
        feed.finish()

    def find(self, call_id: str) -> Feed | None:
        with self._lock:
            return self._running.get(call_id) or self._ended.get(call_id)

    def grown(self, count: int) -> None:
        """Counts bytes that a feed holds more than before, and keeps the bound."""
        with self._lock:
            self._bytes += count
            while self._bytes > RINGS_BYTES_MAX and self._ended:
                self._drop_oldest_locked()
            if self._bytes > RINGS_BYTES_MAX:
                for feed in self._running.values():
                    self._bytes -= feed.shrink(self.ring_bytes)

    def _share_locked(self) -> None:
        """A ring's share, so that all of those that run fit the bound, their last pieces too."""
        each = RINGS_BYTES_MAX // max(1, len(self._running)) - PIECE_BYTES
        self.ring_bytes = max(0, min(RING_BYTES, each))

    def _drop_oldest_locked(self) -> None:
        self._bytes -= self._ended.pop(next(iter(self._ended))).size


FEEDS: Final = Feeds()
"""The guest's one table: commands fill it, the ops of this module read it."""


def _feed(request: Request, over: bool) -> Answer | None:
    after = request.integer("after")
    bytes_max = request.integer("bytes_max", maximum=CHUNK_BYTES_MAX)
    feed = FEEDS.find(request.text("call_id"))
    if feed is None:
        # It may be about to start.
        return ({"known": False}, b"") if over else None
    ended = feed.ended  # before the end of the output is looked at
    start, end, data = feed.read(after, bytes_max)
    if end <= after and not ended and not over:
        return None
    return {"known": True, "start": start, "end": end, "ended": ended}, data


def _peek(request: Request, over: bool) -> Answer | None:
    after = request.integer("after")
    feed = FEEDS.find(request.text("call_id"))
    if feed is None:
        return ({"known": False}, b"") if over else None
    end = feed.read(after, 0)[1]
    if end <= after and not feed.ended and not over:
        return None
    seen = feed.peek()
    if seen is None:
        return {"known": False}, b""
    output, tail = seen
    facts = {
        "known": True,
        "timeout_s": feed.timeout_s,
        "bytes_total": output.bytes_total,
        "lines_total": output.lines_total,
        "lines_shown": tail.lines,
        "cut": tail.cut,
        "binary": tail.binary,
    }
    return facts, tail.text


OPS: Final = {"feed": PollOp(_feed), "peek": PollOp(_peek)}
