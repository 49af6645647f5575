"""The first frame of a guest: what it says of itself, checked.

Nothing in it is believed because it is said: who it is was settled by its pid or
its secret (security S5), and what it says must be what the daemon asked for.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

from sandboxd.backends.base import Report
from sandboxd.guest import protocol

SECRET_BYTES: Final = 32
REPORTED_CALLS_MAX: Final = 1024
SPAWNING_MAX: Final = 64
_TEXT_CHARS_MAX: Final = 4096
_CALL_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


def new_secret() -> str:
    """A secret for one generation of one sandbox, as text."""
    return secrets.token_hex(SECRET_BYTES)


def digest_of(secret: str) -> str:
    """What is kept of a secret. It has 256 random bits, so a plain hash does not give it away."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Expected:
    """What a guest must be for its connection to be taken."""

    secret_digest: str
    pid: int | None
    """Process that must be at the other end, in the daemon's own numbering; None
    where peer pids mean nothing (a runtime with a kernel of its own)."""
    mode: str
    workdir: str
    home: str


@dataclass(frozen=True)
class Hello:
    """What the daemon takes from a hello."""

    shell: str
    """Path of the shell, empty where there is none."""
    search: str
    """Search engine and version, empty where there is none."""
    report: Report
    spawning: frozenset[int]
    """Threads that start its processes, in its own numbering; see `command_cgroup`."""


def check_hello(header: protocol.Header, expected: Expected) -> Hello:
    """Raises `protocol.ProtocolError` for everything that is not the guest that was started.

    The secret is compared in constant time and always, also where the pid says
    enough.
    """
    hello = header.get("hello")
    if header.keys() != {"hello"} or not isinstance(hello, dict):
        raise protocol.ProtocolError("the first frame is no hello")
    secret = _text(hello, "secret")
    if not hmac.compare_digest(digest_of(secret), expected.secret_digest):
        raise protocol.ProtocolError("wrong secret")
    container = expected.mode == "container"
    wanted: list[tuple[str, Any]] = [
        ("protocol", protocol.PROTOCOL_VERSION),
        ("mode", expected.mode),
        ("workdir", expected.workdir),
        ("home", expected.home),
    ]
    if container:
        # Process 1 of its own namespace, with nothing of the image in its memory (S1, S11).
        wanted += [("pid", 1), ("maps_closed", True)]
    for name, value in wanted:
        if type(hello.get(name)) is not type(value) or hello[name] != value:
            raise protocol.ProtocolError(f"`{name}` of the hello is not `{value}`")
    return Hello(
        _optional_text(hello, "shell"),
        _optional_text(hello, "search"),
        _report(hello),
        _spawning(hello),
    )


def _spawning(hello: dict[str, Any]) -> frozenset[int]:
    threads = hello.get("spawning", [])
    if not isinstance(threads, list) or len(threads) > SPAWNING_MAX:
        raise protocol.ProtocolError("`spawning` of the hello is no list within its bound")
    if not all(type(each) is int and 0 < each < 2**31 for each in threads):
        raise protocol.ProtocolError("`spawning` of the hello holds what is no thread")
    return frozenset(threads)


def _report(hello: dict[str, Any]) -> Report:
    report = hello.get("report")
    if not isinstance(report, dict):
        raise protocol.ProtocolError("a hello without a report")
    calls, sequence = report.get("calls"), report.get("sequence")
    if not isinstance(calls, list) or len(calls) > REPORTED_CALLS_MAX:
        raise protocol.ProtocolError("`calls` of the report is no list within its bound")
    if not all(isinstance(each, str) and _CALL_ID.match(each) for each in calls):
        raise protocol.ProtocolError("`calls` of the report holds what is no id")
    if type(sequence) is not int or not 0 <= sequence < 2**63:
        raise protocol.ProtocolError("`sequence` of the report is no number")
    return Report(frozenset(calls), sequence)


def _text(hello: dict[str, Any], name: str) -> str:
    value = hello.get(name)
    if not isinstance(value, str) or len(value) > _TEXT_CHARS_MAX or not value.isprintable():
        raise protocol.ProtocolError(f"`{name}` of the hello is no plain text")
    return value


def _optional_text(hello: dict[str, Any], name: str) -> str:
    return "" if hello.get(name) is None else _text(hello, name)
