"""Path arguments: what they name, whether they may, and what went wrong with them.

A path is taken as it is: nothing is stripped, unquoted or normalised. Relative
ones start at the working directory, `~` and `~/x` at the tool user's home
(contract.md 6). In `container` mode the container is the boundary. In `local`
mode a path that leads outside `machine.root`, by itself or through links, is
refused; that keeps an agent from mistakes, it is no defence against code.

Undecodable bytes of names live in texts as surrogate escapes inside the guest
and leave it as `\\xNN` (`shown`).
"""

from __future__ import annotations

import difflib
import errno
import heapq
import os
import stat
import time
from collections.abc import Iterable

from .ops import Machine, OpError
from .storage import size_at

NEAR_NAMES_MAX = 3
NEAR_SCAN_MAX = 5_000
"""Entries of a directory that are looked at for near names."""
NEAR_S = 0.3
"""Longest time that names are compared for: long ones that are alike take milliseconds each."""
NEAR_RATIO_MIN = 0.65

_REASONS: dict[int, tuple[str, str]] = {
    errno.ENOENT: ("FILE_NOT_FOUND", "there is no such file or directory"),
    errno.ENOTDIR: ("NOT_DIRECTORY", "a part of the path is not a directory"),
    errno.EISDIR: ("IS_DIRECTORY", "it is a directory"),
    errno.ENAMETOOLONG: ("PATH_TOO_LONG", "the path or a name in it is too long"),
    errno.ELOOP: ("SYMLINK_LOOP", "its symbolic links go round in a circle"),
    errno.EACCES: ("PERMISSION_DENIED", "permission denied"),
    errno.EPERM: ("PERMISSION_DENIED", "the operation is not permitted"),
    errno.EROFS: ("READ_ONLY", "the file system is read-only"),
    errno.ENOSPC: ("DISK_FULL", "no space is left"),
    errno.EDQUOT: ("DISK_FULL", "the disk quota is used up"),
    errno.EFBIG: ("FILE_TOO_LARGE", "the file would be larger than is allowed"),
    errno.EEXIST: ("FILE_EXISTS", "something is there already"),
    errno.ENOTEMPTY: ("NOT_EMPTY", "the directory is not empty"),
    errno.EXDEV: ("CROSS_DEVICE", "it would go from one file system to another"),
    errno.EBUSY: ("FILE_BUSY", "it is in use"),
    errno.ETXTBSY: ("FILE_BUSY", "it is a program that runs"),
    errno.EAGAIN: ("FILE_BUSY", "another process holds it"),
    errno.ENXIO: ("NOT_REGULAR", "it is not a regular file"),
    errno.ENODEV: ("NOT_REGULAR", "it is not a regular file"),
}


def shown(name: str | bytes) -> str:
    """A name as it leaves the guest: `\\xNN` stands for each undecodable byte."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def fault(
    error: OSError, path: str, action: str = "open", storage_of: str | None = None
) -> OpError:
    """The answer to a failed system call: its own reason and one line of text.

    `storage_of` is where the call led, for the size of what is full (fact `size`).
    """
    reason, words = _REASONS.get(error.errno or 0, ("IO_ERROR", ""))
    if not words:
        words = (error.strerror or "unknown error").lower()
    facts = {"size": size_at(storage_of)} if reason == "DISK_FULL" and storage_of else {}
    return OpError(reason, f"Cannot {action} {shown(path)}: {words}.", **facts)


def resolve(machine: Machine, path: str, *, follow: bool = True) -> str:
    """The absolute path that a path argument means; links in it are left alone.

    With `follow=False` the last component is meant itself, also where it is a
    link. Raises INVALID_INPUT for an empty path or NUL, PATH_OUTSIDE in `local`,
    and without `follow` NOT_DIRECTORY for a link with a slash behind it.
    """
    if not path:
        raise OpError("INVALID_INPUT", "The path is empty.")
    if "\0" in path:
        raise OpError("INVALID_INPUT", "The path contains a NUL character.")
    if path == "~":
        absolute = machine.home
    elif path.startswith("~/"):
        absolute = machine.home.rstrip("/") + "/" + path[2:].lstrip("/")
    else:
        # os.path.join forgets the working directory where the path is absolute.
        absolute = os.path.join(machine.workdir, path)
    if not follow and absolute.endswith("/") and os.path.islink(absolute.rstrip("/")):
        # Every system call would follow it, and remove what it leads to.
        raise OpError(
            "NOT_DIRECTORY",
            f"{shown(path)} is a symbolic link, which the slash at its end would follow. "
            "Leave the slash out to mean the link.",
        )
    if machine.root is not None:
        _confine(machine.root, absolute, path, follow)
    return absolute


def _confine(root: str, absolute: str, path: str, follow: bool) -> None:
    # realpath resolves the deepest part that exists and keeps the rest, so a
    # file that is yet to be made is judged by the directory it would be in.
    if follow:
        real = os.path.realpath(absolute)
    else:
        parent, name = os.path.split(absolute.rstrip("/") or "/")
        real = os.path.realpath(parent)
        real = os.path.realpath(absolute) if name in ("", ".", "..") else os.path.join(real, name)
    base = os.path.realpath(root)
    if real != base and not real.startswith(base.rstrip("/") + "/"):
        raise OpError(
            "PATH_OUTSIDE",
            f"{shown(path)} is outside the session's folder, and this sandbox allows no file "
            "access there. Use a path inside the working directory.",
        )


def missing(machine: Machine, path: str) -> OpError:
    """FILE_NOT_FOUND with the fact `near`: up to three names that may be meant.

    They are spelled as `path` is, so that each can be used as it stands. First
    come forms of the path without quotes, a leading `@` or outer white space,
    where those exist; then similar names in the same directory.
    """
    near = list(_near(machine, path))[:NEAR_NAMES_MAX]
    hint = f"\nDid you mean: {', '.join(near)}?" if near else ""
    return OpError("FILE_NOT_FOUND", f"File not found: {shown(path)}{hint}", near=near)


def _near(machine: Machine, path: str) -> Iterable[str]:
    stripped = path.strip().strip("\"'`").removeprefix("@").strip()
    if stripped and stripped != path and _exists(machine, stripped):
        yield stripped
    head, name = os.path.split(path)
    try:
        directory = resolve(machine, head or ".")
        names = _names(directory)
    except (OSError, OpError):
        return
    for match in _similar(name, names):
        candidate = os.path.join(head, match)
        if candidate != stripped:
            yield candidate


def _exists(machine: Machine, path: str) -> bool:
    try:
        return os.path.lexists(resolve(machine, path))
    except OpError:
        return False


def _names(directory: str) -> list[str]:
    names: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            # A name that cannot be passed as an argument is no suggestion.
            if entry.name.isprintable():
                names.append(entry.name)
            if len(names) >= NEAR_SCAN_MAX:
                break
    return sorted(names)


def _similar(name: str, names: list[str]) -> list[str]:
    folded: dict[str, list[str]] = {}
    for candidate in names:
        folded.setdefault(candidate.lower(), []).append(candidate)
    matches = _closest(name.lower()[:255], folded)
    found = [candidate for match in matches for candidate in folded[match]]
    if len(found) < NEAR_NAMES_MAX:
        # The right stem with another ending: `config.yml` for `config.yaml`.
        stem = name.lower().split(".")[0]
        found += [
            candidate
            for candidate in names
            if stem and candidate.lower().split(".")[0] == stem and candidate not in found
        ]
    return found[:NEAR_NAMES_MAX]


def _closest(wanted: str, names: Iterable[str]) -> list[str]:
    """The names most like `wanted`, the best first, as far as NEAR_S reaches."""
    deadline = time.monotonic() + NEAR_S
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(wanted)
    close: list[tuple[float, str]] = []
    for name in names:
        if time.monotonic() >= deadline:
            break
        matcher.set_seq1(name)
        if (
            matcher.real_quick_ratio() >= NEAR_RATIO_MIN
            and matcher.quick_ratio() >= NEAR_RATIO_MIN
            and (ratio := matcher.ratio()) >= NEAR_RATIO_MIN
        ):
            close.append((ratio, name))
    return [name for _, name in heapq.nlargest(NEAR_NAMES_MAX, close)]


def kind_fault(mode: int, path: str) -> OpError | None:
    """What is wrong with something of this `st_mode` where a regular file is needed."""
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        return OpError("IS_DIRECTORY", f"{shown(path)} is a directory.")
    kinds = {
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    kind = kinds.get(stat.S_IFMT(mode), "an object of the kernel")
    return OpError(
        "NOT_REGULAR",
        f"{shown(path)} is {kind}, not a regular file. Use bash to work with it.",
        kind=kind,
    )
