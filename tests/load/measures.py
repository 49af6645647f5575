"""What the daemon must get right ten thousand times, and in files of gigabytes.

Each function runs against an open session and raises `AssertionError` where one answer
is wrong. `run.py` runs them in full; the integration tests run them in small.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.v1 import tool_pb2

PARALLEL = 16
LINE = "{:011d} abcdefghijklmnopqrstuvwxyz 0123456789 ABCDEFGHIJ\n"
LINE_BYTES = len(LINE.format(0))
_FIXTURE_S = 1_800.0

Done = Callable[[int], None]
"""Told how many more are done."""


@dataclass(frozen=True)
class Bench:
    """An open session. `memory` gives the bytes that daemon and guest hold in memory."""

    client: AdapterClient
    session_id: str
    memory: Callable[[], dict[str, int]]

    async def tool(self, name: str, **arguments: object) -> tool_pb2.ToolResult:
        answer = await self.client.call_tool(self.session_id, name, arguments)
        return answer.result

    async def make(self, command: str) -> None:
        """Makes a fixture, however long it takes."""
        result = await self.tool("bash", command=command, timeout=_FIXTURE_S)
        assert result.exit_code == 0, result.text


async def in_parallel(
    range_: range, work: Callable[[int], Awaitable[None]], done: Done, callers: int = PARALLEL
) -> None:
    """Does the work of every number, as many at a time as there are callers."""
    numbers = iter(range_)

    async def worker() -> None:
        for number in numbers:
            await work(number)
            done(1)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(worker())


async def exact_codes(bench: Bench, count: int, done: Done) -> None:
    """Short commands with an output and a code: none lost, none mixed up."""

    async def one(number: int) -> None:
        code = number % 7
        result = await bench.tool("bash", command=f"printf x{number}; exit {code}")
        ending = f"\n[Command exited with code {code}]" if code else ""
        assert result.text == f"x{number}{ending}", (number, result.text)
        assert (result.exit_code, result.ending) == (code, tool_pb2.ENDING_EXITED), number
        assert result.bytes_total == len(f"x{number}"), number

    await in_parallel(range(count), one, done)


async def exit_three(bench: Bench, count: int, done: Done) -> None:
    """The same command each time: `printf x; exit 3`."""

    async def one(number: int) -> None:
        result = await bench.tool("bash", command="printf x; exit 3")
        assert result.text == "x\n[Command exited with code 3]", (number, result.text)
        assert (result.exit_code, result.ending) == (3, tool_pb2.ENDING_EXITED), number

    await in_parallel(range(count), one, done)


async def parallel_edits(bench: Bench, count: int, done: Done) -> None:
    """Small edits of few files by sixteen callers: each takes effect, none takes another's."""
    files = 8
    slots = -(-count // files)
    before = "".join(f"slot {number:05d} is open\r\n" for number in range(slots))
    for number in range(files):
        await bench.tool("write", path=f"edits/{number}", content=before)

    async def one(number: int) -> None:
        name, slot = number % files, number // files
        result = await bench.tool(
            "edit",
            path=f"edits/{name}",
            oldText=f"slot {slot:05d} is open\n",
            newText=f"slot {slot:05d} was taken by {number}\n",
        )
        assert not result.is_error, (number, result.text)
        assert list(result.edit.lines) == [slot + 1], (number, list(result.edit.lines))

    await in_parallel(range(count), one, done)
    for name in range(files):
        parts = bytearray()
        async with bench.client.files.read(bench.session_id, f"edits/{name}") as reader:
            async for data in reader:
                parts += data
        wanted = "".join(
            f"slot {slot:05d} was taken by {number}\r\n"
            if (number := slot * files + name) < count
            else f"slot {slot:05d} is open\r\n"
            for slot in range(slots)
        )
        assert bytes(parts) == wanted.encode(), f"file {name} differs"


async def pages_of_a_big_file(bench: Bench, size_bytes: int, done: Done) -> dict[str, float]:
    """First, middle and last page of a file, and the growth of memory in MiB by process."""
    lines = size_bytes // LINE_BYTES
    await bench.make(
        # awk writes the lines faster than any loop of the shell.
        f"mkdir -p big && awk 'BEGIN {{ for (i = 1; i <= {lines}; i++) "
        'printf "%011d abcdefghijklmnopqrstuvwxyz 0123456789 ABCDEFGHIJ\\n", i }\' > big/f'
    )
    before = bench.memory()
    seconds: dict[str, float] = {}
    for name, offset in (("first", 1), ("middle", lines // 2), ("last", lines - 99)):
        begun = time.monotonic()
        result = await bench.tool("read", path="big/f", offset=offset, limit=100)
        seconds[f"{name} page, s"] = round(time.monotonic() - begun, 2)
        last = offset + 99
        wanted = "".join(LINE.format(number) for number in range(offset, last + 1))
        if last < lines:
            wanted += (
                f"[Showing lines {offset}-{last} of {lines}. Use offset={last + 1} to continue.]"
            )
        assert result.text == wanted, result.text[-300:]
        assert (result.lines_total, result.bytes_total) == (lines, lines * LINE_BYTES)
        done(1)
    past = await bench.tool("read", path="big/f", offset=lines + 1)
    assert past.text == f"Offset {lines + 1} is beyond the end of the file ({lines} lines)."
    grown = {
        f"growth of the {name}, MiB": round((size - before[name]) / 2**20, 1)
        for name, size in bench.memory().items()
    }
    for name, growth in grown.items():
        assert growth < 16, (name, growth)
    await bench.make("rm -r big")
    return {**seconds, **grown}


async def rare_word(bench: Bench, files: int, rounds: int, done: Done) -> dict[str, float]:
    """grep for a rare word against parallel ripgrep alone in the same container, in turn."""
    await bench.make(
        f"mkdir -p tree && cd tree && awk 'BEGIN {{ for (i = 0; i < {files}; i++) {{ "
        'd = sprintf("d%03d/e%02d", i % 211, i % 13); '
        'if (!(d in made)) { system("mkdir -p " d); made[d] = 1 } '
        'f = d "/f" i ".txt"; for (j = 0; j < 40; j++) '
        'print "some text of line", j, "in file", i, "with words that are common" > f; '
        f"if (i % {files // 10} == 7) "
        'print "here is the rarest-needle of all" > f; close(f) } }\''
    )
    rg = "/.sandboxd/toolbox/bin/rg"
    alone: list[float] = []
    through: list[float] = []
    for number in range(rounds + 1):
        # The time of ripgrep itself, without the start of a shell or the way to it.
        measured = await bench.tool(
            "bash",
            command="cd tree && a=$(date +%s%N) && "
            f"{rg} --no-config --hidden -n -e rarest-needle ./ </dev/null >/dev/null "
            "&& b=$(date +%s%N) && echo $((b - a))",
        )
        begun = time.monotonic()
        found = await bench.tool("grep", pattern="rarest-needle", path="tree")
        seconds = time.monotonic() - begun
        paths = [row.path for row in found.grep.matches]
        assert len(paths) == 10, found.text
        assert paths == sorted(paths, key=str.encode), "rows are not in the order of their paths"
        if number:  # the first round fills the page cache
            alone.append(int(measured.text) / 1e9)
            through.append(seconds)
        done(1)
    await bench.make("rm -r tree")
    ratios = [grep / rg for grep, rg in zip(through, alone, strict=True)]
    return {
        "ripgrep alone, median ms": round(statistics.median(alone) * 1e3, 1),
        "grep, median ms": round(statistics.median(through) * 1e3, 1),
        "ratio of medians": round(statistics.median(through) / statistics.median(alone), 3),
        "median of ratios": round(statistics.median(ratios), 3),
    }
