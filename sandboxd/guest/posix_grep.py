"""Searching with the image's own POSIX grep: GNU, BusyBox or any other.

What greps have in common is little: `-E`, `-l`, `-n`, `-c`, `-o`, bytes in the C
locale. So the files are chosen here, in order, and given to grep in growing batches.
Only the names of files that match are asked for; each of those is then searched by
itself, so that no name is part of a row. The first files are done before the later
ones are looked at, so the search ends as soon as it has its rows.

Differences from ripgrep that remain are listed in `SEARCH.md`.
"""

from __future__ import annotations

import dataclasses
import functools
import os

from . import ere
from .ops import OpError
from .posix_search import Grep, Search
from .search_child import Budget
from .search_engine import Counted, Found, OnFile, Query
from .search_files import Hidden, Stopped
from .search_rows import FirstRows, Row


class PosixGrep:
    """One machine's grep, searching from one working directory."""

    def __init__(self, grep: Grep, workdir: str) -> None:
        self._grep = grep
        self._workdir = workdir

    def first_rows(self, query: Query, budget: Budget) -> Found:
        search = Search(self._grep, query, _expression(query), budget)
        found = Found(FirstRows(query.rows_max))
        try:
            for file in search.candidates(Hidden.TAKEN if query.no_ignore else Hidden.LEFT_OUT):
                search.rows_of(file, found)
                if found.rows.capped:
                    break
        except Stopped:
            found.complete = False
        found.searched = search.files
        found.unsearched = search.unread.count
        found.first_error = search.unread.worded()
        return found

    def ignored(self, query: Query, found: Found, budget: Budget, on_file: OnFile) -> Counted:
        search = Search(self._grep, query, _expression(query), budget)
        counted = Counted()
        try:
            for file in search.candidates(Hidden.ONLY):
                lines = search.count(file)
                if lines:
                    counted.total += lines
                    on_file(os.fsencode(file.below), lines)
        except Stopped:
            counted.complete = False
        return counted

    def other_case(self, query: Query, budget: Budget) -> bool:
        query = dataclasses.replace(query, ignore_case=True)
        try:
            search = Search(self._grep, query, _expression(query), budget)
            hidden = Hidden.TAKEN if query.no_ignore else Hidden.LEFT_OUT
            return any(search.matches(file) for file in search.candidates(hidden))
        except (Stopped, OpError):
            # Too much of it for this grep, or too late: it is only a hint.
            return False

    def located(self, rows: list[Row], query: Query, chars_max: int, budget: Budget) -> list[Row]:
        by_file: dict[bytes, list[Row]] = {}
        for row in rows:
            if len(row.text) > chars_max:
                by_file.setdefault(row.raw, []).append(row)
        if not by_file:
            return rows
        search = Search(self._grep, query, _expression(query), budget)
        placed: dict[tuple[bytes, int], Row] = {}
        for raw, these in by_file.items():
            for row in search.placed(os.fsdecode(raw), sorted(these, key=lambda row: row.line)):
                placed[(raw, row.line)] = row
        return [placed.get((row.raw, row.line), row) for row in rows]

    def file_of(self, row: Row) -> str:
        return os.path.join(self._workdir, os.fsdecode(row.raw))


def _expression(query: Query) -> ere.Expression:
    return _translated(query.pattern, query.literal, query.ignore_case)


@functools.lru_cache(maxsize=4)
def _translated(pattern: str, literal: bool, ignore_case: bool) -> ere.Expression:
    """Kept, as a search asks for it up to four times."""
    return ere.translate(pattern, literal=literal, ignore_case=ignore_case)
