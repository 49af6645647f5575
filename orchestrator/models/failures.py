"""What a model server's error means: category, and whether asking again can help.

Servers agree on nothing but the HTTP status, and not always on that; the order of
the rules is what keeps them apart. A quota that is used up looks like a rate limit,
a rate limit on tokens looks like a context that is too long, and a context that is
too long comes as a plain 400.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

from orchestrator.errors import ModelError
from orchestrator.escape import clipped, printable

TEXT_CHARS_MAX: Final = 500

_RATE_WORDS: Final = re.compile(r"rate.?limit|too many requests|throttl|service unavailable", re.I)
_QUOTA_WORDS: Final = re.compile(
    r"insufficient_quota|exceeded your current quota|billing|payment|credit balance"
    r"|(monthly|weekly) (usage )?limit|spend(ing)? limit",
    re.I,
)
_OVERFLOW_CODES: Final = frozenset({"context_length_exceeded", "request_too_large"})
_OVERFLOW_WORDS: Final = re.compile(
    r"prompt is too long|context window|maximum context length|contextwindowexceeded"
    r"|input is too long|maximum prompt length|reduce the length of the messages"
    r"|available context size|greater than the context length|too large for model"
    r"|longer than the model's context|prompt too long|input token count",
    re.I,
)
_BUSY_WORDS: Final = re.compile(r"overloaded|server_busy|at capacity", re.I)
_RETRYABLE: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 524, 529})


def from_status(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """The error for an HTTP answer that is not a success."""
    code, text = _code_and_text(body)
    retry_after_s = _retry_after(headers)
    category = _category(status, code, text)
    retryable = status in _RETRYABLE and category not in ("quota_exceeded", "too_many_tokens")
    if headers.get("x-should-retry", "").lower() in ("true", "false"):
        retryable = headers["x-should-retry"].lower() == "true"
    shown = clipped(printable(text), TEXT_CHARS_MAX)
    return ModelError(
        category,
        f"the model server answered {status}" + (f": {shown}" if shown else ""),
        retryable=retryable,
        retry_after_s=retry_after_s,
    )


def from_stream(error: Any) -> ModelError:
    """The error for an `error` inside a stream that began as a success."""
    code, text = _error_fields(error)
    status = _number(error.get("code")) if isinstance(error, dict) else None
    category = _category(status or 500, code, text)
    shown = clipped(printable(text or code), TEXT_CHARS_MAX)
    retryable = category in ("rate_limit", "server_busy", "server_error")
    return ModelError(
        category, f"the model server broke off: {shown or 'no reason given'}", retryable=retryable
    )


def _category(status: int, code: str, text: str) -> str:
    said = f"{code} {text}"
    if _QUOTA_WORDS.search(said) or status == 402:
        return "quota_exceeded"
    if status == 429 or _RATE_WORDS.search(said):
        return "rate_limit"
    if code in _OVERFLOW_CODES or status == 413 or _OVERFLOW_WORDS.search(said):
        return "too_many_tokens"
    if status in (401, 403):
        return "authentication"
    if status == 404:
        return "model_not_found"
    if status in (503, 529) or _BUSY_WORDS.search(said):
        return "server_busy"
    if status in (408, 504, 524):
        return "network"
    return "server_error" if status >= 500 else "invalid_request"


def _code_and_text(body: bytes) -> tuple[str, str]:
    plain = body.decode(errors="replace").strip()
    try:
        parsed = json.loads(plain)
    except (ValueError, RecursionError):
        return "", plain
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    if not isinstance(parsed, dict):
        return "", plain
    code, text = _error_fields(parsed.get("error", parsed))
    return code, text or plain


def _error_fields(error: Any) -> tuple[str, str]:
    if isinstance(error, str):
        return "", error
    if not isinstance(error, dict):
        return "", ""
    code = error.get("code") if isinstance(error.get("code"), str) else error.get("type")
    text = error.get("message") or error.get("detail") or ""
    return str(code or ""), text if isinstance(text, str) else json.dumps(text)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    # NaN and infinity parse as floats; they are no advice.
    return max(0.0, seconds) if seconds < 1e9 else None
