"""Process verbs that wait in a session's guest, and those whose caller left.

A request that waits there stays when its caller leaves: nobody takes it back, it ends with
its time. So who leaves has the guest end it, by the number that it was given, and its place
is free when the guest has done so. A client that leaves as fast as it comes is slowed to the
pace of its guest; nothing is refused for it, and what else waits there keeps its room.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any, Final

from sandboxd import limits
from sandboxd.backends.base import Reply, Sandbox
from sandboxd.errors import GuestFault, SandboxLost

LEAVING_MAX: Final = 128
"""Waits of callers that left, at least so many, beside those of every verb that may be open."""
WAITS_MAX: Final = limits.PROCESS_VERBS_MAX + LEAVING_MAX
"""Fewer than a guest keeps (512): the rest are for the outputs of running calls."""
ANSWER_S: Final = 60.0
"""Longest time of an answer, besides what the request itself may wait."""
_NUMBERS: Final = itertools.count(1)


class GuestWaits:
    """What waits in one session's guest, at most WAITS_MAX requests."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(WAITS_MAX)
        self._endings: set[asyncio.Task[None]] = set()

    async def ask(
        self,
        sandbox: Sandbox,
        op: str,
        args: Mapping[str, Any],
        body: bytes,
        *,
        wait_s: float,
        reply_bytes_max: int,
    ) -> Reply:
        """One request that waits for `wait_s` at most. Raises what a channel raises."""
        await self._places.acquire()
        number = next(_NUMBERS)
        is_left = False
        try:
            return await sandbox.request(
                op,
                {**args, "wait_s": wait_s, "wait": number},
                body,
                reply_bytes_max=reply_bytes_max,
                timeout_s=wait_s + ANSWER_S,
            )
        except asyncio.CancelledError:
            is_left = True
            self._leave(sandbox, number, wait_s)
            raise
        finally:
            if not is_left:
                self._places.release()

    def _leave(self, sandbox: Sandbox, number: int, wait_s: float) -> None:
        """Hands the place to a task that gives it back. It ends with the sandbox at the latest."""
        ending = asyncio.create_task(_end(sandbox, number, wait_s))
        self._endings.add(ending)
        ending.add_done_callback(self._left)

    def _left(self, ending: asyncio.Task[None]) -> None:
        self._endings.discard(ending)
        self._places.release()


async def _end(sandbox: Sandbox, number: int, wait_s: float) -> None:
    """Returns when the guest has let go of a wait, which was sent to it before this is."""
    while not sandbox.lost.done():
        try:
            await sandbox.request(
                "wait_end", {"wait": number}, reply_bytes_max=0, timeout_s=ANSWER_S
            )
        except GuestFault:
            # Such as a guest of an earlier release: then the wait ends with its time.
            await asyncio.wait({sandbox.lost}, timeout=wait_s)
            return
        except SandboxLost:
            # Where only the connection ended, the next one was given the wait again.
            continue
        return
