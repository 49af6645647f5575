"""What rules say about an answer: each check raises `Broken` with both sides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sandbox_adapter import errors
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.v1 import error_pb2, tool_pb2

SHOWN_CHARS: Final = 200
"""Most characters of a value that a message shows."""
PRINTED_CHARS_MAX: Final = 2_000
"""Most characters of a line that a report shows."""
RESTARTED: Final = (
    "[The sandbox was restarted: files in the workspace are kept, running processes are gone.]\n"
)
"""First line of the first result after a restart (contract.md 9)."""


def holds(condition: bool, text: str) -> None:
    """`text` says what is wrong where the condition is false."""
    if not condition:
        raise Broken(text)


def equal(actual: Any, expected: Any, what: str) -> None:
    """Both are the same value. 1 is not True, though Python says so."""
    if actual == expected and isinstance(actual, bool) == isinstance(expected, bool):
        return
    if isinstance(actual, str | bytes) and type(actual) is type(expected):
        at = _first_difference(actual, expected)
        if at > SHOWN_CHARS // 2:
            from_ = at - SHOWN_CHARS // 4
            raise Broken(
                f"{what}: differs at {at} of {len(actual)} (expected {len(expected)}): "
                f"…{shown(actual[from_:])}, expected …{shown(expected[from_:])}"
            )
    raise Broken(f"{what}: {shown(actual)}, expected {shown(expected)}")


def ending_is(result: tool_pb2.ToolResult, name: str) -> None:
    equal(tool_pb2.Ending.Name(result.ending).removeprefix("ENDING_"), name, "ending")


def fine(result: tool_pb2.ToolResult, text: str | None = None) -> tool_pb2.ToolResult:
    """The tool did its work, and said just `text` where that is given."""
    if result.is_error:
        raise Broken(f"refused as {reason_of(result)}: {shown(result.text)}")
    if text is not None:
        equal(result.text, text, "text")
    return result


def refused(
    result: tool_pb2.ToolResult, reason: str, text: str | None = None
) -> tool_pb2.ToolResult:
    """The tool failed for this reason, as a result, with a text that a model can use."""
    if not result.is_error:
        raise Broken(f"not refused ({reason} expected): {shown(result.text)}")
    equal(reason_of(result), reason, f"reason (text: {shown(result.text)})")
    ending_is(result, "COMPLETED")
    if text is not None:
        equal(result.text, text, "text")
    holds(bool(result.text.strip()), "a refusal without a text")
    return result


@contextmanager
def fails(status: str, *reasons: str, field: str = "") -> Iterator[None]:
    """The request in the block fails with this status and one of these reasons.

    `field`: the ErrorInfo must name this field of the request in its metadata.
    """
    try:
        yield
    except errors.AdapterError as error:
        reason = shown(error.reason) if error.reason else "none"
        equal(error.status, status, f"status (reason {reason}, text {shown(str(error))})")
        if error.reason not in reasons:
            raise Broken(f"reason {reason}, expected {' or '.join(reasons)}") from None
        if field:
            equal(error.failure.metadata.get("field"), field, "field of the ErrorInfo")
        return
    raise Broken(f"it succeeded; {status} ({' or '.join(reasons)}) was expected")


def exited(result: tool_pb2.ToolResult, code: int, text: str | None = None) -> None:
    """A command ran and ended with this code, which the result names even where it is 0."""
    fine(result, text)
    ending_is(result, "EXITED")
    equal(given(result, "exit_code"), code, "exit code")


def given(result: tool_pb2.ToolResult, name: str) -> Any:
    """An optional field of a result. None where it is absent, which is not 0."""
    return getattr(result, name) if result.HasField(name) else None


def says(text: str, *parts: str) -> None:
    """Each part stands somewhere in the text."""
    for part in parts:
        holds(part in text, f"{shown(part)} is missing in {shown(text)}")


def reason_of(result: tool_pb2.ToolResult) -> str:
    if result.reason not in error_pb2.Reason.values():
        return f"number {result.reason}"
    return error_pb2.Reason.Name(result.reason).removeprefix("REASON_")


def shown(value: Any) -> str:
    """A value as a message shows it: on one line, escaped, of bounded length."""
    text = ascii(value) if isinstance(value, str | bytes) else " ".join(repr(value).split())
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text)} characters)"


def printable(text: str) -> str:
    """Text that an adapter may have had a part in, for a terminal: one line, no controls."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return plain if len(plain) <= PRINTED_CHARS_MAX else f"{plain[:PRINTED_CHARS_MAX]}…"


def _first_difference(actual: str | bytes, expected: str | bytes) -> int:
    for at, (a, b) in enumerate(zip(actual, expected, strict=False)):
        if a != b:
            return at
    return min(len(actual), len(expected))


def well_formed(result: tool_pb2.ToolResult) -> None:
    """What holds for every result of every tool (contract.md 4)."""
    holds("\0" not in result.text, "the text holds NUL")
    holds(result.ending != tool_pb2.ENDING_UNSPECIFIED, "a result without an ending")
    holds(result.generation >= 1, "a result without a generation")
    holds(result.HasField("started_at"), "a result without the time of its start")
    holds(result.HasField("duration"), "a result without its duration")
    if result.is_error:
        holds(result.reason != error_pb2.REASON_UNSPECIFIED, "a failure without a reason")
