"""How many bytes of requests and replies one session may have on their way.

A reply's bytes are counted before it exists: a guest can send at most what was
reserved for it, so the daemon's memory for a session is bounded by this number,
whatever the guest does (security S8).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

SMALL_BYTES_MAX: Final = 64 * 1024
"""Requests up to this cost never wait for bytes: a ping or a cancel must pass large ones. At
OUTSTANDING_MAX they wait as all others do."""
OUTSTANDING_MAX: Final = 1024
"""Requests of one session at a time, small ones included."""


class BudgetClosed(Exception):
    """The session is of no use any more; nothing more is handed out."""


class Budget:
    """Bytes handed out in the order in which they were asked for."""

    def __init__(self, bytes_max: int) -> None:
        self._free = bytes_max
        self._count = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._closed = False

    async def take(self, cost: int) -> None:
        """Waits for `cost` bytes. Raises `BudgetClosed`. Pair with `give_back`."""
        if self._closed:
            raise BudgetClosed
        if self._fits(cost) and (cost <= SMALL_BYTES_MAX or not self._waiting):
            self._hand_out(cost)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((cost, turn))
        try:
            await turn
        except asyncio.CancelledError:
            # Cancelled in the same round in which its turn came: the bytes go on.
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_back(cost)
            else:
                # Those behind it may fit now.
                turn.cancel()
                self._serve_waiting()
            raise

    def give_back(self, cost: int) -> None:
        self._count -= 1
        if cost > SMALL_BYTES_MAX:
            self._free += cost
        self._serve_waiting()

    def close(self) -> None:
        """Ends every wait with `BudgetClosed`. Idempotent."""
        self._closed = True
        while self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(BudgetClosed())

    def _fits(self, cost: int) -> bool:
        return self._count < OUTSTANDING_MAX and (cost <= SMALL_BYTES_MAX or cost <= self._free)

    def _hand_out(self, cost: int) -> None:
        self._count += 1
        if cost > SMALL_BYTES_MAX:
            self._free -= cost

    def _serve_waiting(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            cost, turn = self._waiting.popleft()
            if not turn.done():
                self._hand_out(cost)
                turn.set_result(None)
