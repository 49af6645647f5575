"""Every error that the daemon raises on purpose.

    SandboxdError
    ├── ConfigError                  the settings, before anything runs
    ├── StartupError                 the daemon cannot start; owns an exit code
    ├── CallerError                  becomes the status of an RPC
    │   ├── InvalidEnvelope          INVALID_ARGUMENT
    │   ├── UnknownTool              INVALID_ARGUMENT
    │   ├── ProfileUnknown           INVALID_ARGUMENT
    │   ├── ProfileForbids           PERMISSION_DENIED
    │   ├── SessionUnknown           NOT_FOUND
    │   ├── CallUnknown              NOT_FOUND
    │   ├── SessionDeleted           FAILED_PRECONDITION
    │   ├── SessionFailed            FAILED_PRECONDITION
    │   ├── ResultExpired            FAILED_PRECONDITION
    │   ├── CreateFailed             FAILED_PRECONDITION (the phase's reason)
    │   ├── IdConflict               ALREADY_EXISTS
    │   ├── EpochStale               ABORTED
    │   ├── VerbFault                the status that the reason gives
    │   ├── ProcessUnknown           NOT_FOUND
    │   ├── ProcessFault             FAILED_PRECONDITION, or NOT_FOUND by its reason
    │   ├── VerbSandboxLost          ABORTED
    │   ├── NotServed                UNIMPLEMENTED
    │   └── RetryLater               has a delay for RetryInfo
    │       ├── SessionNotReady      UNAVAILABLE
    │       ├── Draining             UNAVAILABLE
    │       ├── EngineDown           UNAVAILABLE
    │       ├── EndUnfinished        UNAVAILABLE
    │       ├── SessionsExhausted    RESOURCE_EXHAUSTED
    │       ├── CallsExhausted       RESOURCE_EXHAUSTED
    │       └── LedgerFull           RESOURCE_EXHAUSTED
    ├── GuestFault                   the guest did what it was asked and says no
    └── SandboxLost                  the sandbox ended or broke its protocol

A class takes data, not prose, and builds two texts from it: `str(error)` is safe
for the caller and a model, `operator_text` is for the log. `rpc/errors.py` is the
only place that turns them into a status. The reasons are those of `error.proto`.
"""

from __future__ import annotations

from typing import ClassVar, Final

EXIT_CONFIG: Final = 2
"""Exit code: wrong flags or settings."""
EXIT_ADDRESS: Final = 3
"""Exit code: an address cannot be listened on, or must not be."""
EXIT_ENGINE: Final = 4
"""Exit code: the container engine does not answer, or is too old."""
EXIT_IMAGE: Final = 5
"""Exit code: an image that the daemon needs is missing."""
EXIT_STATE: Final = 6
"""Exit code: the state folder is in use, unwritable, or of a newer version."""
EXIT_UNSAFE: Final = 7
"""Exit code: the settings ask for something unsafe without saying so."""


class SandboxdError(Exception):
    """Root of the tree. `str()` is the caller's text."""

    def __init__(self, text: str, operator_text: str | None = None) -> None:
        super().__init__(text)
        self.operator_text = operator_text or text


class ConfigError(SandboxdError):
    """The settings are wrong. One line for the operator; exit code `EXIT_CONFIG`."""

    exit_code: ClassVar[int] = EXIT_CONFIG


class StartupError(SandboxdError):
    """The daemon cannot start. `exit_code` is one of the `EXIT_` values above."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class CallerError(SandboxdError):
    """An RPC fails. `status` is the name of a gRPC status code."""

    status: ClassVar[str]
    reason: str

    def metadata(self) -> dict[str, str]:
        """Facts for `ErrorInfo.metadata`."""
        return {}


class InvalidEnvelope(CallerError):
    """A field of the request breaks its rule."""

    status = "INVALID_ARGUMENT"
    reason = "INVALID_ENVELOPE"

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"`{field}` {rule}")
        self.field = field
        self.rule = rule

    def metadata(self) -> dict[str, str]:
        return {"field": self.field, "rule": self.rule}


class UnknownTool(CallerError):
    """The custom input names no tool of this adapter."""

    status = "INVALID_ARGUMENT"
    reason = "UNKNOWN_TOOL"

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"no tool is called `{name[:64]}`; there are: {', '.join(known)}")

    def metadata(self) -> dict[str, str]:
        return {"field": "custom.name", "rule": "must be a tool of ListTools"}


class ProfileUnknown(CallerError):
    """No profile of this name is offered."""

    status = "INVALID_ARGUMENT"
    reason = "PROFILE_UNKNOWN"

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"no profile is called `{name[:64]}`; there are: {', '.join(known)}")

    def metadata(self) -> dict[str, str]:
        return {"field": "profile", "rule": "must be a profile of GetInfo"}


class ProfileForbids(CallerError):
    """An override lies outside what the profile allows."""

    status = "PERMISSION_DENIED"
    reason = "PROFILE_FORBIDS"

    def __init__(self, profile: str, field: str, rule: str) -> None:
        super().__init__(f"profile `{profile}` does not allow this `{field}`: {rule}")
        self.field = field
        self.rule = rule

    def metadata(self) -> dict[str, str]:
        return {"field": self.field, "rule": self.rule}


class SessionUnknown(CallerError):
    """No session of this caller has the id; a foreign one gives the same text."""

    status = "NOT_FOUND"
    reason = "SESSION_UNKNOWN"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session `{session_id}`")


class CallUnknown(CallerError):
    """The session has no such call."""

    status = "NOT_FOUND"
    reason = "CALL_UNKNOWN"

    def __init__(self, call_id: str) -> None:
        super().__init__(f"no call `{call_id}` in this session")


class SessionDeleted(CallerError):
    """The session was deleted or has expired; its id cannot be used again."""

    status = "FAILED_PRECONDITION"
    reason = "SESSION_DELETED"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session `{session_id}` was deleted; use a new id")


class SessionFailed(CallerError):
    """The session takes no calls any more."""

    status = "FAILED_PRECONDITION"
    reason = "SESSION_FAILED"

    def __init__(self, session_id: str, cause: str, message: str) -> None:
        super().__init__(f"session `{session_id}` has failed ({cause}): {message}")


class ResultExpired(CallerError):
    """The call ended, but its result is no longer kept."""

    status = "FAILED_PRECONDITION"
    reason = "RESULT_EXPIRED"

    def __init__(self, call_id: str) -> None:
        super().__init__(f"call `{call_id}` has ended, but its result is no longer kept")


class CreateFailed(CallerError):
    """A phase of a session's start failed; nothing is left behind.

    `reason` is PULL_FAILED, START_FAILED or GUEST_NOT_READY. The operator's text
    may hold the engine's own words and the container's log.
    """

    status = "FAILED_PRECONDITION"

    def __init__(self, reason: str, text: str, operator_text: str | None = None) -> None:
        super().__init__(text, operator_text)
        self.reason = reason


class IdConflict(CallerError):
    """The id was used before with other parameters."""

    status = "ALREADY_EXISTS"
    reason = "ID_CONFLICT"

    def __init__(self, kind: str, id_: str) -> None:
        super().__init__(f"{kind} `{id_}` exists with other parameters; use a new id")


class EpochStale(CallerError):
    """A newer owner has the session."""

    status = "ABORTED"
    reason = "EPOCH_STALE"

    def __init__(self, epoch: int, seen: int) -> None:
        super().__init__(f"epoch {epoch} is stale: the session has seen {seen}")


_VERB_STATUS: Final = {
    "FILE_NOT_FOUND": "NOT_FOUND",
    "PROCESS_UNKNOWN": "NOT_FOUND",
    "VERSION_CONFLICT": "ABORTED",
    "INVALID_INPUT": "INVALID_ARGUMENT",
}


class VerbFault(CallerError):
    """A file or process verb failed at what it was asked; see `Reason`."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason

    @property
    def status(self) -> str:  # type: ignore[override]
        return _VERB_STATUS.get(self.reason, "FAILED_PRECONDITION")


class ProcessUnknown(CallerError):
    """The session has no such process."""

    status = "NOT_FOUND"
    reason = "PROCESS_UNKNOWN"

    def __init__(self, process_id: str) -> None:
        super().__init__(f"no process `{process_id}` in this session")


class ProcessFault(CallerError):
    """A process verb failed at what it was asked; process.proto gives the statuses."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason

    @property
    def status(self) -> str:  # type: ignore[override]
        return "NOT_FOUND" if self.reason == "PROCESS_UNKNOWN" else "FAILED_PRECONDITION"


class VerbSandboxLost(CallerError):
    """The sandbox ended while a verb ran; whether it had an effect is not known."""

    status = "ABORTED"
    reason = "SANDBOX_LOST"

    def __init__(self) -> None:
        super().__init__("the sandbox ended while this ran; the effect may have happened")


class NotServed(CallerError):
    """The RPC is part of the contract, and this adapter does not claim it."""

    status = "UNIMPLEMENTED"
    reason = "NOT_SERVED"

    def __init__(self, capability: str) -> None:
        super().__init__(f"this adapter does not claim the capability {capability}")


class RetryLater(CallerError):
    """Waiting helps. `retry_s` becomes RetryInfo."""

    retry_s: float = 1.0


class SessionNotReady(RetryLater):
    """The session is being created or its container starts anew."""

    status = "UNAVAILABLE"
    reason = "SESSION_NOT_READY"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session `{session_id}` is starting")


class Draining(RetryLater):
    """The daemon is shutting down."""

    status = "UNAVAILABLE"
    reason = "DRAINING"
    retry_s = 5.0

    def __init__(self) -> None:
        super().__init__("this worker is shutting down")


class EngineDown(RetryLater):
    """The container engine does not answer."""

    status = "UNAVAILABLE"
    reason = "ENGINE_DOWN"
    retry_s = 5.0

    def __init__(self, operator_text: str = "") -> None:
        super().__init__("the container engine does not answer", operator_text)


class EndUnfinished(RetryLater):
    """A session's end is recorded, and something of it could not be removed yet."""

    status = "UNAVAILABLE"
    reason = "END_UNFINISHED"
    retry_s = 5.0

    def __init__(self, session_id: str, operator_text: str) -> None:
        super().__init__(
            f"what is left of session `{session_id}` is not removed yet", operator_text
        )


class SessionsExhausted(RetryLater):
    """The worker has as many sessions as it may have."""

    status = "RESOURCE_EXHAUSTED"
    reason = "SESSIONS_EXHAUSTED"
    retry_s = 10.0

    def __init__(self, sessions_max: int) -> None:
        super().__init__(f"this worker has {sessions_max} sessions, the most it may have")


class CallsExhausted(RetryLater):
    """The session's queue of calls is full, or its file verbs are as many as may be."""

    status = "RESOURCE_EXHAUSTED"
    reason = "CALLS_EXHAUSTED"

    def __init__(self, kind: str, most: int) -> None:
        super().__init__(f"this session has {most} {kind}, the most it may have")


class LedgerFull(RetryLater):
    """The tenant's calls or results fill the ledger; nothing ran (security S16)."""

    status = "RESOURCE_EXHAUSTED"
    reason = "LEDGER_FULL"
    retry_s = 60.0

    def __init__(self) -> None:
        super().__init__("the record of calls is full; delete sessions that are done")


class GuestFault(SandboxdError):
    """The guest answered a request with an error of its own.

    `reason` is a name of `Reason`; `facts` are the op's own (see
    `guest/README.md`) and are hostile until checked.
    """

    def __init__(self, reason: str, text: str, facts: dict[str, object]) -> None:
        super().__init__(text)
        self.reason = reason
        self.facts = facts


class SandboxLost(SandboxdError):
    """The sandbox ended, went silent, or broke its protocol.

    `cause` is one of `ENDED`, `SILENT`, `PROTOCOL`, `DELETED`, `EXPIRED`,
    `SHUTDOWN`: the session manager decides by it what becomes of the session.
    """

    def __init__(self, cause: str, operator_text: str) -> None:
        super().__init__("the sandbox ended", operator_text)
        self.cause = cause
