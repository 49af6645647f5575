"""Where a search begins, and how the names below it are printed.

What is printed starts with the path as it was given, so that it can be used in
another tool as it stands; a search of the working directory prints bare names.
Undecodable bytes and control characters of names appear as `\\xNN`: a row stays
one line, whatever a file is called. The order of every search is that of these
printed names, as bytes.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Final

from . import paths
from .ops import Machine, OpError

ERROR_PATH_CHARS_MAX: Final = 300
_NOT_PLAIN: Final = re.compile(rb"[^\x20-\x7e]")
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in {*range(0x20), *range(0x7F, 0xA0)}}


def plain(raw: bytes) -> bool:
    """Whether a name is printed as it is: ASCII without control characters."""
    return _NOT_PLAIN.search(raw) is None


def visible(raw: bytes) -> bytes:
    """A name as it is printed, in UTF-8."""
    if plain(raw):
        return raw
    return paths.shown(raw).translate(_CONTROLS).encode("utf-8")


def worded_error(printed: bytes, words: str) -> str:
    """An error of a printed path in one line; of a very long path its beginning."""
    path = printed.decode("utf-8", "replace")
    if len(path) > ERROR_PATH_CHARS_MAX:
        path = path[:ERROR_PATH_CHARS_MAX] + "…"
    return f"{path}: {visible(os.fsencode(words)).decode('utf-8', 'replace')[:200]}"


@dataclass(frozen=True)
class Start:
    """An existing directory or regular file that a search begins at."""

    absolute: str
    """Not normalised: links in it are left alone."""
    real: str
    is_file: bool
    prefix: bytes
    """What is printed before a name below the start; of a file, all that is printed."""

    def printed(self, below: bytes) -> bytes:
        """The printed form of a path below the start; empty for the start itself."""
        shown = self.prefix + visible(below)
        # Read back, `~` would be the home folder.
        return b"./" + shown if not self.prefix and (shown + b"/").startswith(b"~/") else shown

    def order_key(self, below: str, shown: bytes) -> bytes:
        """What a name in the directory `below` the start is sorted by; `shown` is the name.

        Directories are given with a slash behind them, so that the names of what is in
        them come out in the order of whole printed paths.
        """
        return self.printed(shown) if not below and not self.prefix else shown

    @property
    def inside_git(self) -> bool:
        """Whether it is, or lies in, a `.git` folder: only then is one entered."""
        # Also of a `.git` that is a link, but not of `.git/..`.
        given = os.path.normpath(self.absolute)
        return ".git" in self.real.split("/") or ".git" in given.split("/")


def find_start(machine: Machine, given: str | None) -> Start:
    """Checks a path argument; absent, it is the working directory.

    Raises the faults of `paths`, NOT_REGULAR for what would block or never end.
    """
    if given is None or given.rstrip("/") == ".":
        # Bare names are printed, and they are what other tools take.
        absolute, given = machine.workdir, None
    else:
        absolute = paths.resolve(machine, given)
    try:
        mode = os.stat(absolute).st_mode
        if stat.S_ISDIR(mode):
            os.scandir(absolute).close()
        elif stat.S_ISREG(mode):
            os.close(os.open(absolute, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
    except FileNotFoundError:
        if given is None:
            raise OpError(
                "WORKING_DIRECTORY_MISSING",
                "The working directory does not exist any more. Write a file in it, which makes "
                "it again, or give a path.",
            ) from None
        raise paths.missing(machine, given) from None
    except OSError as error:
        raise paths.fault(error, given or ".", "search") from None
    is_file = stat.S_ISREG(mode)
    if not is_file and not stat.S_ISDIR(mode):
        fault = paths.kind_fault(mode, given or ".")
        assert fault is not None
        raise fault
    prefix = b"" if given is None else _prefix(given, is_file)
    return Start(absolute, os.path.realpath(absolute), is_file, prefix)


def _prefix(given: str, is_file: bool) -> bytes:
    shown = visible(os.fsencode(given))
    return shown if is_file else shown.rstrip(b"/") + b"/"
