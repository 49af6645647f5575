"""What must not grow: memory over very many calls and over streams that are left.

Each runs against an open session, as the functions of `measures.py` do. The first half
fills caches, pools and the gaps between an allocator's blocks; what grows after it is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from sandbox_adapter.v1 import tool_pb2
from tests.load.measures import Bench, Done, in_parallel

GROWTH_MAX: Mapping[str, int] = {"daemon": 8 * 2**20, "guest": 8 * 2**20}
"""Bytes by which the peak may grow in the second half."""
FILES = 64
STREAM_LIFE_S_MAX = 30.0
PRINTING = "printing"
"""Id of the call that is watched."""


async def mixed_calls(bench: Bench, count: int, done: Done) -> dict[str, float]:
    """All six tools in turn by sixteen callers: every answer right, memory flat."""
    for number in range(FILES):
        await bench.tool("write", path=f"mixed/{number}", content=_content(number))

    async def one(number: int) -> None:
        await _MIX[number % len(_MIX)](bench, number)

    return await _flat(bench, count, done, one)


async def cancelled_streams(bench: Bench, count: int, done: Done) -> dict[str, float]:
    """Streams of one call that prints, left in three ways: after an event, in a wait, at once."""
    command = "while :; do echo line; sleep 0.05; done"
    printing = asyncio.create_task(
        bench.client.call_tool(
            bench.session_id, "bash", {"command": command, "timeout": 3_000}, call_id=PRINTING
        )
    )
    async with asyncio.timeout(STREAM_LIFE_S_MAX):
        await _until_output(bench)

    async def one(number: int) -> None:
        async with asyncio.timeout(STREAM_LIFE_S_MAX):
            if number % 3 == 0:
                # Seen something, then gone.
                watching = bench.client.watch_call(bench.session_id, PRINTING)
                async with contextlib.aclosing(watching) as events:
                    first = await anext(events)
                    assert first.WhichOneof("event") == "started", first
            else:
                # Gone while it waits for the next event, or before there was any.
                reading = asyncio.create_task(_read_on(bench))
                await asyncio.sleep(0.02 if number % 3 == 1 else 0)
                reading.cancel()
                outcome = (await asyncio.gather(reading, return_exceptions=True))[0]
                assert isinstance(outcome, asyncio.CancelledError), outcome

    try:
        figures = await _flat(bench, count, done, one)
        # The call and its next reader know nothing of all that.
        async with asyncio.timeout(STREAM_LIFE_S_MAX):
            await _until_output(bench)
        return figures
    finally:
        await bench.client.cancel_call(bench.session_id, PRINTING)
        ended = (await printing).result
        assert ended.ending == tool_pb2.ENDING_CANCELLED, ended.text[-200:]


async def _flat(
    bench: Bench, count: int, done: Done, one: Callable[[int], Awaitable[None]]
) -> dict[str, float]:
    warm = max(1, count // 2)
    await in_parallel(range(warm), one, done)
    before = bench.memory()
    await in_parallel(range(warm, count), one, done)
    figures: dict[str, float] = {}
    for name, size in bench.memory().items():
        growth = size - before[name]
        figures[f"{name}, MiB after a half"] = round(before[name] / 2**20, 1)
        figures[f"growth of the {name}, MiB"] = round(growth / 2**20, 1)
        assert growth <= GROWTH_MAX[name], (name, growth)
    return figures


async def _read_on(bench: Bench, after: int = 0) -> None:
    async for _ in bench.client.watch_call(bench.session_id, PRINTING, after):
        pass


async def _until_output(bench: Bench) -> None:
    async with contextlib.aclosing(bench.client.watch_call(bench.session_id, PRINTING)) as events:
        async for event in events:
            if event.WhichOneof("event") == "output":
                assert b"line\n" in event.output.data
                return
    raise AssertionError("the call printed nothing")


def _content(number: int) -> str:
    return f"file {number} holds needle-{number}x and more\n" * 20


async def _bash(bench: Bench, number: int) -> None:
    result = await bench.tool("bash", command=f"printf x{number}; exit {number % 5}")
    assert result.text.startswith(f"x{number}"), result.text
    assert result.exit_code == number % 5, result


async def _read(bench: Bench, number: int) -> None:
    name = number % FILES
    result = await bench.tool("read", path=f"mixed/{name}", limit=20)
    assert result.text == _content(name), (number, result.text)


async def _write(bench: Bench, number: int) -> None:
    result = await bench.tool("write", path=f"own/{number % 512}", content=f"of {number}\n")
    assert not result.is_error, result.text


async def _edit(bench: Bench, number: int) -> None:
    """A file of its own: others write those that are shared."""
    path = f"edited/{number % 512}-{number}"
    await bench.tool("write", path=path, content="before\n")
    result = await bench.tool("edit", path=path, oldText="before", newText=f"after {number}")
    assert list(result.edit.lines) == [1], result.text
    removed = await bench.tool("bash", command=f"cat {path} && rm {path}")
    assert removed.text == f"after {number}\n", removed.text


async def _grep(bench: Bench, number: int) -> None:
    name = number % FILES
    result = await bench.tool("grep", pattern=f"needle-{name}x", path="mixed")
    assert {row.path for row in result.grep.matches} == {f"mixed/{name}"}, result.text
    assert len(result.grep.matches) == 20, result.text


async def _glob(bench: Bench, number: int) -> None:
    result = await bench.tool("glob", pattern="*", path="mixed")
    assert len(result.text.splitlines()) == FILES, result.text


_MIX: Final = (_bash, _read, _write, _edit, _grep, _glob)
