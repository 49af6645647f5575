"""Which names may come out of a sandbox, and which stay there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

NAME_BYTES_MAX: Final = 255
PATH_BYTES_MAX: Final = 4_096
DEPTH_MAX: Final = 128

Parts = tuple[str, ...]
"""A relative path, component by component. Never empty, never `.` or `..`."""

GIT: Final = ".git"

CACHES: Final = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"})
"""Made by running things, made anew by running them again; compiled code in them runs
in the place of the source that a person reads."""

SELF_EXECUTING: Final = frozenset(
    {
        ".claude",
        ".cursor",
        ".devcontainer",
        ".envrc",
        ".githooks",
        ".gitmodules",
        ".husky",
        ".idea",
        ".mcp.json",
        ".vscode",
    }
)
"""Files that a shell, an editor or a tool on the host obeys without being asked."""


class BadName(Exception):
    """A name that may not come out; the text says why."""


def parse(raw: bytes) -> Parts:
    """The components of a relative path that a sandbox named. Raises `BadName`."""
    if len(raw) > PATH_BYTES_MAX:
        raise BadName("the path is too long")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise BadName("the name is not UTF-8") from None
    parts = tuple(text.split("/"))
    if len(parts) > DEPTH_MAX:
        raise BadName("the path is too deep")
    for part in parts:
        if part in ("", ".", ".."):
            raise BadName("the path is not a plain relative path")
        if "\0" in part:
            raise BadName("the name holds NUL")
        if len(part.encode()) > NAME_BYTES_MAX:
            raise BadName("a name in the path is too long")
    return parts


def stays(parts: Sequence[str], *, take_self_executing: bool) -> str | None:
    """The kind of file that stays in the sandbox by rule; None for all others."""
    for part in parts:
        # As a file system that folds case, or drops trailing dots, would read it.
        folded = part.casefold().rstrip(" .")
        if folded == GIT or folded.startswith((".git:", "git~")):
            return GIT
        if folded in CACHES or folded.endswith(".pyc"):
            return "caches"
        if folded in SELF_EXECUTING and not take_self_executing:
            return "self-executing files"
    return None


def link_fault(parts: Parts, target: str, links: Collection[Parts]) -> str | None:
    """Why a link may not be made; None where it may.

    `links` are all links of the sandbox's tree: a target that leads through one of
    them could lead anywhere.
    """
    if not target or "\0" in target or "\\" in target:
        return "its target cannot be read"
    if target.startswith("/"):
        return "it is a link to an absolute path"
    last = parts[:-1]
    for place in steps(parts, target):
        if place is None:
            return "it is a link that leads outside"
        if place in links:
            return "it is a link that leads through another link"
        if any(len(part.encode()) > NAME_BYTES_MAX for part in place):
            return "its target cannot be read"
        last = place
    if stays(last, take_self_executing=True) == GIT:
        return "it is a link into .git"
    return None


def steps(parts: Parts, target: str) -> Iterator[tuple[str, ...] | None]:
    """Every place that a link's relative target steps on, in order.

    The top of the tree is the empty place; None, as the last, where it leads outside.
    """
    place = parts[:-1]
    for step in target.split("/"):
        if step in ("", "."):
            continue
        if step == ".." and not place:
            yield None
            return
        place = place[:-1] if step == ".." else (*place, step)
        yield place


def shown(parts: Sequence[str]) -> str:
    """The path as one text. Escape it before it is printed."""
    return "/".join(parts)
