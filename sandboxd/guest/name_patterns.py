"""Patterns of file names: the meaning of `find -name`, and braces.

`*`, `?`, `[a-z]`, `[!a]`, `[^a]`, `[[:alpha:]]` and `\\x` as fnmatch(3) has them;
a leading dot is nothing special; a bracket that is never closed is a character.
`{a,b}` is expanded first, as a shell does. Translated expressions never
backtrack from one `*` into an earlier one (atomic groups), so no pattern can
keep the interpreter busy.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from typing import Final

from .ops import OpError

ALTERNATIVES_MAX: Final = 1_000
"""Names patterns that one pattern with braces may stand for."""

# As the C library has them in C.UTF-8. Surrogates are bytes that no character has.
_CLASSES: Final = {
    "alpha": r"(?![0-9])[^\W_]",
    "alnum": r"[^\W_]",
    "digit": "[0-9]",
    "xdigit": "[0-9A-Fa-f]",
    "space": r"[ \t-\r]",
    "blank": r"[ \t]",
    "punct": r"[!-/:-@\[-`{-~]|[^\x00-\x9f\w\s\ud800-\udfff]",
    "cntrl": r"[\x00-\x1f\x7f-\x9f]",
    "print": r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]",
    "graph": r"[^\x00-\x20\x7f-\x9f\s\ud800-\udfff]",
}
_CASES: Final = {"upper": str.isupper, "lower": str.islower}
_CASED_MAX: Final = 0x1FFFF
"""Beyond it no character has a case."""


@functools.cache
def _cased(name: str) -> str:
    """The characters of a case, as an expression: looked up once, and only where it is used."""
    has_case = _CASES[name]
    codes = [code for code in range(_CASED_MAX + 1) if has_case(chr(code))]
    starts = [code for code in codes if not has_case(chr(code - 1))]
    ends = [code for code in codes if not has_case(chr(code + 1))]
    pairs = zip(starts, ends, strict=True)
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in pairs) + "]"


def compile_name(pattern: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """An expression to `match` a whole name with.

    Names are text with surrogate escapes, so each undecodable byte is one
    character. Raises INVALID_PATTERN.
    """
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    alternatives = [translate(each) for each in expand_braces(pattern)]
    return re.compile("|".join(f"(?:{each})" for each in alternatives), flags)


def translate(pattern: str) -> str:
    """The expression of a pattern without braces, anchored at its end.

    Raises INVALID_PATTERN for a class of characters that is not known.
    """
    segments = [""]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        piece, after = re.escape(char), at + 1
        if char == "*":
            segments.append("")
            piece = ""
        elif char == "?":
            piece = "."
        elif char == "\\" and after < len(pattern):
            piece, after = re.escape(pattern[after]), after + 1
        elif char == "[":
            close = bracket_end(pattern, at)
            if close is not None:
                piece, after = _bracket(pattern[at + 1 : close - 1], pattern), close
        segments[-1] += piece
        at = after
    if len(segments) == 1:
        return segments[0] + r"\Z"
    first, *middle, last = segments
    # The leftmost place that fits a segment is always good enough: what is before
    # it can only leave more room for the rest.
    return first + "".join(f"(?>.*?{each})" for each in middle if each) + f".*{last}\\Z"


def bracket_end(pattern: str, start: int) -> int | None:
    """The index after the `]` that closes the bracket at `start`; None: it is a character."""
    at = start + 1
    if pattern[at : at + 1] in ("!", "^"):
        at += 1
    first = at
    while at < len(pattern):
        char = pattern[at]
        if char == "]" and at > first:
            return at + 1
        if char == "\\":
            at += 2
            continue
        if char == "[" and pattern[at + 1 : at + 2] in (":", ".", "="):
            end = pattern.find(pattern[at + 1] + "]", at + 2)
            if end >= 0:
                at = end + 2
                continue
        at += 1
    return None


def _bracket(inside: str, pattern: str) -> str:
    negated = inside[:1] in ("!", "^")
    items = _bracket_items(inside[1:] if negated else inside, pattern)
    found = f"(?:{'|'.join(items)})" if items else "(?!)"
    return f"(?:(?!{found}).)" if negated else found


def _bracket_items(inside: str, pattern: str) -> list[str]:
    items: list[str] = []
    for part in _bracket_parts(inside):
        if isinstance(part, str):
            items.append(_class(part[1:], part[0], pattern))
        elif part[0] <= part[1]:
            low, high = map(re.escape, part)
            items.append(low if low == high else f"[{low}-{high}]")
    return items


def bracket_spans(inside: str) -> list[tuple[str, str]]:
    """First and last of the characters in a bracket that has no classes, in its order."""
    parts = [(p[1:], p[1:]) if isinstance(p, str) else p for p in _bracket_parts(inside)]
    return [(low, high) for low, high in parts if low <= high]


def _bracket_parts(inside: str) -> Iterator[tuple[str, str] | str]:
    """Ranges, and for `[:alpha:]`, `[.a.]` and `[=a=]` the sign with what is between."""
    at = 0
    while at < len(inside):
        if inside[at] == "[" and inside[at + 1 : at + 2] in (":", ".", "="):
            kind = inside[at + 1]
            end = inside.find(kind + "]", at + 2)
            if end >= 0:
                yield kind + inside[at + 2 : end]
                at = end + 2
                continue
        low, at = _member(inside, at)
        if inside[at : at + 1] == "-" and at + 1 < len(inside):
            high, at = _member(inside, at + 1)
            yield low, high
        else:
            yield low, low


def _member(inside: str, at: int) -> tuple[str, int]:
    if inside[at] == "\\" and at + 1 < len(inside):
        at += 1
    return inside[at], at + 1


def _class(name: str, kind: str, pattern: str) -> str:
    if kind == ":" and name in _CLASSES:
        return _CLASSES[name]
    if kind == ":" and name in _CASES:
        return _cased(name)
    if kind != ":" and len(name) == 1:
        return re.escape(name)
    raise OpError(
        "INVALID_PATTERN",
        f"{pattern[:200]} has an unknown class of characters: [{kind}{name[:40]}{kind}].",
    )


def expand_braces(pattern: str, *, alone: bool = False) -> list[str]:
    """The patterns that a pattern with `{a,b}` stands for, itself where it has none.

    Braces without a comma are characters, or with `alone` one alternative;
    unbalanced ones are characters. Raises INVALID_PATTERN for more than
    ALTERNATIVES_MAX.
    """
    done: list[str] = []
    waiting = [(pattern, 0)]
    while waiting:
        current, begin = waiting.pop()
        group = _first_group(current, begin, alone)
        if group is None:
            done.append(current)
        else:
            start, commas, end = group
            edges = [start, *commas, end - 1]
            options = [current[a + 1 : b] for a, b in itertools.pairwise(edges)]
            # Reversed, since the last one is taken first: the order is the pattern's.
            waiting += [
                (current[:start] + option + current[end:], start) for option in reversed(options)
            ]
        if len(done) + len(waiting) > ALTERNATIVES_MAX:
            raise OpError(
                "INVALID_PATTERN",
                f"the braces of the pattern stand for more than {ALTERNATIVES_MAX} names.",
            )
    return done


def _first_group(pattern: str, begin: int, alone: bool) -> tuple[int, list[int], int] | None:
    """Opening, commas at its level and index after the closing of the first `{a,b}`.

    One pass; a brace that is never closed is skipped, one without a comma too.
    """
    opened: list[tuple[int, list[int]]] = []
    groups: list[tuple[int, list[int], int]] = []
    at = begin
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        if char == "[":
            at = bracket_end(pattern, at) or at + 1
            continue
        if char == "{":
            opened.append((at, []))
        elif char == "," and opened:
            opened[-1][1].append(at)
        elif char == "}" and opened:
            start, commas = opened.pop()
            if commas or alone:
                groups.append((start, commas, at + 1))
                if not opened:
                    break
        at += 1
    return min(groups, default=None)
