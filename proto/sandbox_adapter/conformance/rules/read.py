"""Rules on read that vectors cannot say: pages, facts, great and changing files (1.A)."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shlex
from dataclasses import dataclass
from typing import Final

from sandbox_adapter import errors
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import ISOLATED, SIX_TOOLS, rule
from sandbox_adapter.v1 import tool_pb2

LINES_MAX: Final = 2_000
"""Most lines that one read shows (contract.md 5)."""
BYTES_MAX: Final = 51_200
"""Most bytes of lines, line feeds included, that one read shows (contract.md 5)."""
PAGES_MAX: Final = 100
"""Pages after which a rule stops following offsets."""
GROWING_LINE: Final = "a line of a log"
GROWTHS_SEEN: Final = 4
"""Different totals after which a rule has seen a file grow."""
GREAT_BYTES: Final = 1024 * 1024 * 1024
"""Size of the sparse file that must be streamed: held as bytes and as text, it is more than
a default sandbox has of memory."""


@dataclass(frozen=True)
class _Window:
    """What read must answer, by a reference as plain as can be."""

    text: str
    first: int
    last: int
    total: int
    follows: bool


def _reference(data: bytes, offset: int, limit: int) -> _Window:
    """Expects UTF-8 whose lines fit the budget, and an offset within the file."""
    lines = data.decode().split("\n")
    ends = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    body, last = "", offset - 1
    for line in ends[offset - 1 :][: min(limit, LINES_MAX)]:
        if len((body + line).encode()) > BYTES_MAX:
            break
        body, last = body + line, last + 1
    follows = last < len(ends)
    if follows:
        body += (
            f"[Showing lines {offset}-{last} of {len(ends)}. Use offset={last + 1} to continue.]"
        )
    return _Window(body, offset, last, len(ends), follows)


def _sample(numbers: random.Random, lines: int, width: int, *, closed: bool) -> bytes:
    alphabet = 'ab \t"\\$%\f\v\x1c\x85é€\u2028😀[]0'
    text = "\n".join(
        "".join(numbers.choices(alphabet, k=numbers.randint(0, width))) for _ in range(lines)
    )
    # A last line of its own, so that every sample ends the way that it says.
    return (text + "\nend" + ("\n" if closed else "")).encode()


@rule("read.facts-match-a-reference", cases=["R1", "R6", "R10", "R12", "contract 4", "contract 6"])
async def facts_match_a_reference(place: Place) -> None:
    """Text, totals and details are what a plain reference makes of the same bytes."""
    numbers = random.Random(20)
    for number, (lines, width, closed) in enumerate(
        [(3, 8, True), (40, 30, False), (700, 200, True), (2_600, 12, False)]
    ):
        data = _sample(numbers, lines, width, closed=closed)
        name = f"f{number}"
        await place.put(name, data)
        total = data.count(b"\n") + (not closed)
        windows = [(1, LINES_MAX), (total, 1), (numbers.randint(1, total), 5_000)]
        windows += [
            (numbers.randint(1, total), numbers.randint(1, total)),
            (max(1, total - 2), 2),
        ]
        for offset, limit in windows:
            result = expect.fine(await place.read(name, offset=offset, limit=limit))
            _compare(result, data, _reference(data, offset, limit))


def _compare(result: tool_pb2.ToolResult, data: bytes, wanted: _Window) -> None:
    expect.equal(result.text, wanted.text, f"text from line {wanted.first}")
    expect.ending_is(result, "COMPLETED")
    expect.equal(result.lines_total, wanted.total, "lines_total")
    expect.equal(result.bytes_total, len(data), "bytes_total")
    expect.equal(result.read.first_line, wanted.first, "first_line")
    expect.equal(result.read.last_line, wanted.last, "last_line")
    expect.equal(result.read.total_exact, True, "total_exact")
    expect.equal(result.read.replaced_bytes, False, "replaced_bytes")
    expect.equal(result.read.HasField("next_offset"), wanted.follows, "whether there is a next")
    if wanted.follows:
        expect.equal(result.read.next_offset, wanted.last + 1, "next_offset")
    # Whether a window that begins later and reaches the end holds less is a matter of words.
    if wanted.follows or wanted.first == 1:
        expect.equal(result.truncated, wanted.follows, "truncated")


@rule("read.pages-make-the-file", cases=["R6"])
async def pages_make_the_file(place: Place) -> None:
    """Following the offsets shows every line once, in order."""
    lines = [f"line {number}" for number in range(1, 101)]
    await place.put("f", "\n".join(lines) + "\n")
    seen: list[str] = []
    offset = 1
    while True:
        result = expect.fine(await place.read("f", offset=offset, limit=7))
        seen += result.text.split("\n")[: result.read.last_line - result.read.first_line + 1]
        if not result.read.HasField("next_offset"):
            break
        expect.equal(result.read.next_offset, result.read.last_line + 1, "next offset")
        offset = result.read.next_offset
    expect.equal(seen, lines, "the lines of all pages")


@rule("read.pages-by-size", cases=["R6", "R7", "R10"])
async def pages_by_size(place: Place) -> None:
    """Pages that the budget cuts have neither gap nor overlap, beside long lines too."""
    full = "f" * BYTES_MAX
    middle = ["é" * 9_000, "", "x" * 60_000, "", "y" * 51_201, "z" * 20_000, full, "w"]
    lines = [f"{number} " + "€" * 300 for number in range(150)] + middle
    await place.put("f", "\n".join(lines) + "\n")
    seen: list[str] = []
    offset = 1
    for _ in range(PAGES_MAX):
        result = expect.fine(await place.read("f", offset=offset))
        facts = result.read
        expect.equal(facts.first_line, offset, "first_line")
        count = facts.last_line - facts.first_line + 1
        shown = result.text.split("\n")[:count]
        expect.holds(len(shown) == count, f"fewer lines than {count} in the text")
        seen += shown
        if not facts.HasField("next_offset"):
            break
        expect.equal(facts.next_offset, facts.last_line + 1, "next offset")
        expect.says(result.text.rpartition("\n")[2], f"Use offset={facts.next_offset} to continue")
        offset = facts.next_offset
    expect.equal(len(seen), len(lines), "lines of all pages")
    for number, (line, wanted) in enumerate(zip(seen, lines, strict=True), 1):
        expect.equal(line, wanted[:BYTES_MAX], f"line {number}")


@rule("read.characters-across-blocks", cases=["R9", "R15", "R24"])
async def characters_across_blocks(place: Place) -> None:
    """No character is broken where the reader's blocks meet, and no line is miscounted."""
    # Lines of 11 bytes: characters of 3 bytes fall on every boundary of a power of two.
    count = 200_000
    await place.put("f", "x" + "€€€\n" * count)
    for offset in (1, 6_552, 23_831, 95_324, 190_649, count):
        result = expect.fine(await place.read("f", offset=offset, limit=3))
        first = "x€€€\n" if offset == 1 else "€€€\n"
        shown = first + "€€€\n" * (min(offset + 2, count) - offset)
        expect.equal(result.text[: len(shown)], shown, f"text from line {offset}")
        expect.equal(result.lines_total, count, "lines_total")
        expect.equal(result.read.replaced_bytes, False, "replaced_bytes")
    first_page = expect.fine(await place.read("f"))
    expect.holds("\ufffd" not in first_page.text, "a whole character became U+FFFD")


@rule("read.late-nul", cases=["R17", "contract 4"])
async def late_nul(place: Place) -> None:
    """NUL behind the first 8 KB never reaches a text: the file is refused or NUL is replaced."""
    await place.put("f", "text\n" * 2_000 + "a\0b\n" * 3)
    result = await place.read("f", offset=2_001)
    if result.is_error:
        expect.refused(result, "BINARY_FILE")
        return
    # That no text holds NUL is checked of every result.
    expect.equal(result.text.count("\n"), 3, "lines of the text")
    expect.equal(result.lines_total, 2_003, "lines_total")


_IMAGES: Final = {
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0", ("png",)),
    "jpeg": (b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0", ("jpeg", "jpg")),
    "gif": (b"GIF89a\x01\0\x01\0\x80\0\0\xff\xff\xff\0\0\0!", ("gif",)),
}
_PROGRAMS: Final = {
    "elf": b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0>\0",
    "zip": b"PK\x03\x04\x14\0\0\0\x08\0\0\0!\0",
    "gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\x03KL\0\0",
}


@rule("read.content-tells-the-type", cases=["R17", "R18", "contract 9"])
async def content_tells_the_type(place: Place) -> None:
    """An image is known by its first bytes whatever its name says, and refused with its type."""
    for kind, (data, words) in _IMAGES.items():
        for name in (f"{kind}.txt", f"{kind}.json", kind):
            path = await place.put(name, data)
            result = expect.refused(await place.read(name), "BINARY_FILE")
            told = re.fullmatch(
                rf"{re.escape(path)} is a binary file \({len(data)} bytes, ([^\n]+)\)\. "
                r"Use bash with file, xxd or strings to inspect it\.",
                result.text,
            )
            if told is None:
                raise Broken(f"the text names no type: {expect.shown(result.text)}")
            named = told[1].casefold()
            expect.holds(any(word in named for word in words), f"a {kind} image is told as {named}")


@rule("read.programs-are-binary", cases=["R17", "R19"])
async def programs_are_binary(place: Place) -> None:
    """Programs and archives called `.txt` or `.ts` are refused as binary, with their size."""
    for kind, data in _PROGRAMS.items():
        for name in (f"{kind}.txt", f"{kind}.ts"):
            await place.put(name, data)
            result = expect.refused(await place.read(name), "BINARY_FILE")
            expect.says(result.text, place.at(name), f"({len(data)} bytes")


@rule("read.not-a-number", cases=["R5"])
async def not_a_number(place: Place) -> None:
    """NaN and infinity are no line numbers: refused, never taken as some line."""
    path = json.dumps(await place.put("f", "a\nb\n"))
    for field in ("offset", "limit"):
        for value in ("NaN", "Infinity", "-Infinity", "1e999"):
            try:
                result = await place.call_json("read", f'{{"path": {path}, "{field}": {value}}}')
            except errors.InvalidRequest:
                # They are no JSON; an adapter may refuse the envelope.
                continue
            expect.refused(result, "INVALID_INPUT")


@rule("read.total-is-of-now", cases=["R35"])
async def total_is_of_now(place: Place) -> None:
    """A file that changed between two pages is reported as it is at each."""
    await place.put("f", "old\n" * 10)
    first = expect.fine(await place.read("f", limit=4))
    expect.equal(first.lines_total, 10, "lines_total")
    await place.put("f", "longer\n" * 20)
    second = expect.fine(await place.read("f", offset=first.read.next_offset, limit=4))
    marker = "[Showing lines 5-8 of 20. Use offset=9 to continue.]"
    expect.equal(second.text, "longer\n" * 4 + marker, "the second page")
    await place.put("f", "s\n")
    third = await place.read("f", offset=9)
    gone = "Offset 9 is beyond the end of the file (1 line)."
    expect.refused(third, "OFFSET_BEYOND_END", gone)


@rule("read.growing-file", cases=["R23", "R35"])
async def growing_file(place: Place) -> None:
    """A file that grows all the time is read to an end, with totals that only rise."""
    await place.require("yes", "head")
    await place.put("f", f"{GROWING_LINE}\n" * LINES_MAX)
    # At most 16 MiB, in case `stop` never comes.
    writer = asyncio.create_task(
        place.bash_here(
            "i=0; while [ ! -e stop ] && [ $i -lt 1000 ]; do i=$((i + 1)); "
            f"yes '{GROWING_LINE}' | head -n 1000 >> f; done",
            timeout=50,
        )
    )
    totals = [LINES_MAX]
    try:
        while len(set(totals)) < GROWTHS_SEEN and not writer.done():
            totals.append(await _total_of_growing(place))
    finally:
        try:
            await place.put("stop", "")
        finally:
            await asyncio.gather(writer, return_exceptions=True)
    expect.fine(await writer)
    expect.equal(totals, sorted(totals), "lines_total of each read")
    if len(set(totals)) == 1:
        raise Uncheckable("the file did not grow while it was read")


async def _total_of_growing(place: Place) -> int:
    result = expect.fine(await place.read("f"))
    total = result.lines_total
    marker = f"[Showing lines 1-2000 of {total}. Use offset=2001 to continue.]"
    wanted = f"{GROWING_LINE}\n" * LINES_MAX + (marker if total > LINES_MAX else "")
    expect.equal(result.text, wanted, "text")
    return total


@rule("read.kernel-file", cases=["R23"], needs=[SIX_TOOLS, ISOLATED])
async def kernel_file(place: Place) -> None:
    """A file of the kernel, whose size is told as zero, is shown and not called empty."""
    shown = []
    for path in ("/proc/version", "/proc/cpuinfo", "/proc/self/status", "/proc/meminfo"):
        result = await place.call("read", {"path": path})
        if not result.is_error:
            shown.append(path)
            expect.holds(result.text != "[File is empty]", f"{path} is told as empty")
            expect.holds(result.lines_total >= 1, f"{path}: lines_total {result.lines_total}")
            expect.holds(result.bytes_total >= 1, f"{path}: bytes_total {result.bytes_total}")
    if not shown:
        raise Uncheckable("no such file of the kernel can be read")


@rule("read.great-file", cases=["R24", "contract 6"], harmful=True, timeout_s=120.0)
async def great_file(place: Place) -> None:
    """A file of 1 GiB is streamed: its first line is shown, its lines are counted."""
    line = "fifteen letters\n"
    await place.put("f", line * 1_000)
    blocks = GREAT_BYTES // (1024 * 1024)
    # A hole costs no disk; the 8 KB that are looked at for NUL are text.
    await place.shell(
        f"cd {shlex.quote(place.folder)} && dd if=/dev/null of=f bs=1048576 seek={blocks} && "
        "printf '\\nend\\n' >> f"
    )
    result = expect.fine(await place.read("f", limit=1))
    total = result.lines_total
    least = "" if result.read.total_exact else "at least "
    expect.equal(
        result.text,
        f"{line}[Showing lines 1-1 of {least}{total}. Use offset=2 to continue.]",
        "text",
    )
    if result.read.total_exact:
        expect.equal(total, 1_002, "lines_total")
        expect.equal(result.bytes_total, GREAT_BYTES + 5, "bytes_total")
