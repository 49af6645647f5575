"""Rules on the rows of grep: their order, the cap, the cut of lines (tool-cases 1.E)."""

from __future__ import annotations

import asyncio
import random
import shlex
from functools import cache
from typing import Final

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.conformance.rules import trees
from sandbox_adapter.v1 import tool_pb2

ROWS_MAX: Final = 100
CHARS_MAX: Final = 500
CAP: Final = "[Showing the first 100 matches; more exist. Narrow the pattern, path or include.]"
MARK: Final = "…"
_LEFT_OUT: Final = 2
"""Characters of the line that the marks may take, where an adapter counts them in."""


@rule("grep.cap", cases=["G27", "contract 5", "contract 9"])
async def cap(place: Place) -> None:
    """At 100 rows the answer is complete; at 101 it shows 100 and says that more exist"""
    for count, capped in ((99, False), (100, False), (101, True), (5_000, True)):
        name = f"f{count}"
        await place.put(name, "hit hit\n" * count)
        found = await place.grep("hit", name)
        lines = [line for _, line, _ in trees.rows(found)]
        expect.equal(lines, list(range(1, min(count, ROWS_MAX) + 1)), f"lines of {count}")
        _capped(found, capped, f"{count} matches")


@rule("grep.cap-over-files", cases=["G27", "G29"])
async def cap_over_files(place: Place) -> None:
    """The cap counts rows over all files: one in each of 100 files, and one more"""
    await trees.numbered(place, "d", 100, "hit")
    found = await place.grep("hit")
    wanted = [(place.at(f"d/f{number:04}"), 1, "hit") for number in range(1, 101)]
    expect.equal(trees.rows(found), wanted, "rows")
    _capped(found, False, "100 files")
    await place.put("d-", "hit\n")
    found = await place.grep("hit")
    expect.equal(trees.rows(found), [(place.at("d-"), 1, "hit"), *wanted[:99]], "rows of 101")
    _capped(found, True, "101 files")


@rule("grep.one-file-at-the-cap", cases=["G28", "G29"])
async def one_file_at_the_cap(place: Place) -> None:
    """A file with many matches does not push out files before it, and keeps its order"""
    await place.put("b", "hit\n" * 400)
    await place.put("a", "-\nhit\n")
    await place.put("c", "hit\n")
    found = await place.grep("hit")
    wanted = [(place.at("a"), 2), *((place.at("b"), line) for line in range(1, 100))]
    expect.equal([row[:2] for row in trees.rows(found)], wanted, "rows")
    _capped(found, True, "three files")


@rule("grep.many-matches-everywhere", cases=["G27", "G29"])
async def many_matches_everywhere(place: Place) -> None:
    """Where every file of thousands matches, the rows are the first in path order"""
    await place.put("x/a", "hit\n" * 3)
    await trees.numbered(place, "y", 2_000, "a hit")
    await place.put("x-/z", "hit\n" * 5)
    await place.put("z", "hit\n")
    found = await place.grep("hit")
    wanted = [(place.at("x-/z"), line) for line in range(1, 6)]
    wanted += [(place.at("x/a"), line) for line in range(1, 4)]
    wanted += [(place.at(f"y/f{number:04}"), 1) for number in range(1, 93)]
    expect.equal([row[:2] for row in trees.rows(found)], wanted, "rows")
    _capped(found, True, "a match in every file")
    again = await place.grep("hit")
    expect.equal(again.text, found.text, "text of the same call once more")


@rule("grep.rare-match-in-many-files", cases=["G27", "G12"])
async def rare_match_in_many_files(place: Place) -> None:
    """One match among thousands of files is found, and one that is not there is not"""
    await trees.numbered(place, "d", 5_000, "hay")
    await place.put("d/f1500x", "hay\nneedle\n")
    found = await place.grep("needle")
    expect.equal([row[1:] for row in trees.rows(found)], [(2, "needle")], "rows")
    _capped(found, False, "one match")
    expect.fine(await place.grep("needles"), trees.NO_MATCH)


@rule("grep.order-of-many-names", cases=["G29", "D9"])
async def order_of_many_names(place: Place) -> None:
    """Rows of a random tree are those of a plain search, in bytewise order, every time"""
    chance = random.Random(29)
    names = ["a", "b", "a-b", "a.b", "A", "é", "a b", ".h", "-d", "na:me", "~", "aa", "a+"]
    lines: dict[str, list[str]] = {}
    while len(lines) < 60:
        folders = [chance.choice(trees.FOLDERS) for _ in range(chance.randint(0, 3))]
        path = "/".join([*folders, chance.choice(names)])
        lines[path] = chance.choices(["hit", "no", "x hit", ""], k=chance.randint(0, 4))
    for path, content in lines.items():
        await place.put(path, "".join(f"{line}\n" for line in content))
    wanted = sorted(
        (place.at(path).encode(), number, line)
        for path, content in lines.items()
        for number, line in enumerate(content, 1)
        if "hit" in line
    )
    expect.holds(0 < len(wanted) <= ROWS_MAX, "the tree of this rule has too many rows")
    answers = await asyncio.gather(*(place.grep("hit") for _ in range(4)))
    for answer in answers:
        found = [(path.encode(), line, text) for path, line, text in trees.rows(answer)]
        expect.equal(found, wanted, "rows")
        expect.equal(answer.text, answers[0].text, "text of the same call once more")


@rule("grep.long-lines", cases=["G25", "contract 5", "contract 9"])
async def long_lines(place: Place) -> None:
    """Lines over 500 characters are cut around the match, marked where they are cut"""
    await place.put("f500", "n" * 500 + "\n")
    expect.equal(trees.rows(await place.grep("n", "f500"))[0][2], "n" * 500, "500 characters")
    await place.put("f500cr", "n" * 500 + "\r\n")
    found = await place.grep("n", "f500cr")
    expect.equal(trees.rows(found)[0][2], "n" * 500, "500 characters and a carriage return")
    expect.equal(found.truncated, False, "truncated, of a line of 500 characters")
    lines = [
        _line(size, at)
        for size in (501, 502, 1_000, 3_990, 4_100, 20_000)
        for at in (0, 1, size // 2, size - 8, size - 6)
    ]
    await place.put("long", "".join(f"{line}\n" for line in lines))
    found = await place.grep("needle", "long")
    expect.equal(found.truncated, True, "truncated, of long lines")
    shown = trees.rows(found)
    expect.equal([row[1] for row in shown], list(range(1, len(lines) + 1)), "lines")
    for (_, _, text), line in zip(shown, lines, strict=True):
        what = f"{len(line)} characters, match at {line.index('needle')}"
        _is_cut(text, line, "needle", what)


@rule("grep.long-lines-of-wide-characters", cases=["G25"])
async def long_lines_of_wide_characters(place: Place) -> None:
    """The 500 characters are code points, and no cut falls into one"""
    for wide in ("é", "日", "😀"):
        await place.put("f500", wide * 500 + "\n")
        found = trees.rows(await place.grep(wide, "f500"))
        expect.equal(found[0][2], wide * 500, f"500 times U+{ord(wide):04X}")
        sides = ((0, 900), (250, 251), (2_000, 2_000), (1_399, 0), (1_001, 3))
        lines = [wide * before + "needle" + wide * after for before, after in sides]
        await place.put("long", "".join(f"{line}\n" for line in lines))
        shown = trees.rows(await place.grep("needle", "long"))
        expect.equal(len(shown), len(lines), "rows")
        for (_, _, text), line, (before, after) in zip(shown, lines, sides, strict=True):
            what = f"{before} and {after} times U+{ord(wide):04X}"
            _is_cut(text, line, "needle", what)
            # All the wide ones are the same: the cut is known by what is left of each side.
            head, _, tail = text.partition("needle")
            _side(head, MARK in head, before, f"{what}, before the match")
            _side(tail, MARK in tail, after, f"{what}, after the match")


@rule("grep.huge-line", cases=["G25"])
async def huge_line(place: Place) -> None:
    """In a line of 5 MB the match is shown, however far inside it is"""
    lines = [_line(2_000_000, 3), _line(5_000_000, 4_400_007), _line(2_000_000, 1_999_994)]
    await place.put("f", "first\n" + "".join(f"{line}\n" for line in lines) + "needle\n")
    found = trees.rows(await place.grep("needle", "f"))
    expect.equal([row[1] for row in found], [2, 3, 4, 5], "lines")
    for (_, _, text), line in zip(found, lines, strict=False):
        what = f"{len(line)} characters, match at {line.index('needle')}"
        _is_cut(text, line, "needle", what)
    expect.equal(found[3][2], "needle", "the row behind the long lines")


@rule("grep.many-huge-lines", cases=["G25"])
async def many_huge_lines(place: Place) -> None:
    """An answer with a hundred long lines stays bounded and whole"""
    lines = [_line(30_000, 29_000 - 200 * number) for number in range(101)]
    await place.put("f", "\n".join(lines) + "\n")
    found = await place.grep("needle")
    shown = trees.rows(found)
    expect.equal(len(shown), ROWS_MAX, "rows")
    for (_, number, text), line in zip(shown, lines, strict=False):
        _is_cut(text, line, "needle", f"line {number}")
    _capped(found, True, "101 long lines")


@rule("grep.long-line-not-utf8", cases=["G25", "G20"])
async def long_line_not_utf8(place: Place) -> None:
    """A long line that is not UTF-8 is cut around the match as well"""
    await place.put("f", b"\xe9" * 3_000 + b"needle" + b"\xff" * 3_000 + b"\n")
    [(_, _, shown)] = trees.rows(await place.grep("needle"))
    _is_cut(shown, "\ufffd" * 3_000 + "needle" + "\ufffd" * 3_000, "needle", "bytes of no text")


@rule("grep.long-match", cases=["G25"])
async def long_match(place: Place) -> None:
    """Of a match that is itself longer than 500 characters a part is shown, from its start"""
    line = _line(2_000, 1_990)[:1_500] + "m" * 800 + "zz"
    await place.put("f", line + "\n")
    [(_, _, shown)] = trees.rows(await place.grep("m+"))
    _is_cut(shown, line, "mmmmmmmm", "a match of 800 characters")
    expect.holds("m" * 100 in shown, "less than 100 characters of the match are shown")


@rule("grep.names-with-line-breaks", cases=["G24"])
async def names_with_line_breaks(place: Place) -> None:
    """A line break in a name breaks no row and cannot feign one"""
    await place.put("a\nb:1:fake", "hit\n")
    await place.put("c", "hit\n")
    await place.put("d\ne/f\n", "hit\n")
    found = await place.grep("hit")
    shown = trees.rows(found)
    expect.equal([row[1:] for row in shown], [(1, "hit")] * 3, "lines and texts")
    expect.equal(shown[1][0], place.at("c"), "the plain name")
    _one_line_each(found.text, shown)


@rule("grep.names-not-utf8", cases=["G22", "R31"])
async def names_not_utf8(place: Place) -> None:
    """A file whose name is not UTF-8 is found, its bytes shown as \\xNN"""
    await place.make_folder()
    await place.shell(
        f"cd {shlex.quote(place.folder)} && echo hit > \"$(printf 'caf\\351')\" && "
        "mkdir \"$(printf 'd\\377')\" && echo hit > \"$(printf 'd\\377/f')\""
    )
    found = await place.grep("hit")
    shown = trees.rows(found)
    wanted = [place.at("caf\\xe9"), place.at("d\\xff/f")]
    expect.equal([row[0] for row in shown], wanted, "paths")
    _one_line_each(found.text, shown)


def _line(size: int, at: int) -> str:
    """A line of so many characters, no two parts of it alike, with `needle` at an index."""
    numbers = _numbers()
    return (numbers[:at] + "needle" + numbers[at:size])[:size]


@cache
def _numbers() -> str:
    return "".join(f"{number:x}." for number in range(900_000))


def _is_cut(shown: str, line: str, match: str, what: str) -> None:
    """A part of the line with the match in it, of the right length, rightly marked."""
    kept = shown.removeprefix(MARK).removesuffix(MARK)
    at = line.find(kept)
    if at < 0:
        raise Broken(f"{what}: no part of the line: {expect.shown(shown)}")
    if not CHARS_MAX - _LEFT_OUT <= len(kept) <= CHARS_MAX:
        raise Broken(f"{what}: {len(kept)} characters of the line are shown")
    expect.holds(match in kept, f"{what}: the match is not in {expect.shown(shown)}")
    if line.count(kept) == 1:
        expect.equal(shown.startswith(MARK), at > 0, f"{what}: mark at the left")
        expect.equal(shown.endswith(MARK), at + len(kept) < len(line), f"{what}: mark at the right")


def _side(part: str, marked: bool, whole: int, what: str) -> None:
    expect.equal(marked, len(part.replace(MARK, "")) < whole, f"{what}: marked")


def _one_line_each(text: str, shown: list[trees.Row]) -> None:
    for path, _, _ in shown:
        expect.holds("\n" not in path, f"a path of two lines: {expect.shown(path)}")
    expect.equal(len(text.rstrip("\n").split("\n")), len(shown), "lines of the text")


def _capped(result: tool_pb2.ToolResult, capped: bool, what: str) -> None:
    expect.equal(CAP in trees.notes(result.text), capped, f"{what}: the note of the cap is there")
    expect.equal(result.grep.capped, capped, f"{what}: details.capped")
    expect.equal(result.truncated, capped or MARK in result.text, f"{what}: truncated")
    expect.ending_is(result, "COMPLETED")
