"""What the checks take for equal, for the end of a command, and for the right failure."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_adapter import errors
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.v1 import tool_pb2


@pytest.mark.parametrize(
    ("actual", "expected"),
    [(1, True), (False, 0), (None, 0), ("1", 1), (b"a", "a"), ([1], [2]), (0, None)],
)
def test_values_that_are_not_equal(actual: Any, expected: Any) -> None:
    with pytest.raises(Broken, match="the thing"):
        expect.equal(actual, expected, "the thing")


@pytest.mark.parametrize("value", [1, True, "a", b"a", [1], None, {"a": 1}])
def test_values_that_are_equal(value: Any) -> None:
    expect.equal(value, value, "the thing")


def test_long_texts_are_shown_where_they_differ() -> None:
    with pytest.raises(Broken, match="differs at 300 of 301"):
        expect.equal("a" * 300 + "b", "a" * 301, "the thing")


def test_exit_code_that_is_absent_is_not_zero() -> None:
    result = tool_pb2.ToolResult(ending=tool_pb2.ENDING_EXITED)
    with pytest.raises(Broken, match="exit code: None, expected 0"):
        expect.exited(result, 0)
    result.exit_code = 0
    expect.exited(result, 0)


def failure(**metadata: str) -> errors.AdapterError:
    return errors.InvalidRequest(
        errors.Failure("INVALID_ARGUMENT", "no", "INVALID_ENVELOPE", metadata=metadata)
    )


def test_failure_must_name_the_field_where_that_is_asked() -> None:
    def judge(error: errors.AdapterError, field: str) -> None:
        with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field=field):
            raise error

    judge(failure(field="session_id"), "session_id")
    judge(failure(), "")
    for wrong in (failure(field="profile"), failure()):
        with pytest.raises(Broken, match="field of the ErrorInfo"):
            judge(wrong, "session_id")


@pytest.mark.parametrize(
    ("status", "reason"), [("NOT_FOUND", "INVALID_ENVELOPE"), ("INVALID_ARGUMENT", "UNKNOWN_TOOL")]
)
def test_failure_of_another_status_or_reason_is_broken(status: str, reason: str) -> None:
    with pytest.raises(Broken), expect.fails(status, reason):
        raise failure()


def test_success_is_no_failure() -> None:
    with pytest.raises(Broken, match="it succeeded"), expect.fails("NOT_FOUND", "X"):
        pass


def test_printable_text_is_one_bounded_line() -> None:
    assert expect.printable("é \x1b[0m\n\u202e") == "é \\x1b[0m\\n\\u202e"
    assert len(expect.printable("x" * 100_000)) == expect.PRINTED_CHARS_MAX + 1
