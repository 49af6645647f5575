"""The parts of an expression, between reading it and writing it for a grep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from .ere_sets import Ranges


@dataclass(frozen=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True)
class Stray:
    """Bytes beside the whole expression that are no UTF-8. No pattern asks for them."""

    before: bool


@dataclass(frozen=True)
class Edge:
    """The start (`^`) or the end (`$`) of a line."""

    at_start: bool


@dataclass(frozen=True)
class Boundary:
    """A place between characters: `w`, a word's, or `n`, any other or none at all.

    Each pair that is allowed, the character before and the one behind.
    """

    pairs: frozenset[str]


@dataclass(frozen=True)
class Concat:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    node: Node
    low: int
    high: int | None


Node: TypeAlias = Chars | Stray | Edge | Boundary | Concat | Choice | Repeat

EMPTY: Final = Concat(())
NEVER: Final = Chars(())
