"""A pattern as a POSIX grep can be asked for it: an extended expression over bytes.

Only what every grep understands in the same way is used: groups, brackets, `|`,
`*`, `+`, `?`, counts, `^` and `$`, and a backslash before what is special outside
of brackets. For the C locale, see `ere_sets`; tool-cases G5 and G6.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from . import ere_boundaries, ere_parse, ere_sets
from .ere_nodes import EMPTY, Chars, Choice, Concat, Edge, Node, Repeat, Stray

WEIGHT_BYTES_MAX: Final = 100_000
"""Of the expression with all counted repetitions written out: greps need a second for
what is as large, and the square of that for more. One argument may hold 128 KiB."""

_BEFORE: Final = b"([\xc0-\xff]|(^|[\x01-\x7f])[\x80-\xbf]+)"
_BEHIND: Final = b"([\x80-\xc1\xf5-\xff]|[\xc2-\xf4]($|[\x01-\x7f\xc0-\xff]))"
# Also of a line that ends in CR LF, or a file whose lines end in CR CR LF.
_END: Final = b"\r*$"


@dataclass(frozen=True)
class Expression:
    """What a grep is given."""

    text: str
    """With surrogate escapes: arguments are bytes."""
    nullable: bool
    """Whether it matches in every line, wherever nothing is."""
    padded: bool
    """Whether a match may begin with one character that is not the pattern's."""
    fixed: str | None = None
    """The text that it stands for where it is no more than that."""


@dataclass(frozen=True)
class _Piece:
    data: bytes
    weight: int
    atom: bool
    """Whether a repetition behind it means all of it."""


def translate(pattern: str, *, literal: bool, ignore_case: bool) -> Expression:
    """Raises `OpError` INVALID_PATTERN for what ripgrep refuses or a grep cannot do."""
    if literal:
        node = ere_parse.literal(pattern, ignore_case=ignore_case)
    else:
        node = ere_parse.parse(f"(?i){pattern}" if ignore_case else pattern)
    try:
        resolved = ere_boundaries.resolve(node)
        piece = _written(resolved)
        nullable = ere_boundaries.nullable(resolved)
    except ere_boundaries.Unresolved:
        words = "a word boundary in this place needs ripgrep; leave it out"
        raise ere_parse.refusal(pattern, words) from None
    except (_TooLarge, RecursionError):
        raise ere_parse.refusal(pattern, ere_parse.TOO_LARGE) from None
    padded = resolved is not node
    return Expression(os.fsdecode(piece.data), nullable and not padded, padded, _fixed(resolved))


def _fixed(node: Node) -> str | None:
    items = node.items if isinstance(node, Concat) else (node,)
    text = ""
    for item in items:
        if not isinstance(item, Chars) or len(item.ranges) != 1:
            return None
        low, high = item.ranges[0]
        if low != high:
            return None
        text += chr(low)
    return text or None


class _TooLarge(Exception):
    pass


def _written(node: Node) -> _Piece:
    """Raises `_TooLarge` as soon as a part is."""
    piece = _piece(node)
    if max(piece.weight, len(piece.data)) > WEIGHT_BYTES_MAX:
        raise _TooLarge
    return piece


def _piece(node: Node) -> _Piece:
    if isinstance(node, Chars):
        return _chars(node)
    if isinstance(node, Stray):
        data = _BEFORE if node.before else _BEHIND
        return _Piece(data, len(data), atom=True)
    if isinstance(node, Edge):
        data = b"^" if node.at_start else _END
        return _Piece(data, len(data), atom=False)
    if isinstance(node, Concat):
        pieces = [_written(each) for each in node.items]
        if len(pieces) == 1:
            return pieces[0]
        weight = sum(each.weight for each in pieces)
        return _Piece(b"".join(each.data for each in pieces), weight, atom=False)
    if isinstance(node, Choice):
        return _choice(node)
    assert isinstance(node, Repeat)
    return _repeat(node)


def _chars(node: Chars) -> _Piece:
    ranges = node.ranges
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and ranges[0][0] >= 0x80:
        data = chr(ranges[0][0]).encode()
        return _Piece(data, len(data), atom=False)
    data = ere_sets.expression(ranges)
    return _Piece(data, len(data), atom=True)


def _choice(node: Choice) -> _Piece:
    pieces = [_written(each) for each in node.options]
    kept = [each for each in pieces if each.data]
    if not kept:
        return _written(EMPTY)
    data = b"(" + b"|".join(each.data for each in kept) + b")"
    weight = sum(each.weight for each in pieces)
    # Not every grep knows an option that is nothing.
    optional = b"?" if len(kept) < len(pieces) else b""
    return _Piece(data + optional, weight, atom=not optional)


def _repeat(node: Repeat) -> _Piece:
    piece = _written(EMPTY if node.high == 0 else node.node)
    if not piece.data:
        return piece
    if _edges_only(node.node):
        # What has no length can be repeated in no way, and some greps refuse to.
        return piece if node.low else _written(EMPTY)
    if (node.low, node.high) == (1, 1):
        return piece
    counts = {(0, None): b"*", (1, None): b"+", (0, 1): b"?"}.get((node.low, node.high))
    if counts is None:
        high = b"" if node.high is None else b"%d" % node.high
        same = node.low == node.high
        counts = b"{%d}" % node.low if same else b"{%d,%s}" % (node.low, high)
    operand = piece.data if piece.atom else b"(" + piece.data + b")"
    times = max(node.high or 0, node.low, 1)
    return _Piece(operand + counts, piece.weight * times, atom=False)


def _edges_only(node: Node) -> bool:
    if isinstance(node, Edge):
        return True
    if isinstance(node, Concat):
        return all(_edges_only(each) for each in node.items)
    if isinstance(node, Choice):
        return all(_edges_only(each) for each in node.options)
    return isinstance(node, Repeat) and _edges_only(node.node)
