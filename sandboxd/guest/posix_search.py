"""One search with a POSIX grep: which files, which lines, where in a line (tool-cases G19, G24)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from . import ere, include_patterns, posix_source, search_child
from .ops import OpError
from .posix_rows import FirstMatches, LineReader, line_starts, place_of
from .posix_source import Kind, Source, TextLines
from .search_child import Budget, Ended
from .search_engine import Found, Query
from .search_files import Files, Hidden, Stopped, Unread
from .search_paths import Start
from .search_rows import PREVIEW_BYTES, Row

BATCH_FILES_FIRST: Final = 32
BATCH_FILES_MAX: Final = 4_096
BATCH_BYTES_MAX: Final = 512 * 1024
LARGE_BYTES: Final = 1024 * 1024
"""Of a file that is looked into before grep is, which never holds less than this."""
_ERROR_BYTES_MAX: Final = 4 * 1024
_MARKS: Final = os.fsdecode(b"^(" + b"|".join(posix_source.MARKS) + b")")
"""Files that begin so are read in another way, so they are always looked into."""


@dataclass(frozen=True)
class Grep:
    """A grep that was found to work."""

    argv: tuple[str, ...]
    name: str
    """For people, such as `grep (GNU grep) 3.8`."""
    options: frozenset[str] = frozenset()
    """Which of `-a`, `-b` and `-D` it understands."""

    @property
    def quick(self) -> bool:
        """Whether it compiles expressions itself, as GNU's does.

        The others hand them to the C library, where a second one costs as much again
        as the first, and plain text is found several times faster as such.
        """
        return "-D" in self.options


@dataclass(frozen=True)
class File:
    printed: bytes
    below: str
    path: str
    """As grep is given it."""


class _Unsearched(Exception):
    """grep could not search a file that can be read, in words."""


class Search:
    """One walk or one file, with one expression."""

    def __init__(
        self, grep: Grep, query: Query, expression: ere.Expression, budget: Budget
    ) -> None:
        self._grep = grep
        self._query = query
        self._expression = expression
        self._budget = budget
        self.unread = Unread()
        self.files = 0
        """How many were looked into so far."""

    # --- which files ----------------------------------------------------------

    def candidates(self, hidden: Hidden) -> Iterator[File]:
        """Files that may match, in order. Raises `Stopped`."""
        query = self._query
        if query.start.is_file:
            yield File(query.start.prefix, "", query.start.absolute)
            return
        names = None if query.include is None else include_patterns.compiled(query.include)
        files = Files(query.start, names, hidden, self._budget)
        # One record of what went wrong, for the walk and for the files.
        self.unread = files.unread
        for batch in _batches(_given(query.start, files)):
            self.files += len(batch)
            yield from self._matching(batch)

    def _matching(self, batch: list[File]) -> Iterator[File]:
        said: set[bytes] = set()
        asked = [file for file in batch if self._is_asked_for(file, said)]
        if asked:
            self._listed(asked, said)
        for file in batch:
            if "\n" in file.path or os.fsencode(file.path) in said:
                yield file

    def _is_asked_for(self, file: File, said: set[bytes]) -> bool:
        """Whether grep is to say if the file matches; adds to `said` where that is known."""
        if "\n" in file.path:
            # It would be two lines of what grep prints.
            return False
        name = os.fsencode(file.path)
        if self._grep.quick and not _is_large(name):
            return True
        # A grep holds a line in memory, and a gigabyte of NUL is one line.
        try:
            kind = posix_source.kind_of(name)
        except OSError as error:
            self.unread.add(file.printed, error)
            return False
        if kind is Kind.MARKED:
            said.add(name)
        return kind is Kind.TEXT

    def _listed(self, files: list[File], said: set[bytes]) -> None:
        """Adds the names of files that match. Raises `Stopped`, INVALID_PATTERN, IO_ERROR.

        Where grep ends with an error it may have left out any of the files: those
        that can be read are searched again, in halves, until it is known which ones
        it cannot search.
        """
        waiting = [files]
        while waiting:
            these = waiting.pop()
            code, words = self._list(these, said)
            if code in (0, 1) and not words:
                continue
            readable = self._readable(these)
            if code in (0, 1):
                continue
            self._check_expression()
            if len(readable) < len(these):
                waiting += [readable] if readable else []
            elif len(these) == 1:
                self.unread.say(these[0].printed, f"grep ended with code {code} ({words})")
            else:
                half = len(these) // 2
                waiting += [these[half:], these[:half]]

    def _list(self, files: list[File], said: set[bytes]) -> tuple[int, str]:
        """One run: its exit code, and what it said on stderr."""
        errors = bytearray()

        def on_errors(data: bytes) -> bool:
            errors.extend(data[: _ERROR_BYTES_MAX - len(errors)])
            return True

        def on_name(name: bytes) -> bool:
            said.add(name)
            return True

        reader = LineReader(on_name, 64 * 1024)
        argv = [*self._argv("-l", listing=True), "--", *(file.path for file in files)]
        ended = search_child.run(argv, self._budget, reader.feed, on_errors)
        if not ended.complete:
            raise Stopped
        if ended.exit_code is None:
            raise OpError("IO_ERROR", "grep was killed.")
        reader.end()
        return ended.exit_code, errors.decode("utf-8", "replace").strip()[:150]

    def _readable(self, files: Sequence[File]) -> list[File]:
        """The files that can be read; notes the others.

        Greps do not agree in what they print of one, and some files open that cannot be read.
        """
        readable = []
        for file in files:
            try:
                fd = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
                try:
                    os.read(fd, 1)
                finally:
                    os.close(fd)
            except OSError as error:
                self.unread.add(file.printed, error)
            else:
                readable.append(file)
        return readable

    def _check_expression(self) -> None:
        """Raises INVALID_PATTERN where grep does not take the expression at all."""
        said = bytearray()

        def on_errors(data: bytes) -> bool:
            said.extend(data[: _ERROR_BYTES_MAX - len(said)])
            return True

        ended = search_child.run(self._argv("-c"), self._budget, _nothing, on_errors)
        if ended.complete and ended.exit_code not in (0, 1):
            words = bytes(said).decode("utf-8", "replace").strip()[:200]
            raise OpError(
                "INVALID_PATTERN", f"error: this sandbox's grep cannot take the pattern ({words})"
            )

    # --- one file -------------------------------------------------------------

    def rows_of(self, file: File, found: Found) -> None:
        """Adds a file's rows. Raises `Stopped`."""
        raw = os.fsencode(file.path)
        # One more than is shown tells that there are more.
        left = self._query.rows_max + 1
        text_lines: TextLines | None = None

        def on_line(row: bytes) -> bool:
            nonlocal left
            number, colon, text = row.partition(b":")
            if colon and number.isdigit():
                if text_lines is not None and not text_lines.holds(int(number)):
                    found.binary = self._query.start.is_file and not self._budget.over
                    return False
                line = text[:PREVIEW_BYTES]
                found.rows.add(Row(file.printed, int(number), raw, 0, -1, line))
                left -= 1
            return left > 0

        def search(source: Source) -> None:
            nonlocal text_lines
            if not source.binary:
                text_lines = TextLines(source, self._budget)
                self._lines(source, ["-n"], on_line)
            elif self._query.start.is_file:
                with posix_source.without_nul(source, self._budget) as text:
                    found.binary = self._quiet(text)

        self._with_source(file, search)

    def count(self, file: File) -> int:
        """The number of matching lines. Raises `Stopped`."""
        lines = 0

        def on_line(row: bytes) -> bool:
            nonlocal lines
            lines = int(row) if row.isdigit() else 0
            return True

        def search(source: Source) -> None:
            if not source.binary:
                self._lines(source, ["-c"], on_line)

        self._with_source(file, search)
        return lines

    def matches(self, file: File) -> bool:
        """Whether a text file matches. Raises `Stopped`."""
        matching = False

        def search(source: Source) -> None:
            nonlocal matching
            matching = not source.binary and self._quiet(source)

        self._with_source(file, search)
        return matching

    def _quiet(self, source: Source) -> bool:
        return self._alone(source, ["-q"], _nothing).exit_code == 0

    def _lines(self, source: Source, options: list[str], on_line: Callable[[bytes], bool]) -> None:
        enough = False

        def each(line: bytes) -> bool:
            nonlocal enough
            enough = not on_line(line)
            return not enough

        reader = LineReader(each)
        ended = self._alone(source, options, reader.feed)
        if ended.complete:
            reader.end()
        elif not enough:
            raise Stopped

    def placed(self, path: str, rows: list[Row]) -> list[Row]:
        """Rows of one file with the column of their match and the offset of their line."""
        lines = [row.line for row in rows]
        with_offset = "-b" in self._grep.options
        matches = FirstMatches(set(lines), with_offset)
        found: list[Row] = []

        def search(source: Source) -> None:
            if not self._expression.nullable:
                options = ["-n", "-o", *(["-b"] if with_offset else [])]
                self._alone(source, options, matches.reader.feed)
                matches.reader.end()
            starts = line_starts(source.fd, source.base, lines, self._budget)
            for row in rows:
                if (start := starts.get(row.line)) is not None:
                    column = self._column(source, start, *matches.found.get(row.line, (None, b"")))
                    offset = start - source.base
                    found.append(dataclasses.replace(row, column=column, offset=offset))

        try:
            self._with_source(File(b"", "", path), search)
        except Stopped:
            # Rows without a place are shown from their beginning.
            return found
        return found

    def _column(self, source: Source, start: int, offset: int | None, piece: bytes) -> int:
        column = 0
        if offset is not None:
            # Some count from where they began to read, which is behind a mark.
            counted = [offset, offset + source.base]
            at = next(
                (o for o in counted if o >= start and os.pread(source.fd, len(piece), o) == piece),
                start,
            )
            column = at - start
        elif piece:
            column = place_of(source.fd, start, piece, self._budget) or 0
        if self._expression.padded and column and piece:
            # The match began with a character that only had to be there.
            column += len(piece[:4].decode("utf-8", "replace")[:1].encode())
        return column

    def _with_source(self, file: File, search: Callable[[Source], None]) -> None:
        """Gives `search` the open file; notes one that cannot be read. Raises `Stopped`."""
        try:
            with posix_source.opened(file.path, self._budget) as source:
                if source is not None:
                    search(source)
                if self._budget.over:
                    raise Stopped
        except OSError as error:
            self.unread.add(file.printed, error)
        except _Unsearched as said:
            self.unread.say(file.printed, str(said))

    def _alone(
        self, source: Source, options: list[str], on_output: Callable[[bytes], bool]
    ) -> Ended:
        ended = search_child.run(
            self._argv(*options), self._budget, on_output, _nothing, stdin=source.rewind()
        )
        if ended.complete and ended.exit_code is None:
            raise OpError("IO_ERROR", "grep was killed.")
        if ended.complete and ended.exit_code not in (0, 1):
            self._check_expression()
            raise _Unsearched(f"grep ended with code {ended.exit_code}")
        return ended

    def _argv(self, *options: str, listing: bool = False) -> list[str]:
        """`listing`: for the names of files, those with a byte order mark among them."""
        argv = [*self._grep.argv, *options]
        quick_listing = listing and self._grep.quick
        if "-a" in self._grep.options and not quick_listing:
            # Names come without it too, and NUL then ends a line, which keeps lines short.
            argv.append("-a")
        if "-D" in self._grep.options:
            argv += ["-D", "skip"]
        fixed = None if self._grep.quick else self._expression.fixed
        if fixed is not None:
            return [*argv, "-F", "-e", fixed]
        argv += ["-E", "-e", self._expression.text]
        return [*argv, "-e", _MARKS] if quick_listing else argv


def _given(start: Start, files: Files) -> Iterator[File]:
    base = start.absolute.rstrip("/") + "/"
    for printed, below in files:
        yield File(printed, below, base + below)


def _batches(files: Iterator[File]) -> Iterator[list[File]]:
    size = BATCH_FILES_FIRST
    batch: list[File] = []
    bytes_left = BATCH_BYTES_MAX
    for file in files:
        # A pointer and a NUL go with each argument.
        size_bytes = len(os.fsencode(file.path)) + 9
        if batch and (len(batch) >= size or bytes_left < size_bytes):
            yield batch
            batch, bytes_left = [], BATCH_BYTES_MAX
            size = min(size * 4, BATCH_FILES_MAX)
        batch.append(file)
        bytes_left -= size_bytes
    if batch:
        yield batch


def _is_large(path: bytes) -> bool:
    try:
        return os.stat(path, follow_symlinks=False).st_size > LARGE_BYTES
    except OSError:
        return False


def _nothing(_: bytes) -> bool:
    return True
