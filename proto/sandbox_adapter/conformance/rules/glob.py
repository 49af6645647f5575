"""Rules on glob that vectors cannot say (tool-cases 1.F)."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import random
import shlex
import time
from typing import Final

from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.conformance.rules import trees
from sandbox_adapter.v1 import tool_pb2

PATHS_MAX: Final = 1_000
CAP: Final = "[Showing the first 1000 paths; more exist. Narrow the pattern or path.]"
SOON_S: Final = 15.0


@rule("glob.cap", cases=["L3", "contract 5", "contract 9"])
async def cap(place: Place) -> None:
    """At 1,000 paths the answer is complete; at 1,001 it shows 1,000 and says that more exist"""
    await trees.numbered(place, "d", 999, "x")
    wanted = [place.at(f"d/f{number:04}") for number in range(1, 1_000)]
    _listed(await place.glob("f*"), wanted, False)
    # Last in order, and then first: made last both times.
    await place.put("e", "x")
    _listed(await place.glob("[ef]*"), [*wanted, place.at("e")], False)
    await place.put("d/a/f", "x")
    _listed(await place.glob("[ef]*"), [place.at("d/a/f"), *wanted], True)
    _listed(await place.glob("f000*"), wanted[:9], False)


@rule("glob.cap-of-a-big-tree", cases=["L3", "L5", "L14"])
async def cap_of_a_big_tree(place: Place) -> None:
    """Of thousands of files the first 1,000 in path order are shown, the same every time"""
    for folder, count in (("c", 1_200), ("b", 1_200), ("a-", 700), ("a", 700)):
        await trees.numbered(place, folder, count, "x")
    await place.put("a/.git/hidden", "x")
    wanted = [place.at(f"a-/f{number:04}") for number in range(1, 701)]
    wanted += [place.at(f"a/f{number:04}") for number in range(1, 301)]
    answers = await asyncio.gather(*(place.glob("*") for _ in range(3)))
    for answer in answers:
        _listed(answer, wanted, True)
        expect.equal(answer.text, answers[0].text, "text of the same call once more")


@rule("glob.cap-names-the-fullest-folder", cases=["L5"])
async def cap_names_the_fullest_folder(place: Place) -> None:
    """At the cap the answer names the folder that fills it"""
    await place.put("b/f", "x")
    await place.put("z/f", "x")
    await trees.numbered(place, "modules/p", 1_001, "x")
    told = [note for note in trees.notes((await place.glob("*")).text) if note != CAP]
    expect.holds(
        any(place.at("modules") in note for note in told),
        f"no note names {place.at('modules')}: {told}",
    )


@rule("glob.reference", cases=["L14", "D9", "L8"])
async def reference(place: Place) -> None:
    """In a random tree just the names that fit are found, in bytewise order"""
    chance = random.Random(14)
    names = ["a", "ab", "a-b", "a.b", "B", ".a", "a b", "-a", "a:b", "~", "b1", "[a]", "a+"]
    files: set[str] = set()
    while len(files) < 60:
        folders = [chance.choice(trees.FOLDERS) for _ in range(chance.randint(0, 3))]
        files.add("/".join([*folders, chance.choice(names)]))
    await trees.put_all(place, sorted(files), "x")
    # Patterns on which Python's fnmatch and that of the C library agree.
    for pattern in ("*", "a*", "*b", "?", "??", "*a*", "[ab]*", "[!a]*", "*[.:]b", "a?b", ".*"):
        wanted = sorted(
            (
                place.at(path)
                for path in files
                if fnmatch.fnmatchcase(path.rpartition("/")[2], pattern)
            ),
            key=str.encode,
        )
        expect.equal(trees.paths(await place.glob(pattern)), wanted, f"paths for {pattern!r}")


@rule("glob.slash", cases=["L1", "contract 9"])
async def slash(place: Place) -> None:
    """A pattern with a slash is an error that spells the call to make"""
    for pattern, path, folder, name in (
        ("src/*.py", None, "src", "*.py"),
        ("src/**/*.py", None, "src", "*.py"),
        ("a/b/c.txt", None, "a/b", "c.txt"),
        ("/etc/*.conf", None, "/etc", "*.conf"),
        ("**/src/*.py", "lib", "lib/src", "*.py"),
        ("src/*.{py,js}", place.folder, place.at("src"), "*.{py,js}"),
    ):
        arguments = {"pattern": pattern} | ({} if path is None else {"path": path})
        result = await place.call("glob", arguments)
        trees.refused(result)
        spelled = json.dumps(folder, ensure_ascii=False)
        wanted = f'glob matches file names, not paths. Use path={spelled} and pattern="{name}".'
        expect.equal(result.text.rstrip("\n"), wanted, f"text for {pattern!r}")


@rule("glob.slash-elsewhere", cases=["L1"])
async def slash_elsewhere(place: Place) -> None:
    """A slash anywhere else is an error too, and never an empty answer"""
    await place.put("src/a.py", "x")
    for pattern in ("*/a.py", "src/", "/", "./a.py", "../*", "src//a.py", "{src,lib}/*.py", "s/**"):
        trees.refused(await place.glob(pattern), "glob matches file names, not paths. Use ")


@rule("glob.empty-pattern", cases=["L20"])
async def empty_pattern(place: Place) -> None:
    """An empty pattern is refused, and so is NUL"""
    await place.put("f", "x")
    trees.refused(await place.glob(""), "pattern", reasons={*trees.REFUSED, "EMPTY_TEXT"})
    trees.refused(await place.glob("f\0"), "pattern")


@rule("glob.bad-class", cases=["L8"])
async def bad_class(place: Place) -> None:
    """A class that does not exist fits nothing or is refused; it does not end the call"""
    await place.put("f", "x")
    result = await place.glob("[[:nope:]]")
    if result.is_error:
        trees.refused(result)
    else:
        expect.equal(trees.paths(result), [], "paths")


@rule("glob.endless-patterns", cases=["L6", "L8"])
async def endless_patterns(place: Place) -> None:
    """Patterns that could be tried for ever, or stand for millions, are answered soon"""
    await place.put("a" * 200, "x")
    for pattern in ("*a" * 100 + "b", "{a,b}" * 40, "?" * 5_000, "[" * 1_000, "{" * 1_000):
        begun = time.monotonic()
        result = await place.glob(pattern)
        expect.holds(time.monotonic() - begun < SOON_S, f"{pattern[:20]!r}… took too long")
        if result.is_error:
            trees.refused(result)
        else:
            expect.equal(trees.paths(result), [], f"paths for {pattern[:20]!r}…")


@rule("glob.working-directory", cases=["L2", "L14"])
async def working_directory(place: Place) -> None:
    """Without a path the working directory is the start, and paths can be pasted into read"""
    name = new_id("name")
    await place.put(f"d/{name}", "content\n")
    below = place.at(f"d/{name}").removeprefix(f"{place.workdir}/")
    for arguments in ({}, {"path": "."}, {"path": "./"}, {"path": place.workdir}):
        [path] = trees.paths(await place.call("glob", {"pattern": name, **arguments}))
        expect.holds(path.endswith(below), f"{arguments}: path {path!r} of {below!r}")
        expect.fine(await place.call("read", {"path": path}), "content\n")


@rule("glob.path-as-given", cases=["L14", "G40"])
async def path_as_given(place: Place) -> None:
    """Paths begin with the start as it was given, relative or absolute"""
    await place.put("d/e/f", "x")
    relative = place.at("d").removeprefix(f"{place.workdir}/")
    for given, printed in (
        (relative, f"{relative}/e/f"),
        (f"{relative}/", f"{relative}/e/f"),
        (f"./{relative}", f"./{relative}/e/f"),
        (f"{relative}/../d/e", f"{relative}/../d/e/f"),
        (place.at("d"), place.at("d/e/f")),
    ):
        result = await place.call("glob", {"pattern": "f", "path": given})
        expect.equal(trees.paths(result), [printed], f"paths below {given!r}")


@rule("glob.unreadable-folder", cases=["L12", "contract 9"])
async def unreadable_folder(place: Place) -> None:
    """A folder that may not be read is counted, its error told, and the rest is shown"""
    place.require_permissions()
    await place.put("a/f", "x")
    await place.put("z/f", "x")
    for count, name, begins in (
        (1, "m", "[1 path could not be searched: "),
        (2, "zz", "[2 paths could not be searched: "),
    ):
        await place.make_folder(name, mode=0)
        for pattern, wanted in (("f", [place.at("a/f"), place.at("z/f")]), ("none", [])):
            result = await place.glob(pattern)
            expect.equal(trees.paths(result), wanted, "paths")
            expect.ending_is(result, "COMPLETED")
            told = [note for note in trees.notes(result.text) if note.startswith(begins)]
            expect.equal(len(told), 1, f"notes that begin with {begins!r}")
            expect.holds(place.at("m") in told[0], f"no path in {told[0]!r}")
            expect.holds("permission" in told[0].lower(), f"no cause in {told[0]!r}")
            expect.equal(result.glob.unsearched, count, "details.unsearched")


@rule("glob.names-not-utf8", cases=["L8", "R31"])
async def names_not_utf8(place: Place) -> None:
    """Names that are not UTF-8 are found, each such byte shown as \\xNN"""
    await place.make_folder()
    await place.shell(
        f"cd {shlex.quote(place.folder)} && : > \"$(printf 'caf\\351.txt')\" && "
        "mkdir \"$(printf 'd\\377')\" && : > \"$(printf 'd\\377/x.txt')\""
    )
    wanted = [place.at("caf\\xe9.txt"), place.at("d\\xff/x.txt")]
    expect.equal(trees.paths(await place.glob("*.txt")), wanted, "paths")


@rule("glob.names-with-line-breaks", cases=["L8", "G24"])
async def names_with_line_breaks(place: Place) -> None:
    """A line break in a name makes no second line, and wildcards stand for it"""
    await place.put("a\nb", "x")
    await place.put("d\ne/ab", "x")
    await place.put("ac", "x")
    result = await place.glob("a*")
    found = trees.paths(result)
    expect.equal(len(found), 3, "paths")
    expect.equal(found[1], place.at("ac"), "the plain name")
    expect.equal(len(result.text.rstrip("\n").split("\n")), 3, "lines of the text")
    expect.equal(len(trees.paths(await place.glob("a?b"))), 1, "paths for `a?b`")


@rule("glob.long-paths", cases=["L21"])
async def long_paths(place: Place) -> None:
    """Paths are counted, not bytes: hundreds of very long ones are all shown"""
    folder = "/".join(["n" * 200] * 10)
    await trees.numbered(place, folder, 400, "x")
    wanted = [place.at(f"{folder}/f{number:04}") for number in range(1, 401)]
    _listed(await place.glob("f*"), wanted, False)


@rule("glob.pseudo-file-systems", cases=["L17"])
async def pseudo_file_systems(place: Place) -> None:
    """A search from / shows files, and nothing of /proc and /sys"""
    name = new_id("status")
    await place.put(name, "x")
    for pattern in ("{status,cmdline,uevent,meminfo,status_*}", name):
        result = await place.call("glob", {"pattern": pattern, "path": "/"})
        if expect.reason_of(result) == "PATH_OUTSIDE":
            raise Uncheckable("the adapter refuses paths outside the session's folder")
        found = trees.paths(result)
        for path in found:
            expect.holds(not path.startswith(("/proc/", "/sys/")), f"{path} is shown")
        trees.in_order(found)
        if result.truncated:
            raise Uncheckable("the search from / came to no end")
        expect.holds(place.at(name) in found, f"{place.at(name)} is not shown")


@rule("glob.repeatable-in-parallel", cases=["L19", "L14"])
async def repeatable_in_parallel(place: Place) -> None:
    """Searches from relative starts at the same time neither mix nor move a command's folder"""
    names = [f"d{number}" for number in range(12)]
    for name in names:
        await place.put(f"{name}/f-{name}", "x")
    below = place.folder.removeprefix(f"{place.workdir}/")
    answers = await asyncio.gather(
        *(place.call("glob", {"pattern": "f-*", "path": f"{below}/{name}"}) for name in names),
        *(place.call("read", {"path": f"{below}/{name}/f-{name}"}) for name in names),
    )
    for number, name in enumerate(names):
        path = f"{below}/{name}/f-{name}"
        expect.equal(trees.paths(answers[number]), [path], f"paths below {name}")
        expect.fine(answers[len(names) + number], "x")


def _listed(result: tool_pb2.ToolResult, wanted: list[str], capped: bool) -> None:
    expect.equal(trees.paths(result), wanted, "paths")
    expect.equal(CAP in trees.notes(result.text), capped, "the note of the cap is there")
    expect.equal(result.glob.capped, capped, "details.capped")
    expect.equal(result.truncated, capped, "truncated")
    expect.ending_is(result, "COMPLETED")
