"""The guest of a session for process verbs: who may, what counts as use, what failures mean."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from sandbox_adapter.v1 import error_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply, Sandbox
from sandboxd.errors import (
    CallerError,
    CallsExhausted,
    Draining,
    EpochStale,
    GuestFault,
    ProcessFault,
    SandboxLost,
    SessionDeleted,
    VerbSandboxLost,
)
from sandboxd.sessions.directory import Directory
from sandboxd.sessions.live import LiveSession
from sandboxd.sessions.records import SessionKey

ANSWER_S: Final = 60.0
"""Longest time of an answer, besides what the request itself may wait."""
_REASONS: Final = frozenset(
    value.name.removeprefix("REASON_")
    for value in error_pb2.Reason.DESCRIPTOR.values
    if value.number
)


class ProcessGuest:
    """A session's guest, for one verb."""

    def __init__(self, live: LiveSession, sandbox: Sandbox, epoch: int | None) -> None:
        self.live = live
        self.key = live.record.key
        self.generation = sandbox.generation
        self._sandbox = sandbox
        self._epoch = epoch

    async def ask(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        wait_s: float = 0.0,
        reply_bytes_max: int = limits.KIB,
    ) -> Reply:
        """One step. Raises `GuestFault` and `SandboxLost`, which `ProcessVerbs.verb` translates."""
        with self.live.use():
            return await self._sandbox.request(
                op,
                {**args, "wait_s": wait_s},
                body,
                reply_bytes_max=reply_bytes_max,
                timeout_s=wait_s + ANSWER_S,
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
            yield ProcessGuest(live, sandbox, epoch)
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


def _fault(error: GuestFault) -> CallerError:
    if error.reason == "CALLS_EXHAUSTED":
        return CallsExhausted("running processes", limits.PROCESSES_MAX)
    reason = error.reason if error.reason in _REASONS else "IO_ERROR"
    return ProcessFault(reason, str(error))
