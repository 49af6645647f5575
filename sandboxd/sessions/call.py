"""One tool call while it is looked up, queued or running."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sandbox_adapter.v1 import tool_pb2


class Step(Enum):
    """How far a call has come."""

    LOOKUP = "lookup"
    QUEUED = "queued"
    RUNNING = "running"
    """From the start of its reservation on: it can no longer be withdrawn."""


@dataclass(frozen=True)
class Outcome:
    """A call's result, and whether it comes from the ledger."""

    result: tool_pb2.ToolResult
    recorded_before: bool


@dataclass
class Call:
    """Shared by every caller that waits for it."""

    call_id: str
    tool: str
    raw: Mapping[str, Any]
    digest: bytes
    epoch: int | None
    done: asyncio.Future[Outcome]
    """What the callers wait for, each behind a shield. Resolved once, never cancelled."""
    step: Step = Step.LOOKUP
    waiters: int = 0
    task: asyncio.Task[None] | None = None
    """Brings the call to its end. From RUNNING on only the daemon's own end cancels it: then the
    call stays reserved, and the next daemon goes on with it."""
    work: asyncio.Task[tool_pb2.ToolResult] | None = None
    """The tool at work. Cancelling it leaves the guest alone and ends the wait for it."""
    working: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Resolves once the tool is at work."""
    cancel_wanted: bool = False
    """`CancelCall` came, or a caller went that had asked for it."""
    cancelling: asyncio.Task[object] | None = None
    """The guest's cancel, which answers with the survivors."""

    def raise_epoch(self, epoch: int | None) -> None:
        """A caller that joins lends the call its epoch where that is greater."""
        if epoch is not None and (self.epoch is None or epoch > self.epoch):
            self.epoch = epoch

    def resolve(self, outcome: Outcome) -> None:
        """Answers every caller. The first resolution wins."""
        if not self.done.done():
            self.done.set_result(outcome)

    def refuse(self, error: BaseException) -> None:
        """Fails every caller. The first resolution wins."""
        if not self.done.done():
            self.done.set_exception(error)
            # Callers may all be gone; then nobody else would retrieve it.
            self.done.exception()
