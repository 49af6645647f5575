"""The daemon dies in the middle of things, and is started again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from operator import methodcaller
from pathlib import Path

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.errors import AdapterError
from sandbox_adapter.v1 import session_pb2, tool_pb2
from tests.integration.daemon_process import DaemonProcess, containers_of, until, wait_for

pytestmark = pytest.mark.docker
MOMENTS_S = (0.02, 0.15, 0.3, 0.5)

Act = Callable[[AdapterClient], Awaitable[object]]

# Connects to the guest's socket from inside, again and again, with a hello of its own
# and with descriptors that nobody asked for.
CONNECT_LOOP = """
import array, glob, json, socket, struct, threading, time
path, = glob.glob("/.sandboxd/session/*.sock")
hello = json.dumps({"hello": {"protocol": 2, "version": "0.1.0", "secret": "0" * 64, "pid": 1,
    "mode": "container", "workdir": "/workspace", "home": "/home/sandbox", "shell": None,
    "search": None, "maps_closed": True}}).encode()
said = struct.pack("!II", len(hello), 0) + hello
def dial(number):
    while True:
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect(path)
            s.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1]))])
            s.settimeout(1)
            if s.recv(100):
                open("/workspace/answered", "w").close()
        except OSError:
            time.sleep(0.0005)
        s.close()
for number in range(100):
    threading.Thread(target=dial, args=(number,), daemon=True).start()
open("/workspace/dialling", "w").close()
time.sleep(300)
"""


@pytest.fixture
def daemon(state_dir: Path) -> Iterator[DaemonProcess]:
    """A daemon that the test may kill."""
    started = DaemonProcess("docker", state_dir)
    try:
        yield started.start()
    finally:
        started.end_for_good()


def nothing_left(daemon: DaemonProcess) -> bool:
    folders = list((daemon.state_dir / "s").iterdir())
    mounts = Path("/proc/mounts").read_text()
    return (
        not folders and not containers_of(daemon.state_dir) and str(daemon.state_dir) not in mounts
    )


async def cut_off(daemon: DaemonProcess, act: Act, after_s: float) -> bool:
    """Kills the daemon `after_s` into an action; whether that had been answered."""
    async with AdapterClient(daemon.address) as client:
        acting = asyncio.ensure_future(act(client))
        await asyncio.wait({acting}, timeout=after_s)
        answered = acting.done()
        daemon.kill()
        acting.cancel()
        await asyncio.gather(acting, return_exceptions=True)
    daemon.start()
    return answered


async def ready(client: AdapterClient, session_id: str) -> session_pb2.Session:
    async def is_ready() -> bool:
        found = await client.get_session(session_id)
        return found.state == session_pb2.SESSION_STATE_READY

    await until(is_ready, 30)
    return await client.get_session(session_id)


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(200):
        yield b"x" * 100_000
        await asyncio.sleep(0.002)


async def test_daemon_killed_while_it_creates_leaves_no_half_session(
    daemon: DaemonProcess,
) -> None:
    for number, moment_s in enumerate(MOMENTS_S):
        name = f"made-{number}"
        answered = await cut_off(daemon, methodcaller("create_session", session_id=name), moment_s)
        async with AdapterClient(daemon.address) as client:
            if answered:
                assert (await ready(client, name)).generation == 1
            with contextlib.suppress(AdapterError):
                await ready(client, name)
            # Whatever became of it, the same request makes it whole.
            await client.create_session(session_id=name)
            result = (await client.call_tool(name, "bash", {"command": "echo whole"})).result
            assert result.text.endswith("whole\n")
            await client.delete_session(name)
        wait_for(lambda: nothing_left(daemon), 20, "everything of the sessions gone")


async def test_daemon_killed_while_it_deletes_finishes_afterwards(daemon: DaemonProcess) -> None:
    for number, moment_s in enumerate((0.005, 0.02, 0.05, 0.08)):
        name = f"gone-{number}"
        async with AdapterClient(daemon.address) as client:
            await client.create_session(session_id=name)
        await cut_off(daemon, methodcaller("delete_session", name), moment_s)
        async with AdapterClient(daemon.address) as client:
            await client.delete_session(name)
            with pytest.raises(AdapterError) as refused:
                await client.get_session(name)
            assert refused.value.reason == "SESSION_DELETED"
        wait_for(lambda: nothing_left(daemon), 20, "everything of the sessions gone")


async def test_daemon_killed_during_a_call_never_runs_it_twice(daemon: DaemonProcess) -> None:
    arguments = {"command": "echo ran >> effects; sleep 0.3; echo done"}
    async with AdapterClient(daemon.address) as client:
        await client.create_session(session_id="s")
    for number, moment_s in enumerate((0.001, 0.01, 0.1, 0.45)):
        name = f"call-{number}"
        answered = await cut_off(
            daemon, methodcaller("call_tool", "s", "bash", arguments, call_id=name), moment_s
        )
        async with AdapterClient(daemon.address) as client:
            assert (await ready(client, "s")).generation == 1
            before = await effects(client)
            state = (await client.get_call("s", name)).state
            if answered:
                assert state == tool_pb2.CALL_STATE_FINISHED
            if state == tool_pb2.CALL_STATE_NEVER_SEEN:
                continue
            again = await client.call_tool("s", "bash", arguments, call_id=name)
            assert again.result.replayed
            assert await effects(client) == before


async def effects(client: AdapterClient) -> int:
    shown = await client.call_tool("s", "bash", {"command": "cat effects 2>/dev/null | wc -l"})
    return int(shown.result.text)


async def test_daemon_killed_during_an_upload_leaves_the_old_content(
    daemon: DaemonProcess,
) -> None:
    async with AdapterClient(daemon.address) as client:
        await client.create_session(session_id="s")
        await client.call_tool("s", "write", {"path": "f", "content": "old"})
    for moment_s in (0.05, 0.2):
        assert not await cut_off(daemon, lambda c: c.files.write("s", "f", pieces()), moment_s)
        async with AdapterClient(daemon.address) as client:
            await ready(client, "s")

            async def alone(client: AdapterClient = client) -> bool:
                shown = await client.call_tool("s", "bash", {"command": "ls -A; cat f"})
                return shown.result.text.split() == ["f", "old"]

            await until(alone, 10)


async def test_s5_connect_flood_while_the_daemon_is_away_takes_nobodys_place(
    daemon: DaemonProcess,
) -> None:
    async with AdapterClient(daemon.address) as client:
        await client.create_session(session_id="flooded")
        await client.create_session(session_id="quiet")
        await client.call_tool(
            "flooded", "write", {"path": "/tmp/dial.py", "content": CONNECT_LOOP}
        )
        await client.call_tool(
            "flooded", "bash", {"command": "python3 /tmp/dial.py >/dev/null 2>&1 & echo"}
        )

        async def dialling() -> bool:
            shown = await client.call_tool("flooded", "bash", {"command": "ls"})
            return "dialling" in shown.result.text

        await until(dialling, 20)
    daemon.kill()
    daemon.start()
    async with AdapterClient(daemon.address) as client:
        for name in ("quiet", "flooded"):
            assert (await ready(client, name)).generation == 1
        shown = await client.call_tool("flooded", "bash", {"command": "ls"})
        assert shown.result.text == "dialling\n"


async def test_s7_call_is_resumed_through_a_connect_flood_of_its_own_session(
    daemon: DaemonProcess,
) -> None:
    script = "for i in $(seq 40); do echo $i; sleep 0.05; done; exit 4"
    async with AdapterClient(daemon.address) as client:
        await client.create_session(session_id="s")
        await client.call_tool("s", "write", {"path": "/tmp/dial.py", "content": CONNECT_LOOP})
        await client.call_tool(
            "s", "bash", {"command": "python3 /tmp/dial.py >/dev/null 2>&1 & echo"}
        )

        async def dialling() -> bool:
            return (
                "dialling" in (await client.call_tool("s", "bash", {"command": "ls"})).result.text
            )

        await until(dialling, 20)
        call = asyncio.create_task(client.call_tool("s", "bash", {"command": script}, call_id="c"))

        async def runs() -> bool:
            known = await client.get_call("s", "c")
            return known.state == tool_pb2.CALL_STATE_RUNNING

        await until(runs, 10)
        daemon.kill()
        call.cancel()
        await asyncio.wait({call})
    daemon.start()
    async with AdapterClient(daemon.address) as client:
        result = (await client.call_tool("s", "bash", {"command": script}, call_id="c")).result
        assert result.text.split("\n")[:40] == [str(number) for number in range(1, 41)]
        assert (result.exit_code, result.generation) == (4, 1)
        assert (await client.call_tool("s", "bash", {"command": "ls"})).result.text == "dialling\n"


async def test_sigterm_lets_running_calls_end_and_a_second_one_does_not(
    daemon: DaemonProcess,
) -> None:
    assert daemon.process is not None
    async with AdapterClient(daemon.address) as client:
        await client.create_session(session_id="s")
        running = [
            asyncio.create_task(
                client.call_tool("s", "bash", {"command": "touch up; sleep 1; echo end"})
            )
            for _ in range(8)
        ]

        async def started() -> bool:
            return "up" in (await client.call_tool("s", "bash", {"command": "ls"})).result.text

        await until(started, 10)
        daemon.process.send_signal(signal.SIGTERM)
        ends = [(await call).result.text for call in running]
        assert ends == ["end\n"] * 8
        assert await asyncio.to_thread(daemon.process.wait, 20) == 0
    daemon.start()
    assert daemon.process is not None
    async with AdapterClient(daemon.address) as client:
        await ready(client, "s")
        long = asyncio.create_task(
            client.call_tool("s", "bash", {"command": "sleep 100"}, call_id="long")
        )

        async def runs() -> bool:
            known = await client.get_call("s", "long")
            return known.state == tool_pb2.CALL_STATE_RUNNING

        await until(runs, 10)
        daemon.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "shutting down" in daemon.log.split("ready:")[-1], 10, "the shutdown")
        daemon.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.process.wait, 10) == 1
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
    daemon.start()
    async with AdapterClient(daemon.address) as client:
        assert (await client.get_call("s", "long")).state == tool_pb2.CALL_STATE_RUNNING
        assert (await ready(client, "s")).generation == 1
        assert (await client.cancel_call("s", "long")).ending == tool_pb2.ENDING_CANCELLED
