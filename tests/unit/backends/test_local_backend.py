"""The local backend with real guests, and what it may and may not end."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends import local
from sandboxd.backends.base import Sandbox, SandboxSpec
from sandboxd.backends.local import LocalBackend
from sandboxd.backends.local_processes import MARKER, end_processes
from sandboxd.config import ProfileSettings, Settings
from sandboxd.errors import CreateFailed, SandboxLost


def settings(state_dir: Path, **changes: Any) -> Settings:
    return Settings(state_dir=state_dir, backend="local", allow_unsafe_local=True, **changes)


def spec(generation: int = 1, resource_id: str | None = None) -> SandboxSpec:
    return SandboxSpec(resource_id or secrets.token_hex(8), generation, ProfileSettings())


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[LocalBackend]:
    made = LocalBackend(settings(tmp_path / "state"), "b1")
    await made.start()
    yield made
    for resource_id in await made.owned():
        await made.remove(resource_id)
    await made.stop()


async def run(sandbox: Sandbox, command: str) -> str:
    reply = await sandbox.request(
        "run",
        {"call_id": secrets.token_hex(4), "timeout_s": 20.0},
        command.encode(),
        reply_bytes_max=1024 * 1024,
        timeout_s=30.0,
    )
    return reply.body.decode()


def guest_pid(backend: LocalBackend, resource_id: str) -> int:
    record = json.loads((backend.state_folder_of(resource_id) / "process.json").read_text())
    return int(record["pid"])


def running(text: str) -> list[int]:
    """Pids whose command line holds a text."""
    found = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if text.encode() in line:
            found.append(pid)
    return found


def start_bystander() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def until(what: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():  # noqa: ASYNC110 - another process's state has no event
            await asyncio.sleep(0.01)


async def test_sandbox_is_made_in_phases_and_answers(backend: LocalBackend) -> None:
    phases: list[str] = []
    made = spec()
    sandbox = await backend.create(made, phases.append)
    assert phases == ["create", "start", "guest_ready"]
    assert list(sandbox.facts.phases_s) == phases
    assert (await run(sandbox, "pwd")).strip() == sandbox.facts.working_directory
    assert sandbox.facts.shell
    assert await backend.owned() == {made.resource_id}
    assert not (backend.state_folder_of(made.resource_id) / "run" / "secret").exists()


async def test_remove_ends_everything_that_the_sandbox_started(backend: LocalBackend) -> None:
    made = spec()
    seconds = f"{3000 + secrets.randbelow(1000)}.{secrets.randbelow(10**6)}"
    sandbox = await backend.create(made, lambda _: None)
    await run(
        sandbox,
        f"sleep {seconds} & setsid sleep {seconds} & env -i setsid sleep {seconds} & "
        f"(setsid sh -c 'sleep {seconds} & exit' &) ; echo",
    )
    await until(lambda: len(running(f"sleep {seconds}")) >= 4)
    bystander = start_bystander()
    try:
        await backend.remove(made.resource_id)
        assert running(f"sleep {seconds}") == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert not backend.state_folder_of(made.resource_id).exists()
    assert await backend.owned() == set()
    lost = sandbox.lost.result()
    assert isinstance(lost, SandboxLost)
    assert lost.cause == "DELETED"
    await backend.remove(made.resource_id)
    await backend.remove("never-existed")


async def test_killed_guest_is_lost_at_once_and_its_remains_are_removed(
    backend: LocalBackend,
) -> None:
    made = spec()
    seconds = f"{4000 + secrets.randbelow(1000)}.{secrets.randbelow(10**6)}"
    sandbox = await backend.create(made, lambda _: None)
    await run(sandbox, f"setsid sleep {seconds} & echo")
    waiting = asyncio.create_task(run(sandbox, "sleep 20"))
    await asyncio.sleep(0)
    begun = time.monotonic()
    os.kill(guest_pid(backend, made.resource_id), signal.SIGKILL)
    with pytest.raises(SandboxLost) as ended:
        await waiting
    assert ended.value.cause == "ENDED"
    assert time.monotonic() - begun < 2
    await backend.remove(made.resource_id)
    assert running(f"sleep {seconds}") == []


async def test_next_daemon_adopts_a_running_sandbox(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = spec()
    first = await backend.create(made, lambda _: None)
    await run(first, "echo kept > f")
    await backend.stop()
    lost = first.lost.result()
    assert isinstance(lost, SandboxLost)
    assert lost.cause == "SHUTDOWN"
    successor = LocalBackend(settings(tmp_path / "state"), "b1")
    await successor.start()
    with monkeypatch.context() as patched:
        patched.setattr(local, "ADOPT_S", 1.0)
        assert await successor.adopt(made, first.facts, "0" * 64) is None
    second = await successor.adopt(made, first.facts, first.secret_digest)
    assert second is not None
    assert await run(second, "cat f") == "kept\n"
    assert guest_pid(successor, made.resource_id) > 0
    await successor.remove(made.resource_id)
    assert await successor.adopt(made, first.facts, first.secret_digest) is None
    await successor.stop()


async def test_pid_that_was_given_anew_is_not_adopted_and_not_killed(
    backend: LocalBackend,
) -> None:
    made = spec()
    sandbox = await backend.create(made, lambda _: None)
    await backend.release(made.resource_id)
    bystander = start_bystander()
    try:
        record = backend.state_folder_of(made.resource_id) / "process.json"
        record.write_text(f'{{"pid": {bystander.pid}, "start_time": 1}}')
        assert await backend.adopt(made, sandbox.facts, sandbox.secret_digest) is None
        await backend.remove(made.resource_id)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


async def test_release_keeps_the_store_for_the_next_generation(backend: LocalBackend) -> None:
    made = spec()
    first = await backend.create(made, lambda _: None)
    await run(first, "echo kept > f")
    pid = guest_pid(backend, made.resource_id)
    await backend.release(made.resource_id)
    await backend.release(made.resource_id)
    assert not exists(pid)
    second = await backend.create(spec(2, made.resource_id), lambda _: None)
    assert second.generation == 2
    assert second.secret_digest != first.secret_digest
    assert await run(second, "cat f") == "kept\n"


async def test_guest_that_cannot_start_is_named_with_its_words_and_leaves_nothing(
    backend: LocalBackend, tmp_path: Path
) -> None:
    backend._zipapp.write_text("raise SystemExit('no guest today')")
    with pytest.raises(CreateFailed) as failed:
        await backend.create(spec(), lambda _: None)
    assert failed.value.reason == "GUEST_NOT_READY"
    assert "no guest today" in failed.value.operator_text
    assert "no guest today" not in str(failed.value)
    assert await backend.owned() == set()


async def test_cancelled_create_leaves_nothing(backend: LocalBackend) -> None:
    started = asyncio.Event()

    def on_phase(name: str) -> None:
        if name == "guest_ready":
            started.set()

    made = spec()
    creating = asyncio.create_task(backend.create(made, on_phase))
    await started.wait()
    pid = guest_pid(backend, made.resource_id)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert await backend.owned() == set()
    assert not exists(pid)


async def test_state_folder_deeper_than_a_socket_path_works(tmp_path: Path) -> None:
    deep = LocalBackend(settings(tmp_path / ("d" * 100) / "state"), "b1")
    await deep.start()
    made = spec()
    sandbox = await deep.create(made, lambda _: None)
    assert await run(sandbox, "echo deep") == "deep\n"
    await deep.remove(made.resource_id)
    await deep.stop()


async def test_two_sandboxes_end_apart(backend: LocalBackend) -> None:
    one, two = spec(), spec()
    await backend.create(one, lambda _: None)
    kept = await backend.create(two, lambda _: None)
    await backend.remove(one.resource_id)
    assert await run(kept, "echo alive") == "alive\n"
    assert await backend.owned() == {two.resource_id}


def test_marked_process_is_ended_and_a_similar_mark_is_not() -> None:
    name = secrets.token_hex(8)
    mine = subprocess.Popen(["sleep", "60"], env={MARKER: name})
    other = subprocess.Popen(["sleep", "60"], env={MARKER: name + "0", "X": f"{MARKER}={name}"})
    try:
        assert end_processes(name, None, 5.0)
        assert mine.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
