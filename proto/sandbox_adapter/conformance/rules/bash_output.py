"""Rules on what is shown of a command's output that vectors cannot say (tool-cases B23 to B32)."""

from __future__ import annotations

import asyncio
import re
import shlex
from typing import Final

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.v1 import tool_pb2

LINES_MAX: Final = 2_000
BYTES_MAX: Final = 51_200
"""What is shown of output at most (contract.md 5)."""
MEGABYTES: Final = 100
SLOW_S: Final = 240.0
"""Time for rules that move much output, on slow machines."""

_CUT: Final = re.compile(
    r"\[Showing the last (?P<shown>\d+) of (?P<lines>\d+) lines? "
    r"\((?P<bytes>\d+) of (?P<total>\d+) bytes?\)\."
    r"(?: Full output: (?P<path>/[^\n]+?)(?: \(first (?P<first>\d+) bytes? of it\))?)?\]"
)


def tail_of(output: str) -> str:
    """What must be shown of clean output: whole lines from its end within both bounds.

    The output ends with a line feed.
    """
    lines = re.findall("[^\n]*\n", output)
    shown: list[str] = []
    size = 0
    for line in reversed(lines[-LINES_MAX:]):
        size += len(line.encode())
        if size > BYTES_MAX:
            break
        shown.append(line)
    return "".join(reversed(shown))


def cut(result: tool_pb2.ToolResult, output: str) -> re.Match[str]:
    """Checks a cut result against the whole output; the parts of its first line."""
    expect.fine(result)
    head, _, text = result.text.partition("\n")
    parts = _CUT.fullmatch(head)
    if parts is None:
        expect.holds(False, f"first line of cut output: {expect.shown(head)}")
        raise AssertionError
    expected = tail_of(output)
    expect.equal(text, expected, "output shown")
    counts = (
        expected.count("\n"),
        output.count("\n"),
        len(expected.encode()),
        len(output.encode()),
    )
    said = tuple(int(parts[name]) for name in ("shown", "lines", "bytes", "total"))
    expect.equal(said, counts, "numbers of the first line")
    facts = (result.truncated, result.lines_total, result.bytes_total)
    expect.equal(facts, (True, counts[1], counts[3]), "truncated, lines_total, bytes_total")
    expect.equal(result.spill_path, parts["path"] or "", "spill_path")
    return parts


@rule("bash.cut-where-the-first-bound-says", cases=["B27", "D6", "contract 5"])
async def cut_where_the_first_bound_says(place: Place) -> None:
    """Whichever bound comes first cuts, at a whole line, and all numbers are true."""
    for width in (1, 24, 25, 26, 300, 51_199):
        count = 2_100 if width < 1_000 else 3
        pad = "x" * width
        result = await place.bash(
            f"l={pad}; i=0; while [ $i -lt {count} ]; do echo $l; i=$((i+1)); done"
        )
        cut(result, f"{pad}\n" * count)


@rule("bash.cut-of-wide-characters", cases=["B27", "B28", "contract 5"])
async def cut_of_wide_characters(place: Place) -> None:
    """The bound is of bytes of UTF-8 and not of characters."""
    line = "ä€🙂" * 11
    script = f"l={line}; i=0; while [ $i -lt 1900 ]; do echo $l; i=$((i+1)); done"
    cut(await place.bash(script), f"{line}\n" * 1_900)


@rule("bash.characters-split-between-writes", cases=["B28", "sandbox 27"])
async def characters_split_between_writes(place: Place) -> None:
    """A character, an escape sequence and a line end written in pieces come out whole."""
    pieces = {
        (r"\360", r"\237\231\202\n"): "🙂\n",
        (r"\360\237", r"\231\202\n"): "🙂\n",
        (r"\360\237\231", r"\202\n"): "🙂\n",
        (r"\342", r"\202", r"\254\n"): "€\n",
        (r"a\303", r"\244b\n"): "aäb\n",
        (r"\033", r"[31mred\033[", r"0m\n"): "red\n",
        (r"\033]0;ti", r"tle\007", r"text\n"): "text\n",
        (r"\033]0;title\033", r"\134text\n"): "text\n",
        (r"10%%\r", r"20%%\r", r"30%%\n"): "30%\n",
        (r"dos\r", r"\n"): "dos\n",
    }

    await place.require("sleep")

    async def one(parts: tuple[str, ...], text: str) -> None:
        script = "; sleep 0.2; ".join(f"printf '{part}'" for part in parts)
        expect.exited(await place.bash(script), 0, text)

    for start in range(0, len(pieces), 5):
        some = list(pieces.items())[start : start + 5]
        await asyncio.gather(*(one(parts, text) for parts, text in some))


@rule("bash.characters-across-any-boundary", cases=["B28", "B24", "sandbox 27", "sandbox 31"])
async def characters_across_any_boundary(place: Place) -> None:
    """Wherever reading splits a flood of characters of four bytes, none is damaged."""
    await place.make_folder()
    for shift in range(4):
        data = "a" * shift + "🙂" * 12_000 + "\n"
        await place.put(f"f{shift}", data * 12)
        await place.require("cat")
        result = await place.bash(f"cat {shlex.quote(place.at(f'f{shift}'))}")
        expect.fine(result)
        expect.equal(result.bytes_total, len(data.encode()) * 12, "bytes_total")
        expect.equal(result.text.partition("\n")[2], data, "output shown")


@rule("bash.no-control-character-is-left", cases=["B30", "B31", "contract 4"])
async def no_control_character_is_left(place: Place) -> None:
    """Of U+0001 to U+001F only tab, line feed and carriage return reach the text."""
    for code in range(1, 32):
        if chr(code) in "\t\n\r":
            continue
        result = await place.bash(f"printf 'text before \\{code:03o} and text behind it\\n'")
        expect.fine(result)
        expect.holds(chr(code) not in result.text, f"\\x{code:02x} stands in the text")
        if code != 0x1B:
            expect.holds(
                result.text.startswith("text before"), f"\\x{code:02x} took what was before"
            )
            expect.holds(
                result.text.endswith("text behind it\n"), f"\\x{code:02x} took what follows"
            )


@rule("bash.progress-flood-shows-its-end", cases=["B32", "B24"])
async def progress_flood_shows_its_end(place: Place) -> None:
    """A progress bar of hundreds of kilobytes leaves its last state and the lines around it."""
    script = (
        "echo start; i=0; while [ $i -lt 8000 ]; do "
        "printf '\\rprogress of a long download %d' $i; i=$((i+1)); done; echo; echo end"
    )
    result = await place.bash(script)
    expect.fine(result)
    body = result.text.split("\n")
    expect.equal(body[-3:], ["progress of a long download 7999", "end", ""], "last lines")
    numbers = sum(len(str(i)) for i in range(8_000))
    total = len("start\n\nend\n") + 8_000 * len("\rprogress of a long download ") + numbers
    expect.equal((result.bytes_total, result.lines_total), (total, 3), "totals")


@rule(
    "bash.output-of-100-megabytes",
    cases=["B24", "sandbox 23", "sandbox 30"],
    alone=True,
    timeout_s=SLOW_S,
)
async def output_of_100_megabytes(place: Place) -> None:
    """Of 100 MB of output every byte is counted, and the end is shown."""
    row, rows = "123456789\n", MEGABYTES * 100_000
    script = f"yes 123456789 | head -n {rows}; echo 'the end'"
    await place.require("yes", "head")
    result = await place.bash(script, timeout=120)
    expect.ending_is(result, "EXITED")
    expect.equal(result.bytes_total, MEGABYTES * 1_000_000 + 8, "bytes_total")
    expect.equal(result.lines_total, rows + 1, "lines_total")
    shown = result.text.partition("\n")[2]
    expect.equal(shown, row * (LINES_MAX - 1) + "the end\n", "output shown")


# --- The file with the whole output -----------------------------------------------------


@rule("bash.spill-holds-the-whole-output", cases=["B25", "sandbox 35", "contract 9"])
async def spill_holds_the_whole_output(place: Place) -> None:
    """The file that a cut names holds the whole output and can be read with offsets."""
    await place.require("seq", "cat")
    output = "".join(f"{number}\n" for number in range(1, 30_001))
    result = await place.bash("seq 1 30000")
    if cut(result, output)["path"] is None:
        raise Uncheckable("the adapter keeps no whole output")
    expect.equal(result.bash.spill_bytes, len(output), "spill_bytes")
    path = result.spill_path
    first = await place.call("read", {"path": path, "offset": 12_000, "limit": 2})
    expect.holds(first.text.startswith("12000\n12001\n"), f"read: {expect.shown(first.text)}")
    expect.equal(first.lines_total, 30_000, "lines that read counts in the file")
    copy = shlex.quote(place.at("copy"))
    await place.bash_here(f"cat {shlex.quote(path)} > {copy}")
    expect.equal(await place.content("copy"), output.encode(), "content of the file")


@rule("bash.spill-is-outside-the-workspace", cases=["B25"])
async def spill_is_outside_the_workspace(place: Place) -> None:
    """Files with whole outputs lie where searches of the workspace do not find them."""
    await place.require("seq")
    result = await place.bash("seq 1 30000")
    if not result.spill_path:
        raise Uncheckable("the adapter keeps no whole output")
    inside = result.spill_path.startswith(place.workdir.rstrip("/") + "/")
    expect.holds(not inside, f"{result.spill_path} lies in the working directory")
    other = await place.bash("seq 1 30000")
    expect.holds(other.spill_path != result.spill_path, "two commands share a file")


@rule("bash.nothing-cut-nothing-spilled", cases=["B25"])
async def nothing_cut_nothing_spilled(place: Place) -> None:
    """Output that is shown whole names no file."""
    await place.require("seq")
    for command in ("true", "seq 1 2000", "exit 3"):
        result = await place.bash(command)
        expect.equal((result.truncated, result.spill_path), (False, ""), "truncated, spill_path")
        expect.holds(not result.bash.HasField("spill_bytes"), "spill_bytes is set")


@rule("bash.spill-is-capped", cases=["B25", "B24", "contract 5"], alone=True, timeout_s=SLOW_S)
async def spill_is_capped(place: Place) -> None:
    """The file of a flood ends at its bound, and the first line says so."""
    await place.require("seq", "wc")
    most = place.bound("spill_bytes_max")
    if most > 64 * 1024 * 1024:
        raise Uncheckable(f"an output of more than {most} bytes would be needed")
    rows = most // 8 + 100_000
    result = await place.bash(f"seq 10000000 {10_000_000 + rows - 1}", timeout=60)
    parts = _CUT.fullmatch(result.text.partition("\n")[0])
    expect.holds(parts is not None, f"first line: {expect.shown(result.text)}")
    if parts is None or parts["path"] is None:
        raise Uncheckable("the adapter keeps no whole output")
    expect.equal(result.bytes_total, rows * 9, "bytes_total")
    expect.equal((parts["first"], result.bash.spill_bytes), (str(most), most), "bytes kept")
    size = await place.bash(f"wc -c < {shlex.quote(result.spill_path)}")
    expect.equal(size.text.strip(), str(most), "size of the file")
    await _spills_stay_below_their_total(place, rows, result.spill_path)


async def _spills_stay_below_their_total(place: Place, rows: int, oldest: str) -> None:
    total = place.target.limits.spill_total_bytes_max
    most = place.target.limits.spill_bytes_max
    if total <= 0 or total > 8 * most:
        return
    paths = [oldest]
    for _ in range(total // most):
        later = await place.bash(f"seq 10000000 {10_000_000 + rows - 1}", timeout=60)
        paths.append(later.spill_path)
    kept = [path for path in paths if path and await _is_there(place, path)]
    expect.holds(oldest not in kept, "the oldest file outlives the bound of all")
    expect.holds(paths[-1] in kept, "the newest file is gone")


async def _is_there(place: Place, path: str) -> bool:
    return (await place.bash(f"[ -e {shlex.quote(path)} ]")).exit_code == 0
