"""Results that no tool words: what the end of a call's surroundings means for it.

Each text says what is known, and ends with what a model can do next. `is_error`
is set for SANDBOX_LOST and UNKNOWN always (contract.md 4).
"""

from __future__ import annotations

from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from sandbox_adapter.v1 import error_pb2, tool_pb2
from sandboxd import limits
from sandboxd.sessions.records import EndCause

RESTARTED: Final = (
    "[The sandbox was restarted: files in the workspace are kept, running processes are gone.]"
)
"""First line of the next result after a restart (contract.md 9)."""

WORKER_STOPPED: Final = "The worker stopped while this call ran"
UNTOLD: Final = "The sandbox cannot tell what came of this call"
FAULT: Final = "The worker met a fault while this call ran"
_UNKNOWN_NEXT: Final = (
    ", so it is not known whether it took effect. Look at the files and processes that it "
    "would have changed before you run it again."
)
_ENDED: Final = "The sandbox ended while this call ran."
_LOST: Final = (
    f"{_ENDED} Its effects on files may be partial: files in the "
    "workspace are kept where it can be restarted, processes are gone. Look before you repeat it."
)
_BY_CALLER: Final = "[The call was cancelled: what it did until then is kept.]"
_NEVER_STARTED: Final = "[The call was cancelled before it started: nothing ran.]"
_SURVIVORS_MAX: Final = 64
_NAME_CHARS_MAX: Final = 64


def unknown(what: str) -> tool_pb2.ToolResult:
    """Whether the call had its effect cannot be known; `what` says why, as a clause."""
    return tool_pb2.ToolResult(
        text=what + _UNKNOWN_NEXT,
        is_error=True,
        reason=error_pb2.REASON_OUTCOME_UNKNOWN,
        ending=tool_pb2.ENDING_UNKNOWN,
    )


def sandbox_lost() -> tool_pb2.ToolResult:
    """The sandbox died under the call."""
    return tool_pb2.ToolResult(
        text=_LOST,
        is_error=True,
        reason=error_pb2.REASON_SANDBOX_LOST,
        ending=tool_pb2.ENDING_SANDBOX_LOST,
    )


def blame_memory(
    result: tool_pb2.ToolResult, limit_bytes: int, peak_bytes: int | None, victim: str
) -> None:
    """Has the result of a lost sandbox say that it was out of memory. `victim`: empty, unknown."""
    result.ending = tool_pb2.ENDING_OOM_KILLED
    limit = tool_pb2.Limit(kind="memory", limit=limit_bytes, peak=peak_bytes, victim=victim)
    result.limit.CopyFrom(limit)
    peak = "" if peak_bytes is None else f", peak {peak_bytes // limits.MIB} MB"
    why = f"The sandbox was out of memory (limit {limit_bytes // limits.MIB} MB{peak}) and ended."
    # The last one: output that came before may hold the same words.
    before, found, after = result.text.rpartition(_ENDED)
    result.text = f"{before}{why}{after}" if found else f"{result.text}\n{why}"


def cancelled(*, started: bool) -> tool_pb2.ToolResult:
    """`CancelCall` ended the call, or its queue place, before it had a result."""
    return tool_pb2.ToolResult(
        text=_BY_CALLER if started else _NEVER_STARTED,
        reason=error_pb2.REASON_CANCELLED_BY_CALLER,
        ending=tool_pb2.ENDING_CANCELLED,
    )


def session_ended(cause: EndCause) -> tool_pb2.ToolResult:
    """The end of its session ended the call."""
    if cause in (EndCause.IDLE, EndCause.LIFETIME):
        reason, why = error_pb2.REASON_CANCELLED_BY_EXPIRY, "its time was over"
    else:
        reason, why = error_pb2.REASON_CANCELLED_BY_DELETE, "it was deleted"
    return tool_pb2.ToolResult(
        text=f"[The call ended with its session: {why}. Files of the session are gone.]",
        reason=reason,
        ending=tool_pb2.ENDING_CANCELLED,
    )


def mark_cancelled(result: tool_pb2.ToolResult, survivors: object) -> None:
    """Completes the result of a call that `CancelCall` cut short.

    `survivors` is the guest's answer, pairs of pid and name, hostile until
    checked. A result with another ending than CANCELLED ended by itself before
    the cancel reached it, and stays what it is.
    """
    if result.ending != tool_pb2.ENDING_CANCELLED:
        return
    result.is_error = False
    result.reason = error_pb2.REASON_CANCELLED_BY_CALLER
    if not result.text:
        result.text = _BY_CALLER
    known = {survivor.pid for survivor in result.survivors}
    for pid, name in _pairs(survivors):
        if pid not in known:
            result.survivors.add(pid=pid, name=name)


def stamp(
    result: tool_pb2.ToolResult, generation: int, started_at: float, duration_s: float | None
) -> None:
    """Fills in what the session manager alone knows. `started_at` is wall clock."""
    result.generation = generation
    result.started_at.CopyFrom(timestamp(started_at))
    if duration_s is not None:
        result.duration.FromMicroseconds(round(duration_s * 1e6))
    result.replayed = False
    if "\0" in result.text:
        result.text = result.text.replace("\0", "\ufffd")


def tell_restart(result: tool_pb2.ToolResult) -> None:
    """Puts the restart line first."""
    result.text = f"{RESTARTED}\n{result.text}"


def timestamp(at: float) -> Timestamp:
    """A wall clock time as a message, to the microsecond."""
    message = Timestamp()
    message.FromMicroseconds(round(at * 1e6))
    return message


def _pairs(survivors: object) -> list[tuple[int, str]]:
    out: list[tuple[int, str]] = []
    for item in survivors[:_SURVIVORS_MAX] if isinstance(survivors, list) else []:
        if not isinstance(item, list | tuple) or len(item) != 2:
            continue
        pid, name = item
        if isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid < 2**31:
            printable = "".join(char for char in str(name) if char.isprintable())
            out.append((pid, printable[:_NAME_CHARS_MAX]))
    return out
