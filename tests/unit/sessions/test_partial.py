"""What a command had printed is in its result where its end could not be seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_adapter.v1 import session_pb2, tool_pb2
from sandboxd.backends.base import Reply
from sandboxd.backends.fake import FakeBackend, FakeRequest
from sandboxd.errors import GuestFault
from sandboxd.sessions import partial
from sandboxd.tools.bash import BashTool
from tests.unit.sessions.scripted_command import Command
from tests.unit.worker import Worker, until


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    made = Worker(tmp_path, FakeBackend(tmp_path))
    made.offered.append(BashTool())
    await made.start()
    await made.create()
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
def command(worker: Worker) -> Command:
    scripted = Command()
    worker.guest.files = scripted.answer
    return scripted


def run(worker: Worker) -> asyncio.Task[Any]:
    return asyncio.ensure_future(worker.call("c", "bash", '{"command": "x"}'))


async def lost(worker: Worker) -> None:
    worker.sandbox().lose("ENDED")


async def deleted(worker: Worker) -> None:
    await worker.delete()


@pytest.mark.parametrize(
    ("end", "ending", "words"),
    [
        (lost, tool_pb2.ENDING_SANDBOX_LOST, "one\ntwo\nThe sandbox ended while this call ran."),
        (deleted, tool_pb2.ENDING_CANCELLED, "one\ntwo\n[The call ended with its session"),
    ],
)
async def test_output_so_far_stands_before_the_words_of_the_end(
    worker: Worker, command: Command, end: Any, ending: tool_pb2.Ending, words: str
) -> None:
    running = run(worker)
    command.write(b"one\ntwo\n")
    await until(lambda: len(command.peeks) == 2)
    await end(worker)
    result = (await running).result
    assert result.ending == ending
    assert result.text.startswith(words)
    assert (result.bytes_total, result.lines_total, result.truncated) == (8, 2, False)
    assert result.bash.timeout.seconds == 120


async def test_output_that_was_cut_says_so_first(worker: Worker, command: Command) -> None:
    command.cut = True
    running = run(worker)
    command.write(b"last line\n")
    await until(lambda: len(command.peeks) == 2)
    await lost(worker)
    result = (await running).result
    head = "[Showing the last 1 of 1 line (10 of 10 bytes).]\nlast line\nThe sandbox ended"
    assert result.text.startswith(head)
    assert result.truncated


async def test_refused_look_is_tried_again(
    worker: Worker, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "REFUSED_REST_S", 0.05)
    refusals = 2

    async def answer(request: FakeRequest) -> Reply:
        nonlocal refusals
        if request.op == "peek" and refusals:
            refusals -= 1
            raise GuestFault("CALLS_EXHAUSTED", "512 requests wait already", {})
        return await command.answer(request)

    worker.guest.files = answer
    running = run(worker)
    command.write(b"printed\n")
    await until(lambda: len(command.peeks) == 2)
    await lost(worker)
    assert (await running).result.text.startswith("printed\nThe sandbox ended")


async def test_short_command_is_not_followed(worker: Worker, command: Command) -> None:
    running = run(worker)
    command.write(b"x")
    command.end()
    await running
    await asyncio.sleep(0.1)
    assert command.peeks == []


async def test_following_ends_with_the_command(worker: Worker, command: Command) -> None:
    running = run(worker)
    command.write(b"x")
    await until(lambda: len(command.peeks) == 2)
    command.end()
    result = (await running).result
    assert result.text == "x"
    await asyncio.sleep(0.2)
    assert len(command.peeks) == 2


async def test_each_look_waits_for_more_than_was_seen(worker: Worker, command: Command) -> None:
    running = run(worker)
    command.write(b"abc")
    await until(lambda: len(command.peeks) == 2)
    command.write(b"de")
    await until(lambda: len(command.peeks) == 3)
    assert [look["after"] for look in command.peeks] == [0, 3, 5]
    command.end()
    await running


async def test_command_that_prints_without_end_is_looked_at_now_and_then(
    worker: Worker, command: Command
) -> None:
    running = run(worker)
    end = asyncio.get_running_loop().time() + 0.6
    while asyncio.get_running_loop().time() < end:
        command.write(b"x")
        await asyncio.sleep(0.005)
    assert 2 <= len(command.peeks) <= 8
    command.end()
    await running


async def test_command_that_printed_nothing_has_the_words_alone(
    worker: Worker, command: Command
) -> None:
    running = run(worker)
    await until(lambda: command.peeks)
    await lost(worker)
    result = (await running).result
    assert result.text.startswith("The sandbox ended")
    assert not result.HasField("bytes_total")


@pytest.mark.parametrize(
    "lie",
    [
        Reply({"known": True}),
        Reply({}),
        Reply({"known": True, "bytes_total": -1}),
        Reply({"known": True, "timeout_s": 1.0, "bytes_total": 2**60}),
    ],
)
async def test_guest_that_lies_while_it_is_looked_at_gets_no_say(
    worker: Worker, command: Command, lie: Reply
) -> None:
    command.peek_lie = lie
    running = run(worker)
    await until(lambda: command.peeks)
    command.write(b"x")
    command.end()
    assert (await running).result.text == "x"
    assert (await worker.get()).state == session_pb2.SESSION_STATE_READY
    assert len(command.peeks) == 1
