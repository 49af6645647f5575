"""Rules on where grep searches: starts, ignored files, what cannot be read (tool-cases 1.E)."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Final

from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.conformance.rules import trees

SOON_S: Final = 15.0
"""Longest time for what a search must not wait for; a loaded machine needs a second."""

_HINT: Final = re.compile(
    r"No matches found\. (At least )?(\d+) match(?:es are| is) in git-ignored files under (.+): "
    r"pass one of these paths to search them\."
)


@rule("grep.working-directory", cases=["G12", "G40"], alone=True)
async def working_directory(place: Place) -> None:
    """Without a path the working directory is searched, and rows can be pasted into read"""
    needle = new_id("needle")
    await place.put("d/f", f"x\n{needle}\n")
    below = place.at("d/f").removeprefix(f"{place.workdir}/")
    for arguments in ({}, {"path": "."}, {"path": "./"}, {"path": place.workdir}):
        begun = time.monotonic()
        result = await place.call("grep", {"pattern": needle, **arguments})
        expect.holds(time.monotonic() - begun < SOON_S, f"{arguments}: the search waited")
        [(path, line, _)] = trees.rows(result)
        expect.equal(line, 2, f"{arguments}: line")
        expect.holds(path.endswith(below), f"{arguments}: path {path!r} of {below!r}")
        pasted = await place.call("read", {"path": path})
        expect.fine(pasted, f"x\n{needle}\n")


@rule("grep.path-as-given", cases=["G40"])
async def path_as_given(place: Place) -> None:
    """Rows begin with the path as it was given, relative or absolute"""
    await place.put("d/e/f", "hit\n")
    relative = place.at("d").removeprefix(f"{place.workdir}/")
    for given, printed in (
        (relative, f"{relative}/e/f"),
        (f"{relative}/", f"{relative}/e/f"),
        (f"./{relative}", f"./{relative}/e/f"),
        (f"{relative}/e/f", f"{relative}/e/f"),
        (f"{relative}/../d/e", f"{relative}/../d/e/f"),
        (place.at("d"), place.at("d/e/f")),
    ):
        result = await place.call("grep", {"pattern": "hit", "path": given})
        expect.equal(trees.rows(result), [(printed, 1, "hit")], f"rows below {given!r}")


@rule("grep.binary-by-path", cases=["G21"])
async def binary_by_path(place: Place) -> None:
    """Of a binary file that is given as path, matches are not shown, and the answer says so"""
    await place.put("f", b"\0\1\2\nhit\n" * 10)
    result = await place.grep("hit", "f")
    expect.says(result.text.lower(), "binary")
    expect.equal(len(result.grep.matches), 0, "rows of a binary file")
    expect.holds("No matches" not in result.text, "a match in a binary file is denied")


@rule("grep.ignored-hint-names-paths", cases=["G14", "D7", "contract 9"])
async def ignored_hint_names_paths(place: Place) -> None:
    """The paths that the answer names show the ignored matches when they are given"""
    await trees.work_tree(place, "w", "build/\ndist*/\n*.log\nscripts/*\n/one\nsub/deep/\n")
    for name, count in (
        ("build/a/x", 5),
        ("dist1/y", 3),
        ("dist2/y", 1),
        ("p/q.log", 1),
        ("scripts/s", 1),
        ("one", 1),
        ("sub/deep/er/z", 4),
    ):
        await place.put(f"w/{name}", "secret\n" * count + "other\n")
    await place.put("w/src", "nothing\n")
    result = await place.grep("secret", "w")
    expect.ending_is(result, "COMPLETED")
    found = _HINT.fullmatch(result.text.rstrip("\n"))
    expect.holds(found is not None, f"no hint: {expect.shown(result.text)}")
    assert found is not None
    least, count, named = bool(found[1]), int(found[2]), found[3].split(", ")
    expect.holds(count == 16 or (least and 0 < count < 16), f"{count} matches are told, of 16")
    expect.equal(result.grep.ignored_matches, count, "details.ignored_matches")
    expect.holds(1 <= len(named) <= 3, f"{len(named)} paths are named")
    expect.equal(len(named), len(set(named)), "paths that are named, each once")
    for path in named:
        answer = await place.call("grep", {"pattern": "secret", "path": path})
        expect.holds(bool(trees.rows(answer)), f"{path} was named and shows nothing")
    again = await place.grep("secret", "w")
    expect.equal(again.text, result.text, "text of the same call once more")


@rule("grep.ignored-hint-only-then", cases=["D7"])
async def ignored_hint_only_then(place: Place) -> None:
    """Ignored matches are told only where nothing else was found, and none in .git"""
    await trees.work_tree(place, "w", "out/\n")
    await place.put("w/out/x", "secret\nboth\n")
    await place.put("w/f", "both\n")
    await place.put("w/.git/x", "internal\n")
    result = await place.grep("both", "w")
    expect.equal(trees.rows(result), [(place.at("w/f"), 1, "both")], "rows")
    expect.holds("ignored" not in result.text, "ignored matches are told beside a row")
    expect.equal(result.grep.ignored_matches, 0, "details.ignored_matches")
    expect.fine(await place.grep("internal", "w"), trees.NO_MATCH)


@rule("grep.unreadable-parts", cases=["G3", "contract 9"])
async def unreadable_parts(place: Place) -> None:
    """What may not be read is counted, the first error told, and the rest is shown"""
    place.require_permissions()
    await place.put("a", "hit\n")
    await place.put("closed", "hit\n", mode=0)
    result = await place.grep("hit")
    expect.equal(trees.rows(result), [(place.at("a"), 1, "hit")], "rows")
    _unsearched(result.text, "[1 path could not be searched: ", "closed")
    expect.equal(result.grep.unsearched, 1, "details.unsearched")
    await place.make_folder("shut", mode=0)
    for pattern, body in (("hit", f"{place.at('a')}:1:hit"), ("none", trees.NO_MATCH)):
        result = expect.fine(await place.grep(pattern))
        expect.ending_is(result, "COMPLETED")
        expect.equal(result.text.split("\n")[0], body, "first line")
        _unsearched(result.text, "[2 paths could not be searched: ", "closed", "shut")
        expect.equal(result.grep.unsearched, 2, "details.unsearched")


@rule("grep.unreadable-at-the-cap", cases=["G3", "G27"])
async def unreadable_at_the_cap(place: Place) -> None:
    """The cap and what may not be read are both told"""
    place.require_permissions()
    await place.put("a", "hit\n" * 150)
    await place.put("Z", "hit\n", mode=0)
    result = expect.fine(await place.grep("hit"))
    expect.equal(len(result.grep.matches), 100, "rows")
    told = trees.notes(result.text)
    expect.holds(told[:1] != [] and "first 100 matches" in told[0], f"notes: {told}")
    _unsearched(result.text, "[1 path could not be searched: ", "Z")


@rule("grep.devices", cases=["G32"])
async def devices(place: Place) -> None:
    """A device as path is refused at once"""
    for device in ("/dev/zero", "/dev/null", "/dev/random"):
        begun = time.monotonic()
        result = await place.call("grep", {"pattern": "x", "path": device})
        expect.holds(time.monotonic() - begun < SOON_S, f"{device}: the search waited")
        if expect.reason_of(result) == "PATH_OUTSIDE":
            raise Uncheckable("the adapter refuses paths outside the session's folder")
        expect.refused(result, "NOT_REGULAR")


@rule("grep.fifo-in-tree", cases=["G32"])
async def fifo_in_tree(place: Place) -> None:
    """A FIFO below the start does not hold up the search, include or not"""
    await place.put("a", "hit\n")
    await place.fifo("p.txt")
    await place.fifo("zz")
    for include in (None, "*", "*.txt"):
        begun = time.monotonic()
        result = await place.grep("hit", **({} if include is None else {"include": include}))
        expect.holds(time.monotonic() - begun < SOON_S, f"include {include}: the search waited")
        wanted = [] if include == "*.txt" else [(place.at("a"), 1, "hit")]
        expect.equal(trees.rows(result), wanted, f"rows with include {include}")


@rule("grep.pseudo-file-systems", cases=["L17"])
async def pseudo_file_systems(place: Place) -> None:
    """A search from / shows files, and nothing of /proc and /sys"""
    needle = new_id("needle")
    await place.put(f"{needle}.version", f"Linux version {needle}\n")
    result = await place.call(
        "grep", {"pattern": "Linux version", "path": "/", "include": "{version,*.version}"}
    )
    if expect.reason_of(result) == "PATH_OUTSIDE":
        raise Uncheckable("the adapter refuses paths outside the session's folder")
    found = [path for path, _, _ in trees.rows(result)]
    for path in found:
        expect.holds(not path.startswith(("/proc/", "/sys/")), f"{path} is shown")
    trees.in_order(found)
    if result.grep.timed_out or result.grep.capped:
        raise Uncheckable("the search from / came to no end")
    wanted = place.at(f"{needle}.version")
    expect.holds(wanted in found, f"{wanted} is not shown")


@rule("grep.environment-changes-nothing", cases=["G13", "G38"], timeout_s=120.0)
async def environment_changes_nothing(place: Place) -> None:
    """Settings of search programs, and programs of their names on the PATH, change no answer"""
    tools = place.at("bin")
    environment = {
        "RIPGREP_CONFIG_PATH": place.at("bin/config"),
        "GREP_OPTIONS": "-v",
        "GREP_COLORS": "mt=01;31",
        "GREP_COLOR": "01;31",
        "POSIXLY_CORRECT": "1",
        "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
    }
    fake = "#!/bin/sh\necho 'fake:1:hit'\n"
    async with place.target.session(env=environment) as session:
        own = Place(place.target, session, f"{session.effective.working_directory}/own")
        # Where working directories have names of their own, the shared session's is meant.
        same = session.effective.working_directory == place.workdir
        folder = Place(place.target, session, place.folder) if same else place
        await folder.put("bin/config", "--ignore-case\n--invert-match\n")
        for name in ("rg", "grep", "egrep", "find", "git"):
            await folder.put(f"bin/{name}", fake, mode=0o755)
        await own.put("d/a", "hit\nHIT\nmiss\n")
        await own.put("d/.gitignore", "a\n")
        found = trees.rows(await own.grep("hit"))
        expect.equal(found, [(own.at("d/a"), 1, "hit")], "rows")
        expect.fine(await own.grep("absent"), trees.NO_MATCH)
        expect.equal(trees.paths(await own.glob("a")), [own.at("d/a")], "paths")


@rule("grep.parallel-searches", cases=["G12", "L19"])
async def parallel_searches(place: Place) -> None:
    """Searches that run at the same time do not mix, with relative paths too"""
    names = [f"d{number}" for number in range(12)]
    for name in names:
        await place.put(f"{name}/f", f"hit {name}\n")
    below = place.folder.removeprefix(f"{place.workdir}/")
    grepped = await asyncio.gather(
        *(place.call("grep", {"pattern": "hit", "path": f"{below}/{name}"}) for name in names),
    )
    globbed = await asyncio.gather(
        *(place.call("glob", {"pattern": "f", "path": f"{below}/{name}"}) for name in names),
        *(place.call("grep", {"pattern": "hit", "path": f"{below}/{name}"}) for name in names),
    )
    for name, result in zip(names, grepped, strict=True):
        path = f"{below}/{name}/f"
        expect.equal(trees.rows(result), [(path, 1, f"hit {name}")], f"rows below {name}")
    for name, result in zip(names, globbed, strict=False):
        expect.equal(trees.paths(result), [f"{below}/{name}/f"], f"paths below {name}")


@rule("grep.deep-tree", cases=["G40", "L21"])
async def deep_tree(place: Place) -> None:
    """A file far down is found under its whole path"""
    folder = "/".join(["n" * 100] * 20)
    await place.put(f"{folder}/f", "hit\n")
    wanted = place.at(f"{folder}/f")
    expect.equal(trees.rows(await place.grep("hit")), [(wanted, 1, "hit")], "rows")


def _unsearched(text: str, begins: str, *names: str) -> None:
    """A note in brackets that begins so, and tells the error of one of these names."""
    told = [note for note in trees.notes(text) if note.startswith(begins)]
    expect.equal(len(told), 1, f"notes that begin with {begins!r} in {expect.shown(text)}")
    expect.holds(any(name in told[0] for name in names), f"no path in {told[0]!r}")
    expect.holds("permission" in told[0].lower(), f"no cause in {told[0]!r}")
