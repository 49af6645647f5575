"""The guest of a session for process verbs: who may, what counts as use, what failures mean."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final
from weakref import WeakKeyDictionary

from sandboxd import limits
from sandboxd.backends.base import Reply, Sandbox
from sandboxd.errors import (
    CallsExhausted,
    Draining,
    EpochStale,
    GuestFault,
    ProcessFault,
    SandboxdError,
    SandboxLost,
    SessionDeleted,
    VerbSandboxLost,
)
from sandboxd.sessions.directory import Directory
from sandboxd.sessions.guest_waits import ANSWER_S, GuestWaits
from sandboxd.sessions.live import LiveSession
from sandboxd.sessions.records import SessionKey
from sandboxd.sessions.verb_faults import told

GUEST_WAITS_MAX: Final = 512
GUEST_QUEUED_MAX: Final = 512
"""Bounds of the guest, which alone keeps them: `polls.PENDING_MAX`, `lanes.QUEUED_MAX`."""
_FULL: Final = {
    "processes": ("running processes", limits.PROCESSES_MAX),
    "waits": ("requests that wait in its sandbox", GUEST_WAITS_MAX),
}
"""What the guest says is full, in words."""
_FULL_OTHERWISE: Final = ("requests queued in its sandbox", GUEST_QUEUED_MAX)


class ProcessGuest:
    """A session's guest, for one verb."""

    def __init__(
        self, live: LiveSession, sandbox: Sandbox, waits: GuestWaits, epoch: int | None
    ) -> None:
        self.live = live
        self.key = live.record.key
        self.generation = sandbox.generation
        self._sandbox = sandbox
        self._waits = waits
        self._epoch = epoch

    async def ask(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        wait_s: float = 0.0,
        reply_bytes_max: int = limits.KIB,
        is_use: bool = True,
    ) -> Reply:
        """One step. Raises `GuestFault` and `SandboxLost`, which `ProcessVerbs.verb` translates.

        `is_use`: it counts as use of the session, and idle expiry waits for its end.
        """
        with self.live.use() if is_use else nullcontext():
            if wait_s > 0:
                return await self._waits.ask(
                    self._sandbox, op, args, body, wait_s=wait_s, reply_bytes_max=reply_bytes_max
                )
            return await self._sandbox.request(
                op,
                {**args, "wait_s": wait_s},
                body,
                reply_bytes_max=reply_bytes_max,
                timeout_s=ANSWER_S,
            )

    def check_epoch(self) -> None:
        """Refuses a caller that became stale meanwhile. Raises `EpochStale`."""
        seen = self.live.record.epoch
        if self._epoch is not None and seen is not None and self._epoch < seen:
            raise EpochStale(self._epoch, seen)


class ProcessVerbs:
    """Gives process verbs their session."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._running: WeakKeyDictionary[LiveSession, int] = WeakKeyDictionary()
        self._waits: WeakKeyDictionary[LiveSession, GuestWaits] = WeakKeyDictionary()

    @asynccontextmanager
    async def verb(self, key: SessionKey, epoch: int | None = None) -> AsyncIterator[ProcessGuest]:
        """The guest of a READY session, for one of PROCESS_VERBS_MAX at a time.

        They are counted apart from file verbs: most of them only wait. Raises what
        `CallTool` raises for sessions, and inside the block turns `GuestFault` into
        `ProcessFault` and `SandboxLost` into what it means.
        """
        live = await self._directory.find(key)
        if self._directory.draining:
            raise Draining
        await self._directory.announce(live, epoch)
        sandbox = live.ready_sandbox()
        running = self._running.get(live, 0)
        if running >= limits.PROCESS_VERBS_MAX:
            raise CallsExhausted("running process verbs", limits.PROCESS_VERBS_MAX)
        self._running[live] = running + 1
        try:
            waits = self._waits.setdefault(live, GuestWaits())
            yield ProcessGuest(live, sandbox, waits, epoch)
        except GuestFault as error:
            raise _fault(error) from error
        except SandboxLost as error:
            if live.end_cause is not None:
                raise SessionDeleted(key.session_id) from error
            if error.cause == "PROTOCOL":
                live.condemn(error)
            raise VerbSandboxLost from error
        finally:
            self._running[live] -= 1


def _fault(error: GuestFault) -> SandboxdError:
    if error.reason == "CALLS_EXHAUSTED":
        return CallsExhausted(*_FULL.get(str(error.facts.get("full")), _FULL_OTHERWISE))
    return told(error, ProcessFault)
