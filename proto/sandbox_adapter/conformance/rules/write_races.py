"""Rules on writes that meet others: readers, writes, a caller that leaves; and on size (1.B)."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import FILES, SIX_TOOLS, rule
from sandbox_adapter.conformance.rules.write import names
from sandbox_adapter.v1 import tool_pb2

ROUNDS: Final = 16
"""Replacements during which a reader must never see anything but a whole content."""
SMALL: Final = "s" * 70_000 + "\n"
GREAT: Final = "great\n" * 80_000
LOOK_S: Final = 0.01
"""Pause between two questions for a state."""
LOOK_S_MAX: Final = 30.0
"""Longest wait for a state."""


# --- Readers ---------------------------------------------------------------------


@asynccontextmanager
async def _watched(place: Place, each: str) -> AsyncIterator[asyncio.Task[tool_pb2.ToolResult]]:
    """Runs `each` in the place's folder again and again while the block runs.

    The task gives the distinct lines that it printed. The block is entered once the
    loop runs; the loop ends by itself after 20,000 turns.
    """
    await place.require("sort", "wc")
    script = (
        ": > begun; i=0; while [ ! -e stop ] && [ $i -lt 20000 ]; do i=$((i + 1)); "
        f"{each}; done | sort -u"
    )
    watcher = asyncio.create_task(place.bash_here(script, timeout=50))
    try:
        await _appears(place, "begun", watcher)
        yield watcher
    finally:
        try:
            await place.put("stop", "")
        finally:
            # Whoever wants its lines awaits it; here it must only have ended.
            await asyncio.gather(watcher, return_exceptions=True)


async def _appears(place: Place, name: str, of: asyncio.Task[tool_pb2.ToolResult]) -> None:
    deadline = time.monotonic() + LOOK_S_MAX
    while not await place.exists(name):
        if of.done() or time.monotonic() > deadline:
            await of
            raise Broken("a command that ran beside others did not begin")
        await asyncio.sleep(LOOK_S)


@rule("write.commands-see-whole-files", cases=["D4", "E29", "contract 6"])
async def commands_see_whole_files(place: Place) -> None:
    """A command that reads while a file is replaced sees one whole content or the other."""
    for name, content in (("f", SMALL), ("small", SMALL), ("great", GREAT)):
        await place.put(name, content)
    folder = shlex.quote(place.folder)
    counts = await place.shell(f"cd {folder} && wc < small && wc < great")
    async with _watched(place, "wc < f || echo missing") as watcher:
        for number in range(ROUNDS):
            expect.fine(await place.write("f", GREAT if number % 2 == 0 else SMALL))
    seen = (await watcher).text.splitlines()
    expect.holds(bool(seen), "the reader saw nothing")
    torn = sorted(set(seen) - set(counts.splitlines()))
    expect.holds(not torn, f"a reader saw what was never written (lines, words, bytes): {torn[:3]}")


@rule("write.reads-see-whole-files", cases=["D4", "W18", "contract 6"])
async def reads_see_whole_files(place: Place) -> None:
    """A read while a file is replaced shows one whole content or the other."""
    contents = ["short\n", "longer line\n" * 1_500]
    await place.put("f", contents[0])
    done = asyncio.Event()

    async def look() -> None:
        while not done.is_set():
            result = expect.fine(await place.read("f"))
            expect.holds(result.text in contents, f"torn: {expect.shown(result.text)}")

    async def replace() -> None:
        try:
            for number in range(ROUNDS):
                expect.fine(await place.write("f", contents[1 - number % 2]))
        finally:
            done.set()

    await asyncio.gather(replace(), look(), look())


@rule("write.streams-see-whole-files", cases=["D4", "contract 6"], needs=[SIX_TOOLS, FILES])
async def streams_see_whole_files(place: Place) -> None:
    """What FileService reads while a file is replaced is one whole content or the other."""
    await place.put("f", SMALL)
    whole = {SMALL.encode(), GREAT.encode()}
    done = asyncio.Event()

    async def look() -> None:
        while not done.is_set():
            data = await place.content("f")
            expect.holds(data in whole, f"torn: {len(data)} bytes")

    async def replace() -> None:
        try:
            for number in range(ROUNDS):
                expect.fine(await place.write("f", SMALL if number % 2 else GREAT))
        finally:
            done.set()

    await asyncio.gather(replace(), look())


@rule("write.no-name-beside-it", cases=["W21"])
async def no_name_beside_it(place: Place) -> None:
    """What a write needs beside the file is hidden from patterns, and gone afterwards."""
    await place.put("f", SMALL)
    async with _watched(place, "echo *") as watcher:
        for number in range(ROUNDS):
            expect.fine(await place.write("f", SMALL if number % 2 else GREAT))
    seen = {name for line in (await watcher).text.splitlines() for name in line.split()}
    expect.equal(seen - {"stop"}, {"begun", "f"}, "names that a pattern saw")
    expect.equal(await names(place), ["begun", "f", "stop"], "names in the folder")


# --- Other writes ----------------------------------------------------------------


async def _is_one_of(place: Place, name: str, contents: list[str]) -> None:
    data = await place.content(name)
    whole = any(data == content.encode() for content in contents)
    expect.holds(whole, f"none of the contents that were written: {expect.shown(data)}")


@rule("write.parallel-writes", cases=["W18", "W21"])
async def parallel_writes(place: Place) -> None:
    """Of writes to one file at once all succeed, one made it, and one whole content stays."""
    sizes = [1, 400_000, 70_000, 399_000, 300_000, 2, 500_000, 100_000]
    contents = [char * size for char, size in zip("ABCDEFGH", sizes, strict=True)]
    results = await asyncio.gather(*(place.write("d/f", content) for content in contents))
    path = place.at("d/f")
    for result, size in zip(results, sizes, strict=True):
        expect.fine(result, f"Wrote {size} byte{'' if size == 1 else 's'} to {path}.")
    await _is_one_of(place, "d/f", contents)
    made = [result.write.created for result in results].count(True)
    expect.equal(made, 1, "writes that say that they created the file")
    expect.equal(await names(place.below("d")), ["f"], "names in the folder")


@rule("write.parallel-through-names", cases=["W18", "R34", "W1"])
async def parallel_through_names(place: Place) -> None:
    """Writes at once through a path, links and `..` leave one whole content and the links."""
    await place.put("d/f", "old\n")
    await place.link("l", "d/f")
    await place.link("dl", "d")
    paths = ["d/f", "l", "dl/f", "d/../d/f"] * 3
    contents = [chr(ord("A") + number) * (1_000 + 40_000 * number) for number in range(len(paths))]
    writes = (place.write(path, content) for path, content in zip(paths, contents, strict=True))
    for result in await asyncio.gather(*writes):
        expect.fine(result)
        expect.equal(result.write.created, False, "created")
    await _is_one_of(place, "d/f", contents)
    expect.equal(await place.content("l"), await place.content("d/f"), "content through the link")
    expect.equal(await names(place), ["d", "dl", "l"], "names in the folder")
    expect.equal(await names(place.below("d")), ["f"], "names below")


@rule("write.parallel-through-hard-links", cases=["W18", "W6"])
async def parallel_through_hard_links(place: Place) -> None:
    """Writes at once through two names of one file leave one whole content under both."""
    await place.put("f", "old\n")
    folder = shlex.quote(place.folder)
    await place.shell(f"cd {folder} && ln f g")
    contents = [chr(ord("A") + number) * (200_000 - 30_000 * number) for number in range(6)]
    writes = (place.write("fg"[number % 2], content) for number, content in enumerate(contents))
    for result in await asyncio.gather(*writes):
        expect.fine(result)
    await _is_one_of(place, "f", contents)
    expect.equal(await place.content("g"), await place.content("f"), "content of the other name")


@rule("write.parallel-parents", cases=["W12", "W18"])
async def parallel_parents(place: Place) -> None:
    """Writes at once that need the same missing parents all succeed."""
    paths = [f"a/b/c/d/{number % 4}/f{number}" for number in range(12)]
    for result in await asyncio.gather(*(place.write(path, path) for path in paths)):
        expect.fine(result)
        expect.equal(result.write.created, True, "created")
    for path in paths:
        expect.equal(await place.content(path), path.encode(), f"content of {path}")


# --- A caller that leaves --------------------------------------------------------


async def _under_way(place: Place, call_id: str) -> None:
    """Waits until the adapter knows the call."""
    deadline = time.monotonic() + LOOK_S_MAX
    while time.monotonic() < deadline:
        answer = await place.client.get_call(place.session_id, call_id)
        if answer.state != tool_pb2.CALL_STATE_NEVER_SEEN:
            return
        await asyncio.sleep(LOOK_S)
    raise Broken(f"a call was not known for {LOOK_S_MAX:.0f} s")


@rule("write.cancelled", cases=["W20"])
async def cancelled(place: Place) -> None:
    """A write that is cancelled was done or was not, as it says, and holds up no later one."""
    new = "n" * 2_000_000
    for _ in range(2):
        await place.put("f", SMALL)
        call_id = new_id("call")
        writing = asyncio.create_task(
            place.call("write", {"path": place.at("f"), "content": new}, call_id=call_id)
        )
        await _under_way(place, call_id)
        await place.client.cancel_call(place.session_id, call_id)
        result = await writing
        done = result.ending == tool_pb2.ENDING_COMPLETED
        if not done:
            expect.ending_is(result, "CANCELLED")
        elif result.is_error:
            raise Broken(f"refused as {expect.reason_of(result)}: {expect.shown(result.text)}")
        wanted = (new if done else SMALL).encode()
        expect.equal(await place.content("f"), wanted, f"content, done: {done}")
        expect.equal(await names(place), ["f"], "names in the folder")
    expect.fine(await place.write("f", "later\n"))


@rule("write.caller-leaves", cases=["W20", "contract 4"])
async def caller_leaves(place: Place) -> None:
    """A write whose caller leaves ends all the same, and never leaves half a file."""
    new = "n" * 2_000_000
    for _ in range(2):
        await place.put("f", SMALL)
        call_id = new_id("call")
        arguments = {"path": place.at("f"), "content": new}
        writing = asyncio.create_task(place.call("write", arguments, call_id=call_id))
        await _under_way(place, call_id)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        state = await _settled(place, call_id)
        # A call that still waited for its turn is withdrawn with its last caller.
        done = state == tool_pb2.CALL_STATE_FINISHED
        wanted = (new if done else SMALL).encode()
        expect.equal(await place.content("f"), wanted, f"content, done: {done}")
        expect.equal(await names(place), ["f"], "names in the folder")
    expect.fine(await place.write("f", "later\n"))


async def _settled(place: Place, call_id: str) -> tool_pb2.CallState:
    deadline = time.monotonic() + LOOK_S_MAX
    while time.monotonic() < deadline:
        answer = await place.client.get_call(place.session_id, call_id)
        if answer.state != tool_pb2.CALL_STATE_RUNNING:
            return answer.state
        await asyncio.sleep(LOOK_S)
    raise Broken(f"a write whose caller left did not end within {LOOK_S_MAX:.0f} s")


# --- Size ------------------------------------------------------------------------


@rule("write.largest-content", cases=["W22", "W16", "contract 5"])
async def largest_content(place: Place) -> None:
    """A content of the greatest size that is announced is written, in either form."""
    most = place.bound("write_bytes_max")
    line = "0123456789abcde\n"
    content = (line * (most // len(line) + 1))[:most]
    path = place.at("f")
    expect.fine(await place.write("f", content), f"Wrote {most} bytes to {path}.")
    await _has(place, content)
    wide = "é" * (most // 2) + "x" * (most % 2)
    typed = tool_pb2.WriteInput(path=path, content=wide)
    expect.fine(await place.call_typed(typed), f"Wrote {most} bytes to {path}.")
    await _has(place, wide)


async def _has(place: Place, content: str) -> None:
    data = content.encode()
    if place.has_files:
        expect.equal(await place.content("f"), data, "content")
        return
    result = expect.fine(await place.read("f", limit=1))
    expect.equal(result.bytes_total, len(data), "size")


@rule("write.content-too-large", cases=["W22", "contract 5"])
async def content_too_large(place: Place) -> None:
    """One byte more than is announced is refused as too large, and the old content stays."""
    await place.put("f", "old\n")
    most = place.bound("write_bytes_max")
    wide = "é" * (most // 2) + "x" * (most % 2 + 1)
    result = expect.refused(await place.write("f", wide), "FILE_TOO_LARGE")
    expect.says(result.text, str(most))
    typed = tool_pb2.WriteInput(path=place.at("new"), content="x" * (most + 1))
    expect.refused(await place.call_typed(typed), "FILE_TOO_LARGE")
    expect.equal(await place.content("f"), b"old\n", "content")
    expect.equal(await names(place), ["f"], "names in the folder")


@rule("write.several-megabytes", cases=["W22"])
async def several_megabytes(place: Place) -> None:
    """A content over the 4 MiB that gRPC takes by default arrives."""
    content = "é" * 2_500_000
    expect.fine(await place.write("f", content), f"Wrote 5000000 bytes to {place.at('f')}.")
    await _has(place, content)
