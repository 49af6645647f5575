"""A command that prints numbered lines, and the check that all of them came, in order."""

from __future__ import annotations

INTERVAL_S = 0.01


def script(count: int) -> str:
    """A line every 10 ms."""
    return f"i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo line $i; sleep {INTERVAL_S}; done"


class Lines:
    """Takes the output of `script(count)`."""

    def __init__(self, count: int) -> None:
        self._expected = b"".join(b"line %d\n" % number for number in range(1, count + 1))
        self._data = b""

    def take(self, data: bytes) -> None:
        self._data += data

    @property
    def complete(self) -> bool:
        """Whether every byte came once, in order, and nothing else."""
        return self._data == self._expected
