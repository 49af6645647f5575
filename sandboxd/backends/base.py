"""What a backend is: it makes, finds and ends sandboxes.

A backend knows nothing of sessions, calls or tools. The session manager gives it
a `SandboxSpec` and gets a `Sandbox` whose guest has said hello. `docker.py` and
`local.py` implement it; `fake.py` is for tests of the rooms above.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sandboxd.config import ProfileSettings


@dataclass(frozen=True)
class Reply:
    """A guest's answer to one request: facts and bytes, both hostile until checked."""

    facts: Mapping[str, Any]
    body: bytes = b""


@dataclass(frozen=True)
class Report:
    """What a guest says of calls as it connects; hostile until it met the ledger (security S7)."""

    calls: frozenset[str] = frozenset()
    """Ids of calls that run, or have ended and were not recorded as far as the guest knows.
    No other call has been started and not recorded."""
    sequence: int = 0
    """The greatest number of a call that the guest has seen; see `Ledger.reserve`."""


@dataclass(frozen=True)
class Counted:
    """What the kernel has counted against a sandbox's limits since it began (security S4)."""

    oom_kills: int
    """Processes killed for lack of memory."""
    own_oom_kills: int
    """Those of them in the guest's own cgroup, which commands may not share."""
    forks_refused: int
    memory_peak_bytes: int | None
    """None, here and below: the kernel does not tell."""
    pids_peak: int | None


class Channel(Protocol):
    """What the tools and the file verbs need of a sandbox."""

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        reply_bytes_max: int,
        timeout_s: float,
    ) -> Reply:
        """Runs one op in the guest; see `guest/README.md` for ops, args and facts.

        `reply_bytes_max` bounds the reply's body; `timeout_s` is the time after
        which a missing reply means that the guest is dead, so it includes what
        the op itself may take. A caller that is cancelled leaves the op running.

        A connection that is lost and comes back fails no request that belongs to a call
        (`call_id` in `args`): the guest is asked for its answer again, or, where the call
        never started, for the call. Ops in `protocol.REPEATABLE` are asked again.

        Raises `GuestFault` where the guest refuses, `SandboxLost` where the
        sandbox ends first or breaks the protocol.
        """
        ...


@dataclass(frozen=True)
class SandboxSpec:
    """Everything that a backend needs to make one sandbox.

    `resource_id` is random and the only name that anything outside the session
    sees (security S15). `generation` counts the session's starts from 1: with a
    greater one than before, the store that `resource_id` names is used again.
    """

    resource_id: str
    generation: int
    profile: ProfileSettings
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SandboxFacts:
    """What a sandbox turned out to be; echoed to clients and kept in the store."""

    image: str
    image_digest: str
    runtime: str
    uid: int
    gid: int
    memory_bytes: int
    cpu_millis: int
    pids: int
    disk_bytes: int
    tmp_bytes: int
    network: str
    quota_mechanism: str
    working_directory: str
    home_directory: str
    shell: str
    search_engine: str
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of `pull`, `create`, `start` and `guest_ready`, in that order."""


class Sandbox(Channel, Protocol):
    """A running sandbox whose guest is connected, or expected back."""

    resource_id: str
    generation: int
    facts: SandboxFacts
    secret_digest: str
    """Hash of the guest's secret (security S5): what `adopt` needs to know it again."""

    lost: asyncio.Future[Exception]
    """Resolves once, with a `SandboxLost`, when the sandbox is of no use any more."""

    report: Report
    """What the guest said of calls when it connected last."""

    on_report: Callable[[Report], None]
    """Called with the report of each connection after the first. Set by the sessions."""

    def recorded(self, call_id: str) -> None:
        """The call's result is durable: the guest need not keep it any longer."""
        ...

    def counted(self) -> Counted | None:
        """What the kernel has counted so far, seen from the host; None where it does not tell."""
        ...

    async def oom_victim(self) -> str:
        """Name of the process that was killed last for lack of memory; empty if not known."""
        ...

    async def ended_by_oom(self) -> bool:
        """Of a sandbox that is lost: whether its end was its first process's lack of memory.

        Answers within two seconds, with false where it cannot be told.
        """
        ...


class Backend(Protocol):
    """Makes, adopts and removes sandboxes on this worker."""

    name: str
    isolated: bool
    """Whether code in a sandbox can harm neither the host nor another sandbox."""
    tells_oom: bool
    """Whether lack of memory is seen from the host (`Sandbox.counted`)."""

    async def start(self) -> None:
        """Checks that it can work at all. Raises `StartupError` with its exit code."""
        ...

    async def stop(self) -> None:
        """Lets go of every sandbox without ending any, for the next daemon to adopt."""
        ...

    async def create(self, spec: SandboxSpec, on_phase: Callable[[str], None]) -> Sandbox:
        """Makes a sandbox and returns when its guest is ready.

        Calls `on_phase` as each phase starts. Raises `CreateFailed` or
        `EngineDown`; then nothing of this attempt is left, except the store of an
        earlier generation.
        """
        ...

    async def adopt(
        self, spec: SandboxSpec, facts: SandboxFacts, secret_digest: str
    ) -> Sandbox | None:
        """Takes up a sandbox that an earlier daemon made and returns when its guest is back.

        Returns None where it is gone or does not come back; what is left of it is
        the caller's to `remove`. Raises `EngineDown`.
        """
        ...

    async def release(self, resource_id: str) -> None:
        """Ends the sandbox's container or process and keeps its store, before a restart.

        Raises `EngineDown`. Safe to repeat.
        """
        ...

    async def remove(self, resource_id: str) -> None:
        """Ends the sandbox and removes everything of it: processes, container, store, folder.

        Returns when nothing is left. Safe to repeat, also for what never existed.
        Raises `EngineDown` or `SandboxdError` where something could not be
        removed; the sweeper repeats it.
        """
        ...

    async def owned(self) -> set[str]:
        """Resource ids of everything that this worker's daemons made and that exists.

        Containers, volumes and networks by label; folders, and what is mounted or behind a
        loop device in them, by name. Called every few seconds. Raises `EngineDown`.
        """
        ...

    def state_folder_of(self, resource_id: str) -> Path:
        """Host folder of the sandbox, for diagnostics."""
        ...
