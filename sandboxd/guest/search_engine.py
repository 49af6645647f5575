"""What a search of contents is asked, what it answers, and who can do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from .search_child import Budget
from .search_paths import Start
from .search_rows import FirstRows, Row


@dataclass(frozen=True)
class Query:
    """What to search for."""

    pattern: str
    literal: bool
    include: str | None
    """Pattern of file names, see `include_patterns`."""
    start: Start
    rows_max: int
    no_ignore: bool = False
    ignore_case: bool = False


@dataclass
class Found:
    """What a search brought."""

    rows: FirstRows
    complete: bool = True
    """False where the budget was over first."""
    unsearched: int = 0
    """Paths that could not be searched."""
    first_error: str | None = None
    """The first of them in one line, its path as it is printed."""
    binary: bool = False
    """Whether matches in a binary file were not shown; only said of a start that is a file."""
    unruled: bool = False
    """Whether ignored files were searched too: an ignore file could not be read."""
    searched: int | None = None
    """Files that were searched, where the engine counts them."""


@dataclass
class Counted:
    """Matching lines by file."""

    total: int = 0
    complete: bool = True


OnFile: TypeAlias = Callable[[bytes, int], None]
"""Takes a file's path below the start and the number of its lines that match."""


class Engine(Protocol):
    """A program that finds lines, with the same answers from each (see `SEARCH.md`)."""

    def first_rows(self, query: Query, budget: Budget) -> Found:
        """The first rows in order of path and line. Raises INVALID_PATTERN, SPAWN_FAILED."""

    def ignored(self, query: Query, found: Found, budget: Budget, on_file: OnFile) -> Counted:
        """Matching lines in files that ignore rules hide.

        `found` is what the search that heeds them brought: nothing.
        """

    def other_case(self, query: Query, budget: Budget) -> bool:
        """Whether the same search matches something when it ignores case."""

    def located(self, rows: list[Row], query: Query, chars_max: int, budget: Budget) -> list[Row]:
        """The rows, with the places of matches in lines over `chars_max` bytes filled in."""

    def file_of(self, row: Row) -> str:
        """The absolute path of the file that a row is from."""
