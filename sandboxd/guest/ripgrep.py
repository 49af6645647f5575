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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from . import include_patterns, search_child
from .ops import OpError
from .ripgrep_ignores import Look, error_above
from .ripgrep_output import Errors, Listing, Roots, RowReader, without_messages
from .ripgrep_pattern import portable
from .search_child import Budget
from .search_engine import Counted, Found, OnFile, Query
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
NAMES_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of names that are kept to tell ignored files from others, a few hundred thousand."""

_BASE: Final = (
    *("--no-config", "--color", "never", "--no-heading", "--with-filename", "--null"),
    # A mapped file is judged as binary by other rules than one that is read.
    *("--no-mmap", "--crlf", "--hidden", "--no-ignore-dot", "--no-ignore-global"),
    "--no-ignore-messages",
)
_ROWS: Final = (
    *("--line-number", "--column", "--byte-offset"),
    # A line may hold any other byte, and what looks like a number before it.
    *("--field-match-separator", r"\x00"),
    *("--max-columns", str(PREVIEW_BYTES), "--max-columns-preview"),
)
PROBED: Final = (*_BASE, *_ROWS)
"""All options that any search of rows needs."""
_NO_FILES: Final = "No files were searched"
# Told of CRLF files, ripgrep ends the lines of its own so.
_COUNT: Final = re.compile(rb"([^\0]*+)\0(\d++)\r?\n")


class Ripgrep:
    """One machine's ripgrep, searching from one working directory."""

    def __init__(self, argv: Sequence[str], workdir: str) -> None:
        self._argv = tuple(argv)
        self._workdir = workdir

    def first_rows(self, query: Query, budget: Budget) -> Found:
        """The first rows in order. Raises INVALID_PATTERN in ripgrep's words, SPAWN_FAILED."""
        if query.no_ignore:
            return self._first_rows(query, budget, None)
        look = Look(query.start, budget)
        error = error_above(query.start)
        if error is None:
            try:
                found = self._first_rows(query, budget, look)
            except OpError as fault:
                # Perhaps it was killed for the memory of an ignore file without an end.
                if fault.reason != "IO_ERROR" or look.goes_on():
                    raise
            else:
                if look.error is None:
                    return found
            error = look.error
        found = self._first_rows(replace(query, no_ignore=True), budget, None)
        found.unruled = True
        found.unsearched += 1
        found.first_error = error
        return found

    def _first_rows(self, query: Query, budget: Budget, look: Look | None) -> Found:
        roots = self._roots(query)
        found = Found(FirstRows(query.rows_max))
        errors = Errors()
        is_file = query.start.is_file
        reader = RowReader(found.rows, roots, limit=None if is_file else MANY_ROWS)
        argv = [*self._search(query), *_rows(query), *([] if is_file else ["--stats"])]
        argv += [*_pattern(query), "--", *roots.arguments]
        asked = None if look is None else look.goes_on
        ended = search_child.run(argv, budget, reader.feed, errors.feed, look=asked)
        errors.end()
        if reader.enough:
            errors = Errors()
            found.complete = self._in_batches(query, roots, found, errors, budget)
        else:
            found.binary = is_file and reader.binary
            found.searched = reader.files_searched
            found.complete = ended.complete
            if ended.complete:
                self._check(ended.exit_code, errors, found.rows.seen > 0)
        found.unsearched, found.first_error = errors.unsearched, roots.worded(errors)
        return found

    def other_case(self, query: Query, budget: Budget) -> bool:
        roots = self._roots(query)
        seen = False

        def feed(data: bytes) -> bool:
            nonlocal seen
            # A name that came in two pieces is no name here: it is only a hint.
            seen = any(roots.fits(without_messages(raw)) for raw in data.split(b"\0") if raw)
            return not seen

        argv = [*self._search(query), "--ignore-case", "--files-with-matches", *_pattern(query)]
        search_child.run([*argv, "--", *roots.arguments], budget, feed, _nothing)
        return seen

    def ignored(self, query: Query, found: Found, budget: Budget, on_file: OnFile) -> Counted:
        """What is listed and was not searched is ignored: only that is searched now."""
        wide = replace(query, no_ignore=True)
        roots = self._roots(wide)
        everything = self._names(wide, roots, budget)
        if everything is None:
            return Counted(complete=False)
        if everything.count == found.searched:
            return Counted()
        all_names = everything.all()
        if all_names is None:
            return self._count(wide, roots, roots.arguments, budget, on_file)
        heeding = self._names(query, roots, budget)
        shown = None if heeding is None else heeding.all()
        if shown is None:
            return Counted(complete=False)
        hidden = all_names - shown
        files = sorted((raw, raw) for raw in hidden if roots.fits(raw))
        plain_query = replace(wide, include=None)
        counted = Counted()
        for batch in _batches(files, FirstRows(1)):
            arguments = [os.fsdecode(raw) for raw in batch]
            more = self._count(plain_query, roots, arguments, budget, on_file)
            counted.total += more.total
            if not more.complete:
                counted.complete = False
                break
        return counted

    def _names(self, query: Query, roots: Roots, budget: Budget) -> _Names | None:
        """The files that a search goes through; None where the budget was over first."""
        names = _Names()
        argv = [*self._argv, *_BASE, *_selection(query), "--files", "--", *roots.arguments]
        return names if search_child.run(argv, budget, names.feed, _nothing).complete else None

    def _count(
        self, query: Query, roots: Roots, arguments: list[str], budget: Budget, on_file: OnFile
    ) -> Counted:
        counted = Counted()
        carry = b""

        def feed(data: bytes) -> bool:
            nonlocal carry
            data = carry + data
            end = 0
            while match := _COUNT.match(data, end):
                end = match.end()
                raw = without_messages(match[1])
                if roots.fits(raw):
                    counted.total += int(match[2])
                    on_file(roots.below(raw), int(match[2]))
            carry = data[end:]
            return True

        argv = [*self._search(query), "--count", *_pattern(query), "--", *arguments]
        ended = search_child.run(argv, budget, feed, _nothing)
        counted.complete = ended.complete and ended.exit_code is not None
        return counted

    def located(self, rows: list[Row], query: Query, chars_max: int, budget: Budget) -> list[Row]:
        """ripgrep says with each row where its match is."""
        return rows

    def file_of(self, row: Row) -> str:
        """The absolute path of a row's file."""
        return os.path.join(self._workdir, os.fsdecode(row.raw))

    def _search(self, query: Query) -> list[str]:
        return [*self._argv, *_BASE, *_selection(query)]

    def _roots(self, query: Query) -> Roots:
        """What ripgrep is given as its paths.

        Relative to the working directory where that is possible: every version
        applies the ignore files above the start to such paths as git does.
        """
        start = query.start
        names = None if query.include is None else include_patterns.compiled(query.include)
        again = query.include is not None and not include_patterns.for_ripgrep(query.include)[1]
        base = start.absolute if start.absolute == "/" else start.absolute.rstrip("/")
        if start.real == "/":
            return Roots(start, b"", top_entries("/", names), names if again else None)
        workdir = self._workdir.rstrip("/")
        if (base + "/").startswith(workdir + "/") and _same_directory(".", self._workdir):
            base = "." + base[len(workdir) :]
        return Roots(start, os.fsencode(base), [base], names if again else None)

    def _check(self, exit_code: int | None, errors: Errors, partly: bool) -> None:
        """Tells what went wrong as a whole from paths that could not be read.

        `partly`: ripgrep did begin, so the pattern is right.
        """
        words = errors.other.decode("utf-8", "replace").removeprefix("rg: ").strip()
        if exit_code == 0 or (exit_code == 2 and (errors.unsearched or partly)):
            return
        # Nothing was found, and nothing else is to be said of it.
        if exit_code == 1 and (not words or words.startswith(_NO_FILES)):
            return
        if exit_code == 2 and words:
            raise OpError("INVALID_PATTERN", words)
        ending = "was killed" if exit_code is None else f"ended with code {exit_code}"
        raise OpError("IO_ERROR", f"ripgrep {ending}. {words[:500]}".strip())

    def _in_batches(
        self, query: Query, roots: Roots, found: Found, errors: Errors, budget: Budget
    ) -> bool:
        """Searches the files in order until no other can matter; whether it came to that."""
        after: bytes | None = None
        files_max = LISTED_FIRST
        while True:
            listing = Listing(roots, after, found.rows.last_wanted, files_max)
            if not self._list(query, listing, errors, budget):
                return False
            for batch in _batches(listing.files, found.rows):
                if not self._search_batch(query, roots, batch, found, errors, budget):
                    return False
            if not listing.more or not found.rows.wants(listing.files[-1][0]):
                return True
            after = listing.files[-1][0]
            files_max = min(files_max * 2, LISTED_MAX)

    def _list(self, query: Query, listing: Listing, errors: Errors, budget: Budget) -> bool:
        """Fills the listing; whether it came to an end."""
        own = Errors()
        arguments = self._roots(query).arguments
        argv = [*self._argv, *_BASE, *_selection(query), "--files", "--", *arguments]
        ended = search_child.run(argv, budget, listing.feed, own.feed)
        own.end()
        if not ended.complete:
            return False
        self._check(ended.exit_code, own, partly=True)
        if listing.is_first:
            # Every further listing meets the same directories.
            errors.take(own)
        listing.end()
        return True

    def _search_batch(
        self,
        query: Query,
        roots: Roots,
        batch: list[bytes],
        found: Found,
        errors: Errors,
        budget: Budget,
    ) -> bool:
        # The listing has applied the rules; named files are searched whatever they say.
        plain_query = replace(query, include=None, no_ignore=True)
        reader = RowReader(found.rows, roots, limit=None)
        argv = [*self._search(plain_query), *_rows(query), *_pattern(query), "--"]
        argv += [os.fsdecode(raw) for raw in batch]
        ended = search_child.run(argv, budget, reader.feed, errors.feed)
        errors.end()
        if ended.complete:
            self._check(ended.exit_code, errors, partly=True)
        return ended.complete


class _Names:
    """Names of files, each with a NUL behind it, as they come."""

    def __init__(self) -> None:
        self.count = 0
        self._chunks: list[bytes] | None = []
        self._bytes_left = NAMES_BYTES_MAX

    def feed(self, data: bytes) -> bool:
        self.count += data.count(b"\0")
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self._chunks = None
        if self._chunks is not None:
            self._chunks.append(data)
        return True

    def all(self) -> set[bytes] | None:
        """Every name; None where they were too many to keep."""
        if self._chunks is None:
            return None
        return set(b"".join(self._chunks).split(b"\0")) - {b""}


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
        for each in include_patterns.for_ripgrep(query.include)[0]:
            argv += ["--type-add", f"named:{each}"]
        argv += ["--type", "named"]
    return argv


def _rows(query: Query) -> list[str]:
    # More rows of one file can never be among the first.
    return [*_ROWS, "--max-count", str(query.rows_max + 1)]


def _pattern(query: Query) -> list[str]:
    if query.literal:
        return ["--fixed-strings", "-e", query.pattern]
    return ["-e", portable(query.pattern)]


def top_entries(folder: str, names: re.Pattern[str] | None) -> list[str]:
    """What a walk of `folder` would search, pseudo file systems excepted.

    ripgrep reads whatever it is given by name: a file whose name does not fit, a
    link's target, and a FIFO until the time is over.
    """
    paths = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                searched = entry.path not in PSEUDO
            else:
                searched = entry.is_file(follow_symlinks=False) and (
                    names is None or names.match(entry.name) is not None
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
