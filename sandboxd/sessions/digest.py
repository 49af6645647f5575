"""Keyed digests that decide whether two requests are the same (contract.md 2, security S15).

The key is the installation's, so a digest in a log or a stolen database says
nothing about what was asked.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping
from typing import Any

import rfc8785

_SAFE_INTEGER = 2**53 - 1


def call_digest(key: bytes, tool: str, raw: Mapping[str, Any]) -> bytes:
    """Digest over the tool's name and its canonical input: the same for both input forms."""
    return _digest(key, "call", {"tool": tool, "input": raw})


def specification_digest(key: bytes, specification: Mapping[str, Any]) -> bytes:
    """Digest over what a client asked of a session."""
    return _digest(key, "session", specification)


def process_digest(key: bytes, specification: Mapping[str, Any]) -> bytes:
    """Digest over what a client asked of a process."""
    return _digest(key, "process", specification)


def _digest(key: bytes, purpose: str, value: Mapping[str, Any]) -> bytes:
    canonical = rfc8785.dumps(_representable(value))
    # The purpose separates the uses of one key.
    return hmac.digest(key, purpose.encode() + b"\0" + canonical, hashlib.sha256)


def _representable(value: Any) -> Any:
    """The value with everything outside RFC 8785 replaced by a tagged object.

    A digest must exist for every input that reaches a tool, since a fault in a
    tool's field is a recorded result. A tag starts with NUL; keys of the input
    that do so get one more, so that no input can look like a tag.
    """
    if isinstance(value, Mapping):
        return {_key(str(key)): _representable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_representable(item) for item in value]
    if isinstance(value, str):
        text = _text(value)
        return text if text is value else {"\0text": text}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= _SAFE_INTEGER else _large_integer(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"\0float": repr(value)}
    raise TypeError(f"no JSON value: {type(value).__name__}")


def _large_integer(value: int) -> Any:
    """A double's value as that double, since JSON spells both alike; else a tag."""
    try:
        double = float(value)
    except OverflowError:
        return {"\0integer": str(value)}
    return double if int(double) == value else {"\0integer": str(value)}


def _key(key: str) -> str:
    return _text("\0" + key if key.startswith("\0") else key)


def _text(value: str) -> str:
    """The text itself, or with lone surrogates spelled out where it has some."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
