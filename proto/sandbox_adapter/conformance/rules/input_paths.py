"""What a path must not lead to: every path field, with every kind of thing that may be there."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sandbox_adapter import errors
from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect, snapshot
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import ISOLATED, SIX_TOOLS, Rule, rule
from sandbox_adapter.conformance.rules.inputs import CONTENT, arguments, refused
from sandbox_adapter.conformance.rules.outside import may_lead_out
from sandbox_adapter.v1 import tool_pb2

TOOLS: Final = ("read", "write", "edit", "grep", "glob")
"""Those with a path."""


@dataclass(frozen=True)
class Thing:
    """Something that a path can lead to, and what each tool then says.

    `reasons` by tool; a tool that is not named takes it, or is judged elsewhere.
    """

    name: str
    make: Callable[[Place], Awaitable[str]]
    """Makes it in the folder and gives its path."""
    reasons: Mapping[str, tuple[str, ...]]
    cases: tuple[str, ...] = ()
    by_permission: bool = False
    """Whether nothing of it stops root."""


def _for(tools: tuple[str, ...], *reasons: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(tools, reasons)


# --- Things ---------------------------------------------------------------------


async def _fifo(place: Place) -> str:
    return await place.fifo("thing")


async def _link_to_fifo(place: Place) -> str:
    await place.fifo("fifo")
    return await place.link("thing", "fifo")


async def _socket(place: Place) -> str:
    # Bound by a short name: the length of a socket's path is bounded.
    python = 'import socket; socket.socket(socket.AF_UNIX).bind("thing")'
    perl = "use Socket; socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un('thing'))"
    made = await place.bash_here(
        f"python3 -c {shlex.quote(python)} 2>/dev/null || perl -e {shlex.quote(perl)} 2>/dev/null\n"
        "[ -S thing ]"
    )
    if made.exit_code != 0:
        raise Uncheckable("the sandbox has no python3 and no perl to make a socket with")
    return place.at("thing")


def _device(path: str) -> Callable[[Place], Awaitable[str]]:
    async def find(place: Place) -> str:
        if not place.has_files:
            await place.shell(f"[ -c {path} ]")
            return path
        try:
            await place.client.files.stat(place.session_id, path)
        except errors.FileNotFound:
            raise Uncheckable(f"the sandbox has no {path}") from None
        except errors.FileFault as fault:
            expect.equal(fault.reason, "PATH_OUTSIDE", f"reason of StatPath of {path}")
        return path

    return find


async def _link_to_device(place: Place) -> str:
    await _device("/dev/zero")(place)
    return await place.link("thing", "/dev/zero")


async def _directory(place: Place) -> str:
    await place.make_folder("thing")
    return place.at("thing")


async def _link_to_directory(place: Place) -> str:
    await place.make_folder("folder")
    return await place.link("thing", "folder")


async def _loop(place: Place) -> str:
    await place.link("other", "thing")
    return await place.link("thing", "other")


async def _loop_as_parent(place: Place) -> str:
    return await place.link("self", "self") + "/f"


async def _below_a_file(place: Place) -> str:
    return place.at("f") + "/below"


async def _slash_behind_a_file(place: Place) -> str:
    return place.at("f") + "/"


async def _missing(place: Place) -> str:
    return place.at("zzz/zzz")


async def _closed_file(place: Place) -> str:
    return await place.put("thing", CONTENT, mode=0)


async def _in_a_closed_folder(place: Place) -> str:
    await place.put("closed/thing", CONTENT)
    await place.shell(f"chmod 0 {shlex.quote(place.at('closed'))}")
    return place.at("closed/thing")


async def _new_in_a_read_only_folder(place: Place) -> str:
    await place.make_folder("closed")
    await place.shell(f"chmod 555 {shlex.quote(place.at('closed'))}")
    return place.at("closed/new")


_FILE_TOOLS: Final = ("read", "write", "edit")
_NOT_REGULAR: Final = {
    **_for((*_FILE_TOOLS, "grep"), "NOT_REGULAR"),
    **_for(("glob",), "NOT_DIRECTORY", "NOT_REGULAR"),
}
_CASES_SPECIAL: Final = ("R20", "R21", "W17", "E22", "G32")

THINGS: Final = (
    Thing("fifo", _fifo, _NOT_REGULAR, _CASES_SPECIAL),
    Thing("link-to-fifo", _link_to_fifo, _NOT_REGULAR, _CASES_SPECIAL),
    Thing("socket", _socket, _NOT_REGULAR, _CASES_SPECIAL),
    Thing("dev-null", _device("/dev/null"), _NOT_REGULAR, _CASES_SPECIAL),
    Thing("dev-zero", _device("/dev/zero"), _NOT_REGULAR, _CASES_SPECIAL),
    Thing("dev-tty", _device("/dev/tty"), _NOT_REGULAR, _CASES_SPECIAL),
    Thing("link-to-device", _link_to_device, _NOT_REGULAR, _CASES_SPECIAL),
    Thing("directory", _directory, _for(_FILE_TOOLS, "IS_DIRECTORY"), ("R25", "W11", "E22")),
    Thing("link-to-directory", _link_to_directory, _for(_FILE_TOOLS, "IS_DIRECTORY"), ("R25",)),
    Thing("link-loop", _loop, _for(TOOLS, "SYMLINK_LOOP"), ("R27",)),
    Thing("below-a-link-loop", _loop_as_parent, _for(TOOLS, "SYMLINK_LOOP"), ("R27",)),
    Thing("below-a-file", _below_a_file, _for(TOOLS, "NOT_DIRECTORY"), ("R27", "W11")),
    Thing(
        "slash-behind-a-file",
        _slash_behind_a_file,
        {**_for(("read", "edit"), "NOT_DIRECTORY"), "write": ("NOT_DIRECTORY", "IS_DIRECTORY")},
        ("R27", "W11"),
    ),
    Thing(
        "missing",
        _missing,
        _for(("read", "edit", "grep", "glob"), "FILE_NOT_FOUND"),
        ("R26", "E22", "G33", "L2"),
    ),
    Thing(
        "closed-file",
        _closed_file,
        _for(_FILE_TOOLS, "PERMISSION_DENIED"),
        ("R27", "E23"),
        by_permission=True,
    ),
    Thing(
        "in-a-closed-folder",
        _in_a_closed_folder,
        _for(TOOLS, "PERMISSION_DENIED"),
        ("R27", "E23"),
        by_permission=True,
    ),
    Thing(
        "new-in-a-read-only-folder",
        _new_in_a_read_only_folder,
        {"write": ("PERMISSION_DENIED",), "edit": ("FILE_NOT_FOUND",)},
        ("W9", "W12", "E23"),
        by_permission=True,
    ),
)


def _rules() -> Iterator[Rule]:
    for thing in THINGS:
        for tool in thing.reasons:
            yield _rule(thing, tool)


def _rule(thing: Thing, tool: str) -> Rule:
    reasons = thing.reasons[tool]

    async def check(place: Place) -> None:
        if thing.by_permission:
            place.require_permissions()
        path = await _made(place, thing)
        allowed = reasons
        if not place.target.claims(ISOLATED) and thing in _OUTSIDE:
            allowed = (*reasons, "PATH_OUTSIDE")
        try:
            before = await snapshot.taken(place)
            result = await place.call(tool, arguments(place, tool, path=path))
            refused(result, allowed, path)
            snapshot.same(before, await snapshot.taken(place))
            expect.fine(await place.read("f"), CONTENT)
        finally:
            if thing.by_permission:
                await _open_again(place)

    return Rule(
        id=f"inputs.{tool}-path-to-{thing.name}",
        title=f"{tool} of a path to: {thing.name.replace('-', ' ')}: {' or '.join(reasons)}",
        check=check,
        cases=(*thing.cases, "contract 4"),
        needs=frozenset({SIX_TOOLS}),
    )


async def _made(place: Place, thing: Thing) -> str:
    await place.put("f", CONTENT)
    return await thing.make(place)


async def _open_again(place: Place) -> None:
    """So that the session's end can remove it, whoever does."""
    if await place.exists("closed"):
        await place.shell(f"chmod 700 {shlex.quote(place.at('closed'))}")


_OUTSIDE: Final = tuple(
    thing for thing in THINGS if thing.name.startswith("dev-") or thing.name == "link-to-device"
)
"""Those that lie outside of a session's folder."""


# --- Paths that a search can only partly serve ------------------------------------


@rule("inputs.grep-path-to-closed-file", cases=["G3", "G4"])
async def grep_path_to_closed_file(place: Place) -> None:
    """A file that may not be read is never searched as if nothing were in it."""
    place.require_permissions()
    path = await _closed_file(place)
    await _never_empty(await place.call("grep", arguments(place, "grep", path=path)))


@rule("inputs.search-path-to-closed-folder", cases=["G3", "G4", "L12"])
async def search_path_to_closed_folder(place: Place) -> None:
    """A folder that may not be entered is never searched as if nothing were in it."""
    place.require_permissions()
    await _in_a_closed_folder(place)
    path = place.at("closed")
    try:
        for tool in ("grep", "glob"):
            await _never_empty(await place.call(tool, arguments(place, tool, path=path)))
    finally:
        await place.shell(f"chmod 700 {shlex.quote(path)}")


async def _never_empty(result: tool_pb2.ToolResult) -> None:
    """Refused for the permission, or a partial answer that says so."""
    if result.is_error:
        refused(result, ("PERMISSION_DENIED",))
        return
    expect.says(result.text, "[1 path could not be searched: ")
    which = result.WhichOneof("details")
    expect.holds(which in ("grep", "glob"), "the result has no details")
    unsearched = result.grep.unsearched if which == "grep" else result.glob.unsearched
    expect.equal(unsearched, 1, "details.unsearched")


# --- Paths out of the session's folder ---------------------------------------------


def _outside() -> str:
    """A path of a new file that lies in no session's folder."""
    return f"/tmp/{new_id('conformance')}"


async def _forget(place: Place, path: str) -> None:
    """Removes what a tool has made outside."""
    if not place.has_files:
        await place.bash(f"rm -f {shlex.quote(path)}")
        return
    try:
        await place.client.files.remove(place.session_id, path)
    except errors.FileFault:
        return


@rule("inputs.path-outside", cases=["R34", "contract 6"])
async def path_outside(place: Place) -> None:
    """Paths out of the working directory are fine, or all refused where nothing isolates."""
    path = _outside()
    try:
        wrote = await place.call("write", {"path": path, "content": CONTENT})
        if not may_lead_out(place, wrote):
            refused(wrote, ("PATH_OUTSIDE",), path)
            for tool in ("read", "edit", "grep", "glob"):
                refused(
                    await place.call(tool, arguments(place, tool, path=path)),
                    ("PATH_OUTSIDE",),
                    path,
                )
            return
        expect.fine(await place.call("read", {"path": path}), CONTENT)
        expect.fine(await place.call("edit", arguments(place, "edit", path=path)))
        expect.fine(await place.call("grep", {"path": path, "pattern": "changed"}))
    finally:
        await _forget(place, path)


@rule("inputs.path-outside-by-links", cases=["R34", "contract 6"])
async def path_outside_by_links(place: Place) -> None:
    """The same holds for paths that lead out by a link, or by `..` behind one."""
    path = _outside()
    await place.link("folder", path.rpartition("/")[0])
    name = path.rpartition("/")[2]
    try:
        for each in ("link", f"folder/{name}"):
            if each == "link":
                await place.link("link", path)
            wrote = await place.write(each, CONTENT)
            if may_lead_out(place, wrote):
                expect.fine(await place.call("read", {"path": path}), CONTENT)
            else:
                refused(wrote, ("PATH_OUTSIDE",), place.at(each))
                refused(await place.read(each), ("PATH_OUTSIDE",), place.at(each))
    finally:
        await _forget(place, path)


@rule("inputs.path-is-not-mended", cases=["R28", "R29"])
async def path_is_not_mended(place: Place) -> None:
    """Quotes, an `@` and blanks are part of a path; the error names the file that is meant."""
    path = await place.put("file name.txt", CONTENT)
    for wrong in (f'"{path}"', f"'{path}'", f"{path} ", f"{path}\n", f" {path}", f"@{path}"):
        for tool in ("read", "edit"):
            result = await place.call(tool, arguments(place, tool, path=wrong))
            expect.refused(result, "FILE_NOT_FOUND")
            said, _, meant = result.text.partition("Did you mean:")
            # A line feed need not be shown as it stands.
            start = "File not found: " + ("" if "\n" in wrong else wrong)
            expect.equal(said[: len(start)], start, "start of the text")
            expect.holds("file name.txt" in meant, f"nothing is proposed for {wrong!r}")
    expect.equal(await place.content("file name.txt"), CONTENT.encode(), "the file afterwards")


RULES: Final = tuple(_rules())
