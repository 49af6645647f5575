"""grep's `include`: a pattern of file names that means the same to every engine.

Braces stand for alternatives, one alone for itself, as ripgrep has it. The rest is
`name_patterns`: what `find -name` matches. ripgrep gets it in a spelling of its own,
in which one place is one byte: where that matters it is given a pattern that fits
more, and what it finds is looked at once more (tool-cases G16, G17).
"""

from __future__ import annotations

import re
from typing import Final

from . import name_patterns
from .ops import OpError


def alternatives(include: str) -> list[str]:
    """Patterns without braces. Raises `OpError` INVALID_PATTERN."""
    depth = at = 0
    while at < len(include):
        char = include[at]
        if char == "\\":
            if at + 1 == len(include):
                raise _refused(include, "dangling '\\'")
            at += 2
            continue
        if char == "[":
            at = name_patterns.bracket_end(include, at) or at + 1
            continue
        depth += (char == "{") - (char == "}")
        if depth < 0:
            raise _refused(include, "unopened alternate group; missing '{'")
        at += 1
    if depth:
        raise _refused(include, "unclosed alternate group; missing '}'")
    return [_without_classes(each) for each in name_patterns.expand_braces(include, alone=True)]


def compiled(include: str) -> re.Pattern[str]:
    """An expression to `match` a whole name with."""
    names = [name_patterns.translate(each) for each in alternatives(include)]
    return re.compile("|".join(f"(?:{each})" for each in names), re.DOTALL)


def for_ripgrep(include: str) -> tuple[list[str], bool]:
    """Globs in ripgrep's syntax that fit all such names; whether they fit no other."""
    globs = [_spelled(each) for each in alternatives(include)]
    return globs, not any(_ANY_CHARACTER in each for each in globs)


def _without_classes(pattern: str) -> str:
    """Classes such as `[:alpha:]` written out in ASCII: ripgrep's globs have none."""
    plain = ""
    at = 0
    while at < len(pattern):
        after = at + 1
        if pattern[at] == "\\":
            after += 1
        elif pattern[at] == "[":
            after = name_patterns.bracket_end(pattern, at) or after
        part = pattern[at:after]
        if part.startswith("["):
            part = _CLASS.sub(lambda found: _ASCII.get(found[1], found[0]), part)
        plain += part
        at = after
    name_patterns.translate(plain)
    return plain


def _refused(include: str, words: str) -> OpError:
    return OpError("INVALID_PATTERN", f"error parsing glob '{include[:200]}': {words}")


def _spelled(pattern: str) -> str:
    spelled = ""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        after = at + 1
        if char == "[" and (close := name_patterns.bracket_end(pattern, at)) is not None:
            spelled += _bracket(pattern[after : close - 1])
            after = close
        elif char == "\\":
            char = pattern[after]
            spelled += _ANY_CHARACTER if char in ":\n" else _escaped(char)
            after += 1
        elif char == "*":
            # Two of them would be about folders.
            spelled += "" if spelled.endswith("*") and pattern[at - 1] == "*" else "*"
        else:
            spelled += _ANY_CHARACTER if char in "?:\n" else _escaped(char)
        at = after
    return spelled


def _escaped(char: str) -> str:
    return f"[{char}]" if char in "*?[{},\\]" else char


def _bracket(inside: str) -> str:
    if inside[:1] in ("!", "^"):
        return _ANY_CHARACTER
    spans = name_patterns.bracket_spans(inside)
    if not spans:
        # Only ranges that hold nothing, as no name holds a slash.
        return "[/]"
    if any(high > "\x7f" or low <= ":" <= high for low, high in spans):
        return _ANY_CHARACTER
    chars = {low for low, high in spans if low == high}
    ranges = ""
    for low, high in (span for span in spans if span[0] < span[1]):
        if {low, high} & _PLACED:
            chars |= {chr(code) for code in range(ord(low), ord(high) + 1)}
        else:
            ranges += f"{low}-{high}"
    inside = ("]" if "]" in chars else "") + ranges + "".join(sorted(chars - _PLACED))
    signs = "".join(char for char in ("!^-" if inside else "-!^") if char in chars)
    if not inside and "-" not in chars:
        return "{" + ",".join(signs) + "}" if len(signs) > 1 else signs
    return f"[{inside}{signs}]"


_ANY_CHARACTER: Final = "{?,??,???,????}"
"""ripgrep's definition of a type cannot hold a colon either."""
_PLACED: Final = frozenset("]-!^")
"""What means something in a bracket, unless it stands at the right place."""
_ASCII: Final = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \t",
    "cntrl": "\x01-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@[-`{-~",
    "space": " \t-\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_CLASS: Final = re.compile(r"\[:(\w*):\]")
