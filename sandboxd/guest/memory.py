"""Keeping the guest's memory as small as what it holds (architecture.md 14).

glibc gives each thread an arena of its own, and the more large blocks a program
frees, the larger the ones that it takes from there and never gives back. Twenty
threads that each read a large file once would hold a gigabyte for ever.
"""

from __future__ import annotations

import ctypes

MMAP_THRESHOLD_BYTES = 4 * 1024 * 1024
"""Blocks from this size on are mapped by themselves and go back when they are freed."""
ARENAS_MAX = 2

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def give_back_large_blocks() -> None:
    """Fixes both settings of the allocator; before the first thread.

    Best effort: another C library has other ways, and no such function.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(_M_ARENA_MAX, ARENAS_MAX)
