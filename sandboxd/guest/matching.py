"""Finding and replacing text in bytes, blind to line-ending style and to nothing else.

Pure: bytes in, bytes out. The search runs on a copy of the content in which CRLF
is LF; what is replaced are the original bytes of the match, so every other byte
stays (tool-cases D1 to D3). A lone CR is data. Two places that are equal up to
their line endings are two places. Where places overlap, the first of them is one
match; which of them is meant cannot be known, so `ambiguous_starts` finds them.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

LINES_KEPT_MAX = 100


class TooLarge(Exception):
    """The result would be over the bound."""


@dataclass(frozen=True)
class Needle:
    """What is searched for and what replaces it, with LF as line ending."""

    old: bytes
    new: bytes
    given: bytes
    """What replaces it, with the line endings that it came with."""


def needle(old: bytes, new: bytes) -> Needle:
    """Brings both texts to LF."""
    return Needle(folded(old), folded(new), new)


def unmarked(sought: Needle) -> Needle | None:
    """The same without a byte order mark that the text begins with; None where it has none.

    A model that copied the mark along must still match, and the file keeps its own.
    """
    mark = codecs.BOM_UTF8
    if not sought.old.startswith(mark) or sought.old == mark:
        return None
    return Needle(
        sought.old.removeprefix(mark),
        sought.new.removeprefix(mark),
        sought.given.removeprefix(mark),
    )


def folded(data: bytes) -> bytes:
    """The bytes with every CRLF as LF."""
    return data.replace(b"\r\n", b"\n")


def match_lines(content: bytes, old: bytes, count_max: int = LINES_KEPT_MAX) -> list[int]:
    """Line, from 1, on which each of the first matches begins. `content` is folded."""
    return lines_of(content, _matches(content, old), count_max)


def lines_of(content: bytes, starts: Iterable[int], count_max: int = LINES_KEPT_MAX) -> list[int]:
    """Line, from 1, of each of the first of these ascending positions."""
    lines: list[int] = []
    line, position = 1, 0
    for start in starts:
        if len(lines) == count_max:
            break
        line += content.count(b"\n", position, start)
        position = start
        lines.append(line)
    return lines


def ambiguous_starts(content: bytes, old: bytes) -> list[range]:
    """Every position at which `old` begins, where all of its places overlap the first.

    Ascending, in ranges, since a text that repeats itself can begin at millions of
    places of as many bytes: each step costs one search, and there are few steps.
    """
    starts: list[range] = []
    start = content.find(old)
    while start >= 0:
        following = content.find(old, start + 1)
        step = following - start
        if following >= 0 and 2 * step <= len(old):
            # The content repeats every `step` bytes from here on, and while it does
            # the text begins at each repeat and nowhere between.
            end = _repeats_until(content, start + len(old), step)
            run = range(start, end - len(old) + 1, step)
            following = content.find(old, run[-1] + 1)
        else:
            run = range(start, start + 1)
        starts.append(run)
        start = following
    return starts


def _repeats_until(content: bytes, position: int, step: int) -> int:
    """First position from `position` on whose byte differs from the one `step` before it."""
    size = 64 * 1024
    while size:
        ahead = content[position : position + size]
        if ahead and ahead == content[position - step : position - step + len(ahead)]:
            position += len(ahead)
        else:
            size //= 2
    return position


def replaced(
    data: bytes,
    content: bytes,
    count: int,
    sought: Needle,
    bytes_max: int,
    check: Callable[[], None],
) -> bytes:
    """`data` with every match replaced; newlines of the new text follow the match's own.

    `content` is `data` folded, in which `sought.old` occurs `count` times. Where
    a match holds no newline, the file's more frequent ending is taken; a file
    without any takes the text as it is. Calls `check` now and then, which may
    raise. Raises `TooLarge` before it builds a result over `bytes_max`.
    """
    crlf = len(data) - len(content)
    newlines = content.count(b"\n")
    if crlf in (0, newlines):
        # One style throughout: the whole can go through the folded copy, since
        # then every LF of it stands for the same bytes.
        growth = len(sought.new if newlines else sought.given) - len(sought.old)
        endings = sought.new.count(b"\n") - sought.old.count(b"\n") if crlf else 0
        if len(data) + count * (growth + endings) > bytes_max:
            raise TooLarge
        result = content.replace(sought.old, sought.new if newlines else sought.given)
        return result.replace(b"\n", b"\r\n") if crlf else result
    return _spliced(data, content, sought, crlf * 2 > newlines, bytes_max, check)


def _matches(content: bytes, old: bytes) -> Iterator[int]:
    start = content.find(old)
    while start >= 0:
        yield start
        start = content.find(old, start + len(old))


def _spliced(
    data: bytes,
    content: bytes,
    sought: Needle,
    mostly_crlf: bool,
    bytes_max: int,
    check: Callable[[], None],
) -> bytes:
    """The way for a file with both endings: match by match, in the original bytes."""
    with_crlf = sought.new.replace(b"\n", b"\r\n")
    size = len(sought.old)
    out = bytearray()
    copied = 0
    original = folded_at = 0
    for number, start in enumerate(_matches(content, sought.old)):
        if number % 1024 == 0:
            check()
        begin = _original(data, original, start - folded_at)
        end = _original(data, begin, size)
        original, folded_at = end, start + size
        out += data[copied:begin]
        out += with_crlf if _takes_crlf(data[begin:end], mostly_crlf) else sought.new
        copied = end
        if len(out) > bytes_max:
            raise TooLarge
    out += data[copied:]
    if len(out) > bytes_max:
        raise TooLarge
    return bytes(out)


def _takes_crlf(region: bytes, mostly_crlf: bool) -> bool:
    newlines = region.count(b"\n")
    if not newlines:
        return mostly_crlf
    crlf = region.count(b"\r\n")
    if crlf * 2 == newlines:
        return region[: region.find(b"\n")].endswith(b"\r")
    return crlf * 2 > newlines


def _original(data: bytes, start: int, distance: int) -> int:
    """Position in `data` that is `distance` folded bytes after `start`.

    `start` never lies inside a CRLF, nor does the answer. Each step looks only at
    the bytes that the step before added, so a whole file costs one pass.
    """
    position = start + distance
    looked = start
    while looked < position:
        # From one before, for a CRLF that the last step ended inside of.
        found = data.count(b"\r\n", max(start, looked - 1), position)
        looked = position
        position += found
    if position > start and data[position - 1 : position + 1] == b"\r\n":
        position += 1
    return position
