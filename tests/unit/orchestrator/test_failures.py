"""What a model server's error means."""

from __future__ import annotations

import json

import pytest

from orchestrator.models import failures


def body(message: str, code: str = "", kind: str = "") -> bytes:
    return json.dumps({"error": {"message": message, "code": code or None, "type": kind}}).encode()


@pytest.mark.parametrize(
    ("status", "sent", "category", "retryable"),
    [
        (429, body("Rate limit reached"), "rate_limit", True),
        (429, body("over your current quota", "insufficient_quota"), "quota_exceeded", False),
        (429, body("Too many tokens, please wait"), "rate_limit", True),
        (400, body("This model's maximum context length is 8192 tokens"), "too_many_tokens", False),
        (400, body("", "context_length_exceeded"), "too_many_tokens", False),
        (413, b"", "too_many_tokens", False),
        (400, body("unknown field"), "invalid_request", False),
        (401, body("bad key"), "authentication", False),
        (402, b"pay", "quota_exceeded", False),
        (404, body("no such model"), "model_not_found", False),
        (422, b"", "invalid_request", False),
        (500, b"<html>oops</html>", "server_error", True),
        (503, body("Service unavailable"), "rate_limit", True),
        (529, body("", kind="overloaded_error"), "server_busy", True),
        (504, b"", "network", True),
    ],
)  # fmt: skip
def test_status_and_body_decide(status: int, sent: bytes, category: str, retryable: bool) -> None:
    error = failures.from_status(status, {}, sent)
    assert (error.category, error.retryable) == (category, retryable)


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("soon", None), ("nan", None)]
)
def test_retry_after_is_read(value: str, seconds: float | None) -> None:
    assert failures.from_status(429, {"retry-after": value}, b"").retry_after_s == seconds


def test_server_may_forbid_a_retry() -> None:
    assert not failures.from_status(500, {"x-should-retry": "false"}, b"").retryable


def test_body_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in str(failures.from_status(500, {}, b"\x1b]0;owned\x07"))
