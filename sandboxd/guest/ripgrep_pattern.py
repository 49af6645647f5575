"""A pattern in the words that every version of ripgrep knows.

Since version 14 any punctuation may have a backslash before it, as models like to
write it (`\\"`, `\\/`), and a group may be named without `P`. Version 13 refuses both.

All versions put a group around the pattern as it stands. What would close that group
(`a)(b`) or take its end for its own (`a\\`) becomes another expression that is valid, so
it is refused here.
"""

from __future__ import annotations

import re
from typing import Final

from .ops import OpError

_PART: Final = re.compile(r"\\(?P<escaped>.)|\(\?<(?![=!])", re.DOTALL)
_KNOWN: Final = frozenset("\\.+*?()|[]{}^$#&-~")
_VERBOSE: Final = re.compile(r"\(\?[a-zA-Z]*x")
# Bare, they could end up in front of a class's name, in verbose mode, between two counts,
# in the name of a group or behind its question mark.
_BY_CODE: Final = {char: f"\\x{ord(char):02X}" for char in ": ,_=!"}


def portable(pattern: str) -> str:
    """The same expression without what only newer versions know. Raises INVALID_PATTERN."""
    _refuse_what_leaves_its_group(pattern)
    return _PART.sub(_rewritten, pattern)


def _rewritten(found: re.Match[str]) -> str:
    char = found["escaped"]
    if char is None:
        return "(?P<"
    plain = char.isascii() and char.isprintable() and not char.isalnum() and char not in "<>"
    if not plain or char in _KNOWN:
        return found[0]
    return _BY_CODE.get(char, char)


def _refuse_what_leaves_its_group(pattern: str) -> None:
    # Where white space and comments mean nothing, brackets in comments do not count.
    if _VERBOSE.search(pattern):
        return
    depth = at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 == len(pattern):
            raise OpError(
                "INVALID_PATTERN", "regex parse error: the last backslash escapes nothing"
            )
        if char == "[":
            at = _end_of_class(pattern, at)
            continue
        depth += (char == "(") - (char == ")")
        if depth < 0:
            raise OpError("INVALID_PATTERN", "regex parse error: unopened group")
        at += 2 if char == "\\" else 1


def _end_of_class(pattern: str, at: int) -> int:
    """Index behind a bracket expression; behind the pattern where it is not closed."""
    depth = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "[":
            depth += 1
            at += pattern.startswith("^", at + 1)
            # A bracket that closes nothing yet stands for itself.
            at += pattern.startswith("]", at + 1)
        elif char == "]":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return at
