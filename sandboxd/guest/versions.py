"""File versions: what a result says of a content, and comparing it before a write.

A version is opaque to everybody else (contract.md 4). Up to `DIGEST_BYTES_MAX` it is
a digest of the content, so equal contents have equal versions; above, a hash of the
file's device, inode, size and times. The first letter keeps the two kinds apart.
`ABSENT` is the version of what does not exist.

The file that a write expects is compared under the file's lock, before anything is
made beside it and once more right before it is replaced. Commands take no locks:
for them the second comparison leaves the shortest gap that can be had.
"""

from __future__ import annotations

import os
import time
from hashlib import blake2b
from typing import TypeAlias

from .opening import CHUNK_BYTES, open_regular
from .ops import OpError, Request
from .paths import shown

DIGEST_BYTES_MAX = 64 * 1024 * 1024
VERSION_BYTES_MAX = 64
ABSENT = "absent"
SETTLE_S = 0.1
"""Longest wait for the kernel's clock to leave the tick in which a file was changed."""
_HASH_BYTES = 30
_TICK_S = 0.001
_CLOCK_REALTIME_COARSE = 5
"""The clock that files are stamped with (Linux); Python has no name for it."""

Stamp: TypeAlias = tuple[int, int, int, int, int]


class Digest:
    """The version of a content that comes in pieces."""

    def __init__(self) -> None:
        self.size = 0
        self._hash = blake2b(digest_size=_HASH_BYTES)

    def feed(self, piece: bytes | memoryview) -> None:
        self.size += len(piece)
        if self.size <= DIGEST_BYTES_MAX:
            self._hash.update(piece)

    @property
    def version(self) -> str:
        """Empty where the content is over `DIGEST_BYTES_MAX`."""
        return f"c-{self._hash.hexdigest()}" if self.size <= DIGEST_BYTES_MAX else ""


def content_version(content: bytes) -> str:
    """Empty where the content is over `DIGEST_BYTES_MAX`."""
    digest = Digest()
    digest.feed(content)
    return digest.version


class Reading:
    """The version of the bytes that are read from an open file, from its first to its last."""

    def __init__(self, fd: int, found: os.stat_result) -> None:
        """`found` is the file as it was before its first byte was read."""
        self._fd = fd
        self._found = found
        self._digest = Digest() if found.st_size <= DIGEST_BYTES_MAX else None
        # Before the first byte, so that a later change cannot bear the same stamp.
        self._begun = None if self._digest else _settled(fd)

    @property
    def needs_bytes(self) -> bool:
        return self._digest is not None

    def feed(self, piece: bytes) -> None:
        if self._digest is not None:
            self._digest.feed(piece)

    def version(self, *, complete: bool) -> str:
        """Empty where the bytes so far are no content that ever was the file's."""
        if self._digest is not None:
            return self._digest.version if complete and self._is_unchanged() else ""
        if self._begun is None or stamp(os.fstat(self._fd)) != stamp(self._begun):
            return ""
        return _stat_version(self._begun)

    def _is_unchanged(self) -> bool:
        # Not the other times: another name or mode makes no other content.
        found, now = self._found, os.fstat(self._fd)
        return (now.st_size, now.st_mtime_ns) == (found.st_size, found.st_mtime_ns)


def file_version(fd: int, found: os.stat_result, request: Request) -> tuple[str, int]:
    """Version of an open file, and the size of what has it; moves no position.

    The version is empty where none can be given. Raises `OSError`, and CANCELLED_BY_CALLER.
    """
    reading = Reading(fd, found)
    if not reading.needs_bytes:
        return reading.version(complete=True), found.st_size
    position = 0
    while position <= DIGEST_BYTES_MAX:
        try:
            piece = os.pread(fd, CHUNK_BYTES, position)
        except BlockingIOError:
            return "", position
        if not piece:
            break
        reading.feed(piece)
        position += len(piece)
        request.stop_if_cancelled()
    return reading.version(complete=True), position


def placed_version(fd: int, before: os.stat_result) -> str:
    """Version of a content over the digest's bound, once it is in its place.

    `before` is the file as its last byte was written; empty where somebody else
    has written to it since. A rename changes one of the times, so it comes first.
    """
    found = _settled(fd)
    if found is None or (found.st_size, found.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        return ""
    return _stat_version(found)


def stamp(found: os.stat_result) -> Stamp:
    """What changes when a file or its content does, as far as the kernel's clock can tell."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _stat_version(found: os.stat_result) -> str:
    text = ":".join(str(part) for part in stamp(found))
    return f"s-{blake2b(text.encode('ascii'), digest_size=_HASH_BYTES).hexdigest()}"


def _settled(fd: int) -> os.stat_result | None:
    """The file's facts once a later change must show in them; None where that takes too long."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        now = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        found = os.fstat(fd)
        if found.st_ctime_ns < now:
            return found
        if time.monotonic() >= deadline:
            return None
        time.sleep(_TICK_S)


class Expected:
    """The version that a file must have.

    Every comparison looks at the content: a mapping of the file can change it under the
    stamp under which it was seen before, and so can a change in the same tick of the clock.
    """

    def __init__(self, version: str, path: str) -> None:
        """`path` is the spelling for texts. Raises INVALID_INPUT for what is no version."""
        if (
            not 0 < len(version) <= VERSION_BYTES_MAX
            or not version.isascii()
            or not version.isprintable()
        ):
            raise OpError(
                "INVALID_INPUT",
                f"The expected version must be 1 to {VERSION_BYTES_MAX} characters of printable "
                "ASCII.",
            )
        self.absent = version == ABSENT
        self._version = version
        self._path = path

    def compare(self, target: str, request: Request) -> None:
        """Raises VERSION_CONFLICT unless what the real path `target` names is as expected.

        Raises `OSError` and `OpError` where the file cannot be read.
        """
        try:
            os.stat(target)
        except FileNotFoundError:
            if self.absent:
                return
            raise version_conflict(self._path) from None
        if self.absent:
            raise version_conflict(self._path)
        try:
            fd, _ = open_regular(target, os.O_RDONLY, self._path, request)
        except FileNotFoundError:
            raise version_conflict(self._path) from None
        try:
            self.compare_open(fd, request)
        finally:
            os.close(fd)

    def compare_open(self, fd: int, request: Request) -> None:
        """The same for an open file."""
        self.compare_version(file_version(fd, os.fstat(fd), request)[0])

    def compare_version(self, version: str) -> None:
        """The same where the version is known."""
        if self.absent or version != self._version:
            raise version_conflict(self._path)


def expected_of(request: Request, path: str) -> Expected | None:
    """The request's `expected_version`; None where it has none."""
    version = request.optional_text("expected_version")
    return None if version is None else Expected(version, path)


def expects_a_file(expected: Expected | None) -> bool:
    """Whether a missing file is a conflict."""
    return expected is not None and not expected.absent


def version_conflict(path: str) -> OpError:
    return OpError(
        "VERSION_CONFLICT",
        f"{shown(path)} is not at the expected version. Read it again before you change it.",
    )
