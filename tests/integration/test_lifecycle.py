"""What becomes of sessions when daemons die, stop, and come back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.errors import AdapterError
from sandbox_adapter.v1 import error_pb2, session_pb2, tool_pb2
from tests.integration.conftest import BACKENDS
from tests.integration.daemon_process import DaemonProcess, containers_of, docker, until, wait_for


@pytest.fixture(params=BACKENDS)
def own_daemon(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[DaemonProcess]:
    """A daemon that the test may kill."""
    daemon = DaemonProcess(request.param, state_dir)
    try:
        yield daemon.start()
    finally:
        daemon.end_for_good()


@asynccontextmanager
async def client_of(daemon: DaemonProcess) -> AsyncIterator[AdapterClient]:
    async with AdapterClient(daemon.address) as client:
        yield client


def nothing_left(daemon: DaemonProcess) -> bool:
    folders = list((daemon.state_dir / "s").iterdir())
    containers = containers_of(daemon.state_dir) if daemon.backend == "docker" else []
    mounts = Path("/proc/mounts").read_text()
    return not folders and not containers and str(daemon.state_dir / "s") not in mounts


def processes_with(text: str) -> list[str]:
    """Command lines on this host, those inside containers included, that hold a text."""
    found = []
    # Not by a glob: it fails where a process ends while it looks.
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
            )
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


async def test_delete_leaves_nothing(own_daemon: DaemonProcess) -> None:
    async with client_of(own_daemon) as client:
        await client.create_session(session_id="gone", env={"KEY": "marker-in-env"})
        await client.call_tool(
            "gone", "bash", {"command": "setsid sleep 4321.25 & echo x > f; echo"}
        )
        assert processes_with("sleep 4321.25")
        await client.delete_session("gone")
        assert nothing_left(own_daemon)
        assert not processes_with("sleep 4321.25")
        state = [file for file in own_daemon.state_dir.glob("*") if file.is_file()]
        assert {file.name for file in state if b"marker-in-env" in file.read_bytes()} == set()
        await client.delete_session("gone")
        with pytest.raises(AdapterError) as refused:
            await client.create_session(session_id="gone")
        assert refused.value.reason == "SESSION_DELETED"
        with pytest.raises(AdapterError) as unknown:
            await client.get_session("never")
        assert unknown.value.reason == "SESSION_UNKNOWN"


async def test_kill_of_the_daemon_then_expiry_leaves_nothing(own_daemon: DaemonProcess) -> None:
    async with client_of(own_daemon) as client:
        await client.create_session(session_id="short", max_lifetime_s=12)
        await client.call_tool("short", "bash", {"command": "setsid sleep 4322.25 & echo"})
        running = asyncio.create_task(
            client.call_tool("short", "bash", {"command": "sleep 4324.25"}, call_id="cut-off")
        )

        # A call that still waits says RUNNING too, and would be NEVER_SEEN afterwards.
        async def is_at_work() -> bool:
            return bool(processes_with("sleep 4324.25"))

        await until(is_at_work, 30)
        own_daemon.kill()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    own_daemon.start()
    async with client_of(own_daemon) as client:
        cut = await client.get_call("short", "cut-off")
        assert cut.state == tool_pb2.CALL_STATE_RUNNING
        ended = await client.call_tool(
            "short", "bash", {"command": "sleep 4324.25"}, call_id="cut-off"
        )
        assert ended.result.ending == tool_pb2.ENDING_CANCELLED
        assert ended.result.reason == error_pb2.REASON_CANCELLED_BY_EXPIRY
        wait_for(lambda: nothing_left(own_daemon), 45, "everything of the expired session gone")
        assert not processes_with("sleep 4322.25")
        assert not processes_with("sleep 4324.25")
        with pytest.raises(AdapterError) as gone:
            await client.get_session("short")
        assert gone.value.reason == "SESSION_DELETED"


async def test_live_sessions_are_adopted_after_sigterm(own_daemon: DaemonProcess) -> None:
    async with client_of(own_daemon) as client:
        before = (await client.get_info()).ledger_id
        await client.create_session(session_id="kept", env={"COLOUR": "blue"})
        await client.call_tool("kept", "write", {"path": "f", "content": "kept\n"})
        first = await client.call_tool(
            "kept", "bash", {"command": "sleep 4323.25 & cat f"}, call_id="first"
        )
    assert own_daemon.terminate() == 0
    own_daemon.start()
    async with client_of(own_daemon) as client:
        session = await client.get_session("kept")
        assert session.state == session_pb2.SESSION_STATE_READY
        assert session.generation == 1
        assert (await client.get_info()).ledger_id == before
        shown = await client.call_tool("kept", "bash", {"command": "cat f; echo $COLOUR"})
        assert shown.result.text.split() == ["kept", "blue"]
        again = await client.call_tool(
            "kept", "bash", {"command": "sleep 4323.25 & cat f"}, call_id="first"
        )
        assert again.result.replayed
        assert again.result.text == first.result.text
        assert processes_with("sleep 4323.25")
        await client.delete_session("kept")
        assert not processes_with("sleep 4323.25")


async def test_on_shutdown_delete_leaves_nothing(state_dir: Path) -> None:
    daemon = DaemonProcess("local", state_dir, "--on-shutdown=delete").start()
    async with client_of(daemon) as client:
        await client.create_session()
        await client.create_session()
    assert daemon.terminate() == 0
    assert list((state_dir / "s").iterdir()) == []


@pytest.mark.docker
async def test_unknown_containers_are_not_touched(state_dir: Path) -> None:
    strangers = [
        docker("create", "--label", label, "sandboxd/base:dev", "true")
        for label in ("sandboxd.worker=another-worker", "app=somebody-elses")
    ]
    daemon = DaemonProcess("docker", state_dir, "--on-shutdown=delete")
    try:
        daemon.start()
        async with client_of(daemon) as client:
            await client.create_session(session_id="one")
            daemon.kill()
        daemon.start()
        async with client_of(daemon) as client:
            await client.delete_session("one")
        daemon.terminate()
        assert nothing_left(daemon)
        existing = docker("ps", "-aq", "--no-trunc").split()
        assert set(strangers) <= set(existing)
    finally:
        docker("rm", "-f", *strangers)
        daemon.end_for_good()


@pytest.mark.docker
async def test_a_container_killed_from_outside_ends_its_calls_as_lost(
    state_dir: Path,
) -> None:
    daemon = DaemonProcess("docker", state_dir).start()
    try:
        async with client_of(daemon) as client:
            await client.create_session(session_id="hit")
            await client.call_tool("hit", "write", {"path": "f", "content": "kept"})
            running = asyncio.create_task(client.call_tool("hit", "bash", {"command": "sleep 60"}))
            (container,) = containers_of(state_dir)

            async def sleeps() -> bool:
                return b"sleep" in await asyncio.to_thread(_processes_of, container)

            await until(sleeps, 10)
            docker("kill", container)
            result = (await running).result
            assert result.ending == tool_pb2.ENDING_SANDBOX_LOST
            assert result.is_error
            assert result.reason == error_pb2.REASON_SANDBOX_LOST
            after = (await client.call_tool("hit", "bash", {"command": "cat f"})).result
            assert after.generation == 2
            assert after.text.startswith(
                "[The sandbox was restarted: files in the workspace are kept, "
                "running processes are gone.]\n"
            )
            assert after.text.rstrip().endswith("kept")
    finally:
        daemon.end_for_good()


def _processes_of(container: str) -> bytes:
    return subprocess.run(
        ["docker", "top", container], capture_output=True, timeout=30, check=True
    ).stdout


def refused(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and output of a daemon that must not start."""

    done = subprocess.run(
        [sys.executable, "-m", "sandboxd", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, **(env or {})},
        check=False,
    )
    return done.returncode, done.stderr.strip()


LOCAL = ("--backend", "local", "--allow-unsafe-local", "--metrics", "127.0.0.1:0")


def test_refusals_are_one_clear_line_and_a_documented_code(
    state_dir: Path, tmp_path: Path, local_daemon: DaemonProcess
) -> None:
    state = ("--state-dir", str(state_dir))
    wrong_key = tmp_path / "wrong.toml"
    wrong_key.write_text("sessions_maxx = 3\n")
    cases = [
        (refused(*LOCAL, *state, "--config", str(wrong_key)), 2, "sessions_max"),
        (refused(*LOCAL, *state, "--config", str(tmp_path / "none.toml")), 2, "none.toml"),
        (refused(*LOCAL, *state, "--listen", local_daemon.address), 3, local_daemon.address),
        (refused(*LOCAL, *state, "--listen", "0.0.0.0:0"), 7, "0.0.0.0"),
        (refused("--backend", "local", *state), 7, "--allow-unsafe-local"),
        (
            refused(
                *state,
                "--listen",
                "127.0.0.1:0",
                "--metrics",
                "127.0.0.1:0",
                env={"DOCKER_HOST": f"unix://{tmp_path}/none.sock"},
            ),
            4,
            "engine",
        ),
    ]
    for (code, text), wanted, named in cases:
        last = text.split("\n")[-1]
        assert code == wanted, text
        assert last.startswith("sandboxd: error: "), text
        assert named in last, text
        assert "Traceback" not in text


@pytest.mark.docker
def test_a_missing_image_is_refused_at_start(state_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('toolbox_image = "sandboxd-test/none:none"\n')
    code, text = refused(
        "--config",
        str(config),
        "--state-dir",
        str(state_dir),
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
    )
    assert code == 5
    assert "sandboxd-test/none:none" in text.split("\n")[-1]


async def test_sessions_expire_at_the_end_of_their_lifetime(daemon: DaemonProcess) -> None:
    async with client_of(daemon) as client:
        created = await client.create_session(max_lifetime_s=2)
        session_id = created.session_id
        begun = time.monotonic()
        result = (await client.call_tool(session_id, "bash", {"command": "sleep 50"})).result
        assert result.ending == tool_pb2.ENDING_CANCELLED
        assert result.reason == error_pb2.REASON_CANCELLED_BY_EXPIRY
        assert time.monotonic() - begun < 30
