"""The op under the tool edit: exact replacement under the file's lock.

Reading, matching and replacing happen while the lock is held, so a second edit
of the file, through whatever name, sees the first one's result.
"""

from __future__ import annotations

import codecs
import os
from contextlib import ExitStack
from itertools import chain

from .diagnose import diagnose
from .locks import FILE_LOCKS, LARGE, identity
from .matching import (
    Needle,
    TooLarge,
    ambiguous_starts,
    folded,
    lines_of,
    match_lines,
    needle,
    replaced,
    unmarked,
)
from .opening import open_regular, read_whole
from .ops import Answer, Facts, Op, OpError, Request
from .paths import fault, missing, resolve, shown
from .replace import replace_file, writable_target
from .sniff import encoding_of
from .staging import Bytes
from .versions import (
    Expected,
    content_version,
    expected_of,
    expects_a_file,
    version_conflict,
)

LARGE_BYTES = 4 * 1024 * 1024
"""Edits of more, before or after, go one at a time, so that the guest's memory stays bounded."""


class _Large(ExitStack):
    """The lock of large work, taken at most once and held to the end of the edit."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._request = request
        self._taken = False

    def take(self, size: int) -> None:
        """Waits for the lock where `size` bytes are large. Raises as `FileLocks.hold` does."""
        if size > LARGE_BYTES and not self._taken:
            self.enter_context(FILE_LOCKS.hold(lambda: (LARGE,), self._request))
            self._taken = True


def edit(request: Request) -> Answer:
    old_bytes = request.integer("old_bytes", 1, len(request.body))
    sought = needle(request.body[:old_bytes], request.body[old_bytes:])
    with _Large(request) as large:
        outcome = _attempt(request, sought, large)
    # Raised only now: an error on its way holds the frames that it came through,
    # and those hold the file, while the next large edit has begun.
    if isinstance(outcome, OpError):
        raise outcome
    return outcome, b""


def _attempt(request: Request, sought: Needle, large: _Large) -> Facts | OpError:
    """Edits under the file's lock."""
    path = request.text("path")
    expected = expected_of(request, path)
    target = resolve(request.machine, path)
    try:
        with FILE_LOCKS.hold(lambda: (identity(target),), request) as waited_s:
            real = writable_target(target, path)
            large.take(os.stat(real).st_size)
            done = _edit(request, real, sought, expected, large)
    except FileNotFoundError:
        if expects_a_file(expected):
            return version_conflict(path)
        return missing(request.machine, path)
    except OSError as error:
        return fault(error, path, "edit", target)
    except OpError as error:
        error.__traceback__ = error.__context__ = None
        return error
    if isinstance(done, bytes):
        # The file's lock is free by now: an explanation takes its time.
        sought = unmarked(sought) or sought
        try:
            explanation = diagnose(done, sought.old, sought.new, request.stop_if_cancelled)
        except OpError as error:
            error.__traceback__ = error.__context__ = None
            return error
        return OpError("NO_MATCH", f"Could not find the text in {shown(path)}.", **explanation)
    count, lines, version = done
    return {
        "replacements": count,
        "lines": lines,
        "version": version,
        "lock_wait_s": round(waited_s, 6),
    }


def _edit(
    request: Request, real: str, sought: Needle, expected: Expected | None, large: _Large
) -> tuple[int, list[int], str] | bytes:
    """Count and lines of what was replaced and the new version, or the content without a match."""
    path = request.text("path")
    replace_all = request.flag("replace_all")
    file_bytes_max = request.integer("file_bytes_max", 1)
    data = _content(request, real, file_bytes_max, expected)
    # The file's own mark is no part of any match, and stays.
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    data = data.removeprefix(mark)
    content = folded(data) if b"\r\n" in data else data
    count = content.count(sought.old)
    if count == 0 and (bare := unmarked(sought)) is not None:
        sought = bare
        count = content.count(sought.old)
    if count == 0:
        return content
    if not replace_all:
        _refuse_several(path, content, sought.old, count)
    if sought.old == sought.new:
        raise OpError("IDENTICAL_TEXT", "The texts differ in line endings or a mark only.")
    lines = match_lines(content, sought.old)
    large.take(_grown(len(data), count, sought))
    try:
        room = file_bytes_max - len(mark)
        result = replaced(data, content, count, sought, room, request.stop_if_cancelled)
    except TooLarge:
        raise _too_large(path, file_bytes_max, "would be") from None
    del data, content
    if mark:
        result = mark + result
    version = content_version(result)
    _, version = replace_file(
        real, Bytes(result), request, path, version=version, expected=expected
    )
    return count, lines, version


def _grown(size: int, count: int, sought: Needle) -> int:
    """Most bytes that the result can have: every newline of the new text as CRLF."""
    longest = len(sought.new) + sought.new.count(b"\n")
    return size + count * max(0, longest - len(sought.old))


def _refuse_several(path: str, content: bytes, old: bytes, count: int) -> None:
    """Raises SEVERAL_MATCHES unless the one match can begin at one place only.

    The count that it tells is that of matches, none of which overlap, as replacing all would
    replace them: `aa` is twice in `aaaa`. Where there is one match only, it is the count of
    the places where that can begin: two for `aa` in `aaa`.
    """
    if count > 1:
        lines = match_lines(content, old)
    else:
        # `aa` is in `aaa` once, at either of two places.
        starts = ambiguous_starts(content, old)
        count = sum(len(run) for run in starts)
        lines = lines_of(content, chain.from_iterable(starts))
    if count > 1:
        raise OpError(
            "SEVERAL_MATCHES",
            f"The text is in {shown(path)} {count} times.",
            count=count,
            lines=lines,
        )


def _content(request: Request, real: str, file_bytes_max: int, expected: Expected | None) -> bytes:
    """The file's bytes. Refuses what is not at its expected version, or no text to edit."""
    path = request.text("path")
    fd, found = open_regular(real, os.O_RDONLY, path, request)
    try:
        if found.st_size > file_bytes_max:
            raise _too_large(path, file_bytes_max, "is")
        data = read_whole(fd, found.st_size, file_bytes_max)
    finally:
        os.close(fd)
    if data is None:
        raise _too_large(path, file_bytes_max, "is")
    if expected is not None:
        expected.compare_version(content_version(data))
    encoding, _ = encoding_of(data[:4])
    if encoding != "utf-8":
        raise OpError(
            "UNSUPPORTED_ENCODING",
            f"{shown(path)} is {encoding.upper()[:6]} text, which edit cannot change. "
            "Use bash, for instance with iconv or python3.",
        )
    return data


def _too_large(path: str, file_bytes_max: int, verb: str) -> OpError:
    return OpError(
        "FILE_TOO_LARGE",
        f"{shown(path)} {verb} larger than {file_bytes_max // (1024 * 1024)} MiB, the most that "
        "edit takes. Use bash with sed or python3.",
    )


OPS = {"edit": Op(edit, "call")}
