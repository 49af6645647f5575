"""A process that a rule has started, and what rules do with one.

Programs are scripts of the sandbox's shell, without other commands where that will do.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.processes import STDOUT
from sandbox_adapter.v1 import process_pb2

WAIT_S: Final = 20.0
"""Longest wait for what must happen at once."""
UNTIL_FED: Final = "read line"
"""A script that stays until its input ends, without any command."""


class Started:
    """A process that a rule has started; everything that rules do with one."""

    def __init__(self, place: Place, answer: process_pb2.StartProcessResponse) -> None:
        self.place = place
        self.answer = answer
        self.id = answer.process.process_id

    async def wait(self, wait_s: float = WAIT_S) -> process_pb2.Process:
        return await self.place.client.processes.wait(self.place.session_id, self.id, wait_s=wait_s)

    async def ended(self, code: int, number: int | None = None) -> process_pb2.Process:
        """Waits for its end, which must be this one."""
        process = await self.wait()
        expect.equal(state_of(process), "ENDED", "state")
        expect.equal(process.exit_code if process.HasField("exit_code") else None, code, "exit")
        expect.equal(process.signal if process.HasField("signal") else None, number, "signal")
        expect.holds(process.HasField("ended_at"), "an ended process without `ended_at`")
        return process

    async def output(self, stream: process_pb2.OutputStream = STDOUT, **how: Any) -> bytes:
        """The whole of an output, of which nothing may be missing."""
        data = bytearray()
        offset = how.get("offset", 0)
        async for message in self.messages(stream, **how):
            expect.equal(message.bytes_dropped, 0, "bytes dropped")
            expect.equal(message.offset, offset + len(data), "offset of a message")
            data += message.data
        return bytes(data)

    def messages(
        self, stream: process_pb2.OutputStream = STDOUT, **how: Any
    ) -> AsyncGenerator[process_pb2.ReadOutputResponse, None]:
        how.setdefault("timeout_s", WAIT_S)
        return self.place.client.processes.output(
            self.place.session_id, self.id, stream=stream, **how
        )

    async def until(self, wanted: bytes, stream: process_pb2.OutputStream = STDOUT) -> bytes:
        """Follows an output until it holds these bytes."""
        data = b""
        async with aclosing(self.messages(stream)) as messages:
            async for message in messages:
                data += message.data
                if wanted in data:
                    return data
        raise Broken(f"the output ended without {expect.shown(wanted)}: {expect.shown(data)}")

    async def write(
        self, data: bytes, offset: int = 0, **how: Any
    ) -> process_pb2.WriteInputResponse:
        how.setdefault("timeout_s", WAIT_S)
        return await self.place.client.processes.write(
            self.place.session_id, self.id, data, offset=offset, **how
        )

    async def signal(self, number: int) -> bool:
        return await self.place.client.processes.signal(self.place.session_id, self.id, number)

    async def end(self) -> None:
        await self.signal(9)
        await self.wait()


async def start(place: Place, argv: list[str], **how: Any) -> Started:
    """Starts a program in the session."""
    return Started(place, await place.client.processes.start(place.session_id, argv, **how))


async def script(place: Place, text: str, **how: Any) -> Started:
    """Starts a script. Raises `Uncheckable` where the sandbox has no shell."""
    return await start(place, [shell(place), "-c", text], **how)


def shell(place: Place) -> str:
    found = place.session.effective.shell
    if not found:
        raise Uncheckable("the sandbox has no shell")
    return found


def state_of(process: process_pb2.Process) -> str:
    return process_pb2.ProcessState.Name(process.state).removeprefix("PROCESS_STATE_")
