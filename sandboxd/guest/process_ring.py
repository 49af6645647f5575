"""What is kept of a process's output: the last bytes of each stream, and all offsets.

Who writes is never waited for: old bytes fall out, and a reader is told how many it
missed. Used under the lock of `process_table`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

STREAM_BYTES_MAX: Final = 1024 * 1024
"""Bytes that are kept of one stream, and up to one piece more."""
PIECE_BYTES: Final = 64 * 1024


class Ring:
    """One stream. Bytes `start` to `end` of it are here, counted from its first one."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.closed = False
        """Whether nobody can write to it any more."""
        # Joined up to PIECE_BYTES, so that a stream of single bytes takes little more
        # than its bytes.
        self._pieces: deque[bytearray] = deque()

    @property
    def kept(self) -> int:
        return self.end - self.start

    def feed(self, data: bytes) -> int:
        """Takes the next bytes; returns by how many bytes more, or fewer, are kept now."""
        before = self.kept
        if self._pieces and len(self._pieces[-1]) + len(data) <= PIECE_BYTES:
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))
        self.end += len(data)
        while self.kept - len(self._pieces[0]) >= STREAM_BYTES_MAX:
            self.drop_piece()
        return self.kept - before

    def drop_piece(self) -> int:
        """Forgets the oldest bytes that are kept; returns how many."""
        count = len(self._pieces.popleft())
        self.start += count
        return count

    def clear(self) -> int:
        """Forgets all bytes; returns how many."""
        count = self.kept
        self._pieces.clear()
        self.start = self.end
        return count

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Bytes from `offset`, which lies between `start` and `end`."""
        out = bytearray()
        at = self.start
        for piece in self._pieces:
            skip = max(0, offset - at)
            if skip < len(piece):
                out += piece[skip : skip + bytes_max - len(out)]
                if len(out) >= bytes_max:
                    break
            at += len(piece)
        return bytes(out)
