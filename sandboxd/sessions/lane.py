"""The lane of a session: so many calls run, so many wait, the next is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandboxd.errors import CallsExhausted


class Lane:
    """Lets `parallel_max` in at a time, in the order of their arrival."""

    def __init__(self, parallel_max: int, queued_max: int) -> None:
        self._turns = asyncio.Semaphore(parallel_max)
        self._queued_max = queued_max
        self.queued = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Holds a turn. Raises `CallsExhausted` at once where too many wait already.

        Cancelling a caller that waits gives its place up.
        """
        if self._turns.locked() and self.queued >= self._queued_max:
            raise CallsExhausted("waiting calls", self._queued_max)
        self.queued += 1
        try:
            await self._turns.acquire()
        finally:
            self.queued -= 1
        try:
            yield
        finally:
            self._turns.release()
