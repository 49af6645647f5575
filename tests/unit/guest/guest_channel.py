"""A tool's channel to a real guest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault
from tests.unit.guest.real_guest import Guest, GuestSaidNo


class GuestChannel:
    """Passes requests on, and checks that answers keep their bound."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        reply_bytes_max: int,
        timeout_s: float,
    ) -> Reply:
        try:
            facts, answer = await asyncio.to_thread(
                self._guest.request, op, dict(args), body, timeout_s
            )
        except GuestSaidNo as no:
            raise GuestFault(no.reason, no.text, no.facts) from None
        assert len(answer) <= reply_bytes_max
        return Reply(facts, answer)
