"""The ops under the tools read and write.

`read_lines` takes no lock: it shows the file as it was opened. `write` replaces a
file under its lock; see `replace` for what survives and what readers see.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import threading
import time

from .lines import Window
from .locks import FILE_LOCKS, identity
from .opening import SIZE_TOLD_MAX, open_regular, read_chunk
from .ops import Answer, Facts, Op, OpError, Request
from .parents import Parents
from .paths import fault, missing, resolve, shown
from .replace import replace_file, writable_target
from .sniff import binary_type, encoding_of
from .staging import Bytes
from .versions import (
    Reading,
    content_version,
    expected_of,
    expects_a_file,
    version_conflict,
)

REPLACEMENT = "\ufffd".encode()


def read_lines(request: Request) -> Answer:
    path = request.text("path")
    window = Window(
        offset=request.integer("offset", 1),
        lines_max=request.integer("lines_max", 1),
        bytes_max=request.integer("bytes_max", 1),
    )
    scan_s = request.seconds("scan_s")
    try:
        fd, found = open_regular(resolve(request.machine, path), os.O_RDONLY, path, request)
    except FileNotFoundError:
        raise missing(request.machine, path) from None
    try:
        return _read(request, fd, found, window, scan_s)
    except OSError as error:
        raise fault(error, path, "read") from None
    finally:
        os.close(fd)


def _read(
    request: Request, fd: int, found: os.stat_result, window: Window, scan_s: float
) -> Answer:
    path = request.text("path")
    size = found.st_size
    reading = Reading(fd, found)
    deadline = time.monotonic() + scan_s
    head = read_chunk(fd)
    kind = binary_type(head)
    if kind is not None:
        raise OpError(
            "BINARY_FILE",
            f"{shown(path)} is a binary file.",
            size=min(max(size, len(head)), SIZE_TOLD_MAX),
            type=kind,
        )
    encoding, mark_bytes = encoding_of(head)
    seen = len(head)
    exact = True
    decoder = _Decoder(encoding)
    chunk = head
    first = mark_bytes
    while chunk:
        reading.feed(chunk)
        window.feed(decoder.decode(chunk[first:], final=False))
        first = 0
        request.stop_if_cancelled("Cancelled while the file was read.")
        if time.monotonic() >= deadline:
            exact = False
            break
        chunk = read_chunk(fd)
        seen += len(chunk)
    if exact:
        window.feed(decoder.decode(b"", final=True))
    elif not window.filled and window.last_line == 0:
        raise OpError(
            "IO_ERROR",
            f"Line {window.offset} of {shown(path)} was not reached within {scan_s:g} seconds "
            f"({window.total} lines so far). Use bash with sed or tail.",
        )
    window.finish(complete=exact)
    # Broken UTF-8 shows in the window itself, broken wide characters do not.
    window.replaced |= decoder.replaced and REPLACEMENT in window.body
    facts = _facts(window, encoding, exact, seen if exact else max(size, seen))
    facts["version"] = reading.version(complete=exact)
    return facts, window.body


def _facts(window: Window, encoding: str, exact: bool, size: int) -> Facts:
    total = window.total
    if window.last_line == 0 and (total or window.offset > 1):
        raise OpError(
            "OFFSET_BEYOND_END",
            f"Offset {window.offset} is beyond the end of the file ({total} lines).",
            total=total,
        )
    last = window.last_line
    more = total > last or not exact
    return {
        "first": window.offset if last else 0,
        "last": last,
        "total": total,
        "total_exact": exact,
        "next": last + 1 if last and more else None,
        "long_line": window.long_line,
        "replaced": window.replaced,
        "nul": window.nul,
        "encoding": encoding,
        "size": min(size, SIZE_TOLD_MAX),
    }


class _Decoder:
    """Turns chunks of any known encoding into chunks of UTF-8."""

    def __init__(self, encoding: str) -> None:
        self.replaced = False
        """Whether anything became U+FFFD because it could not be decoded."""
        self._decoder: codecs.IncrementalDecoder | None = None
        if encoding != "utf-8":
            self._decoder = codecs.getincrementaldecoder(encoding)(_ERRORS)

    def decode(self, chunk: bytes, *, final: bool) -> bytes:
        if self._decoder is None:
            return chunk
        _broken.seen = False
        text = self._decoder.decode(chunk, final)
        self.replaced |= _broken.seen
        return text.encode("utf-8", "replace")


class _Broken(threading.local):
    seen = False


_broken = _Broken()
_ERRORS = "replace-and-tell"


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    _broken.seen = True
    return codecs.replace_errors(error)


# The only way to learn of it: a decoder that replaces keeps silent.
codecs.register_error(_ERRORS, _replace)


def write(request: Request) -> Answer:
    path = request.text("path")
    expected = expected_of(request, path)
    target = resolve(request.machine, path)
    version = content_version(request.body)
    try:
        real = writable_target(target, path)
        # What must have a version exists, and its parents with it.
        parents: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if not expects_a_file(expected):
            parents = Parents(os.path.dirname(real))
        with parents, FILE_LOCKS.hold(lambda: (identity(target),), request) as waited_s:
            # Resolved again: what the path leads to may have changed meanwhile.
            real = writable_target(target, path)
            created, version = replace_file(
                real, Bytes(request.body), request, path, version=version, expected=expected
            )
    except OSError as error:
        if error.errno == errno.ENOENT and expects_a_file(expected):
            raise version_conflict(path) from None
        raise fault(error, path, "write", target) from None
    return {
        "bytes": len(request.body),
        "created": created,
        "version": version,
        "lock_wait_s": round(waited_s, 6),
    }, b""


OPS = {
    "read_lines": Op(read_lines, "call"),
    "write": Op(write, "call"),
}
