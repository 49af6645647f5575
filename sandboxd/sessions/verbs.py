"""File verbs in a session: who may, what counts as use, what failures mean."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from sandboxd import limits
from sandboxd.backends.base import Reply, Sandbox
from sandboxd.errors import (
    CallsExhausted,
    Draining,
    EpochStale,
    GuestFault,
    SandboxLost,
    SessionDeleted,
    VerbFault,
    VerbSandboxLost,
)
from sandboxd.sessions.directory import Directory
from sandboxd.sessions.live import LiveSession
from sandboxd.sessions.records import SessionKey
from sandboxd.sessions.verb_faults import told

GUEST_FILES_MAX: Final = 64
"""Files and listings that a guest holds open; it alone keeps the bound."""


class VerbChannel:
    """A session's guest, for the steps of one verb."""

    def __init__(self, live: LiveSession, sandbox: Sandbox, epoch: int | None) -> None:
        self._live = live
        self._sandbox = sandbox
        self._epoch = epoch

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        reply_bytes_max: int = limits.KIB,
    ) -> Reply:
        """One step. Raises `GuestFault` and `SandboxLost`, which `verb` translates."""
        with self._live.use():
            return await self._sandbox.request(
                op, args, body, reply_bytes_max=reply_bytes_max, timeout_s=limits.VERB_TIMEOUT_S
            )

    def check_epoch(self) -> None:
        """Refuses a caller that became stale while its stream ran. Raises `EpochStale`."""
        seen = self._live.record.epoch
        if self._epoch is not None and seen is not None and self._epoch < seen:
            raise EpochStale(self._epoch, seen)


class Verbs:
    """Gives verbs their session."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    @asynccontextmanager
    async def verb(self, key: SessionKey, epoch: int | None = None) -> AsyncIterator[VerbChannel]:
        """The guest of a READY session, for one of `VERBS_PARALLEL_MAX` at a time.

        Raises what `CallTool` raises for sessions, and inside the block turns
        `GuestFault` into `VerbFault` and `SandboxLost` into what it means.
        """
        live = await self._directory.find(key)
        if self._directory.draining:
            raise Draining
        await self._directory.announce(live, epoch)
        sandbox = live.ready_sandbox()
        if live.verbs >= limits.VERBS_PARALLEL_MAX:
            raise CallsExhausted("running file verbs", limits.VERBS_PARALLEL_MAX)
        live.verbs += 1
        try:
            yield VerbChannel(live, sandbox, epoch)
        except GuestFault as error:
            if error.reason == "CALLS_EXHAUSTED":
                raise CallsExhausted("open files and requests", GUEST_FILES_MAX) from error
            raise told(error, VerbFault) from error
        except SandboxLost as error:
            if live.end_cause is not None:
                raise SessionDeleted(key.session_id) from error
            if error.cause == "PROTOCOL":
                live.condemn(error)
            raise VerbSandboxLost from error
        finally:
            live.verbs -= 1
