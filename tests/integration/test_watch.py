"""Watching and cancelling calls: across daemons, cut connections, slow readers, lost sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.v1 import error_pb2, tool_pb2
from tests.integration.conftest import OpenSession
from tests.integration.daemon_process import DaemonProcess, containers_of, docker, until
from tests.integration.numbered_lines import Lines, script

MIB = 1024 * 1024


class Read(NamedTuple):
    """A whole watch."""

    data: bytes
    dropped: int
    result: tool_pb2.ToolResult
    sequences: list[int]


async def read_all(
    client: AdapterClient,
    session_id: str,
    call_id: str,
    after: int = 0,
    begun: asyncio.Event | None = None,
) -> Read:
    """Reads to the result; sets `begun` when the first event has come."""
    data, dropped, sequences = bytearray(), 0, []
    async for event in client.watch_call(session_id, call_id, after):
        if begun is not None:
            begun.set()
        if event.sequence:
            sequences.append(event.sequence)
        if event.WhichOneof("event") == "output":
            data += event.output.data
            dropped += event.output.bytes_dropped
        if event.WhichOneof("event") == "result":
            return Read(bytes(data), dropped, event.result, sequences)
    raise AssertionError("the watch ended without a result")


def begin(session: OpenSession, command: str, call_id: str) -> asyncio.Task[Any]:
    return asyncio.create_task(session.bash(command, call_id=call_id))


async def seen(session: OpenSession, call_id: str, what: bytes) -> None:
    """Waits until a call has printed something."""
    got = bytearray()
    async with asyncio.timeout(20):
        async for event in session.client.watch_call(session.id, call_id):
            got += event.output.data
            if what in got:
                return
    raise AssertionError(f"{what!r} was not printed")


# --- across connections and daemons ----------------------------------------------


@pytest.fixture
def own_daemon(state_dir: Path) -> Iterator[DaemonProcess]:
    """A daemon that the test may kill, always at the same address."""
    listen = f"unix:{state_dir.parent / 'api.sock'}"
    config = "shutdown_grace_s = 1.0\n"
    started = DaemonProcess("docker", state_dir, "--listen", listen, config=config)
    try:
        yield started.start()
    finally:
        started.end_for_good()


@pytest.mark.docker
async def test_command_is_read_complete_and_in_order_while_the_daemon_dies_three_times(
    own_daemon: DaemonProcess,
) -> None:
    lines = Lines(800)
    async with AdapterClient(own_daemon.address) as client:
        session_id = (await client.create_session()).session_id
        calling = asyncio.create_task(
            client.call_tool(session_id, "bash", {"command": script(800)}, call_id="c")
        )
        reading = asyncio.create_task(read_all(client, session_id, "c"))
        for _ in range(3):
            await asyncio.sleep(1.5)
            await asyncio.to_thread(own_daemon.kill)
            await asyncio.to_thread(own_daemon.start)
        read = await asyncio.wait_for(reading, 60)
        result = (await asyncio.wait_for(calling, 60)).result
    lines.take(read.data)
    assert (lines.complete, read.dropped) == (True, 0)
    assert read.sequences == sorted(set(read.sequences))
    assert (result.ending, result.exit_code) == (tool_pb2.ENDING_EXITED, 0)
    assert read.result.text == result.text


@asynccontextmanager
async def cutting_proxy(target: str, every_s: float) -> AsyncIterator[str]:
    """An address whose connections are cut again and again."""
    host, port = target.rsplit(":", 1)
    open_now: set[asyncio.StreamWriter] = set()
    serving: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        there_reader, there = await asyncio.open_connection(host, int(port))
        both = {writer, there}
        open_now.update(both)
        await asyncio.gather(pipe(reader, there), pipe(there_reader, writer))
        open_now.difference_update(both)
        await asyncio.gather(*(each.wait_closed() for each in both), return_exceptions=True)
        serving.discard(task)

    def cut_all() -> None:
        for writer in open_now:
            writer.transport.abort()

    async def cut() -> None:
        while True:
            await asyncio.sleep(every_s)
            cut_all()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    cutting = asyncio.create_task(cut())
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        cutting.cancel()
        server.close()
        cut_all()
        await asyncio.gather(*serving)


async def test_command_is_read_complete_over_connections_that_break(session: OpenSession) -> None:
    lines = Lines(400)
    running = begin(session, script(400), "c")
    async with (
        cutting_proxy(session.daemon.address, 0.35) as address,
        AdapterClient(address) as client,
    ):
        read = await asyncio.wait_for(read_all(client, session.id, "c"), 60)
    lines.take(read.data)
    assert (lines.complete, read.dropped) == (True, 0)
    assert read.sequences == sorted(set(read.sequences))
    await running


# --- many readers, slow readers ----------------------------------------------------


async def test_fifty_watchers_all_read_everything(session: OpenSession) -> None:
    running = begin(session, script(150), "c")
    reads = await asyncio.wait_for(
        asyncio.gather(*(read_all(session.client, session.id, "c") for _ in range(50))), 60
    )
    whole = reads[0].data
    assert whole.count(b"\n") == 150
    assert {(read.data, read.dropped) for read in reads} == {(whole, 0)}
    await running


async def test_slow_reader_slows_nobody_and_is_told_what_it_lost(session: OpenSession) -> None:
    """12 MB at some 2 MB/s, beside a reader that stands still after its first bytes."""
    command = (
        "i=0; while [ $i -lt 120 ]; do head -c 100000 /dev/zero | tr '\\0' x; sleep 0.04; "
        "i=$((i+1)); done"
    )
    running = begin(session, command, "c")
    data, dropped, resumed = 0, 0, asyncio.Event()

    async def read_slowly() -> None:
        nonlocal data, dropped
        async for event in session.client.watch_call(session.id, "c"):
            data += len(event.output.data)
            dropped += event.output.bytes_dropped
            if event.output.data and not resumed.is_set():
                await resumed.wait()

    slow = asyncio.create_task(read_slowly())
    fast = await asyncio.wait_for(read_all(session.client, session.id, "c"), 60)
    assert (len(fast.data), fast.dropped) == (12_000_000, 0)
    assert (await running).bytes_total == 12_000_000
    resumed.set()
    await asyncio.wait_for(slow, 30)
    assert data + dropped == 12_000_000
    assert dropped > MIB


async def test_output_of_ended_calls_is_replayed_from_any_byte(session: OpenSession) -> None:
    await session.bash("for i in 1 2 3; do echo line $i; done", call_id="c")
    whole = b"line 1\nline 2\nline 3\n"
    for after in (0, 1, 2, 9, 21, 22, 23, 99):
        read = await read_all(session.client, session.id, "c", after)
        assert read.data == whole[max(0, after - 1) :]
        assert read.result.text == whole.decode()


async def test_cancelled_streams_leave_room_for_others(session: OpenSession) -> None:
    running = begin(session, "echo hello; sleep 60", "c")
    for _ in range(200):
        async for event in session.client.watch_call(session.id, "c"):
            if event.output.data:
                break
    # Each of them held one of 32 places while it lived.
    await seen(session, "c", b"hello\n")
    await session.client.cancel_call(session.id, "c")
    await running


# --- partial output ----------------------------------------------------------------

TICKS = "i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.05; done"
"""Goes on printing. Of what a command prints the daemon misses the last moments at most, so once
a later tick is there, it has seen all that came before the first."""
LAST_TICK = b"tick 20\n"


@pytest.mark.docker
async def test_call_of_a_killed_container_keeps_what_it_printed(
    docker_session: OpenSession,
) -> None:
    session = docker_session
    running = begin(session, f"for i in $(seq 50); do echo line $i; done; {TICKS}", "c")
    await seen(session, "c", LAST_TICK)
    # The daemon has no other session.
    (container,) = containers_of(session.daemon.state_dir)
    await asyncio.to_thread(docker, "kill", container)
    result = await asyncio.wait_for(running, 20)
    assert result.ending == tool_pb2.ENDING_SANDBOX_LOST
    assert result.is_error
    assert result.text.startswith("line 1\nline 2\n")
    printed, ended, _ = result.text.partition("The sandbox ended")
    assert "line 50\ntick 1\n" in printed
    assert ended
    assert (result.bytes_total, result.lines_total) == (len(printed), printed.count("\n"))
    assert not result.truncated
    assert result.bash.timeout.seconds == 120
    read = await read_all(session.client, session.id, "c")
    assert read.result.text == result.text
    assert (read.data, read.dropped) == (b"", len(printed))

    async def ready() -> bool:
        return (await session.client.get_session(session.id)).generation == 2

    await until(ready, 30)


async def test_call_of_a_deleted_session_keeps_what_it_printed(session: OpenSession) -> None:
    session_id = (await session.client.create_session()).session_id
    mine = OpenSession(session.client, await session.client.get_session(session_id), session.daemon)
    running = begin(mine, "head -c 300000 /dev/zero | tr '\\0' 'x' | fold -w 99; " + TICKS, "c")
    await seen(mine, "c", LAST_TICK)
    watched = asyncio.Event()
    watching = asyncio.create_task(read_all(session.client, session_id, "c", begun=watched))
    await asyncio.wait_for(watched.wait(), 20)
    await session.client.delete_session(session_id)
    result = await asyncio.wait_for(running, 20)
    assert result.ending == tool_pb2.ENDING_CANCELLED
    assert result.reason == error_pb2.REASON_CANCELLED_BY_DELETE
    assert re.match(r"\[Showing the last \d+ of \d+ lines \(\d+ of \d+ bytes\)\.\]\n", result.text)
    assert result.text.endswith("Files of the session are gone.]")
    assert result.truncated
    assert (await watching).result.text == result.text


# --- cancel --------------------------------------------------------------------------


async def test_cancel_returns_once_the_tree_is_gone_and_keeps_the_output(
    session: OpenSession,
) -> None:
    command = (
        "trap 'echo got TERM' TERM; echo begun; "
        "(trap '' TERM; while :; do sleep 1; done) & while :; do sleep 0.1; done"
    )
    running = begin(session, command, "c")
    await seen(session, "c", b"begun\n")
    asked = time.monotonic()
    result = await session.client.cancel_call(session.id, "c")
    took_s = time.monotonic() - asked
    assert result.ending == tool_pb2.ENDING_CANCELLED
    assert result.text.startswith("begun\n")
    assert "got TERM\n" in result.text
    assert not result.survivors
    assert 1.9 <= took_s <= 5.0  # what ignores TERM is killed after the grace
    assert (await running).text == result.text
    read = await read_all(session.client, session.id, "c")
    assert read.data.startswith(b"begun\n")
    again = await session.client.cancel_call(session.id, "c")
    assert again.text == result.text


async def test_cancel_of_an_ended_call_kills_nothing(session: OpenSession) -> None:
    result = await session.bash("sleep 30 > /dev/null & echo $!", call_id="c")
    pid = result.text.split()[0]
    assert (await session.client.cancel_call(session.id, "c")).text == result.text
    left = await session.bash(f"kill -0 {pid} && echo alive; kill {pid}")
    assert left.text == "alive\n"


@pytest.mark.docker
async def test_call_that_was_taken_up_after_a_restart_can_be_cancelled(
    own_daemon: DaemonProcess,
) -> None:
    async with AdapterClient(own_daemon.address) as client:
        session = OpenSession(client, await client.create_session(), own_daemon)
        running = begin(session, "echo begun; sleep 300", "c")
        await seen(session, "c", b"begun\n")
        await asyncio.to_thread(own_daemon.kill)
        await asyncio.to_thread(own_daemon.start)
        # At once: the guest may not be back yet.
        result = await client.cancel_call(session.id, "c")
        assert result.ending == tool_pb2.ENDING_CANCELLED
        assert result.text.startswith("begun\n")
        assert (await running).text == result.text
        assert (await session.bash("pgrep -x sleep | wc -l")).text == "0\n"


@pytest.mark.docker
async def test_daemon_that_is_told_to_stop_ends_streams_and_not_what_they_watch(
    own_daemon: DaemonProcess,
) -> None:
    async with AdapterClient(own_daemon.address) as client:
        session = OpenSession(client, await client.create_session(), own_daemon)
        running = begin(session, "echo begun; sleep 6; echo done", "c")
        await seen(session, "c", b"begun\n")
        reading = asyncio.create_task(read_all(client, session.id, "c"))
        begun = time.monotonic()
        await asyncio.to_thread(own_daemon.terminate)
        assert time.monotonic() - begun < 5.0  # its grace is 1 s here
        await asyncio.to_thread(own_daemon.start)
        read = await asyncio.wait_for(reading, 20)
        assert (read.data, read.dropped) == (b"begun\ndone\n", 0)
        assert (await asyncio.wait_for(running, 20)).text == "begun\ndone\n"
