"""A sandbox as a call's tool sees it, with what is noted of the answer on its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sandboxd.backends.base import Reply, Sandbox
from sandboxd.metrics import Metrics

SECONDS_MAX: Final = 30 * 86_400.0
"""Beyond it no guest's word on a time is believed, nor fits where times are counted."""

Note = Callable[[Mapping[str, Any]], None]
"""Looks at the facts of an answer, which are hostile."""


class NotedChannel:
    """A sandbox whose answers somebody takes note of."""

    def __init__(self, sandbox: Sandbox, note: Note) -> None:
        self._sandbox = sandbox
        self._note = note

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        reply_bytes_max: int,
        timeout_s: float,
    ) -> Reply:
        """See `Channel.request`."""
        reply = await self._sandbox.request(
            op, args, body, reply_bytes_max=reply_bytes_max, timeout_s=timeout_s
        )
        self._note(reply.facts)
        return reply


def note_lock_wait(metrics: Metrics, facts: Mapping[str, Any]) -> None:
    """Counts how long the guest waited for a file's lock."""
    waited_s = facts.get("lock_wait_s")
    if isinstance(waited_s, int | float) and 0 <= waited_s < SECONDS_MAX:
        metrics.lock_waited(waited_s)


class EndedAgo:
    """How long ago a call ended that was attached to; 0 where it ended under the daemon's eyes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def note(self, facts: Mapping[str, Any]) -> None:
        ago_s = facts.get("ended_ago_s")
        if isinstance(ago_s, int | float) and 0 < ago_s < SECONDS_MAX:
            self.seconds = float(ago_s)
