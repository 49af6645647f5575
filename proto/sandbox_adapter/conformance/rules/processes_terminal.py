"""Rules on processes with a terminal."""

from __future__ import annotations

from typing import Final

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import PROCESSES, PTY, rule
from sandbox_adapter.conformance.rules.started import UNTIL_FED, script
from sandbox_adapter.processes import STDERR
from sandbox_adapter.v1 import process_pb2

NEEDS: Final = (PROCESSES, PTY)


@rule("processes.terminal-is-one", needs=NEEDS, level="full")
async def terminal_is_one(place: Place) -> None:
    """The three streams are a terminal, TERM is set, and all output is in the first stream."""
    text = 'for fd in 0 1 2; do [ -t $fd ] && printf "$fd "; done; echo "${TERM:+set}"; echo e >&2'
    started = await script(place, text, terminal=(24, 80))
    await started.ended(0)
    expect.equal(await started.output(), b"0 1 2 set\r\ne\r\n", "output")
    expect.equal(await started.output(STDERR), b"", "standard error")
    plain = await script(place, text.replace("echo e >&2", ":"))
    await plain.ended(0)
    output = await plain.output()
    expect.holds(not output.startswith(b"0"), f"without a terminal: {output!r}")


@rule("processes.terminal-is-controlling", needs=NEEDS, level="full")
async def terminal_is_controlling(place: Place) -> None:
    """The terminal controls the process: /dev/tty is it, and its interrupt character interrupts."""
    await place.require("sleep")
    text = "(: > /dev/tty) 2> /dev/null || exit 7"
    if (await (await script(place, text, terminal=(24, 80))).wait()).exit_code == 7:
        raise Uncheckable("the sandbox's kernel gives a process no controlling terminal")
    text = "trap 'echo caught; exit 3' INT; echo ready > /dev/tty; while :; do sleep 1; done"
    started = await script(place, text, terminal=(24, 80))
    await started.until(b"ready")
    await started.write(b"\x03")
    await started.ended(3)
    expect.says((await started.output()).decode(), "caught")


_ECHO: Final = 'while read -r line; do echo "<$line>"; done; exit 6'
_TYPED_S: Final = 3.0
"""Longest wait for a sandbox's terminal to know its end-of-file character."""


@rule("processes.terminal-echoes", needs=NEEDS, level="full")
async def terminal_echoes(place: Place) -> None:
    """Input is echoed and handed on line by line."""
    started = await script(place, _ECHO, terminal=(24, 80))
    try:
        await started.write(b"abc\n")
        expect.equal(await started.until(b"<abc>\r\n"), b"abc\r\n<abc>\r\n", "output")
    finally:
        await started.end()


@rule("processes.terminal-input-has-an-end", needs=NEEDS, level="full")
async def terminal_input_has_an_end(place: Place) -> None:
    """To close a terminal's input is to type its end-of-file character, also in a line."""
    typed = await script(place, _ECHO, terminal=(24, 80))
    await typed.write(b"\x04")
    if (await typed.wait(_TYPED_S)).state == process_pb2.PROCESS_STATE_RUNNING:
        await typed.end()
        raise Uncheckable("the sandbox's terminals know no end-of-file character")
    for data in (b"abc\n", b"", b"abc\nbegun"):
        started = await script(place, _ECHO, terminal=(24, 80))
        closed = await started.write(data, close=True)
        expect.equal((closed.bytes_written, closed.closed), (len(data), True), "the answer")
        await started.ended(6)
        with expect.fails("FAILED_PRECONDITION", "INVALID_INPUT"):
            await started.write(b"x", len(data))


@rule("processes.terminal-size", needs=NEEDS, level="full")
async def terminal_size(place: Place) -> None:
    """The size is set before the process starts; a resize is seen, and told by SIGWINCH."""
    await place.require("stty", "sleep")
    text = "trap 'stty size; exit 0' WINCH; stty size; while :; do sleep 1; done"
    started = await script(place, text, terminal=(37, 111))
    await started.until(b"37 111\r\n")
    resize = place.client.processes.resize
    await resize(place.session_id, started.id, 50, 200)
    await started.until(b"50 200\r\n")
    await started.ended(0)


@rule("processes.resize-without-a-terminal", needs=NEEDS, level="full")
async def resize_without_a_terminal(place: Place) -> None:
    """A process without a terminal cannot be resized."""
    started = await script(place, UNTIL_FED)
    try:
        with expect.fails("FAILED_PRECONDITION", "INVALID_INPUT"):
            await place.client.processes.resize(place.session_id, started.id, 24, 80)
        for rows, columns in ((0, 80), (24, 10_001)):
            with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE"):
                await place.client.processes.resize(place.session_id, started.id, rows, columns)
    finally:
        await started.end()


@rule("processes.terminal-ends-with-its-process", needs=NEEDS, level="full")
async def terminal_ends_with_its_process(place: Place) -> None:
    """A signal ends a process with a terminal, and its output is closed."""
    started = await script(place, f"printf begun; {UNTIL_FED}", terminal=(24, 80))
    await started.until(b"begun")
    await started.signal(9)
    await started.ended(137, 9)
    expect.equal(await started.output(), b"begun", "output")
