"""Searching with ripgrep: fast in parallel, and still in the order of paths.

ripgrep finds rows in no particular order, and its own sorting costs its threads.
So it runs in parallel and only the first rows are kept (`search_rows`). Where a
pattern matches nearly everywhere that would mean to read everything for the sake
of a hundred rows: once MANY_ROWS have come by, the run is ended, the files are
listed instead, which is quick, and searched in growing batches in order, until no
file that is left can hold one of the first rows.

What is asked of ripgrep stays the same from version 13 on, and its messages are
read in both spellings that exist.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from . import name_patterns, search_child
from .ops import OpError
from .ripgrep_output import Errors, Listing, Roots, RowReader, without_messages
from .search_child import Budget
from .search_paths import Start
from .search_rows import PREVIEW_BYTES, FirstRows, Row
from .walk import PSEUDO

MANY_ROWS: Final = 2_000
BATCH_FILES_FIRST: Final = 32
BATCH_FILES_MAX: Final = 4_096
BATCH_BYTES_MAX: Final = 512 * 1024
"""Of arguments; the kernel takes a quarter of the stack's limit, usually 2 MiB."""
LISTED_FIRST: Final = 4_000
LISTED_MAX: Final = 64_000
"""Files of one listing that are kept: the first ones that can matter. Few, for the
memory of it; more each time the files before them held too few rows."""
HINT_S: Final = 10.0
"""Time of each further search that only serves a hint."""

_BASE: Final = (
    *("--no-config", "--color", "never", "--no-heading", "--with-filename", "--null"),
    # A mapped file is judged as binary by other rules than one that is read.
    *("--no-mmap", "--crlf", "--hidden", "--no-ignore-dot", "--no-ignore-global"),
    "--no-ignore-messages",
)
_ROWS: Final = (
    *("--line-number", "--column", "--byte-offset"),
    *("--max-columns", str(PREVIEW_BYTES), "--max-columns-preview"),
)
# Told of CRLF files, ripgrep ends the lines of its own so.
_COUNT: Final = re.compile(rb"([^\0]*+)\0(\d++)\r?\n")


@dataclass(frozen=True)
class Query:
    """What to search for."""

    pattern: str
    literal: bool
    include: str | None
    """Pattern of file names, in ripgrep's own syntax."""
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
    errors: Errors = field(default_factory=Errors)
    first_error: str | None = None
    """The first of `errors` in one line, its path as it is printed."""
    binary: bool = False
    """Whether matches in a binary file were not shown; only said of a start that is a file."""


@dataclass
class Counted:
    """Matching lines by file."""

    total: int = 0
    complete: bool = True


class Ripgrep:
    """One machine's ripgrep, searching from one working directory."""

    def __init__(self, argv: Sequence[str], workdir: str) -> None:
        self._argv = tuple(argv)
        self._workdir = workdir

    def first_rows(self, query: Query, budget: Budget) -> Found:
        """The first rows in order. Raises INVALID_PATTERN in ripgrep's words, SPAWN_FAILED."""
        roots = self._roots(query)
        found = Found(FirstRows(query.rows_max))
        reader = RowReader(found.rows, roots, limit=None if query.start.is_file else MANY_ROWS)
        argv = [*self._search(query), *_rows(query), *_pattern(query), "--", *roots.arguments]
        ended = search_child.run(argv, budget, reader.feed, found.errors.feed)
        found.errors.end()
        if reader.enough:
            found.errors = Errors()
            found.complete = self._in_batches(query, roots, found, budget)
            found.first_error = roots.worded(found.errors)
            return found
        found.first_error = roots.worded(found.errors)
        found.binary = query.start.is_file and reader.binary
        found.complete = ended.complete
        if ended.complete:
            self._check(ended.exit_code, found.errors, found.rows.seen > 0)
        return found

    def matches(self, query: Query, budget: Budget) -> bool:
        """Whether anything matches, as far as can be seen in HINT_S."""
        roots = self._roots(query)
        argv = [*self._search(query), "--quiet", *_pattern(query), "--", *roots.arguments]
        ended = search_child.run(argv, budget, _nothing, _nothing, HINT_S)
        return ended.exit_code == 0

    def count(self, query: Query, budget: Budget, on_file: Callable[[bytes, int], None]) -> Counted:
        """Counts matching lines; `on_file` gets each file's path below the start."""
        roots = self._roots(query)
        counted = Counted()
        carry = b""

        def feed(data: bytes) -> bool:
            nonlocal carry
            data = carry + data
            end = 0
            while match := _COUNT.match(data, end):
                end = match.end()
                counted.total += int(match[2])
                on_file(roots.below(without_messages(match[1])), int(match[2]))
            carry = data[end:]
            return True

        argv = [*self._search(query), "--count", *_pattern(query), "--", *roots.arguments]
        ended = search_child.run(argv, budget, feed, _nothing, HINT_S)
        counted.complete = ended.complete and ended.exit_code is not None
        return counted

    def file_of(self, row: Row) -> str:
        """The absolute path of a row's file."""
        return os.path.join(self._workdir, os.fsdecode(row.raw))

    def _search(self, query: Query) -> list[str]:
        argv = [*self._argv, *_BASE, *_selection(query)]
        if query.ignore_case:
            argv.append("--ignore-case")
        return argv

    def _roots(self, query: Query) -> Roots:
        """What ripgrep is given as its paths.

        Relative to the working directory where that is possible: every version
        applies the ignore files above the start to such paths as git does.
        """
        start = query.start
        base = start.absolute if start.absolute == "/" else start.absolute.rstrip("/")
        if start.real == "/":
            return Roots(start, b"", top_entries("/", query.include))
        workdir = self._workdir.rstrip("/")
        if (base + "/").startswith(workdir + "/") and _same_directory(".", self._workdir):
            base = "." + base[len(workdir) :]
        return Roots(start, os.fsencode(base), [base])

    def _check(self, exit_code: int | None, errors: Errors, partly: bool) -> None:
        """Tells what went wrong as a whole from paths that could not be read.

        `partly`: ripgrep did begin, so the pattern is right.
        """
        if exit_code in (0, 1) or (exit_code == 2 and (errors.unsearched or partly)):
            return
        words = errors.other.decode("utf-8", "replace").removeprefix("rg: ").strip()
        if exit_code == 2 and words:
            raise OpError("INVALID_PATTERN", words)
        ending = "was killed" if exit_code is None else f"ended with code {exit_code}"
        raise OpError("IO_ERROR", f"ripgrep {ending}. {words[:500]}".strip())

    def _in_batches(self, query: Query, roots: Roots, found: Found, budget: Budget) -> bool:
        """Searches the files in order until no other can matter; whether it came to that."""
        after: bytes | None = None
        files_max = LISTED_FIRST
        while True:
            listing = Listing(roots, after, found.rows.last_wanted, files_max)
            if not self._list(query, listing, found, budget):
                return False
            for batch in _batches(listing.files, found.rows):
                if not self._search_batch(query, roots, batch, found, budget):
                    return False
            if not listing.more or not found.rows.wants(listing.files[-1][0]):
                return True
            after = listing.files[-1][0]
            files_max = min(files_max * 2, LISTED_MAX)

    def _list(self, query: Query, listing: Listing, found: Found, budget: Budget) -> bool:
        """Fills the listing; whether it came to an end."""
        errors = Errors()
        arguments = self._roots(query).arguments
        argv = [*self._argv, *_BASE, *_selection(query), "--files", "--", *arguments]
        ended = search_child.run(argv, budget, listing.feed, errors.feed)
        errors.end()
        if not ended.complete:
            return False
        self._check(ended.exit_code, errors, partly=True)
        if listing.is_first:
            # Every further listing meets the same directories.
            found.errors = errors
        listing.end()
        return True

    def _search_batch(
        self, query: Query, roots: Roots, batch: list[bytes], found: Found, budget: Budget
    ) -> bool:
        # The listing has applied the rules; named files are searched whatever they say.
        plain_query = replace(query, include=None, no_ignore=True)
        reader = RowReader(found.rows, roots, limit=None)
        argv = [*self._search(plain_query), *_rows(query), *_pattern(query), "--"]
        argv += [os.fsdecode(raw) for raw in batch]
        ended = search_child.run(argv, budget, reader.feed, found.errors.feed)
        found.errors.end()
        if ended.complete:
            self._check(ended.exit_code, found.errors, partly=True)
        return ended.complete


def _batches(files: list[tuple[bytes, bytes]], rows: FirstRows) -> Iterator[list[bytes]]:
    """Raw paths in growing batches, for as long as the next one can matter."""
    at = 0
    size = BATCH_FILES_FIRST
    while at < len(files) and rows.wants(files[at][0]):
        batch: list[bytes] = []
        bytes_left = BATCH_BYTES_MAX
        while at < len(files) and len(batch) < size and rows.wants(files[at][0]):
            # A pointer and a NUL go with each argument.
            bytes_left -= len(files[at][1]) + 9
            if bytes_left < 0 and batch:
                break
            batch.append(files[at][1])
            at += 1
        yield batch
        size = min(size * 4, BATCH_FILES_MAX)


def _selection(query: Query) -> list[str]:
    """Which files: hidden ones too, `.git` not, ignored ones not, by the name if asked."""
    argv = []
    if not query.start.inside_git:
        argv += ["--glob", "!.git"]
    if query.no_ignore:
        argv.append("--no-ignore")
    if query.include is not None:
        # A glob would bring back what is ignored; a file type only filters.
        argv += ["--type-add", f"named:{query.include}", "--type", "named"]
    return argv


def _rows(query: Query) -> list[str]:
    # More rows of one file can never be among the first.
    return [*_ROWS, "--max-count", str(query.rows_max + 1)]


def _pattern(query: Query) -> list[str]:
    return [*(["--fixed-strings"] if query.literal else []), "-e", query.pattern]


def top_entries(folder: str, include: str | None) -> list[str]:
    """What a walk of `folder` would search, pseudo file systems excepted.

    ripgrep reads whatever it is given by name: a file that `include` leaves out,
    a link's target, and a FIFO until the time is over.
    """
    fits = None if include is None else name_patterns.compile_name(include)
    paths = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                searched = entry.path not in PSEUDO
            else:
                searched = entry.is_file(follow_symlinks=False) and (
                    fits is None or fits.match(entry.name) is not None
                )
            if searched and entry.name != ".git":
                paths.append(entry.path)
    return sorted(paths)


def _same_directory(a: str, b: str) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False


def _nothing(_: bytes) -> bool:
    return True
