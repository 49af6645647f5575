"""The ops `grep` and `glob`: search file contents and find files by name.

`grep`: `pattern`, `literal`, `path`?, `include`?, `rows_max`, `line_chars_max`,
`timeout_s`. Answers with the first rows in order, as a body of
`path NUL line NUL text LF` each, and the facts

    capped            more rows exist
    cut               rows of which only a part of the line is shown
    timed_out, cancelled   rows found until then are the answer
    unsearched, first_error   paths that could not be searched
    binary            the searched file is binary and matches
    ignored           null, or `matches`, `exact`, `under` (at most three paths): what
                      a search finds that heeds no ignore rules, where this one
                      found nothing; no matches at all where time ended before any
    other_case        where it found nothing: whether another case would match

`glob`: `pattern`, `path`?, `paths_max`, `entries_max`, `timeout_s`. Answers with
the first paths in order, each followed by LF, and the facts `capped`, `timed_out`,
`cancelled`, `entries_over` (the walk ended at `entries_max`), `unsearched`,
`first_error`, and `other_case`, a path that fits but for its case, or null.

Everything in a body is valid UTF-8 without control characters but tabs.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import replace
from typing import Final

from . import include_patterns, name_patterns, paths, search_probe, search_rows, walk
from .gitignore import IgnoreRules
from .ops import Answer, Facts, Op, OpError, Request
from .search_child import Budget
from .search_engine import Engine, Found, Query
from .search_paths import Start, find_start

ROWS_MAX: Final = 1_000
PATHS_MAX: Final = 10_000
ENTRIES_MAX: Final = 100_000_000
LINE_CHARS_MAX: Final = 10_000
GREP_BODY_BYTES_MAX: Final = 2 * 1024 * 1024
GLOB_BODY_BYTES_MAX: Final = 5 * 1024 * 1024
"""Bodies end there, and are then `capped`: only names of unusual length get so far."""
UNDER_MAX: Final = 3
"""Paths that are named as holding ignored matches."""
IGNORED_S: Final = 10.0
"""Time of looking for ignored matches; what was counted until then is `At least`."""
CASE_SHARE: Final = 0.2
"""Time of looking for another case, as a share of the search's own: a hint that is worth
little, owed to nobody, and all searches that need it found nothing."""
CASE_FILES_MAX: Final = 2_000
CASE_S_MIN: Final = 1.0
"""Of that time where so few files were searched that nobody notices."""


def _grep(request: Request) -> Answer:
    pattern, include = request.text("pattern"), request.optional_text("include")
    for name, text in (("pattern", pattern), ("include", include)):
        if text is not None and (not text or "\0" in text):
            raise OpError("INVALID_INPUT", f"`{name}` must not be empty or contain NUL.")
    if include is not None:
        # Also where the start is a file: wrong is wrong.
        include_patterns.alternatives(include)
    chars_max = request.integer("line_chars_max", 1, LINE_CHARS_MAX)
    start = find_start(request.machine, request.optional_text("path"))
    query = Query(
        pattern=pattern,
        literal=request.flag("literal"),
        # A file that is named is searched, whatever it is called.
        include=None if start.is_file else include,
        start=start,
        rows_max=request.integer("rows_max", 1, ROWS_MAX),
    )
    budget = Budget(request, request.seconds("timeout_s"))
    engine = search_probe.engine_of(request, budget)
    found, hints = _Search(engine, query, budget, request.optional_text("path") is not None).run()
    body, shown, cut = _rows_body(engine, query, found, chars_max, budget)
    return {
        "capped": found.rows.capped or shown < len(found.rows.first),
        "cut": cut,
        "timed_out": not found.complete and not budget.cancelled,
        "cancelled": budget.cancelled,
        "unsearched": found.unsearched,
        "first_error": found.first_error,
        "binary": found.binary,
        **hints,
    }, body


class _Search:
    """One grep: the search that was asked for, and what is said where it finds nothing."""

    def __init__(self, engine: Engine, query: Query, budget: Budget, explicit: bool) -> None:
        self._engine = engine
        self._query = query
        self._budget = budget
        self._explicit = explicit
        self._rules = IgnoreRules()

    def run(self) -> tuple[Found, Facts]:
        query = self._query
        hints: Facts = {"ignored": None, "other_case": False}
        start = query.start
        if not start.is_file and self._explicit:
            hidden = start.inside_git or self._rules.directory_ignored(start.real)
            query = replace(query, no_ignore=hidden)
        begun = time.monotonic()
        found = self._engine.first_rows(query, self._budget)
        took_s = time.monotonic() - begun
        if found.rows.seen or found.binary or not found.complete:
            return found, hints
        query = replace(query, no_ignore=query.no_ignore or found.unruled)
        if not query.no_ignore and not start.is_file:
            ignored = self._ignored(query, found)
            if ignored is not None and self._all_ignored(start):
                return self._engine.first_rows(replace(query, no_ignore=True), self._budget), hints
            hints["ignored"] = ignored
        if hints["ignored"] is None and _has_cases(query):
            few = start.is_file or (found.searched or CASE_FILES_MAX + 1) <= CASE_FILES_MAX
            budget = self._budget.shortened(max(CASE_S_MIN if few else 0.0, CASE_SHARE * took_s))
            hints["other_case"] = self._engine.other_case(query, budget)
        return found, hints

    def _all_ignored(self, start: Start) -> bool:
        """Whether the given path holds ignored things only, by a rule such as `build/*`."""
        return self._explicit and self._rules.everything_ignored(start.real)

    def _ignored(self, query: Query, found: Found) -> Facts | None:
        start = query.start
        under: Counter[bytes] = Counter()
        folders: dict[bytes, bytes | None] = {}

        def on_file(below: bytes, lines: int) -> None:
            parent = os.path.dirname(below)
            if parent not in folders:
                if len(folders) >= PATHS_MAX:
                    folders.clear()
                folders[parent] = self._hiding_folder(start, parent)
            hiding = folders[parent]
            place = below if hiding is None else hiding
            if place in under or len(under) < PATHS_MAX:
                under[place] += lines

        budget = self._budget.shortened(IGNORED_S)
        counted = self._engine.ignored(query, found, budget, on_file)
        if not counted.total and counted.complete:
            return None
        most = sorted(under.items(), key=lambda item: (-item[1], item[0]))[:UNDER_MAX]
        return {
            "matches": counted.total,
            "exact": counted.complete,
            "under": [start.printed(place).decode("utf-8", "replace") for place, _ in most],
        }

    def _hiding_folder(self, start: Start, parent: bytes) -> bytes | None:
        """The uppermost folder below the start that, given as `path`, shows its files.

        None: no folder hides them, so that only the file itself can be given.
        """
        names = parent.split(b"/") if parent else []
        for depth in range(1, len(names) + 1):
            below = b"/".join(names[:depth])
            folder = os.path.join(start.real, os.fsdecode(below))
            if self._rules.directory_ignored(folder) or self._rules.everything_ignored(folder):
                return below
        return None


def _has_cases(query: Query) -> bool:
    """Whether another case could make a difference at all."""
    pattern = query.pattern
    if pattern.lower() == pattern.upper():
        return False
    return query.literal or not pattern.startswith("(?i)")


def _rows_body(
    engine: Engine, query: Query, found: Found, chars_max: int, budget: Budget
) -> tuple[bytes, int, int]:
    """The body, the number of rows in it, and of those whose line was cut."""
    body = bytearray()
    shown = cut = 0
    for row in engine.located(found.rows.first, query, chars_max, budget):
        text, was_cut = search_rows.line_text(row, engine.file_of(row), chars_max, budget)
        encoded = text.encode("utf-8", "replace")
        piece = row.printed + b"\0%d\0" % row.line + encoded + b"\n"
        if len(body) + len(piece) > GREP_BODY_BYTES_MAX:
            break
        body += piece
        shown += 1
        cut += was_cut
    return bytes(body), shown, cut


def _glob(request: Request) -> Answer:
    pattern = request.text("pattern")
    if not pattern or "\0" in pattern:
        raise OpError("INVALID_INPUT", "`pattern` must not be empty or contain NUL.")
    given = request.optional_text("path")
    start = find_start(request.machine, given)
    if start.is_file:
        raise OpError(
            "NOT_DIRECTORY",
            f"{paths.shown(given or '.')} is a file, and glob starts at a directory. "
            "Use read or grep for a file.",
        )
    query = walk.NameQuery(
        name=name_patterns.compile_name(pattern),
        any_case=name_patterns.compile_name(pattern, ignore_case=True),
        paths_max=request.integer("paths_max", 1, PATHS_MAX),
        entries_max=request.integer("entries_max", 1, ENTRIES_MAX),
    )
    walked = walk.walk(start, query, Budget(request, request.seconds("timeout_s")))
    body = bytearray()
    capped = walked.more
    for printed in walked.printed:
        if len(body) + len(printed) + 1 > GLOB_BODY_BYTES_MAX:
            capped = True
            break
        body += printed + b"\n"
    other = walked.other_case if not walked.printed else None
    return {
        "capped": capped,
        "timed_out": walked.stopped == "time",
        "cancelled": walked.stopped == "cancelled",
        "entries_over": walked.stopped == "entries",
        "unsearched": walked.unsearched,
        "first_error": walked.first_error,
        "other_case": None if other is None else other.decode("utf-8", "replace"),
    }, bytes(body)


OPS: Final = {"grep": Op(_grep, "call"), "glob": Op(_glob, "call")}
