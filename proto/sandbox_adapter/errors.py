"""What the client raises: one tree, chosen by reason, never by message text.

The reason of an RPC's failure is the `google.rpc.ErrorInfo` of domain
`sandbox_adapter` in its status details (error.proto). A reason that this version
does not know, or none, falls back to the status code, as the contract asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import grpc
from google.protobuf.any_pb2 import Any as PackedDetail
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

DOMAIN: Final = "sandbox_adapter"
DETAILS_KEY: Final = "grpc-status-details-bin"


@dataclass(frozen=True)
class Failure:
    """The facts of a failed RPC."""

    status: str
    """Name of the gRPC status code, such as `NOT_FOUND`."""
    text: str
    """For people. Never decide by it."""
    reason: str = ""
    """Name of a `Reason` without its prefix. Empty: the adapter gave none."""
    retry_after_s: float | None = None
    """The adapter's advice (RetryInfo). None: it gave none."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Of the ErrorInfo, such as `field` and `rule` of a bad envelope."""


class AdapterError(Exception):
    """An RPC failed. Subclasses say what that means for the caller."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text or failure.reason or failure.status)
        self.failure = failure

    @property
    def reason(self) -> str:
        return self.failure.reason

    @property
    def status(self) -> str:
        return self.failure.status

    @property
    def retry_after_s(self) -> float | None:
        return self.failure.retry_after_s


class InvalidRequest(AdapterError):
    """The request breaks a rule. Nothing ran; do not repeat it unchanged."""


class UnknownTool(InvalidRequest):
    """The adapter has no tool of this name."""


class ProfileUnknown(InvalidRequest):
    """No profile of this name is offered to this caller."""


class NotAllowed(AdapterError):
    """Credentials are missing or do not suffice."""


class ProfileForbids(NotAllowed):
    """An override lies outside what the profile allows."""


class NotServed(AdapterError):
    """The adapter does not serve this RPC."""


class SessionGone(AdapterError):
    """The session takes no calls: unknown, deleted or failed. Use another."""


class SessionUnknown(SessionGone):
    """No session of this caller has the id."""


class SessionDeleted(SessionGone):
    """The session was deleted or has expired."""


class SessionFailed(SessionGone):
    """The session is in state FAILED."""


class CallUnknown(AdapterError):
    """No call of the session has the id."""


class ResultExpired(AdapterError):
    """The call ran and ended, but its result is no longer kept."""


class IdConflict(AdapterError):
    """The id was used before with other parameters."""


class EpochStale(AdapterError):
    """A newer owner has the session. Stop."""


class CreateFailed(AdapterError):
    """The sandbox could not be made; `reason` names the phase. Nothing is left behind."""


class Unavailable(AdapterError):
    """Waiting may help."""


class ConnectionLost(Unavailable):
    """The adapter could not be reached, or the connection broke.

    Whether the request had its effect is not known; repeat it with the same id.
    """


class Draining(Unavailable):
    """The adapter is shutting down. Nothing ran."""


class EngineDown(Unavailable):
    """The adapter's engine does not answer. Nothing ran."""


class EndUnfinished(Unavailable):
    """The session's end is recorded and goes on; repeat the deletion to confirm it."""


class SessionNotReady(Unavailable):
    """The session is starting. Nothing ran."""


class Exhausted(AdapterError):
    """A limit of the adapter is reached. Nothing ran."""


class DeadlineExceeded(AdapterError):
    """The caller's time is over. What runs goes on, unless it was bound to the caller."""


class FileFault(AdapterError):
    """A file verb failed at what it was asked; `reason` says at what."""


class FileNotFound(FileFault):
    """Nothing exists at the path."""


class VersionConflict(FileFault):
    """The file is not at the expected version."""


class ProcessUnknown(AdapterError):
    """No process of the session has the id."""


class SpawnFailed(AdapterError):
    """The process could not be made. Nothing ran."""


class SandboxLost(AdapterError):
    """The sandbox ended while a verb ran. A write may or may not have happened."""


class AdapterBug(AdapterError):
    """A fault of the adapter, logged there under `failure.metadata["reference"]`."""


_BY_REASON: Final[Mapping[str, type[AdapterError]]] = {
    "INVALID_ENVELOPE": InvalidRequest,
    "INVALID_INPUT": InvalidRequest,
    "UNKNOWN_TOOL": UnknownTool,
    "PROFILE_UNKNOWN": ProfileUnknown,
    "UNAUTHENTICATED": NotAllowed,
    "PROFILE_FORBIDS": ProfileForbids,
    "NOT_SERVED": NotServed,
    "SESSION_UNKNOWN": SessionUnknown,
    "SESSION_DELETED": SessionDeleted,
    "SESSION_FAILED": SessionFailed,
    "CALL_UNKNOWN": CallUnknown,
    "RESULT_EXPIRED": ResultExpired,
    "ID_CONFLICT": IdConflict,
    "EPOCH_STALE": EpochStale,
    "PULL_FAILED": CreateFailed,
    "START_FAILED": CreateFailed,
    "GUEST_NOT_READY": CreateFailed,
    "DRAINING": Draining,
    "ENGINE_DOWN": EngineDown,
    "END_UNFINISHED": EndUnfinished,
    "SESSION_NOT_READY": SessionNotReady,
    "SESSIONS_EXHAUSTED": Exhausted,
    "CALLS_EXHAUSTED": Exhausted,
    "DISK_LOW": Exhausted,
    "LEDGER_FULL": Exhausted,
    "INTERNAL_ERROR": AdapterBug,
    "SANDBOX_LOST": SandboxLost,
    "FILE_NOT_FOUND": FileNotFound,
    "VERSION_CONFLICT": VersionConflict,
    "PROCESS_UNKNOWN": ProcessUnknown,
    "SPAWN_FAILED": SpawnFailed,
} | dict.fromkeys(
    (
        "IS_DIRECTORY",
        "NOT_DIRECTORY",
        "NOT_REGULAR",
        "PERMISSION_DENIED",
        "PATH_TOO_LONG",
        "SYMLINK_LOOP",
        "READ_ONLY",
        "DISK_FULL",
        "FILE_TOO_LARGE",
        "PATH_OUTSIDE",
        "FILE_EXISTS",
        "NOT_EMPTY",
        "WORKING_DIRECTORY_MISSING",
        "FILE_BUSY",
        "IO_ERROR",
        "CROSS_DEVICE",
    ),
    FileFault,
)

_BY_STATUS: Final[Mapping[str, type[AdapterError]]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "UNAUTHENTICATED": NotAllowed,
    "PERMISSION_DENIED": NotAllowed,
    "UNIMPLEMENTED": NotServed,
    "RESOURCE_EXHAUSTED": Exhausted,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    # Without a reason these come from the transport, not from the adapter.
    "UNAVAILABLE": ConnectionLost,
    "CANCELLED": ConnectionLost,
    "INTERNAL": AdapterBug,
    "UNKNOWN": AdapterBug,
}


def error_class(status: str, reason: str) -> type[AdapterError]:
    """The class for a reason, or for the status where the reason is unknown."""
    known = _BY_REASON.get(reason)
    if known is not None:
        return known
    if status == "UNAVAILABLE" and reason:
        return Unavailable
    return _BY_STATUS.get(status, AdapterError)


def from_rpc(error: grpc.aio.AioRpcError) -> AdapterError:
    """What the client raises for a failed RPC."""
    reason, retry_after_s, metadata = "", None, {}
    for detail in _details(error.trailing_metadata()):
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            if _unpack(detail.value, info) and info.domain == DOMAIN:
                reason, metadata = info.reason, dict(info.metadata)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            if _unpack(detail.value, retry):
                retry_after_s = max(0.0, retry.retry_delay.ToNanoseconds() / 1e9)
    status = error.code().name
    text = error.details() or ""
    return error_class(status, reason)(Failure(status, text, reason, retry_after_s, metadata))


def _details(trailing: Iterable[tuple[str, str | bytes]] | None) -> list[PackedDetail]:
    for key, value in trailing or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            status = status_pb2.Status()
            if _unpack(value, status):
                return list(status.details)
    return []


def _unpack(raw: bytes, message: Message) -> bool:
    # What a peer sends is not trusted to be well formed; the status code remains.
    try:
        message.ParseFromString(raw)
    except DecodeError:
        return False
    return True
