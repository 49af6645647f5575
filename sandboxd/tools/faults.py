"""What a guest's "no" about a file becomes for a model: the exact texts of contract.md 9.

The guest gives a reason and facts; the words are chosen here. Reasons without a
text of the contract's own keep the guest's one line, cleaned.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from sandboxd.errors import GuestFault
from sandboxd.tools.base import InvalidInput
from sandboxd.tools.facts import Facts, parse_facts
from sandboxd.tools.wording import plain

TEXT_CHARS_MAX = 6_000
"""Most of a guest's own line: a path of the greatest length and what is said of it."""
NEAR_CHARS_MAX = 8_192
"""Most of a path that may be meant: it must be usable as it stands."""

NOT_OF_FILES = frozenset(
    {"INTERNAL_ERROR", "ID_CONFLICT", "CALLS_EXHAUSTED", "CANCELLED_BY_CALLER"}
)
"""Reasons that say nothing about the file; they keep their way through the daemon."""

_ESCAPED = re.compile(r"\\x[0-9a-f]{2}")
VERSION_CONFLICT = "{path} is not at the expected version. Read it again before you change it."


_Near = Annotated[str, Field(max_length=NEAR_CHARS_MAX)]


class _Missing(Facts):
    near: Annotated[list[_Near], Field(max_length=3)] = Field(default_factory=list)


def file_fault(path: str, fault: GuestFault, directory_hint: str) -> Exception:
    """The exception to raise instead of `fault`; `path` is as the model spelled it.

    `directory_hint` says what to do where the path is a directory. Raises
    `SandboxLost` where the facts are malformed.
    """
    if fault.reason in NOT_OF_FILES:
        return fault
    if fault.reason == "FILE_NOT_FOUND":
        near = parse_facts(_Missing, fault.facts).near
        names = ", ".join(plain(name, NEAR_CHARS_MAX) for name in near)
        hint = f"\nDid you mean: {names}?" if near else ""
        if not near and _ESCAPED.search(path):
            hint = "\nA name that is not UTF-8 is shown with \\xNN; only bash reaches it."
        return InvalidInput(f"File not found: {path}{hint}", fault.reason)
    if fault.reason == "IS_DIRECTORY":
        return InvalidInput(f"{path} is a directory. {directory_hint}", fault.reason)
    if fault.reason == "VERSION_CONFLICT":
        return InvalidInput(VERSION_CONFLICT.format(path=path), fault.reason)
    return InvalidInput(plain(str(fault), TEXT_CHARS_MAX), fault.reason)


def refuse_versions(given: bool) -> None:
    """No version can be expected yet, so none can be compared."""
    if given:
        raise InvalidInput(
            "This adapter gives no versions yet, so `expectedVersion` cannot be checked. "
            "Leave it out."
        )
