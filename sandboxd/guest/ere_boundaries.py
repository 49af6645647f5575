"""Expressions without word boundaries that find the same lines.

No POSIX expression can ask what stands beside a place, and where a grep knows `\\b`
it knows it for ASCII words only. But a boundary between two parts only restricts
the last character of the one and the first of the other, and expressions with such
a restriction can be written down: `foo\\b.*` is `foo`, then what `.*` finds that does
not start with a word's character. What lies outside of the whole expression is
made a part of it first: an end of the line, or one character more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import ere_sets
from .ere_nodes import NEVER, Boundary, Chars, Choice, Concat, Edge, Node, Repeat, Stray

NODES_MAX: Final = 20_000
"""Of the result: parts are written once for each side of a boundary."""


def has_boundary(node: Node) -> bool:
    if isinstance(node, Boundary):
        return True
    return any(has_boundary(each) for each in _parts(node))


def resolve(node: Node) -> Node:
    """The same without boundaries, padded at both sides where it has any.

    Raises `Unresolved` where a boundary is repeated.
    """
    if not has_boundary(node):
        return node
    # Anything that is a character, in classes too a line's ending of two.
    anything = Chars(ere_sets.complement(ere_sets.normal([(0x00, 0x00), (0x0A, 0x0A)])))
    before: list[Node] = [Edge(True), anything]
    behind: list[Node] = [Edge(False), anything]
    if not nullable(node):
        # Side by side, two of them would be the halves of a character.
        before.append(Stray(before=True))
        behind.append(Stray(before=False))
    found = _Resolver().options(Concat((Choice(tuple(before)), node, Choice(tuple(behind)))))
    return _choice(found)


class Unresolved(Exception):
    """A boundary stands where nothing but ripgrep can look for it."""


class _Resolver:
    def __init__(self) -> None:
        self._nodes = 0

    def options(self, node: Node) -> list[Node]:
        """Expressions without boundaries that stand for the node together."""
        return [each for items in self._spread(node) for each in self._resolved(items)]

    def _spread(self, node: Node) -> list[list[Node]]:
        """Rows of items in which boundaries stand between items and not inside of any."""
        if not has_boundary(node) or isinstance(node, Boundary):
            return [[node]]
        if isinstance(node, Choice):
            return [row for each in node.options for row in self._spread(each)]
        if isinstance(node, Repeat):
            if (node.low, node.high) == (0, 1):
                return [[], *self._spread(node.node)]
            if node.low == node.high and node.low <= 3:
                return self._spread(Concat((node.node,) * node.low))
            raise Unresolved
        rows: list[list[Node]] = [[]]
        for item in _parts(node):
            found = self._spread(item)
            # Before they are made: the product of two lists may be out of all bounds.
            self._spend(sum(map(len, rows)) * len(found) + sum(map(len, found)) * len(rows))
            rows = [[*row, *more] for row in rows for more in found]
        return rows

    def _resolved(self, items: Sequence[Node]) -> list[Node]:
        items = _merged(items)
        if (apart := _set_apart(items)) is not None:
            self._count(apart)
            return [each for row in apart for each in self._resolved(row)]
        places = [at for at, item in enumerate(items) if isinstance(item, Boundary)]
        if not places:
            return [Concat(tuple(items))]
        # The last one first: what is behind it then has none, and what is before it
        # is asked for its end only.
        at = places[-1]
        boundary, before, behind = items[at], items[:at], Concat(tuple(items[at + 1 :]))
        assert isinstance(boundary, Boundary)
        found: list[Node] = []
        for pair in sorted(boundary.pairs):
            first = starting(behind, pair[1])
            if first == NEVER:
                continue
            for row in self._ending(before, pair[0]):
                whole = [*row, first]
                self._count([whole])
                found += self._resolved(whole)
        return found

    def _ending(self, items: Sequence[Node], kind: str) -> list[list[Node]]:
        """Rows like `items` whose last character is of a kind."""
        if not items:
            return []
        *rest, last = items
        if isinstance(last, Boundary):
            # Only where all that stands between two boundaries may be nothing.
            raise Unresolved
        rows = [] if (limited := ending(last, kind)) == NEVER else [[*rest, limited]]
        if nullable(last):
            rows += self._ending(rest, kind)
        return rows

    def _count(self, rows: list[list[Node]]) -> None:
        self._spend(sum(len(row) for row in rows))

    def _spend(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > NODES_MAX:
            raise Unresolved


def _merged(items: Sequence[Node]) -> list[Node]:
    """The same with one boundary where several stand at one place."""
    merged: list[Node] = []
    for item in items:
        last = merged[-1] if merged else None
        if isinstance(item, Boundary) and isinstance(last, Boundary):
            merged[-1] = Boundary(last.pairs & item.pairs)
        else:
            merged.append(item)
    return merged


def _set_apart(items: list[Node]) -> list[list[Node]] | None:
    """Rows for what may be nothing between two boundaries: once nothing, once something.

    None: there is no such part.
    """
    start: int | None = None
    for at, item in enumerate(items):
        if isinstance(item, Boundary):
            if start is not None:
                part = items[start:at]
                rows = [[*items[:start], *items[at:]]]
                for place, each in enumerate(part):
                    if not isinstance(each, Repeat) or nullable(each.node):
                        raise Unresolved
                    some = Repeat(each.node, 1, each.high)
                    rows.append([*items[:start], some, *part[place + 1 :], *items[at:]])
                return rows
            start = at + 1
        elif not nullable(item):
            start = None
    return None


def nullable(node: Node) -> bool:
    """Whether it finds a place without any character; edges count as characters here."""
    if isinstance(node, Concat):
        return all(nullable(each) for each in node.items)
    if isinstance(node, Choice):
        return any(nullable(each) for each in node.options)
    if isinstance(node, Repeat):
        return node.low == 0 or nullable(node.node)
    return isinstance(node, Boundary)


def starting(node: Node, kind: str) -> Node:
    """What the node finds that starts with a character of a kind, or with the line's end."""
    return _limited(node, kind, first=True)


def ending(node: Node, kind: str) -> Node:
    """What the node finds that ends with a character of a kind, or at the line's start."""
    return _limited(node, kind, first=False)


def _limited(node: Node, kind: str, *, first: bool) -> Node:
    if isinstance(node, Stray):
        return node if kind == "n" else NEVER
    if isinstance(node, Chars):
        words = ere_sets.word()
        keep = ere_sets.intersection if kind == "w" else ere_sets.difference
        return Chars(keep(node.ranges, words))
    if isinstance(node, Edge):
        if node.at_start == first:
            # `\b^`: what is on the other side of a line's edge is never part of it.
            raise Unresolved
        return node if kind == "n" else NEVER
    if isinstance(node, Choice):
        return _choice([_limited(each, kind, first=first) for each in node.options])
    if isinstance(node, Repeat):
        once = _limited(node.node, kind, first=first)
        high = None if node.high is None else node.high - 1
        if once == NEVER or high == -1:
            return NEVER
        more = Repeat(node.node, max(0, node.low - 1), high)
        return Concat((once, more) if first else (more, once))
    if isinstance(node, Concat):
        return _limited_row(node.items, kind, first=first)
    raise Unresolved


def _limited_row(items: tuple[Node, ...], kind: str, *, first: bool) -> Node:
    options: list[Node] = []
    left = items
    while left:
        own, others = (left[0], left[1:]) if first else (left[-1], left[:-1])
        limited = _limited(own, kind, first=first)
        if limited != NEVER:
            options.append(Concat((limited, *others) if first else (*others, limited)))
        if not nullable(own):
            break
        left = others
    return _choice(options)


def _choice(options: Sequence[Node]) -> Node:
    kept = [each for each in options if each != NEVER]
    if not kept:
        return NEVER
    return kept[0] if len(kept) == 1 else Choice(tuple(kept))


def _parts(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Concat):
        return node.items
    if isinstance(node, Choice):
        return node.options
    return (node.node,) if isinstance(node, Repeat) else ()
