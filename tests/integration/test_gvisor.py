"""Sessions in gVisor: a kernel of their own, and everything else as with runc."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.errors import CreateFailed
from sandbox_adapter.v1 import session_pb2, tool_pb2
from sandboxd import limits
from sandboxd.config import GVISOR_PIDS_MIN
from tests.images.recipes import image
from tests.integration import gvisor
from tests.integration.daemon_process import DaemonProcess, containers_of, docker, until
from tests.integration.tool_round import assert_bash, assert_five_tools, said, sandbox

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

# Room for gVisor's own processes and threads, which the engine's limit counts as well.
PROFILE = f'runtime = "{{}}"\npids = {GVISOR_PIDS_MIN}\n'


def daemon_with(state_dir: Path) -> DaemonProcess:
    profile = PROFILE.format(gvisor.require())
    config = f"[profiles.default]\n{profile}"
    for name in ("musl", "shellless", "odd-tmp-read-only", "odd-workspace-link"):
        config += f'[profiles.{name}]\nimage = "{image(name)}"\n{profile}'
    return DaemonProcess("docker", state_dir, config=config)


@pytest.fixture(scope="module")
def gvisor_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    daemon = daemon_with(tmp_path_factory.mktemp("gvisor") / "state")
    try:
        yield daemon.start()
    finally:
        daemon.end_for_good()


def processes_of(container: str) -> list[str]:
    """Host processes that the runtime keeps for a container."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"runsc" in line and container.encode() in line:
            found.append(pid)
    return found


@pytest.mark.parametrize("profile", ["default", "musl", "odd-tmp-read-only"])
async def test_six_tools_work_on_a_kernel_of_their_own(
    gvisor_daemon: DaemonProcess, profile: str
) -> None:
    async with sandbox(gvisor_daemon, profile) as session:
        assert session.session.effective.runtime == gvisor.NAME
        await assert_five_tools(session)
        await assert_bash(session)
        assert os.uname().release not in await said(session, "cat /proc/version")


async def test_without_a_shell_the_other_tools_work(gvisor_daemon: DaemonProcess) -> None:
    async with sandbox(gvisor_daemon, "shellless") as session:
        assert (await session.bash("true")).is_error
        await assert_five_tools(session)


async def test_s1_commands_do_not_end_or_steer_the_guest(gvisor_daemon: DaemonProcess) -> None:
    attacks = (
        "kill -9 1",
        "kill -INT 1",
        "pkill -f guest.pyz",
        "kill -9 -1",
        "prlimit --pid 1 --nofile=4",
        "renice 10 -p 1; chrt -i -p 0 1; taskset -p 1 1",
        "python3 -c 'import os; os.setpgid(0, 1)'",
    )
    async with sandbox(gvisor_daemon, "default") as session:
        for attack in attacks:
            await session.bash(attack)
        result = await session.bash("ulimit -n; echo alive")
        assert (result.text, result.generation) == ("4096\nalive\n", 1)


async def test_timeout_ends_the_tree_and_background_jobs_are_named(
    gvisor_daemon: DaemonProcess,
) -> None:
    async with sandbox(gvisor_daemon, "default") as session:
        job = await session.bash("sleep 301 > /dev/null 2>&1 & echo $!")
        assert [survivor.name for survivor in job.survivors] == ["sleep"]
        late = await session.bash(
            "(setsid sleep 302 &); env -i setsid sleep 303 & sleep 304", timeout=1
        )
        assert (late.ending, late.exit_code) == (tool_pb2.ENDING_TIMED_OUT, 124)
        assert not late.survivors
        assert await said(session, "ps -eo args | grep -o '^sleep 30.'") == "sleep 301\n"


@pytest.mark.slow
async def test_as_many_calls_as_run_at_once_may_all_start_processes(
    gvisor_daemon: DaemonProcess,
) -> None:
    """Seen: at `pids = 2048`, gVisor's own threads filled the limit and it ended."""
    loop = "i=0; while [ $i -lt 1000 ]; do (echo $i | cat >/dev/null); i=$((i+1)); done"
    async with sandbox(gvisor_daemon, "default") as session:
        results = await asyncio.gather(
            *(session.bash(loop, timeout=20) for _ in range(limits.CALLS_PARALLEL_MAX))
        )
        endings = {result.ending for result in results}
        assert endings <= {tool_pb2.ENDING_EXITED, tool_pb2.ENDING_TIMED_OUT}
        result = await session.bash("echo here", timeout=60)
        assert (result.text, result.generation) == ("here\n", 1)


async def test_link_at_a_mount_is_refused(gvisor_daemon: DaemonProcess) -> None:
    with pytest.raises(CreateFailed):
        async with sandbox(gvisor_daemon, "odd-workspace-link"):
            pass
    assert containers_of(gvisor_daemon.state_dir) == []


async def test_sandbox_that_ends_is_started_anew_and_a_deleted_one_leaves_nothing(
    gvisor_daemon: DaemonProcess,
) -> None:
    async with sandbox(gvisor_daemon, "default") as session:
        await session.tool("write", path="kept", content="x")
        (first,) = containers_of(gvisor_daemon.state_dir)
        assert processes_of(first)
        docker("kill", first)

        async def again() -> bool:
            found = await session.client.get_session(session.id)
            ready = found.state == session_pb2.SESSION_STATE_READY
            return ready and found.generation == 2

        await until(again, 30)
        result = await session.bash("cat kept")
        assert result.text.startswith("[The sandbox was restarted")
        assert result.text.endswith("\nx")
        (second,) = containers_of(gvisor_daemon.state_dir)
    assert containers_of(gvisor_daemon.state_dir) == []
    deadline = time.monotonic() + 10
    # The runtime's own helpers end a moment after the engine has let go of the container.
    while processes_of(first) or processes_of(second):
        assert time.monotonic() < deadline, "processes of a deleted sandbox are left"
        time.sleep(0.02)  # noqa: ASYNC251 - nothing else runs on this loop


async def test_next_daemon_adopts_a_running_sandbox(state_dir: Path) -> None:
    daemon = daemon_with(state_dir)
    try:
        daemon.start()
        async with AdapterClient(daemon.address) as client:
            created = await client.create_session()
            command = {"command": "sleep 305 > /dev/null 2>&1 &"}
            await client.call_tool(created.session_id, "bash", command)
        daemon.kill()
        daemon.start()
        async with AdapterClient(daemon.address) as client:

            async def ready() -> bool:
                found = await client.get_session(created.session_id)
                return found.state == session_pb2.SESSION_STATE_READY

            await until(ready, 30)
            command = {"command": "ps -eo args | grep -o '^sleep 305'"}
            result = (await client.call_tool(created.session_id, "bash", command)).result
            assert (result.text, result.generation) == ("sleep 305\n", 1)
    finally:
        daemon.end_for_good()
