"""The rules of a request's envelope: ids, durations, paths, pages (contract.md 2, 4)."""

from __future__ import annotations

import re
from typing import Final

from google.protobuf.duration_pb2 import Duration

from sandboxd import limits
from sandboxd.errors import InvalidEnvelope
from sandboxd.sessions.records import TENANT, SessionKey

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID_RULE: Final = "must match [A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_SECONDS_MAX: Final = 315_576_000_000
_NUMBER_MAX: Final = 2**63 - 1


def session_key(session_id: str) -> SessionKey:
    """The session that a request names. Raises `InvalidEnvelope`."""
    return SessionKey(TENANT, required_id("session_id", session_id))


def required_id(field: str, value: str) -> str:
    """An id that has to be there. Raises `InvalidEnvelope`."""
    if not value:
        raise InvalidEnvelope(field, "must be given")
    return optional_id(field, value)


def optional_id(field: str, value: str) -> str:
    """An id, or nothing where the server makes one. Raises `InvalidEnvelope`."""
    if value and not _ID.fullmatch(value):
        raise InvalidEnvelope(field, _ID_RULE)
    return value


def seconds(field: str, value: Duration) -> float:
    """A duration as seconds. Raises `InvalidEnvelope` for one that is malformed or negative."""
    same_sign = value.seconds >= 0 and value.nanos >= 0
    if not same_sign or value.nanos > 999_999_999 or value.seconds > _SECONDS_MAX:
        raise InvalidEnvelope(field, "must be a duration of 0 or more")
    return value.seconds + value.nanos / 1e9


def duration(value_s: float) -> Duration:
    """Seconds as a duration, to the microsecond."""
    message = Duration()
    message.FromMicroseconds(round(value_s * 1e6))
    return message


def page_size(value: int) -> int:
    """The page size in force. Raises `InvalidEnvelope`."""
    if value == 0:
        return limits.LIST_PAGE_DEFAULT
    if not 0 < value <= limits.LIST_PAGE_MAX:
        raise InvalidEnvelope("page_size", f"must be from 1 to {limits.LIST_PAGE_MAX}")
    return value


def page_start(token: str) -> int:
    """Where a page starts: after the session of this number. Raises `InvalidEnvelope`."""
    if not token:
        return 0
    if not re.fullmatch(r"[0-9]{1,19}", token) or int(token) > _NUMBER_MAX:
        raise InvalidEnvelope("page_token", "must be the `next_page_token` of a page before")
    return int(token)


def path(field: str, value: str) -> str:
    """A path of a verb: not empty, no NUL. The guest knows the rest."""
    if not value:
        raise InvalidEnvelope(field, "must be given")
    if "\0" in value:
        raise InvalidEnvelope(field, "must not hold NUL")
    return value


def mode(value: int) -> int:
    """Permission bits that a verb may set. Raises `InvalidEnvelope`."""
    if value > 0o777:
        raise InvalidEnvelope("mode", "must be at most 0777")
    return value
