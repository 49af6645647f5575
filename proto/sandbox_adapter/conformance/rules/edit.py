"""Rules on edit that vectors cannot say (tool-cases 1.C)."""

from __future__ import annotations

import asyncio
import re
import shlex
from typing import Final

from sandbox_adapter.conformance import expect, snapshot
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import FILES, SIX_TOOLS, rule
from sandbox_adapter.v1 import tool_pb2

MIB: Final = 1024 * 1024
PARALLEL: Final = 12
"""Edits of one file that are asked for at the same time."""
DIAGNOSIS_CHARS_MAX: Final = 4_000
"""Of the text of an edit without a match: an explanation and a quoted line."""


def _quoted(place: Place, name: str) -> str:
    return shlex.quote(place.at(name))


def _no_match(place: Place, name: str) -> str:
    return (
        f"Could not find oldText in {place.at(name)}. "
        "Check whitespace and indentation: it must match exactly."
    )


async def _diagnosis(place: Place, content: str, old: str, new: str = "replacement") -> str:
    """What the error says of why `old` is not in `content`."""
    await place.put("f", content)
    result = expect.refused(await place.edit("f", old, new), "NO_MATCH")
    start = _no_match(place, "f")
    expect.equal(result.text[: len(start)], start, "start of the text")
    size = len(result.text)
    expect.holds(size <= DIAGNOSIS_CHARS_MAX, f"the error has {size} characters")
    expect.equal(await place.content("f"), content.encode(), "the file afterwards")
    return result.text[len(start) :]


async def _explains(
    place: Place, content: str, old: str, line: int, words: str, new: str = "replacement"
) -> str:
    """The diagnosis, which names the line and says one of the words of the pattern.

    The words are English, and as many as there may be for the cause.
    """
    text = await _diagnosis(place, content, old, new)
    named = [int(number) for number in re.findall(r"\d+", text)]
    expect.holds(line in named, f"line {line} is not named in {expect.shown(text)}")
    found = re.search(words, text, re.IGNORECASE)
    expect.holds(found is not None, f"nothing like {words!r} is said in {expect.shown(text)}")
    return text


@rule("edit.explains-indentation", cases=["E13", "E15"])
async def explains_indentation(place: Place) -> None:
    """Where only tabs and blanks differ, the error says so and names the line."""
    words = r"indent|white.?space|\btabs?\b|\bspac(es?|ing)\b|\bblanks?\b"
    file = "class A:\n\tdef f(self):\n\t\treturn  1\n"
    await _explains(place, file, "    def f(self):\n        return  1\n", 2, words)
    await _explains(place, file, "return 1", 3, words)
    await _explains(place, "a\n    if x:\n        y()\n", "if x:\n    y()\n", 2, words)


@rule("edit.shows-tabs-of-the-nearest-line", cases=["E13"])
async def shows_tabs(place: Place) -> None:
    """The nearest line is quoted with its tabs made visible."""
    text = await _explains(place, "one\n\tvalue = compute()\n", "    value = compute()", 2, ".")
    expect.says(text, "\\tvalue = compute()")
    expect.holds("\t" not in text, f"a bare tab in {expect.shown(text)}")


@rule("edit.explains-trailing-whitespace", cases=["E13"])
async def explains_trailing_whitespace(place: Place) -> None:
    """Where only blanks at the ends of lines differ, the error says so and names the line."""
    words = r"trailing|\bends?\b|ending|\btail|behind|after"
    await _explains(place, "x\na = 1  \nb = 2\n", "a = 1\nb = 2\n", 2, words)
    await _explains(place, "x\ny\na = 1\nb = 2\n", "a = 1 \t\nb = 2\n", 3, words)


@rule("edit.explains-typography", cases=["E13"])
async def explains_typography(place: Place) -> None:
    """Where only typographic characters differ, the error says so and names the line."""
    words = r"quot|dash|hyphen|typograph|apostroph|punctuation|curly|smart|character"
    await _explains(place, "x\nsay “hello” to it’s\n", 'say "hello" to it\'s', 2, words)
    await _explains(place, "x\ny\npages 3 - 4 of it\n", "pages 3 – 4 of it", 3, words)


@rule("edit.explains-line-numbers", cases=["E13", "D5"])
async def explains_line_numbers(place: Place) -> None:
    """Where line numbers of a listing were pasted along, the error says so."""
    words = r"line.?numbers?|prefix|number(ed|ing|s)|listing"
    file = "start\nalpha = 1\nbeta = 2\n"
    for numbered in ("2→alpha = 1\n3→beta = 2", "  2|alpha = 1\n  3|beta = 2", "2: alpha = 1"):
        await _explains(place, file, numbered, 2, words)
    await _explains(place, file, "     2\talpha = 1\n     3\tbeta = 2\n", 2, words)


@rule("edit.explains-unicode-forms", cases=["E27"])
async def explains_unicode_forms(place: Place) -> None:
    """Where only the Unicode normal form differs, the error says so."""
    words = r"unicode|normali[sz]|compos|accent|\bNF[CD]\b|combining|diacritic"
    await _explains(place, "x\ncafé au lait\n", "cafe\u0301 au lait", 2, words)
    await _explains(place, "x\ncafe\u0301 au lait\n", "café au lait", 2, words)


@rule("edit.explains-escapes", cases=["E13", "E19"])
async def explains_escapes(place: Place) -> None:
    """A text that was escaped once too often is explained, or its nearest line shown."""
    await _explains(place, 'x\nprint("hello world")\n', 'print(\\"hello world\\")', 2, ".")


@rule("edit.explains-nothing-untrue", cases=["E13"])
async def explains_nothing_untrue(place: Place) -> None:
    """Where nothing comes close, no line is named as if it did."""
    for old in ("completely other words", "(((", "   ", "12|zzz"):
        text = await _diagnosis(place, "alpha\nbeta\n\tgamma\n", old)
        found = re.search(r"\blines? \d", text)
        expect.holds(found is None, f"a line is named for {old!r}: {expect.shown(text)}")


@rule("edit.explains-within-bounds", cases=["E13", "E28"])
async def explains_within_bounds(place: Place) -> None:
    """Long lines and long texts do not make a long error, nor a slow one."""
    long_line = "x = [" + "1, " * 100_000 + "]"
    await _diagnosis(place, f"a\n\t{long_line}\nb\n", f"    {long_line}")
    await _diagnosis(place, "short\n", "word " * 200_000)
    await _diagnosis(
        place, "".join(f"line {n} of many\n" for n in range(50_000)), "Line 7 off many"
    )


@rule("edit.megabytes-of-text", cases=["E28"])
async def megabytes_of_text(place: Place) -> None:
    """A text of more than a megabyte is found and replaced, CRLF and all."""
    old = "".join(f"line {number}\n" for number in range(150_000))
    await place.put("f", f"first\r\n{old}last\r\n".replace("\r\n", "\n").replace("\n", "\r\n"))
    text = f"Edited {place.at('f')}: 1 replacement at line 2."
    expect.fine(await place.edit("f", old, old[::-1].strip() + "\n"), text)
    wanted = f"first\n{old[::-1].strip()}\nlast\n".replace("\n", "\r\n").encode()
    expect.equal(await place.content("f"), wanted, "the file afterwards")


@rule("edit.empty-text-makes-no-file", cases=["E7", "E22"])
async def empty_text_makes_no_file(place: Place) -> None:
    """An empty oldText never creates a file, whatever newText says."""
    await place.make_folder()
    for name in ("missing", "no/such/folder"):
        result = await place.edit(name, "", "content\n")
        expect.holds(result.is_error, f"not refused: {expect.shown(result.text)}")
        expect.holds(not await place.exists(name), f"{name} was made")
    expect.holds(not await place.exists("no"), "a parent was made")


@rule("edit.identical-but-for-endings", cases=["E8", "E3"])
async def identical_but_for_endings(place: Place) -> None:
    """Texts that differ in their line endings only change nothing, as endings follow the file."""
    for name, content in (("lf", b"a\nb\nc\n"), ("crlf", b"a\r\nb\r\nc\r\n")):
        await place.put(name, content)
        for old, new in (("a\nb\n", "a\r\nb\r\n"), ("a\r\nb", "a\nb")):
            result = await place.edit(name, old, new)
            if result.is_error:
                expect.refused(result, "IDENTICAL_TEXT")
            expect.equal(await place.content(name), content, f"{name} afterwards")


@rule("edit.refusals-change-nothing", cases=["E11", "E12", "E13", "E21", "D1"])
async def refusals_change_nothing(place: Place) -> None:
    """A refused edit leaves content, mode, times and neighbours as they were."""
    await place.put("f", "a\nb\na\n", mode=0o640)
    before = await snapshot.taken(place)
    expect.refused(await place.edit("f", "a", "c"), "SEVERAL_MATCHES")
    expect.refused(await place.edit("f", "x", "c"), "NO_MATCH")
    expect.refused(await place.edit("f", "x", "c", replaceAll=True), "NO_MATCH")
    expect.refused(await place.edit("f", "b", "b"), "IDENTICAL_TEXT")
    expect.refused(await place.edit("f", "", "b"), "EMPTY_TEXT")
    snapshot.same(before, await snapshot.taken(place))


@rule("edit.leaves-nothing-beside", cases=["E29", "W21"])
async def leaves_nothing_beside(place: Place) -> None:
    """After edits the folder holds what it held before, and no temporary file."""
    await place.put("d/f", "a\n" * 50)
    for old, new in (("a\na\n", "b\n"), ("b", "c\n")):
        expect.fine(await place.edit("d/f", old, new, replaceAll=True))
    names = {path for path in await snapshot.taken(place) if path.startswith("d/")}
    if place.has_files:
        expect.equal(names, {"d/f"}, "what is in the folder")
    else:
        expect.equal(
            await place.shell(f"ls -A {_quoted(place, 'd')}"), "f\n", "what is in the folder"
        )


@rule("edit.follows-links", cases=["E29", "W1", "W6"])
async def follows_links(place: Place) -> None:
    """An edit through a link changes its target; links and hard links stay what they are."""
    await place.put("real/f", "a\n", mode=0o640)
    await place.link("soft", "real/f")
    await place.link("far", place.at("soft"))
    await place.shell(f"ln {_quoted(place, 'real/f')} {_quoted(place, 'hard')}")
    for name, old, new in (("soft", "a", "b"), ("far", "b", "c"), ("hard", "c", "d")):
        expect.fine(
            await place.edit(name, old, new), f"Edited {place.at(name)}: 1 replacement at line 1."
        )
        for each in ("real/f", "soft", "far", "hard"):
            expect.equal(await place.content(each), new.encode() + b"\n", f"{each} afterwards")
    kinds = await place.shell(
        f"cd {shlex.quote(place.folder)} && for n in soft far; do [ -L $n ] && echo link; done\n"
        "[ hard -ef real/f ] && echo same"
    )
    expect.equal(kinds, "link\nlink\nsame\n", "links afterwards")
    expect.equal(await place.mode("real/f"), 0o640, "mode afterwards")


@rule("edit.dangling-link", cases=["E22", "W3"])
async def dangling_link(place: Place) -> None:
    """A link to nothing is a missing file, and edit makes none."""
    await place.link("l", "nowhere")
    result = expect.refused(await place.edit("l", "a", "b"), "FILE_NOT_FOUND")
    expect.says(result.text, f"File not found: {place.at('l')}")
    expect.holds(not await place.exists("nowhere"), "the target was made")


@rule("edit.in-a-closed-folder", cases=["E29", "W9"])
async def in_a_closed_folder(place: Place) -> None:
    """A writable file in a folder that is not is edited in place."""
    place.require_permissions()
    await place.put("d/f", "a\nb\n")
    await place.make_folder("d")
    await place.shell(f"chmod 555 {_quoted(place, 'd')}")
    try:
        expect.fine(await place.edit("d/f", "b", "c"))
        expect.equal(await place.content("d/f"), b"a\nc\n", "the file afterwards")
    finally:
        await place.shell(f"chmod 755 {_quoted(place, 'd')}")


@rule("edit.overlapping-places", cases=["E12", "D1"])
async def overlapping_places(place: Place) -> None:
    """A text that can begin at two places that overlap does not occur exactly once."""
    for content, old in (("xaaay\n", "aa"), ("1\n1\n1\n", "1\n1\n"), ("abababa\n", "ababa")):
        await place.put("f", content)
        expect.refused(await place.edit("f", old, "-"), "SEVERAL_MATCHES")
        expect.equal(await place.content("f"), content.encode(), "the file afterwards")
        expect.fine(await place.edit("f", old, "-", replaceAll=True))
        expect.equal(
            await place.content("f"), content.replace(old, "-").encode(), "after replaceAll"
        )


@rule("edit.parallel-edits-all-count", cases=["E25", "W18"])
async def parallel_edits_all_count(place: Place) -> None:
    """Edits of one file at the same time lose none of each other's changes."""
    await place.put("f", "".join(f"<{number}>\n" for number in range(PARALLEL)))
    edits = [place.edit("f", f"<{n}>", f"[{n}]") for n in range(PARALLEL)]
    for number, result in enumerate(await asyncio.gather(*edits), 1):
        text = f"Edited {place.at('f')}: 1 replacement at line {number}."
        expect.fine(result, text)
    wanted = "".join(f"[{number}]\n" for number in range(PARALLEL)).encode()
    expect.equal(await place.content("f"), wanted, "the file afterwards")


@rule("edit.parallel-edits-through-names", cases=["E25", "W18", "R34"])
async def parallel_edits_through_names(place: Place) -> None:
    """Edits of one file through links and other spellings of its path lose nothing either."""
    await place.put("d/f", "".join(f"<{number}>\n" for number in range(PARALLEL)))
    await place.link("soft", "d/f")
    await place.link("folder", "d")
    await place.shell(f"ln {_quoted(place, 'd/f')} {_quoted(place, 'hard')}")
    names = ("d/f", "soft", "hard", "folder/f", "d/../d/./f", "d//f")
    edits = [place.edit(names[n % len(names)], f"<{n}>", f"[{n}]") for n in range(PARALLEL)]
    for result in await asyncio.gather(*edits):
        expect.fine(result)
    wanted = "".join(f"[{number}]\n" for number in range(PARALLEL)).encode()
    expect.equal(await place.content("d/f"), wanted, "the file afterwards")


@rule("edit.the-same-edit-twice", cases=["E25"])
async def the_same_edit_twice(place: Place) -> None:
    """Of equal edits at the same time one is made, and the others find no match."""
    await place.put("f", "once\n")
    results = await asyncio.gather(*(place.edit("f", "once", "done") for _ in range(PARALLEL)))
    made = [result for result in results if not result.is_error]
    expect.equal(len(made), 1, "edits that were made")
    for result in results:
        if result.is_error:
            expect.refused(result, "NO_MATCH")
    expect.equal(await place.content("f"), b"done\n", "the file afterwards")


@rule("edit.readers-see-whole-files", cases=["E29"], needs=[SIX_TOOLS, FILES])
async def readers_see_whole_files(place: Place) -> None:
    """While a file is edited, whoever reads it gets one state of it or another, never a mix."""
    states = {kind: b"%s\n" % kind * 100_000 for kind in (b"old", b"newer")}
    await place.put("f", states[b"old"])
    done = asyncio.Event()

    async def read() -> int:
        count = 0
        while not done.is_set():
            seen = await place.content("f")
            expect.holds(seen in states.values(), f"a mix of {len(seen)} bytes was read")
            count += 1
        return count

    readers = [asyncio.create_task(read()) for _ in range(3)]
    try:
        for old, new in (("old", "newer"), ("newer", "old")) * 4:
            expect.fine(await place.edit("f", old, new, replaceAll=True))
    finally:
        done.set()
        counts = await asyncio.gather(*readers, return_exceptions=True)
    for count in counts:
        if isinstance(count, BaseException):
            raise count


@rule("edit.largest-file", cases=["E21", "contract 5"], level="full")
async def largest_file(place: Place) -> None:
    """A file of the announced bound is edited; one byte more is refused with the bound."""
    bound = place.target.limits.edit_file_bytes_max
    expect.holds(bound > 0, "no bound is announced for the files that edit takes")
    await place.put("f", "start\n")
    await _grow(place, "f", bound)
    text = f"Edited {place.at('f')}: 1 replacement at line 1."
    expect.fine(await place.edit("f", "start", "begun"), text)
    await _grow(place, "f", bound + 1)
    result = expect.refused(await place.edit("f", "begun", "start"), "FILE_TOO_LARGE")
    expect.says(result.text, place.at("f"), str(bound // MIB))
    await place.put("f", "")


async def _grow(place: Place, name: str, size: int) -> None:
    path = _quoted(place, name)
    await place.shell(f"dd if=/dev/zero of={path} bs=1 count=0 seek={size} 2>/dev/null")


@rule("edit.both-forms-are-one-call", cases=["contract 2"])
async def both_forms_are_one_call(place: Place) -> None:
    """The typed and the custom form of an edit are the same call, and make it once."""
    await place.put("f", "aa\n")
    first = await place.call(
        "edit",
        {"path": place.at("f"), "oldText": "aa", "newText": "aaaa", "replaceAll": False},
        call_id=_id(place),
    )
    expect.fine(first)
    typed = tool_pb2.EditInput(
        path=place.at("f"), old_text="aa", new_text="aaaa", replace_all=False
    )
    answer = await place.client.call_typed(place.session_id, typed, call_id=_id(place))
    expect.holds(answer.result.replayed, "the typed form was not taken for the same call")
    expect.equal(answer.result.text, first.text, "text of the second answer")
    expect.equal(await place.content("f"), b"aaaa\n", "the file afterwards")


def _id(place: Place) -> str:
    return "edit-" + place.folder.rpartition("/")[2]
