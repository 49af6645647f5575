"""Edit against a naive reference, in many small generated cases (tool-cases 1.C, D1 to D3).

The reference goes through a file unit by unit, where CRLF is one unit, and knows
nothing of how an adapter searches. Cases on which the contract is silent are not
made: a match of both line endings that new lines would have to choose from, a file
of as many CRLF as LF, a CR at an end of oldText or beside its line ends.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.v1 import tool_pb2

CASES: Final = 40
"""Edits that one rule makes."""
LINES_KEPT_MAX: Final = 100
"""Most lines in the facts of an edit (tool.proto)."""
LINES_NAMED_MAX: Final = 10
"""Most lines that a text names (contract.md 9)."""


@dataclass(frozen=True)
class Case:
    data: bytes
    old: str
    new: str
    replace_all: bool


@dataclass(frozen=True)
class Wanted:
    """What must come of a case."""

    lines: tuple[int, ...]
    """Line of each match."""
    data: bytes
    """The file afterwards where the matches are replaced."""
    overlaps: bool
    """Whether a match can begin inside another."""


class _Silent(Exception):
    """The contract does not say what must come of the case."""


def _units(data: bytes) -> list[bytes]:
    """Bytes of the content, with each CRLF as one unit."""
    units: list[bytes] = []
    at = 0
    while at < len(data):
        size = 2 if data[at : at + 2] == b"\r\n" else 1
        units.append(data[at : at + size])
        at += size
    return units


def _folded(units: Sequence[bytes]) -> list[bytes]:
    return [b"\n" if unit == b"\r\n" else unit for unit in units]


def _ending(region: Sequence[bytes], units: Sequence[bytes], new: str) -> bytes | None:
    """What new lines end with; None where the new text stays as it is."""
    ends = [unit for unit in region if unit in (b"\n", b"\r\n")]
    if not ends:
        crlf, lf = units.count(b"\r\n"), units.count(b"\n")
        if crlf == lf:
            if crlf or "\r\n" in new:
                raise _Silent
            return None
        return b"\r\n" if crlf > lf else b"\n"
    if len(set(ends)) > 1:
        raise _Silent
    return ends[0]


def wanted(case: Case) -> Wanted:
    """The reference. Raises `_Silent`."""
    units = _units(case.data)
    content, old = _folded(units), _folded(_units(case.old.encode()))
    starts = [at for at in range(len(content)) if content[at : at + len(old)] == old]
    out, lines, end = bytearray(), [], 0
    for start in starts:
        if start < end:
            continue
        region = units[start : start + len(old)]
        new = case.new.encode()
        if b"\n" in new:
            ending = _ending(region, units, case.new)
            if ending is not None:
                new = b"".join(_folded(_units(new))).replace(b"\n", ending)
        out += b"".join(units[end:start]) + new
        lines.append(content[:start].count(b"\n") + 1)
        end = start + len(old)
    out += b"".join(units[end:])
    return Wanted(tuple(lines), bytes(out), len(lines) != len(starts))


def _named(lines: Sequence[int]) -> str:
    """`3, 8, 12`, beyond ten `… and N more`."""
    more = len(lines) - LINES_NAMED_MAX
    text = ", ".join(str(line) for line in lines[:LINES_NAMED_MAX])
    return f"{text} and {more} more" if more > 0 else text


# --- Cases ---------------------------------------------------------------------

_LF: Final = ["a", "b", "ab", " ", "\t", "\n", "\n", "$1", "\\n"]
_MIXED: Final = ["a", "b", "\n", "\r\n", "\n", "\r\n", "\rc"]
_ODD: Final = ["a", "é", "\u2028", "\x85", "\f", "\x0b", "\x1c", "\n", "😀", "e\u0301"]
_RAW: Final = [b"a", b"\xe9", b"\xff", b"\xc3\xa9", b"\xc3", b"\x80", b"\n", b"\xed\xa0\x80"]


def _text(dice: random.Random, units: Sequence[str], size_max: int) -> str:
    return "".join(dice.choice(units) for _ in range(dice.randint(1, size_max)))


def _old(dice: random.Random, pieces: Sequence[str], units: Sequence[str]) -> str:
    """Mostly a part of the file, at times with other line endings."""
    if dice.random() < 0.2:
        return _text(dice, units, 4)
    first = dice.randrange(len(pieces))
    part = "".join(pieces[first : first + dice.randint(1, 6)])
    style = dice.choice(("as it is", "as it is", "\n", "\r\n"))
    if style != "as it is":
        part = part.replace("\r\n", "\n").replace("\n", style)
    return part


def _texts(seed: int, units: Sequence[str]) -> Iterator[Case]:
    dice = random.Random(seed)
    while True:
        pieces = [dice.choice(units) for _ in range(dice.randint(1, 30))]
        old = _old(dice, pieces, units)
        new = "" if dice.random() < 0.15 else _text(dice, units, 5)
        yield Case("".join(pieces).encode(), old, new, dice.random() < 0.5)


def _bytes(seed: int) -> Iterator[Case]:
    dice = random.Random(seed)
    units = ["a", "é", "\n", "aé", "é\n"]
    while True:
        pieces = [dice.choice(_RAW) for _ in range(dice.randint(2, 40))]
        old, new = _text(dice, units, 2), _text(dice, units, 4)
        # The first byte keeps it from looking like the mark of another encoding.
        yield Case(b"a" + b"".join(pieces), old, new, dice.random() < 0.6)


def _many(seed: int) -> Iterator[Case]:
    """Files in which there are dozens of matches."""
    dice = random.Random(seed)
    while True:
        ending = dice.choice(("\n", "\r\n"))
        lines = [dice.choice(("x", "x y", "yx", "")) for _ in range(dice.randint(8, 160))]
        old = dice.choice(("x", "y", "x\n", "\nx", "x y"))
        yield Case(ending.join(lines).encode(), old, "z\nz", dice.random() < 0.6)


def _judgeable(case: Case) -> bool:
    """Whether the contract says what must come of the case."""
    units = _folded(_units(case.old.encode()))
    cr_at_an_end = units[0] == b"\r" or units[-1] == b"\r"
    beside = b"\r\n" in b"".join(units) or b"\n\r" in b"".join(units)
    if cr_at_an_end or beside:
        return False
    if case.old != case.new and units == _folded(_units(case.new.encode())):
        return False
    try:
        wanted(case)
    except _Silent:
        return False
    return True


async def _agrees(place: Place, cases: Iterator[Case]) -> None:
    made = 0
    while made < CASES:
        case = next(cases)
        if not _judgeable(case):
            continue
        made += 1
        try:
            await _judge(place, case, typed=made % 2 == 0)
        except Broken as broken:
            texts = f"{case.old!a} by {case.new!a}, replaceAll {case.replace_all}"
            raise Broken(f"{broken} ({texts}, in {case.data!r})") from None


async def _judge(place: Place, case: Case, *, typed: bool) -> None:
    path = await place.put("f", case.data)
    if typed:
        result = await place.call_typed(
            tool_pb2.EditInput(
                path=path, old_text=case.old, new_text=case.new, replace_all=case.replace_all
            )
        )
    else:
        result = await place.edit("f", case.old, case.new, replaceAll=case.replace_all)
    want = wanted(case)
    expect.equal(await place.content("f"), _answer(result, case, want, path), "the file afterwards")


def _answer(result: tool_pb2.ToolResult, case: Case, want: Wanted, path: str) -> bytes:
    """The file's bytes as they must be, once the result was found to be right."""
    count = len(want.lines)
    if case.old == case.new:
        expect.refused(result, "IDENTICAL_TEXT")
    elif not count:
        expect.refused(result, "NO_MATCH")
        expect.says(result.text, f"Could not find oldText in {path}. Check whitespace")
    elif not case.replace_all and want.overlaps and count == 1:
        expect.refused(result, "SEVERAL_MATCHES")
    elif not case.replace_all and count > 1:
        expect.refused(result, "SEVERAL_MATCHES")
        if not want.overlaps:
            start = f"oldText matches {count} places in {path} (lines {_named(want.lines)}). "
            expect.equal(result.text[: len(start)], start, "start of the text")
            _facts(result, want)
    else:
        lines = f"line{'' if count == 1 else 's'} {_named(want.lines)}"
        replaced = f"{count} replacement{'' if count == 1 else 's'}"
        expect.fine(result, f"Edited {path}: {replaced} at {lines}.")
        _facts(result, want)
        return want.data
    return case.data


def _facts(result: tool_pb2.ToolResult, want: Wanted) -> None:
    expect.equal(result.edit.replacements, len(want.lines), "details.replacements")
    expect.equal(list(result.edit.lines), list(want.lines[:LINES_KEPT_MAX]), "details.lines")


# --- Rules ---------------------------------------------------------------------


@rule("edit.reference-lf", cases=["D1", "E1", "E12", "E18", "E26"])
async def reference_lf(place: Place) -> None:
    """In LF files, generated edits do just what the contract says."""
    await _agrees(place, _texts(1, _LF))


@rule("edit.reference-crlf", cases=["D2", "E2", "E26"])
async def reference_crlf(place: Place) -> None:
    """In CRLF files, generated edits do just what the contract says."""
    await _agrees(place, _texts(2, ["a", "b", "\r\n", "\t"]))


@rule("edit.reference-mixed", cases=["D2", "E2", "E3", "E4"])
async def reference_mixed(place: Place) -> None:
    """In files of both line endings and lone CRs, no byte outside a match changes."""
    await _agrees(place, _texts(3, _MIXED))


@rule("edit.reference-bom", cases=["D2", "E5"])
async def reference_bom(place: Place) -> None:
    """In files with a byte order mark, generated edits keep it and match without it."""
    cases = _texts(4, ["a", "b", "\n", "\r\n"])
    mark = "\ufeff".encode()
    marked = (Case(mark + case.data, case.old, case.new, case.replace_all) for case in cases)
    await _agrees(place, marked)


@rule("edit.reference-unicode", cases=["D3", "E12", "E27", "R12"])
async def reference_unicode(place: Place) -> None:
    """Characters that other tools take for line ends or for each other are characters."""
    await _agrees(place, _texts(5, _ODD))


@rule("edit.reference-bytes", cases=["D3", "E6"])
async def reference_bytes(place: Place) -> None:
    """In files that are not UTF-8, generated edits keep every other byte."""
    await _agrees(place, _bytes(6))


@rule("edit.reference-many", cases=["D2", "E12", "E26", "contract 9"])
async def reference_many(place: Place) -> None:
    """Of dozens of matches, count, lines and bytes are right."""
    await _agrees(place, _many(7))
