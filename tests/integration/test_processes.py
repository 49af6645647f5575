"""Processes over gRPC, on both backends: as a program uses them, and across a killed daemon."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.errors import AdapterError
from sandbox_adapter.processes import STDERR, STDOUT
from sandbox_adapter.v1 import process_pb2, session_pb2
from tests.integration.conftest import BACKENDS, OpenSession
from tests.integration.daemon_process import DaemonProcess, containers_of, docker, until

MIB = 1024 * 1024
RUNNING = process_pb2.PROCESS_STATE_RUNNING
ENDED = process_pb2.PROCESS_STATE_ENDED


async def output(client: AdapterClient, sid: str, pid: str, **how: Any) -> bytes:
    """The whole of an output, nothing of it dropped."""
    data = b""
    async for message in client.processes.output(sid, pid, timeout_s=60, **how):
        assert (message.bytes_dropped, message.offset) == (0, how.get("offset", 0) + len(data))
        data += message.data
    return data


async def followed(client: AdapterClient, sid: str, pid: str, wanted: bytes) -> bytes:
    """An output up to the point where it holds these bytes."""
    data = b""
    async with aclosing(client.processes.output(sid, pid, timeout_s=60)) as messages:
        async for message in messages:
            data += message.data
            if wanted in data:
                return data
    raise AssertionError(f"it ended with {data!r}")


async def test_a_python_prompt_in_a_terminal(session: OpenSession) -> None:
    processes, sid = session.client.processes, session.id
    started = await processes.start(sid, ["python3", "-q"], terminal=(30, 100))
    pid = started.process.process_id
    await followed(session.client, sid, pid, b">>> ")
    line = b"import os; print(os.get_terminal_size().columns * 2, os.isatty(0))\n"
    await processes.write(sid, pid, line, offset=0)
    await followed(session.client, sid, pid, b"200 True")
    await processes.resize(sid, pid, 40, 77)
    again = b"print(os.get_terminal_size().columns * 3)\n"
    await processes.write(sid, pid, again, offset=len(line))
    await followed(session.client, sid, pid, b"231")
    await processes.write(sid, pid, b"", offset=len(line) + len(again), close=True)
    assert (await processes.wait(sid, pid, wait_s=30)).exit_code == 0


async def test_five_mebibytes_go_through_cat_whole(session: OpenSession) -> None:
    processes, sid = session.client.processes, session.id
    data = b"".join(number.to_bytes(4, "big") for number in range(5 * MIB // 4))
    pid = (await processes.start(sid, ["cat"])).process.process_id
    reading = asyncio.create_task(output(session.client, sid, pid))
    answer = await processes.write(sid, pid, data, offset=0, close=True)
    assert (answer.bytes_written, answer.closed) == (len(data), True)
    assert await reading == data
    assert (await processes.wait(sid, pid)).exit_code == 0


async def test_many_callers_that_leave_are_no_burden_for_those_that_stay(
    session: OpenSession,
) -> None:
    """Seen: what they had waited for stayed in the guest, which then refused everybody."""
    client, sid = session.client, session.id
    pid = (await client.processes.start(sid, ["cat"])).process.process_id
    stays = asyncio.create_task(client.processes.wait(sid, pid, wait_s=60))
    for _ in range(20):
        leaving = [
            asyncio.create_task(work)
            for _ in range(25)
            for work in (client.processes.wait(sid, pid, wait_s=60), output(client, sid, pid))
        ]
        # So long that most of them are in the guest, and that no two rounds are alike.
        done, _ = await asyncio.wait(leaving, timeout=0.05)
        assert not done, [task.exception() for task in done]
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
    result = await session.bash("echo before; sleep 0.3; echo after")
    assert result.text == "before\nafter\n"
    await client.processes.write(sid, pid, b"end", offset=0, close=True)
    assert await output(client, sid, pid) == b"end"
    assert (await stays).exit_code == 0


async def test_a_hundred_megabytes_pass_a_reader_that_stands_still(session: OpenSession) -> None:
    """sandbox-cases 10: a slow reader never slows the process, and learns what it missed."""
    processes, sid = session.client.processes, session.id
    total = 100_000_000
    script = f"read line; head -c {total} /dev/zero; printf end; echo done > done"
    pid = (await processes.start(sid, ["sh", "-c", script])).process.process_id
    before = session.daemon.rss_bytes()
    async with aclosing(processes.output(sid, pid, timeout_s=60)) as slow:
        await processes.write(sid, pid, b"\n", offset=0, close=True)
        first = await anext(slow)
        assert (await processes.wait(sid, pid, wait_s=40)).exit_code == 0
        seen, dropped, last = len(first.data), first.bytes_dropped, first
        async for message in slow:
            assert message.offset == seen + dropped + message.bytes_dropped
            seen, dropped, last = (
                seen + len(message.data),
                dropped + message.bytes_dropped,
                message if message.data else last,
            )
    assert seen + dropped == total + 3
    assert dropped > 80_000_000
    assert last.data.endswith(b"\0end")
    assert (await session.bash("cat done")).text == "done\n"
    assert session.daemon.rss_bytes() - before < 50 * MIB


async def test_a_reader_that_leaves_harms_nobody(session: OpenSession) -> None:
    processes, sid = session.client.processes, session.id
    script = "while read -r line; do echo $line; done"
    pid = (await processes.start(sid, ["sh", "-c", script])).process.process_id
    for _ in range(30):
        async with aclosing(processes.output(sid, pid)) as messages:
            reading = asyncio.create_task(anext(messages))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    await processes.write(sid, pid, b"still\n", offset=0, close=True)
    assert await output(session.client, sid, pid) == b"still\n"


async def test_signals_and_separate_streams(session: OpenSession) -> None:
    processes, sid = session.client.processes, session.id
    script = "trap 'echo caught >&2; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    pid = (await processes.start(sid, ["sh", "-c", script])).process.process_id
    await followed(session.client, sid, pid, b"ready\n")
    assert await processes.signal(sid, pid, signal.SIGTERM)
    ended = await processes.wait(sid, pid)
    assert (ended.state, ended.exit_code, ended.HasField("signal")) == (ENDED, 9, False)
    assert await output(session.client, sid, pid, stream=STDOUT) == b"ready\n"
    # Its group got the signal too: the shell says so of its sleep.
    assert (await output(session.client, sid, pid, stream=STDERR)).endswith(b"caught\n")
    assert not await processes.signal(sid, pid, signal.SIGTERM)


async def test_many_processes_and_calls_at_once(session: OpenSession) -> None:
    processes, sid = session.client.processes, session.id
    ids = [f"p{number}" for number in range(40)]

    async def one(name: str) -> bytes:
        await processes.start(sid, ["sh", "-c", f"read x; echo {name} $x"], process_id=name)
        await processes.write(sid, name, b"fed\n", offset=0, close=True)
        return await output(session.client, sid, name)

    calls = [session.bash(f"echo {number}") for number in range(10)]
    outputs, results = await asyncio.gather(asyncio.gather(*map(one, ids)), asyncio.gather(*calls))
    assert outputs == [f"{name} fed\n".encode() for name in ids]
    assert [result.text for result in results] == [f"{number}\n" for number in range(10)]
    states = {each.process_id: each.state for each in await processes.list(sid)}
    assert states.keys() == set(ids)


async def test_the_limit_of_processes_is_a_limit_and_not_a_fault(session: OpenSession) -> None:
    processes, sid = session.client.processes, session.id
    most = (await session.client.get_info()).limits.processes_max
    for number in range(most):
        await processes.start(sid, ["sleep", "300"], process_id=f"p{number}")
    with pytest.raises(AdapterError) as refused:
        await processes.start(sid, ["true"], process_id="more", timeout_s=0.5)
    assert refused.value.reason == "CALLS_EXHAUSTED"
    await processes.signal(sid, "p0", signal.SIGKILL)
    await processes.wait(sid, "p0")
    assert not (await processes.start(sid, ["true"], process_id="more")).replayed
    assert (await session.bash("echo fine")).text == "fine\n"


@pytest.mark.docker
async def test_a_bomb_is_ended_by_its_time_and_commands_run_beside_it(
    docker_session: OpenSession,
) -> None:
    processes, sid = docker_session.client.processes, docker_session.id
    await processes.start(sid, ["sleep", "300"], process_id="innocent")
    bomb = ":(){ :|:& };:; sleep 100"
    await processes.start(sid, ["bash", "-c", bomb], process_id="bomb", run_s_max=2)
    assert (await docker_session.bash("echo beside")).text.startswith("beside\n")
    assert (await processes.wait(sid, "bomb", wait_s=40)).state == ENDED
    assert (await docker_session.bash("echo after")).text == "after\n"
    left = await docker_session.bash("ps -e -o comm= | grep -c bash")
    assert left.text.split()[0] == "1"
    assert (await processes.wait(sid, "innocent", wait_s=0)).state == RUNNING
    assert (await docker_session.client.get_session(sid)).generation == 1


# --- what outlives the daemon, and what does not ------------------------------------------


@pytest.fixture(params=BACKENDS)
def own_daemon(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[DaemonProcess]:
    """A daemon that the test may kill, once for each backend."""
    started = DaemonProcess(request.param, state_dir)
    try:
        yield started.start()
    finally:
        started.end_for_good()


@pytest.fixture
async def own(own_daemon: DaemonProcess) -> AsyncIterator[OpenSession]:
    async with AdapterClient(own_daemon.address) as client:
        yield OpenSession(client, await client.create_session(), own_daemon)


async def test_processes_and_their_output_outlive_a_killed_daemon(own: OpenSession) -> None:
    processes, sid, daemon = own.client.processes, own.id, own.daemon
    script = 'while read -r line; do echo "<$line>"; done; exit 4'
    first = await processes.start(sid, ["sh", "-c", script], process_id="p", env={"A": "1"})
    await processes.start(sid, ["sh", "-c", "echo gone; exit 3"], process_id="short")
    await processes.wait(sid, "short")
    await processes.start(sid, ["sh", "-c", "sleep 0.5; echo meanwhile"], process_id="meanwhile")
    await processes.start(sid, ["sh"], process_id="tty", terminal=(24, 80))
    await processes.write(sid, "p", b"before\n", offset=0)
    await followed(own.client, sid, "p", b"<before>\n")

    daemon.kill()
    daemon.start()

    async with AdapterClient(daemon.address) as client:
        processes = client.processes
        again = await processes.start(sid, ["sh", "-c", script], process_id="p", env={"A": "1"})
        assert again.replayed
        assert again.process == first.process
        await processes.write(sid, "p", b"before\nafter\n", offset=0, close=True)
        assert await output(client, sid, "p") == b"<before>\n<after>\n"
        assert (await processes.wait(sid, "p")).exit_code == 4
        assert (await processes.wait(sid, "short")).exit_code == 3
        assert await output(client, sid, "short") == b"gone\n"
        assert await output(client, sid, "meanwhile") == b"meanwhile\n"
        await processes.write(sid, "tty", b"echo $((6 * 7)); exit\n", offset=0)
        await followed(client, sid, "tty", b"\n42\r\n")
        listed = [each.process_id for each in await processes.list(sid)]
        assert listed == ["p", "short", "meanwhile", "tty"]


async def test_a_stream_goes_on_where_it_stopped_when_the_daemon_was_killed(
    own: OpenSession,
) -> None:
    """The client opens it again by offset: no byte is lost, none comes twice."""
    processes, sid, daemon = own.client.processes, own.id, own.daemon
    script = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i + 1)); sleep 0.01; done"
    await processes.start(sid, ["sh", "-c", script], process_id="p")
    seen = b""
    async with aclosing(processes.output(sid, "p", timeout_s=60)) as messages:
        async for message in messages:
            seen += message.data
            if len(seen) > 200:
                break
    daemon.kill()
    daemon.start()
    async with AdapterClient(daemon.address) as client:
        seen += await output(client, sid, "p", offset=len(seen))
    assert seen == b"".join(b"line %d\n" % number for number in range(300))


@pytest.mark.parametrize(
    "own_daemon", [pytest.param("docker", marks=pytest.mark.docker)], indirect=True
)
async def test_a_restarted_sandbox_has_lost_its_processes(own: OpenSession) -> None:
    processes, sid = own.client.processes, own.id
    await processes.start(sid, ["sleep", "300"], process_id="runs")
    await processes.start(sid, ["true"], process_id="ended")
    await processes.wait(sid, "ended")
    following = asyncio.create_task(output(own.client, sid, "runs"))
    (container,) = containers_of(own.daemon.state_dir)
    await asyncio.to_thread(docker, "kill", "--signal=KILL", container)

    async def restarted() -> bool:
        session = await own.client.get_session(sid)
        return session.generation == 2 and session.state == session_pb2.SESSION_STATE_READY

    await until(restarted, 30)
    with pytest.raises(AdapterError) as broke:
        await following
    assert broke.value.reason == "SANDBOX_LOST"
    lost = await processes.wait(sid, "runs")
    assert (lost.state, lost.HasField("exit_code"), lost.generation) == (
        process_pb2.PROCESS_STATE_LOST,
        False,
        1,
    )
    assert (await processes.wait(sid, "ended")).exit_code == 0
    again = await processes.start(sid, ["sleep", "300"], process_id="runs")
    assert (again.replayed, again.process.state) == (True, process_pb2.PROCESS_STATE_LOST)
    fresh = await processes.start(sid, ["true"], process_id="fresh")
    assert (fresh.replayed, fresh.process.generation) == (False, 2)


async def test_deleting_a_session_ends_its_processes(daemon: DaemonProcess) -> None:
    async with AdapterClient(daemon.address) as client:
        sid = (await client.create_session()).session_id
        await client.processes.start(sid, ["sleep", "300"], process_id="p")
        reading = asyncio.create_task(output(client, sid, "p"))
        waiting = asyncio.create_task(client.processes.wait(sid, "p"))
        await asyncio.sleep(0)
        await client.delete_session(sid)
        for task in (reading, waiting):
            with pytest.raises(AdapterError):
                await asyncio.wait_for(task, 20)
