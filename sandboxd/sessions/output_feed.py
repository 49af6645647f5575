"""What the guest has of a running command's output, for everybody who watches it.

One long poll of the guest for each call that is watched, however many watch it and however
they come and go: a poll that its asker left would stay in the guest until its time is over.
It brings no bytes, only how far the output has come. Each watcher then reads from its own
place, which the guest answers at once, so nothing is buffered here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from sandboxd.backends.base import Sandbox
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.tools.facts import Count, Facts, parse_facts

POLL_S: Final = 60.0
ANSWER_S: Final = 30.0
"""Over the time of a poll: after it a missing answer means a dead guest."""
REST_S: Final = 0.005
"""Between two polls: a command that writes without end is not asked for each of its bytes."""
REFUSED_REST_S: Final = 1.0
"""After a guest that has too many requests waiting refused one."""


class _FeedFacts(Facts):
    known: bool
    start: Count = 0
    end: Count = 0
    ended: bool = False


@dataclass(frozen=True)
class Piece:
    """A part of a command's output; places are bytes from its beginning."""

    start: int
    """Greater than what was asked for where that is gone."""
    data: bytes
    end: int
    """Where the output ends so far."""
    ended: bool


async def read(
    sandbox: Sandbox, call_id: str, after: int, bytes_max: int, wait_s: float = 0.0
) -> Piece | None:
    """Output from a place on; waits for it, or for the command's end. None: no such command.

    Raises `SandboxLost`, also where the answer is none (cause PROTOCOL), and `GuestFault`.
    """
    reply = await sandbox.request(
        "feed",
        {"call_id": call_id, "after": after, "bytes_max": bytes_max, "wait_s": wait_s},
        reply_bytes_max=bytes_max,
        timeout_s=wait_s + ANSWER_S,
    )
    facts = parse_facts(_FeedFacts, reply.facts)
    if not facts.known:
        return None
    if facts.start < after or (reply.body and facts.start + len(reply.body) > facts.end):
        raise SandboxLost("PROTOCOL", "feed: the places of the output do not fit together")
    return Piece(facts.start, reply.body, facts.end, facts.ended)


class OutputFeed:
    """How far one call's output has come. It follows for as long as somebody watches."""

    def __init__(self, sandbox: Sandbox, call_id: str) -> None:
        self.sandbox = sandbox
        self.end = 0
        self.over = False
        """Nothing more will be told here: the command has ended, or the sandbox."""
        self.fault: SandboxLost | None = None
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolves when one of the above changes; then there is another."""
        self.watchers = 0
        self._call_id = call_id
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            # A watcher that comes while the last poll is on its way joins it.
            while self.watchers:
                await self._poll()
                if self.over:
                    return
                await asyncio.sleep(REST_S)
        except SandboxLost as error:
            self.fault = error
        finally:
            self.over = True
            self._tell()

    async def _poll(self) -> None:
        try:
            piece = await read(self.sandbox, self._call_id, self.end, 0, POLL_S)
        except GuestFault:
            await asyncio.sleep(REFUSED_REST_S)
            return
        if piece is None:
            return
        self.over = piece.ended
        if piece.end > self.end:
            self.end = piece.end
            self._tell()

    def _tell(self) -> None:
        if not self.news.done():
            self.news.set_result(None)
        self.news = asyncio.get_running_loop().create_future()
