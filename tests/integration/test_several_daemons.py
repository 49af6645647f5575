"""Several daemons on one engine, and what each of them finds there after a hard end."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.v1 import session_pb2
from tests import machine
from tests.integration.daemon_process import DaemonProcess, containers_of, docker, until, wait_for

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]
IMAGE = "sandboxd/base:dev"
EXIT_STATE = 6


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[tuple[DaemonProcess, DaemonProcess]]:
    """Two that share the engine and nothing else."""
    first = DaemonProcess("docker", tmp_path / "first")
    second = DaemonProcess("docker", tmp_path / "second")
    try:
        yield first.start(), second.start()
    finally:
        first.end_for_good()
        second.end_for_good()


@pytest.fixture
def daemon(state_dir: Path) -> Iterator[DaemonProcess]:
    made = DaemonProcess("docker", state_dir)
    try:
        yield made.start()
    finally:
        made.end_for_good()


def worker_of(daemon: DaemonProcess) -> str:
    return (daemon.state_dir / "worker-id").read_text().strip()


def refused_start(daemon: DaemonProcess) -> tuple[int, str]:
    """Exit code and error output of a daemon that does not come to serving."""
    done = subprocess.run(daemon.command(), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


async def test_second_daemon_on_one_state_folder_is_refused_in_one_line(
    daemon: DaemonProcess,
) -> None:
    async with AdapterClient(daemon.address) as client:
        await client.create_session(session_id="s")
        before = containers_of(daemon.state_dir)
        code, said = await asyncio.to_thread(refused_start, daemon)
        assert code == EXIT_STATE
        assert said.count("\n") == 1
        assert said.startswith("sandboxd: error: ")
        assert "in use by another daemon" in said
        # It touched nothing of the first one's.
        result = (await client.call_tool("s", "bash", {"command": "echo on"})).result
        assert (result.text, result.generation) == ("on\n", 1)
        assert containers_of(daemon.state_dir) == before
    # The lock goes with the process, however that ends.
    daemon.kill()
    daemon.start()


async def test_worker_keeps_its_id_and_its_sessions_under_another_process_id(
    daemon: DaemonProcess,
) -> None:
    assert daemon.process is not None
    worker, pid = worker_of(daemon), daemon.process.pid
    assert str(uuid.UUID(worker)) == worker
    async with AdapterClient(daemon.address) as client:
        await client.create_session(session_id="s")
    before = containers_of(daemon.state_dir)
    daemon.kill()
    daemon.start()
    assert daemon.process.pid != pid
    assert worker_of(daemon) == worker
    async with AdapterClient(daemon.address) as client:

        async def ready() -> bool:
            return (await client.get_session("s")).state == session_pb2.SESSION_STATE_READY

        await until(ready, 20)
        assert (await client.get_session("s")).generation == 1
    assert containers_of(daemon.state_dir) == before


async def test_daemon_that_is_killed_and_sweeps_leaves_the_other_one_alone(
    daemons: tuple[DaemonProcess, DaemonProcess],
) -> None:
    first, second = daemons
    assert worker_of(first) != worker_of(second)
    async with AdapterClient(first.address) as mine, AdapterClient(second.address) as theirs:
        await asyncio.gather(
            *[mine.create_session(session_id=f"s{number}") for number in range(3)],
            *[theirs.create_session(session_id=f"s{number}") for number in range(3)],
        )
        started = _start_times(second)
        # The same ids, and still other sessions.
        await mine.call_tool("s0", "write", {"path": "f", "content": "mine"})
        await theirs.call_tool("s0", "write", {"path": "f", "content": "theirs"})
        running = asyncio.create_task(
            theirs.call_tool("s1", "bash", {"command": "sleep 8; echo whole"})
        )
        half_made = [
            asyncio.create_task(mine.create_session(session_id=f"cut-{number}"))
            for number in range(4)
        ]
        await until(lambda: _more_than(first, 3), 20)
        first.kill()
        await asyncio.gather(*half_made, return_exceptions=True)
        first.start()
        async with AdapterClient(first.address) as again:
            assert (await again.call_tool("s0", "read", {"path": "f"})).result.text == "mine"
            made = {session.session_id for session in await _sessions(again)}
            assert {"s0", "s1", "s2"} <= made

            async def only_what_is_owned() -> bool:
                left = await asyncio.to_thread(containers_of, first.state_dir)
                folders = os.listdir(first.state_dir / "s")
                return len(left) == len(made) == len(folders)

            await until(only_what_is_owned, 30)
            for name in made:
                await again.delete_session(name)
        assert containers_of(first.state_dir) == []
        assert (await running).result.text == "whole\n"
        assert _start_times(second) == started
        assert (await theirs.call_tool("s0", "read", {"path": "f"})).result.text == "theirs"


async def _more_than(daemon: DaemonProcess, count: int) -> bool:
    return len(await asyncio.to_thread(containers_of, daemon.state_dir)) > count


async def _sessions(client: AdapterClient) -> list[session_pb2.Session]:
    return [session async for session in client.list_sessions()]


def _start_times(daemon: DaemonProcess) -> dict[str, str]:
    ids = containers_of(daemon.state_dir)
    return {id_: docker("inspect", "--format", "{{.State.StartedAt}}", id_) for id_ in ids}


@machine.LOOPS
def test_everything_that_no_session_owns_goes_and_what_others_own_stays(
    daemons: tuple[DaemonProcess, DaemonProcess],
) -> None:
    first, second = daemons
    assert second.process is not None
    first.terminate()
    # The other one must not sweep what is planted under its name: it stands still.
    second.kill()
    with ExitStack() as planted:
        mine = _plant(first, planted, "a")
        theirs = _plant(second, planted, "b")
        before = _still_there(mine) | _still_there(theirs)
        assert before == {*mine, *theirs}, "what was planted is seen"
        first.start()
        wait_for(lambda: not _still_there(mine), 30, "nothing left of what no session owned")
        assert _still_there(theirs) == set(theirs)
        assert "step failed" not in first.log
        second.start()
        wait_for(lambda: not _still_there(theirs), 30, "nothing left of the other one's")


def _plant(daemon: DaemonProcess, planted: ExitStack, mark: str) -> dict[str, str]:
    """One of each kind that a daemon can leave, as `kind of name` to where it is."""
    resource = f"left{mark}{uuid.uuid4().hex[:8]}"
    labels = [
        *["--label", f"sandboxd.worker={worker_of(daemon)}"],
        *["--label", f"sandboxd.resource={resource}"],
    ]
    name = f"sandboxd-test-{resource}"
    container = docker("create", "--network", "none", *labels, IMAGE, "/nothing")
    planted.callback(_try, "docker", "rm", "-f", container)
    docker("volume", "create", *labels, name)
    planted.callback(_try, "docker", "volume", "rm", "-f", name)
    subnet = f"10.{216 if mark == 'a' else 217}.77.0/28"
    network = docker("network", "create", "--internal", "--subnet", subnet, *labels, name)
    planted.callback(_try, "docker", "network", "rm", network)
    folder = (daemon.state_dir / "s" / resource).resolve()
    (folder / "store").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder / "store"], check=True)
    planted.callback(_try, "umount", "--lazy", str(folder / "store"))
    image = folder / "store.img"
    image.write_bytes(bytes(1 << 20))
    loop = subprocess.run(
        ["losetup", "--find", "--show", image], check=True, capture_output=True, text=True
    ).stdout.strip()
    planted.callback(_try, "losetup", "--detach", loop)
    (folder / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        handle = os.open(folder / "run", os.O_PATH)
        listening.bind(f"/proc/self/fd/{handle}/guest.sock")
        os.close(handle)
    return {
        f"container {mark}": container,
        f"volume {mark}": name,
        f"network {mark}": network,
        f"mount {mark}": str(folder / "store"),
        f"loop {mark}": str(image),
        f"socket {mark}": str(folder / "run" / "guest.sock"),
        f"folder {mark}": str(folder),
    }


def _try(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)


def _still_there(planted: dict[str, str]) -> set[str]:
    loops = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    seen = {
        "container": docker("ps", "-aq", "--no-trunc").split(),
        "volume": docker("volume", "ls", "-q").split(),
        "network": docker("network", "ls", "-q", "--no-trunc").split(),
        "mount": [row.split()[1] for row in Path("/proc/mounts").read_text().splitlines()],
        "loop": [path.strip() for path in loops],
    }
    return {
        what
        for what, where in planted.items()
        if where in seen.get(what.split()[0], []) or (what[0] in "sf" and os.path.lexists(where))
    }
