"""Limits met live, on cgroups of version 1: the endings that they give, and what goes on after.

Everything that takes memory or processes runs in containers with small limits. Version 2 is
not run live; its files are recorded in `tests/unit/backends/test_cgroup_counters.py`.
"""

from __future__ import annotations

import asyncio
import os
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.v1 import adapter_pb2, error_pb2, session_pb2, tool_pb2
from tests.integration.conftest import OpenSession, open_session
from tests.integration.daemon_process import DaemonProcess, containers_of, docker, until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

MIB = 1024 * 1024
MEMORY = 256 * MIB
PIDS = 128
CONFIG = '[profiles.default]\nmemory = "256MiB"\npids = 128\ntmp = "64MiB"\nshm = "32MiB"\n'
HOG = "python3 -c 'x = bytearray(10**9)'"
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture(scope="module")
def small_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    if not (CGROUPS / "memory/memory.oom_control").exists():
        pytest.skip("cgroups of this machine are not of version 1")
    daemon = DaemonProcess("docker", tmp_path_factory.mktemp("small") / "state", config=CONFIG)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.end_for_good()


@pytest.fixture
async def session(small_daemon: DaemonProcess) -> AsyncIterator[OpenSession]:
    async for opened in open_session(small_daemon):
        yield opened


def name(result: tool_pb2.ToolResult) -> str:
    return tool_pb2.Ending.Name(result.ending).removeprefix("ENDING_")


def container_of(session: OpenSession) -> str:
    """The daemon's only container: each test here has one session."""
    (found,) = containers_of(session.daemon.state_dir)
    return found


def cgroup(controller: str, container: str) -> Path:
    return CGROUPS / controller / "docker" / container


async def goes_on(session: OpenSession, generation: int = 1) -> None:
    result = await session.bash("echo alive")
    assert result.text.startswith("alive\n")
    assert (result.exit_code, result.generation) == (0, generation)


def is_out_of_memory(result: tool_pb2.ToolResult) -> None:
    assert name(result) == "OOM_KILLED"
    assert (result.limit.kind, result.limit.limit) == ("memory", MEMORY)
    assert MEMORY // 2 < result.limit.peak <= MEMORY


# --- Memory -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "signal"),
    [(f"echo before; exec {HOG}", 9), (f"echo before; {HOG}; exit $?", 0)],
    ids=["exec", "child"],
)
async def test_command_out_of_memory_says_so_with_limit_peak_and_victim(
    session: OpenSession, command: str, signal: int
) -> None:
    result = await session.bash(command)
    is_out_of_memory(result)
    assert not result.is_error
    assert (result.exit_code, result.signal) == (137, signal)
    peak = result.limit.peak // MIB
    assert result.text.startswith("before\n")
    assert result.text.endswith(
        f"\n[Command was killed: out of memory (limit 256 MB, peak {peak} MB)]"
    )
    if os.access("/dev/kmsg", os.R_OK):
        assert result.limit.victim == "python3"
    await goes_on(session)


async def test_command_that_survives_its_child_only_carries_the_limit(
    session: OpenSession,
) -> None:
    result = await session.bash(f"{HOG} 2>/dev/null; echo then")
    assert name(result) == "EXITED"
    assert result.exit_code == 0
    assert (result.limit.kind, result.limit.limit) == ("memory", MEMORY)
    assert "out of memory" not in result.text
    # What was counted before is no part of the next call.
    after = await session.bash("kill -9 $$")
    assert name(after) == "SIGNALED"
    assert not after.HasField("limit")


async def test_timeout_stays_a_timeout(session: OpenSession) -> None:
    result = await session.bash(f"{HOG}; sleep 60", timeout=5)
    assert name(result) == "TIMED_OUT"
    assert (result.limit.kind, result.limit.limit) == ("time", 5000)


async def test_command_out_of_memory_under_the_next_daemon_says_so(
    small_daemon: DaemonProcess,
) -> None:
    command = f": > begun; sleep 4; exec {HOG}"
    async with AdapterClient(small_daemon.address) as client:
        session = OpenSession(client, await client.create_session(), small_daemon)
        call = asyncio.create_task(session.bash(command, call_id="resumed"))
        await until(lambda: made(session, "begun"), 20)
        small_daemon.kill()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    small_daemon.start()
    async with AdapterClient(small_daemon.address) as client:
        arguments = {"command": command}
        again = await client.call_tool(session.id, "bash", arguments, call_id="resumed")
        is_out_of_memory(again.result)
        await client.delete_session(session.id)


async def made(session: OpenSession, file: str) -> bool:
    return file in (await session.tool("glob", pattern=file)).text


# --- Memory that is no process's: security S4 ------------------------------------------------

ATTACK = textwrap.dedent(
    """
    import os
    # As small as it can be, in the kernel's eyes: the lowest score that it may have,
    # and memory that is nobody's.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")
    block = b"x" * (1 << 20)
    with open("/dev/shm/fill", "wb") as file:
        try:
            for _ in range(30):
                file.write(block)
        except OSError:
            pass
    fd = os.memfd_create("fill")
    for _ in range(1024):
        os.write(fd, block)
    print("SURVIVED")
    """
)


async def test_s4_memory_of_nobody_and_a_lowered_score_end_only_the_commands(
    session: OpenSession,
) -> None:
    await session.tool("write", path="/tmp/attack.py", content=ATTACK)
    for _ in range(3):
        result = await session.bash("exec python3 /tmp/attack.py", timeout=60)
        is_out_of_memory(result)
        await goes_on(session)
    await session.bash("rm -f /dev/shm/fill")
    limits = cgroup("memory", container_of(session))
    limit = int((limits / "commands/memory.limit_in_bytes").read_text())
    assert limit == MEMORY - 32 * MIB
    assert "oom_kill 0\n" in (limits / "memory.oom_control").read_text()


async def test_s4_without_a_cgroup_for_commands_the_sandbox_is_lost_and_says_why(
    session: OpenSession,
) -> None:
    """The whole container out of memory: what the rule prevents, done from the host."""
    await session.tool("write", path="/tmp/attack.py", content=ATTACK)
    await session.tool("write", path="kept", content="kept\n")
    memory = cgroup("memory", container_of(session))
    for task in (memory / "commands/tasks").read_text().split():
        (memory / "tasks").write_text(task)
    beside = asyncio.create_task(session.bash("echo begun; : > begun; sleep 60", timeout=90))
    await until(lambda: made(session, "begun"), 20)
    begun = time.monotonic()
    # The guest is larger than either, and now as eligible.
    attack = await session.bash("exec python3 /tmp/attack.py", timeout=60)
    lost = [result for result in (attack, await beside) if result.is_error]
    assert lost
    for result in lost:
        is_out_of_memory(result)
        assert result.reason == error_pb2.REASON_SANDBOX_LOST
        assert "out of memory (limit 256 MB, peak" in result.text
    assert time.monotonic() - begun < 45
    await until(lambda: ready_again(session), 30)
    after = await session.bash("cat kept")
    assert after.generation == 2
    assert after.text.endswith("kept\n")
    # The next container has a cgroup for commands again.
    await session.tool("write", path="/tmp/attack.py", content=ATTACK)
    is_out_of_memory(await session.bash("exec python3 /tmp/attack.py", timeout=60))
    await goes_on(session, generation=2)


async def ready_again(session: OpenSession) -> bool:
    found = await session.client.get_session(session.id)
    return found.state == session_pb2.SESSION_STATE_READY


async def test_container_that_is_killed_is_lost_for_no_lack_of_memory(
    session: OpenSession,
) -> None:
    await session.bash(f"{HOG}; :")
    call = asyncio.create_task(session.bash(": > begun; sleep 60"))
    await until(lambda: made(session, "begun"), 20)
    docker("kill", container_of(session))
    result = await call
    assert name(result) == "SANDBOX_LOST"
    assert not result.HasField("limit")


# --- Processes ---------------------------------------------------------------------------------

FORKS = textwrap.dedent(
    """
    import os, time
    try:
        while os.fork():
            pass
        time.sleep(30)
    except BlockingIOError as error:
        print(error, flush=True)
        {then}
    """
)


def is_out_of_pids(result: tool_pb2.ToolResult) -> None:
    assert name(result) == "PIDS_EXHAUSTED"
    assert (result.limit.kind, result.limit.limit) == ("pids", PIDS)
    # The child's limit, and the threads of the guest that are not in it.
    assert PIDS - 16 <= result.limit.peak <= PIDS


async def test_command_that_cannot_fork_says_so_and_the_next_one_works(
    session: OpenSession,
) -> None:
    await session.tool("write", path="/tmp/forks.py", content=FORKS.format(then="raise"))
    result = await session.bash("python3 /tmp/forks.py 2>&1; exit $?")
    is_out_of_pids(result)
    assert result.exit_code == 1
    assert not result.is_error
    await goes_on(session)


async def test_fork_bomb_ends_typed_and_the_next_call_works(session: OpenSession) -> None:
    result = await session.bash("bomb() { bomb | bomb & }; bomb", timeout=30)
    is_out_of_pids(result)
    await goes_on(session)
    assert (await session.client.get_session(session.id)).generation == 1


async def test_shell_that_cannot_be_started_says_why(session: OpenSession) -> None:
    hold = FORKS.format(then="open('full', 'w').close(); time.sleep(5)")
    await session.tool("write", path="/tmp/forks.py", content=hold)
    holding = asyncio.create_task(session.bash("exec python3 /tmp/forks.py", timeout=60))
    await until(lambda: made(session, "full"), 20)
    refused = await session.bash("echo never")
    is_out_of_pids(refused)
    assert refused.is_error
    assert refused.reason == error_pb2.REASON_SPAWN_FAILED
    await holding
    await goes_on(session)


async def test_s4_process_limit_of_commands_leaves_the_guest_its_own(
    session: OpenSession,
) -> None:
    pids = cgroup("pids", container_of(session))
    assert int((pids / "commands/pids.max").read_text()) == PIDS - 16
    await session.bash("bomb() { bomb | bomb & }; bomb", timeout=30)
    assert "max 0" in (pids / "pids.events").read_text()


# --- Storage -------------------------------------------------------------------------------------


async def test_command_that_fills_storage_says_which(session: OpenSession) -> None:
    result = await session.bash("cat /dev/zero > /tmp/fill")
    assert name(result) == "DISK_FULL"
    assert (result.limit.kind, result.limit.limit) == ("disk", 64 * MIB)
    assert "/tmp holds 64 MB" in result.text
    assert not result.is_error
    refused = await session.tool("write", path="/tmp/more", content="x" * 100_000)
    assert name(refused) == "DISK_FULL"
    assert (refused.limit.kind, refused.limit.limit) == ("disk", 64 * MIB)
    fine = await session.bash("rm /tmp/fill; echo x > /tmp/f && echo fine")
    assert fine.text == "fine\n"


async def test_write_that_fails_elsewhere_is_not_blamed_on_storage(session: OpenSession) -> None:
    result = await session.bash("echo x > /dev/full")
    assert name(result) == "EXITED"
    assert "No space left" in result.text
    assert not result.HasField("limit")


# --- What it rests on ---------------------------------------------------------------------------


async def test_worker_announces_that_it_tells_lack_of_memory(session: OpenSession) -> None:
    info = await session.client.get_info()
    assert adapter_pb2.CAPABILITY_OOM_CAUSE in info.capabilities


async def test_counters_are_let_go_and_no_cgroup_stays(small_daemon: DaemonProcess) -> None:
    assert small_daemon.process is not None
    fds = Path(f"/proc/{small_daemon.process.pid}/fd")

    def open_counters() -> int:
        found = 0
        for fd in fds.iterdir():
            try:
                found += "/sys/fs/cgroup" in os.readlink(fd)
            except FileNotFoundError:
                continue
        return found

    before = open_counters()
    containers = []
    for _ in range(3):
        async for session in open_session(small_daemon):
            await session.bash("true")
            containers.append(container_of(session))
            assert open_counters() > before
    assert open_counters() == before
    for container in containers:
        assert not cgroup("memory", container).exists()
        assert not cgroup("pids", container).exists()
