"""Trees of files that rules about searching need, and reading what a search shows."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from typing import Final

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.v1 import tool_pb2

NO_MATCH: Final = "No matches found."
NO_FILES: Final = "No files found."

REFUSED: Final = {"INVALID_INPUT", "INVALID_PATTERN"}
"""Reasons for a fault of a pattern: the general one, and the exact one."""

Row = tuple[str, int, str]
"""Path as printed, line, text."""

FOLDERS: Final = ("d", "d-e", "d.e", "d e", "d+", "dd", "ë", ".d", "D")
"""Names of folders that an order by parts of paths sorts otherwise than one by bytes."""
PUTS_MAX: Final = 1_000
"""Most files that are made with a request each, which takes seconds."""
_PUTS_PARALLEL: Final = 8


async def numbered(place: Place, folder: str, count: int, content: str) -> None:
    """Makes `folder/f0001` and so on, the last one first, with one shell loop.

    Without a shell up to PUTS_MAX are made one by one, and more are `Uncheckable`.
    `content` is one line without quotes and backslashes.
    """
    await place.make_folder(folder)
    try:
        await place.shell(
            f"cd {shlex.quote(place.at(folder))} || exit 1\n"
            f"i={count}; while [ $i -gt 0 ]; do n=0000$i; n=${{n#${{n%????}}}}\n"
            f"echo '{content}' > f$n || exit 1; i=$((i-1)); done"
        )
    except Uncheckable:
        if count > PUTS_MAX:
            raise
        names = [f"{folder}/f{number:04}" for number in range(count, 0, -1)]
        await put_all(place, names, f"{content}\n")


async def put_all(place: Place, names: Sequence[str], content: str) -> None:
    """Makes many files of the same content, a few at a time."""
    for at in range(0, len(names), _PUTS_PARALLEL):
        await asyncio.gather(
            *(place.put(name, content) for name in names[at : at + _PUTS_PARALLEL])
        )


async def work_tree(place: Place, name: str, ignored: str) -> None:
    """Makes a folder the root of a git work tree, as `git init` does, with a .gitignore."""
    await place.put(f"{name}/.git/HEAD", "ref: refs/heads/main\n")
    await place.make_folder(f"{name}/.git/objects")
    await place.make_folder(f"{name}/.git/refs")
    await place.put(f"{name}/.gitignore", ignored)


def rows(result: tool_pb2.ToolResult) -> list[Row]:
    """The rows of a grep that did its work, once its text is found to begin with them."""
    expect.fine(result)
    found = [(row.path, row.line, row.text) for row in result.grep.matches]
    shown = "\n".join(f"{path}:{line}:{text}" for path, line, text in found)
    _begins(result.text, shown or NO_MATCH)
    return found


def paths(result: tool_pb2.ToolResult) -> list[str]:
    """The paths of a glob that did its work, once its text is found to begin with them."""
    expect.fine(result)
    found = list(result.glob.paths)
    _begins(result.text, "\n".join(found) or NO_FILES)
    return found


def refused(result: tool_pb2.ToolResult, *parts: str, reasons: set[str] = REFUSED) -> None:
    """A fault of the pattern, told as such: never as an empty answer, never as rows."""
    reason = expect.reason_of(result)
    expect.holds(
        result.is_error and reason in reasons,
        f"{' or '.join(sorted(reasons))} expected, got {reason}: {expect.shown(result.text)}",
    )
    expect.ending_is(result, "COMPLETED")
    expect.says(result.text, *parts)
    for empty in ("No matches", "No files"):
        expect.holds(empty not in result.text, f"an error reads like no match: {result.text!r}")


def notes(text: str) -> list[str]:
    """The lines in brackets at the end of a text."""
    lines = text.rstrip("\n").split("\n")
    first = len(lines)
    while first > 0 and lines[first - 1].startswith("[") and lines[first - 1].endswith("]"):
        first -= 1
    return lines[first:]


def in_order(printed: Sequence[str]) -> None:
    """Raises `Broken` where paths do not come in bytewise order of the whole path."""
    expect.equal(list(printed), sorted(printed, key=str.encode), "order of the paths")


def _begins(text: str, shown: str) -> None:
    expect.equal(text[: len(shown)], shown, "the text, by the typed facts,")
    # What follows stands on lines of its own, or goes on after the one sentence.
    follows = text[len(shown) :]
    told = shown in (NO_MATCH, NO_FILES)
    expect.holds(
        not follows or follows.startswith("\n") or told,
        f"after the last row: {expect.shown(follows)}",
    )
