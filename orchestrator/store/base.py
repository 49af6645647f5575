"""What a log is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from orchestrator.events import Event


@dataclass(frozen=True)
class Entry:
    """An event as the log holds it."""

    seq: int
    """From 1, without gaps, in one conversation."""
    event: Event
    at: datetime


class Log(Protocol):
    """An append-only log of durable events, by conversation.

    Every method raises `StoreError`. A conversation has one writer; an append
    that does not continue where the log ends is refused, so that a stale writer
    cannot write.
    """

    async def append(self, conversation: str, after_seq: int, events: Sequence[Event]) -> int:
        """Appends in one transaction and returns the new last number.

        Durable when it returns. Refused where the last number is not `after_seq`.
        """
        ...

    async def read(self, conversation: str) -> list[Entry]:
        """The whole conversation, in order. Empty where there is none."""
        ...

    async def close(self) -> None:
        """Ends the log; idempotent."""
        ...
