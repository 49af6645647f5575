"""What the store keeps: plain values, written by one thread, read everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from sandboxd.backends.base import SandboxFacts
from sandboxd.config import ProfileSettings

TENANT: str = "default"
"""The only tenant while there are no credentials. Every table and look-up is keyed by it."""


class SessionKey(NamedTuple):
    """Names a session. Ids are unique within a tenant (contract.md 2)."""

    tenant: str
    session_id: str


class State(Enum):
    """Where a session stands; the names are those of the contract."""

    CREATING = "CREATING"
    READY = "READY"
    RESTARTING = "RESTARTING"
    FAILED = "FAILED"
    DELETED = "DELETED"


ARROWS: Mapping[State, frozenset[State]] = {
    State.CREATING: frozenset({State.READY, State.DELETED}),
    State.READY: frozenset({State.RESTARTING, State.FAILED, State.DELETED}),
    State.RESTARTING: frozenset({State.READY, State.FAILED, State.DELETED}),
    State.FAILED: frozenset({State.DELETED}),
    State.DELETED: frozenset(),
}
"""Every change of state that can happen."""


class EndCause(Enum):
    """Why a session ended. The value is the machine reason that clients see."""

    DELETED = "DELETED_BY_CALLER"
    IDLE = "IDLE_EXPIRED"
    LIFETIME = "LIFETIME_EXPIRED"
    SHUTDOWN = "DELETED_AT_SHUTDOWN"


@dataclass
class SessionRecord:
    """A session as the store knows it. Times are seconds of the wall clock."""

    key: SessionKey
    resource_id: str
    profile: ProfileSettings
    """The profile with the client's overrides laid over it: what every start uses."""
    spec_digest: bytes
    env: dict[str, str]
    labels: dict[str, str]
    created_at: float
    used_at: float
    idle_timeout_s: float
    max_lifetime_s: float
    number: int = 0
    """Order of creation, given by the store."""
    state: State = State.CREATING
    reason: str = ""
    message: str = ""
    generation: int = 1
    epoch: int | None = None
    facts: SandboxFacts | None = None
    secret_digest: str = ""
    restarts: list[float] = field(default_factory=list)
    """When the container was started anew, the latest last."""
    restart_untold: bool = False
    """No result has said yet that the sandbox was restarted."""
    deleted_at: float | None = None

    @property
    def expires_at(self) -> float:
        return self.created_at + self.max_lifetime_s

    @property
    def idle_expires_at(self) -> float:
        return self.used_at + self.idle_timeout_s


class CallPhase(Enum):
    """What the ledger says of a call."""

    RESERVED = "reserved"
    FINISHED = "finished"
    EXPIRED = "expired"


@dataclass(frozen=True)
class CallRecord:
    """A call as the ledger knows it."""

    phase: CallPhase
    digest: bytes
    result: bytes | None
    """A serialised `ToolResult`. None unless finished."""


@dataclass(frozen=True)
class ReservedCall:
    """A call that an earlier daemon reserved and did not record."""

    call_id: str
    digest: bytes
    tool: str
    is_read: bool
    generation: int
    started_at: float
    sequence: int
    memo: Mapping[str, Any] | None
    """See `ledger.Reservation`. None of a call that was reserved and never asked for."""
