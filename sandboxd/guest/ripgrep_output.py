"""Reading what ripgrep prints: rows, lists of files, complaints.

Output comes in pieces of any size and is never kept whole. Paths end in NUL, so a
name may hold anything; the one thing that ripgrep prints without NUL, its message
of a binary file, is recognised by its words.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Final

from .search_paths import Start, plain, visible, worded_error
from .search_rows import FirstRows, Row

_CARRY_BYTES_MAX: Final = 1024 * 1024
_ERROR_BYTES_MAX: Final = 4 * 1024
_OPEN_BYTES_MAX: Final = 8 * 1024
"""Of one error; a path has 4 KiB at most, and may be said twice."""

# The column is left out where an empty match lies at the end of a file's last line.
_ROW: Final = re.compile(rb"([^\0]*+)\0(\d++)\0(?:(\d++)\0)?(\d++)\0([^\n]*+)\n")
_BINARY: Final = re.compile(
    rb".*?: (?:WARNING: stopped searching binary file after match|binary file matches)"
    rb' \(found "\\0" byte around offset \d+\)\n',
    re.DOTALL,
)
_SEARCHED: Final = re.compile(rb"^(\d+) files? searched\r?$", re.MULTILINE)
_PATH_ERROR: Final = re.compile(
    rb"(?:rg: )?(?P<path>.+?): (?:IO error for operation on .+: )?"
    rb"(?P<words>[^:]+) \(os error \d+\)",
    re.DOTALL,
)
_ERROR_END: Final = re.compile(rb" \(os error \d+\)$")


@dataclass
class Errors:
    """What ripgrep complained about, in bounded memory."""

    unsearched: int = 0
    first: tuple[bytes, bytes] | None = None
    """The smallest path with its words: the same one in every run."""
    other: bytes = b""
    _carry: bytes = b""
    _open: list[bytes] = field(default_factory=list)
    """Lines that may be the beginning of an error of a path."""
    _open_bytes: int = 0

    def feed(self, data: bytes) -> bool:
        *lines, self._carry = (self._carry + data).split(b"\n")
        for line in lines:
            self._line(line)
        self._carry = self._carry[-_CARRY_BYTES_MAX:]
        return True

    def end(self) -> None:
        if self._carry:
            self._line(self._carry)
        self._carry = b""
        self._keep_open()

    def take(self, other: Errors) -> None:
        """Adds what another run complained about."""
        self.unsearched += other.unsearched
        if other.first is not None and (self.first is None or other.first < self.first):
            self.first = other.first
        self.other = (self.other + other.other)[:_ERROR_BYTES_MAX]

    def _line(self, line: bytes) -> None:
        if line.startswith(b"rg: "):
            self._keep_open()
        # A path with line feeds comes in as many lines; an error's number ends the last one.
        self._open.append(line)
        self._open_bytes += len(line) + 1
        if not _ERROR_END.search(line):
            if self._open_bytes > _OPEN_BYTES_MAX:
                self._keep_open()
            return
        found = _PATH_ERROR.fullmatch(b"\n".join(self._open))
        if found is None:
            self._keep_open()
            return
        self._open, self._open_bytes = [], 0
        self.unsearched += 1
        error = (found["path"], found["words"])
        if self.first is None or error < self.first:
            self.first = error

    def _keep_open(self) -> None:
        """The lines are no error of a path."""
        text = b"\n".join(self._open)
        if text or (self.other and self._open):
            self.other = (self.other + text + b"\n")[:_ERROR_BYTES_MAX]
        self._open, self._open_bytes = [], 0


@dataclass(frozen=True)
class Roots:
    """The paths that ripgrep is given, and how it prints what is below them."""

    start: Start
    base: bytes
    arguments: list[str]
    names: re.Pattern[str] | None = None
    """What names must match besides, where ripgrep's own filter lets more through."""

    def fits(self, raw: bytes) -> bool:
        return self.names is None or (
            self.names.match(os.fsdecode(os.path.basename(raw))) is not None
        )

    def below(self, raw: bytes) -> bytes:
        """The path below the start; empty where the start is a file."""
        return raw[len(self.base) + 1 :]

    def printed(self, raw: bytes) -> bytes:
        return self.start.printed(self.below(raw))

    def worded(self, errors: Errors) -> str | None:
        """The first error in one line."""
        if errors.first is None:
            return None
        path, words = errors.first
        printed = self.printed(path) if path.startswith(self.base + b"/") else visible(path)
        return worded_error(printed, os.fsdecode(words))


class RowReader:
    """Reads rows off ripgrep's output, in pieces of any size."""

    def __init__(self, rows: FirstRows, roots: Roots, limit: int | None) -> None:
        self.enough = False
        self._rows = rows
        self._roots = roots
        self._left = limit
        self._carry = b""
        self._raw: bytes | None = None
        self._printed = b""
        self._fits = True

    @property
    def files_searched(self) -> int | None:
        """What `--stats` says at the end."""
        said = _SEARCHED.search(self._carry)
        return None if said is None else int(said[1])

    @property
    def binary(self) -> bool:
        """Whether the output ends with the message of a binary file."""
        return _BINARY.fullmatch(self._carry) is not None

    def feed(self, data: bytes) -> bool:
        if self._carry:
            data = self._carry + data
        end = 0
        # Not `finditer`: it would look for the rest of a row from each of its bytes.
        while match := _ROW.match(data, end):
            end = match.end()
            self._row(*match.groups())
        self._carry = data[end:]
        if len(self._carry) > _CARRY_BYTES_MAX:
            self._carry = without_messages(self._carry)[-_CARRY_BYTES_MAX:]
        if self._left is not None and self._rows.seen >= self._left:
            self.enough = True
        return not self.enough

    def _row(
        self, raw: bytes, line: bytes, column: bytes | None, offset: bytes, text: bytes
    ) -> None:
        if raw != self._raw:
            # Rows of one file come together: its path is looked at once.
            self._raw = raw
            self._path = without_messages(raw)
            self._printed = self._roots.printed(self._path)
            self._fits = self._roots.fits(self._path)
        if not self._fits:
            return
        if not self._rows.wants(self._printed):
            self._rows.seen += 1
            return
        start = None if column is None else int(column) - 1
        self._rows.add(Row(self._printed, int(line), self._path, start, int(offset), text))


class Listing:
    """The first `files_max` files in order, between two printed paths."""

    def __init__(
        self, roots: Roots, after: bytes | None, until: bytes | None, files_max: int
    ) -> None:
        self.files: list[tuple[bytes, bytes]] = []
        """Printed and raw path."""
        self.more = False
        self._roots = roots
        self._after = after
        self._until = until
        self._files_max = files_max
        self._carry = b""

    def feed(self, data: bytes) -> bool:
        *names, self._carry = (self._carry + data).split(b"\0")
        prefix = self._roots.start.prefix
        # What is printed as it is needs no translation: most of a tree.
        joined = b"".join(names)
        quick = plain(joined) and (bool(prefix) or b"~" not in joined)
        skip = len(self._roots.base) + 1
        for raw in names:
            if not self._roots.fits(raw):
                continue
            printed = prefix + raw[skip:] if quick else self._roots.printed(raw)
            if self._until is not None and printed > self._until:
                continue
            if self._after is not None and printed <= self._after:
                continue
            self.files.append((printed, raw))
        if len(self.files) > 2 * self._files_max:
            self._shorten()
        return True

    @property
    def is_first(self) -> bool:
        """Whether it starts at the beginning."""
        return self._after is None

    def end(self) -> None:
        self._shorten()

    def _shorten(self) -> None:
        self.files.sort()
        if len(self.files) > self._files_max:
            del self.files[self._files_max :]
            self.more = True
            self._until = self.files[-1][0]


def without_messages(raw: bytes) -> bytes:
    """A path without the messages of binary files that stood before it."""
    while b"\n" in raw and (found := _BINARY.match(raw)) is not None:
        raw = raw[found.end() :]
    return raw
