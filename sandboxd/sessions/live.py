"""A session as the daemon holds it while it exists."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sandboxd import limits
from sandboxd.backends.base import Sandbox
from sandboxd.errors import (
    EngineDown,
    EpochStale,
    SandboxLost,
    SessionDeleted,
    SessionFailed,
    SessionNotReady,
)
from sandboxd.sessions.lane import Lane
from sandboxd.sessions.records import EndCause, SessionRecord, State
from sandboxd.sessions.session import ENGINE_DOWN

if TYPE_CHECKING:
    from sandboxd.sessions.call import Call


class LiveSession:
    """The record, the sandbox when there is one, and what runs in it.

    Everything here is touched on the event loop only. Between two awaits nothing
    else can change it, which is what the checks below rely on.
    """

    def __init__(self, record: SessionRecord) -> None:
        self.record = record
        self.sandbox: Sandbox | None = None
        self.lane = Lane(limits.CALLS_PARALLEL_MAX, limits.CALLS_QUEUED_MAX)
        self.calls: dict[str, Call] = {}
        """Calls that are looked up, queued or running, by id."""
        self.verbs = 0
        """File verbs that are open, those that wait for their client included."""
        self.watches = 0
        """Streams of `WatchCall` that are open, those that wait for their client included."""
        self.arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolves when a call is added; then there is another."""
        self.saved_epoch = record.epoch
        """The greatest epoch that is known to be durable; the record's may be ahead of it."""
        self._steps = 0
        self.use_unsaved = False
        self.end_cause: EndCause | None = None
        """Set once, when the session's end begins."""
        self.created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolves when the creation has ended, well or badly. Waited for behind a shield."""
        self.adopted: asyncio.Future[Sandbox | None] = asyncio.get_running_loop().create_future()
        """Of a session of an earlier daemon: its sandbox once that is back, None where it is not.
        Waited for behind a shield."""
        self.life_task: asyncio.Task[None] | None = None
        """Creates or adopts the sandbox, then watches it and starts it anew."""
        self.end_task: asyncio.Task[None] | None = None
        self.condemned: asyncio.Future[SandboxLost] = asyncio.get_running_loop().create_future()
        """Resolves when a room above the backend finds that the guest breaks the protocol."""
        self.release_due = False
        """A failed session's container has yet to be ended."""

    @property
    def session_id(self) -> str:
        return self.record.key.session_id

    def ready_sandbox(self) -> Sandbox:
        """The sandbox, for a call or verb that starts now.

        Raises `SessionDeleted`, `SessionFailed`, `SessionNotReady`, or `EngineDown` where it
        waits for the engine.
        """
        state = self.record.state
        if state is State.DELETED:
            raise SessionDeleted(self.session_id)
        if state is State.FAILED:
            raise SessionFailed(self.session_id, self.record.reason, self.record.message)
        if state is State.RESTARTING and self.record.reason == ENGINE_DOWN:
            raise EngineDown
        if state is not State.READY or self.sandbox is None or self.sandbox.lost.done():
            raise SessionNotReady(self.session_id)
        return self.sandbox

    def check_epoch(self, epoch: int | None) -> bool:
        """Refuses a stale caller; true where its epoch has yet to be saved.

        Raises `EpochStale`. The greater epoch refuses smaller ones at once; nobody may act
        on it before it is durable, whoever brought it first (see `Directory.announce`).
        """
        seen = self.record.epoch
        if epoch is None:
            return False
        if seen is not None and epoch < seen:
            raise EpochStale(epoch, seen)
        self.record.epoch = epoch
        return self.saved_epoch is None or self.saved_epoch < epoch

    def add_call(self, call: Call) -> None:
        """From here on every request with this id joins the call."""
        self.calls[call.call_id] = call
        self.arrival.set_result(None)
        self.arrival = asyncio.get_running_loop().create_future()

    def creation_failed(self, error: BaseException) -> None:
        """Fails everybody who waits for the creation."""
        if not self.created.done():
            self.created.set_exception(error)
            # Everybody may be gone; then nobody else would retrieve it.
            self.created.exception()

    def settle_adoption(self, sandbox: Sandbox | None) -> None:
        """Says what became of the sandbox of an earlier daemon. The first word counts."""
        if not self.adopted.done():
            self.adopted.set_result(sandbox)

    def condemn(self, error: SandboxLost) -> None:
        """Says that the guest answered what no guest of ours answers."""
        if not self.condemned.done():
            self.condemned.set_result(error)

    def touch(self) -> None:
        """Counts as use: idle time starts anew."""
        self.record.used_at = max(self.record.used_at, time.time())
        self.use_unsaved = True

    @contextmanager
    def use(self) -> Iterator[None]:
        """A step of a verb: it counts as use, and idle expiry waits for its end.

        Between steps a verb waits for its client, who may never come back to it.
        """
        self.touch()
        self._steps += 1
        try:
            yield
        finally:
            self._steps -= 1
            self.touch()

    @property
    def busy(self) -> bool:
        """Whether something runs that holds off idle expiry."""
        return bool(self.calls) or self._steps > 0
