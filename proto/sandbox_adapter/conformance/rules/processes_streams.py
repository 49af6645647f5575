"""Rules on what a process writes and is fed: bytes by offset, nothing lost without a word."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Final

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import PROCESSES, rule
from sandbox_adapter.conformance.rules.started import UNTIL_FED, WAIT_S, script, start
from sandbox_adapter.processes import STDERR, STDOUT
from sandbox_adapter.v1 import process_pb2

MIB: Final = 1024 * 1024
ALL_BYTES: Final = bytes(range(256))


@rule("processes.streams-are-separate", needs=(PROCESSES,), level="full")
async def streams_are_separate(place: Place) -> None:
    """Standard output and error are two streams, byte for byte, closed with the process."""
    text = "printf 'o\\000\\377\\r\\n'; printf 'e\\001\\200' >&2; printf 'ut'; printf 'rr\\n' >&2"
    started = await script(place, text)
    await started.ended(0)
    expect.equal(await started.output(STDOUT), b"o\0\xff\r\nut", "standard output")
    expect.equal(await started.output(STDERR), b"e\x01\x80rr\n", "standard error")
    for stream in (STDOUT, STDERR):
        messages = [message async for message in started.messages(stream, follow=False)]
        expect.equal([m.closed for m in messages], [False] * (len(messages) - 1) + [True], "closed")


@rule("processes.output-from-any-offset", needs=(PROCESSES,), level="full")
async def output_from_any_offset(place: Place) -> None:
    """An output can be read again from every offset, also beyond its end."""
    started = await script(place, "printf 0123456789")
    await started.ended(0)
    for offset in (0, 1, 9, 10):
        data = await started.output(offset=offset)
        expect.equal(data, b"0123456789"[offset:], f"from {offset}")
    messages = [message async for message in started.messages(offset=100, follow=False)]
    expect.equal(b"".join(m.data for m in messages), b"", "bytes from beyond the end")


@rule("processes.output-is-followed", needs=(PROCESSES,), level="full")
async def output_is_followed(place: Place) -> None:
    """With `follow` bytes come as they are written, until the output is closed."""
    started = await script(place, 'while read -r line; do echo "<$line>"; done')
    data, written = b"", 0
    async with aclosing(started.messages()) as messages:
        for line in (b"one\n", b"two\n", b"three\n"):
            await started.write(line, written)
            written += len(line)
            while not data.endswith(b"<" + line.strip() + b">\n"):
                message = await anext(messages)
                data += message.data
        await started.write(b"", written, close=True)
        last = await anext(messages)
        expect.equal((last.data, last.closed), (b"", True), "the last message")
    expect.equal(data, b"<one>\n<two>\n<three>\n", "output")
    await started.ended(0)


@rule("processes.output-without-follow-ends", needs=(PROCESSES,), level="full")
async def output_without_follow_ends(place: Place) -> None:
    """Without `follow` the stream ends with what is there, also of a process that goes on."""
    started = await script(place, f"printf begun; {UNTIL_FED}")
    try:
        await started.until(b"begun")
        expect.equal(await started.output(follow=False), b"begun", "what is there")
        expect.equal(await started.output(follow=False, offset=5), b"", "what is there later")
        messages = [message async for message in started.messages(follow=False)]
        expect.holds(not any(m.closed for m in messages), "an open output is said to be closed")
    finally:
        await started.end()


@rule("processes.messages-are-bounded", needs=(PROCESSES,), level="full")
async def messages_are_bounded(place: Place) -> None:
    """No message of an output is larger than `chunk_bytes_max`."""
    started = await script(place, _flood(10))
    await started.ended(0)
    sizes = [len(message.data) async for message in started.messages()]
    expect.equal(sum(sizes), 10 * 65_536, "bytes")
    expect.holds(max(sizes) <= place.bound("chunk_bytes_max"), f"a message of {max(sizes)} bytes")


def _flood(blocks: int) -> str:
    """A script that writes so many blocks of 64 KiB, each of one letter, by itself."""
    return (
        "x=aaaaaaaaaaaaaaaa; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do x=$x$x; done; "
        f'i=0; while [ $i -lt {blocks} ]; do printf %s "$x"; i=$((i + 1)); done'
    )


@rule("processes.dropped-output-is-told", needs=(PROCESSES,), level="full")
async def dropped_output_is_told(place: Place) -> None:
    """What is no longer kept is announced with its size, and the process is not held up."""
    most = place.bound("process_output_bytes_max")
    blocks = 2 * (most // 65_536) + 8
    started = await script(place, f"{_flood(blocks)}; printf end; {UNTIL_FED}")
    total = blocks * 65_536 + 3
    try:
        # Nobody has read a byte of it: it must come to its end all the same.
        deadline = time.monotonic() + WAIT_S
        size = 0
        while size < total:
            expect.holds(time.monotonic() < deadline, f"it has written {size} of {total} bytes")
            size = await _size(started.messages(follow=False, offset=0))
        messages = [message async for message in started.messages(follow=False)]
        first = messages[0]
        expect.holds(first.bytes_dropped > 0, "nothing is said to be dropped")
        expect.equal(first.offset, first.bytes_dropped, "offset of the first message")
        expect.equal(sum(m.bytes_dropped for m in messages[1:]), 0, "dropped later")
        kept = b"".join(m.data for m in messages)
        expect.equal(first.bytes_dropped + len(kept), total, "dropped and kept bytes")
        expect.holds(len(kept) >= most, f"{len(kept)} bytes are kept, {most} announced")
        expect.holds(kept.endswith(b"aaaend"), "the end is not what was written last")
    finally:
        await started.end()


async def _size(messages: object) -> int:
    """How far an output has come."""
    end = 0
    async for message in messages:  # type: ignore[attr-defined]
        end = message.offset + len(message.data)
    return end


@rule("processes.input-repeats-are-skipped", needs=(PROCESSES,), level="full")
async def input_repeats_are_skipped(place: Place) -> None:
    """Bytes before the offset that is written are skipped, so a write can be sent again."""
    started = await script(place, 'while read -r line; do echo "$line"; done')
    first = await started.write(b"one\ntw")
    expect.equal((first.bytes_written, first.closed), (6, False), "bytes written, closed")
    expect.equal((await started.write(b"one\ntw")).bytes_written, 6, "bytes after a repeat")
    expect.equal((await started.write(b"two\n", 4)).bytes_written, 8, "bytes after an overlap")
    expect.equal((await started.write(b"ne\n", 1)).bytes_written, 8, "bytes after an old part")
    last = await started.write(b"o\nend\n", 6, close=True)
    expect.equal((last.bytes_written, last.closed), (12, True), "at the end")
    await started.wait()
    expect.equal(await started.output(), b"one\ntwo\nend\n", "what it read")
    again = await started.write(b"o\nend\n", 6, close=True)
    expect.equal((again.bytes_written, again.closed), (12, True), "the last write again")


@rule("processes.input-gaps-are-refused", needs=(PROCESSES,), level="full")
async def input_gaps_are_refused(place: Place) -> None:
    """An offset that leaves a gap, and bytes for a closed input, are refused."""
    started = await script(place, 'while read -r line; do echo "$line"; done')
    with expect.fails("FAILED_PRECONDITION", "INVALID_INPUT"):
        await started.write(b"x", 1)
    await started.write(b"a\n")
    with expect.fails("FAILED_PRECONDITION", "INVALID_INPUT"):
        await started.write(b"x", 3)
    await started.write(b"", 2, close=True)
    with expect.fails("FAILED_PRECONDITION", "INVALID_INPUT"):
        await started.write(b"x", 2)
    await started.wait()
    expect.equal(await started.output(), b"a\n", "what it read")
    with expect.fails("FAILED_PRECONDITION", "INVALID_INPUT"):
        await started.write(b"x", 2)


@rule("processes.input-of-one-that-ended", needs=(PROCESSES,), level="full")
async def input_of_one_that_ended(place: Place) -> None:
    """A process that has ended takes no input, though nobody has closed it."""
    started = await script(place, "exit 0")
    await started.ended(0)
    with expect.fails("FAILED_PRECONDITION", "INVALID_INPUT"):
        await started.write(b"x")


@rule("processes.full-input-returns", needs=(PROCESSES,), level="full", timeout_s=90)
async def full_input_returns(place: Place) -> None:
    """A write to a process that reads nothing returns within seconds, with what was taken."""
    await place.require("sleep")
    started = await script(place, "sleep 300")
    data = b"x" * place.bound("chunk_bytes_max")
    request = process_pb2.WriteInputRequest(
        session_id=place.session_id, process_id=started.id, data=data, close=True
    )
    try:
        begun = time.monotonic()
        # More than any pipe takes.
        written, closed = 0, False
        for _ in range(2):
            request.offset = written
            answer = await place.target.send(place.client.processes.stub.WriteInput, request)
            written, closed = answer.bytes_written, answer.closed
            if written < request.offset + len(data):
                break
        expect.holds(0 < written < 2 * len(data), f"{written} bytes were taken")
        expect.holds(not closed, "an input with bytes to come is closed")
        expect.holds(time.monotonic() - begun < 30, "it took far more than 5 s")
    finally:
        await started.end()


@rule("processes.binary-echo", needs=(PROCESSES,), level="full")
async def binary_echo(place: Place) -> None:
    """A mebibyte of every byte goes through a process and comes back whole."""
    await place.require("cat")
    started = await start(place, ["cat"])
    data = b"".join(ALL_BYTES[i:] + ALL_BYTES[:i] for i in range(256)) * (MIB // 65_536)
    reading = asyncio.create_task(started.output())
    await started.write(data, close=True)
    echoed = await reading
    expect.holds(echoed == data, f"{len(echoed)} bytes came back, or not the same")
    await started.ended(0)


@rule("processes.two-readers", needs=(PROCESSES,), level="full")
async def two_readers(place: Place) -> None:
    """Readers of one output do not take bytes from each other; one that stops harms none."""
    started = await script(place, f"{_flood(4)}; read line; printf end")
    async with aclosing(started.messages()) as stopped:
        await anext(stopped)
        readers = [asyncio.create_task(started.output()) for _ in range(3)]
        await started.write(b"\n", close=True)
        outputs = await asyncio.gather(*readers)
    wanted = b"a" * (4 * 65_536) + b"end"
    expect.holds(all(output == wanted for output in outputs), "a reader got other bytes")
