"""What a guest's "no" about a file becomes for a model: the exact texts of contract.md 9.

The guest gives a reason and facts; the words are chosen here. Reasons without a
text of the contract's own keep the guest's one line, cleaned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field

from sandbox_adapter.v1 import tool_pb2
from sandboxd.errors import GuestFault
from sandboxd.tools.base import InvalidInput
from sandboxd.tools.facts import Count, Facts, parse_facts
from sandboxd.tools.wording import plain

TEXT_CHARS_MAX = 6_000
"""Most of a guest's own line: a path of the greatest length and what is said of it."""
NEAR_CHARS_MAX = 8_192
"""Most of a path that may be meant: it must be usable as it stands."""

NOT_OF_FILES = frozenset(
    {"INTERNAL_ERROR", "ID_CONFLICT", "CALLS_EXHAUSTED", "CANCELLED_BY_CALLER"}
)
"""Reasons that say nothing about the file; they keep their way through the daemon."""

ADVICE: Final[Mapping[str, str]] = {
    "NOT_DIRECTORY": "Use glob or bash ls to see what is there, and correct the path.",
    "PATH_TOO_LONG": "Use a shorter path.",
    "SYMLINK_LOOP": "Use another path, or replace the links with bash.",
    "PERMISSION_DENIED": "Use another path, or check owner and mode with bash ls -ld.",
    "READ_ONLY": "Use a path in the working directory or in /tmp.",
    "DISK_FULL": "Remove files that are not needed, then try again.",
    "FILE_TOO_LARGE": "Use bash to work on it in parts.",
    "FILE_EXISTS": "Use another path, or remove what is there with bash.",
    "FILE_BUSY": "Try again when nothing uses it, or use another path.",
    "IO_ERROR": "Use another path, or look into it with bash.",
}
"""What can be done where a system call failed (contract.md 9), by the guest's reason."""
_BARE = "Cannot "
"""How the guest's line begins where it holds a system call's error and no advice; a path in it
may look like one."""
_ADVISED = re.compile(r"\. (?:Check|Leave|Try|Use) [^/]*\.\Z")
"""How other lines of the guest end where they say already what can be done."""
_ESCAPED = re.compile(r"\\x[0-9a-f]{2}")
VERSION_CONFLICT = "{path} is not at the expected version. Read it again before you change it."


_Near = Annotated[str, Field(max_length=NEAR_CHARS_MAX)]


class _Full(Facts):
    size: Count | None = None


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
    text = plain(str(fault), TEXT_CHARS_MAX)
    if fault.reason in ADVICE and (text.startswith(_BARE) or not _ADVISED.search(text)):
        text = f"{text} {ADVICE[fault.reason]}"
    limit = None
    if fault.reason == "DISK_FULL" and (size := parse_facts(_Full, fault.facts).size):
        limit = tool_pb2.Limit(kind="disk", limit=size)
    return InvalidInput(text, fault.reason, limit)
