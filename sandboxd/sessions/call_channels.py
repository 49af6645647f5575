"""A sandbox as a call's tool sees it, with what is noted of the answer on its way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sandboxd.backends.base import Reply, Sandbox
from sandboxd.metrics import Metrics

AGO_MAX_S: Final = 30 * 86_400.0
"""Beyond it no guest's word on when a call ended is believed."""


class Attaching:
    """A sandbox whose call is attached to; keeps how long ago the call ended."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.ended_ago_s = 0.0

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
        ago_s = reply.facts.get("ended_ago_s")
        if isinstance(ago_s, int | float) and 0 < ago_s < AGO_MAX_S:
            self.ended_ago_s = float(ago_s)
        return reply


class Measured:
    """A sandbox as the tools see it; counts how long the guest waited for a file's lock."""

    def __init__(self, sandbox: Sandbox, metrics: Metrics) -> None:
        self._sandbox = sandbox
        self._metrics = metrics

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
        waited_s = reply.facts.get("lock_wait_s")
        if isinstance(waited_s, int | float):
            self._metrics.lock_waited(waited_s)
        return reply
