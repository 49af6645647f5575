"""A request to a guest while its reply comes in: each frame is checked before it is taken."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault
from sandboxd.guest import protocol

_REASON: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z")


@dataclass
class Outstanding:
    """A request whose reply has not fully come."""

    op: str
    args: Mapping[str, Any]
    body: bytes
    """Kept for the case that it has to be sent again; it is in `cost`."""
    answer: asyncio.Future[Reply]
    cost: int
    reply_bytes_max: int
    deadline: asyncio.TimerHandle
    _first: protocol.Header | None = None
    _pieces: list[bytes] = field(default_factory=list)
    _size: int = 0

    def begin_again(self) -> None:
        """Drops what has come: the reply is asked for on a new connection."""
        self._first, self._size = None, 0
        self._pieces.clear()

    def take_header(self, header: protocol.Header, body_bytes: int) -> bool:
        """Checks a frame before its body is read; whether more frames follow.

        A message is cut into full frames, so that a guest cannot make the daemon work for
        single bytes. Raises `protocol.ProtocolError`.
        """
        more = header.get("more", False)
        if more is not True and more is not False:
            raise protocol.ProtocolError("`more` is not true or false")
        if more and body_bytes != protocol.BODY_BYTES_MAX:
            raise protocol.ProtocolError("a frame that is not the last is not full")
        if self._size + body_bytes > self.reply_bytes_max:
            raise protocol.ProtocolError(f"a reply to `{self.op}` is over its bound")
        if self._first is None:
            self._first = header
        elif not header.keys() <= {"id", "more"}:
            raise protocol.ProtocolError("a later frame says more than its id")
        return more

    def take_body(self, body: bytes) -> None:
        self._size += len(body)
        if body:
            self._pieces.append(body)

    def outcome(self) -> Reply | GuestFault:
        """What a whole reply says. Raises `protocol.ProtocolError`."""
        header = self._first or {}
        rest = header.keys() - {"id", "more"}
        facts, error = header.get("ok"), header.get("error")
        if rest == {"ok"} and isinstance(facts, dict):
            body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            return Reply(facts, body)
        if rest == {"error"} and isinstance(error, dict):
            reason, text, facts = error.get("reason"), error.get("text"), error.get("facts")
            if (
                isinstance(reason, str)
                and _REASON.match(reason)
                and isinstance(text, str)
                and isinstance(facts, dict)
            ):
                return GuestFault(reason, text, facts)
        raise protocol.ProtocolError(f"a reply to `{self.op}` is neither ok nor error")
