"""The docker backend on a real engine, without the daemon above it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends import docker as docker_backend
from sandboxd.backends.base import Sandbox, SandboxSpec
from sandboxd.backends.docker import DockerBackend
from sandboxd.config import ProfileSettings, Settings
from sandboxd.errors import EXIT_ENGINE, EXIT_IMAGE, CreateFailed, SandboxLost, StartupError
from sandboxd.metrics import Metrics
from tests.integration.daemon_process import docker, until

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for the module: the toolbox is exported once."""
    return tmp_path_factory.mktemp("backend") / "state"


@pytest.fixture
async def backend(state_dir: Path) -> AsyncIterator[DockerBackend]:
    made = await started(state_dir)
    yield made
    for resource_id in await made.owned():
        await made.remove(resource_id)
    await made.stop()


async def started(state_dir: Path, **changes: Any) -> DockerBackend:
    made = DockerBackend(Settings(state_dir=state_dir, **changes), Metrics(), "b1")
    await made.start()
    return made


def spec(generation: int = 1, resource_id: str | None = None, **profile: Any) -> SandboxSpec:
    # A small limit of memory, so that many of them run beside each other.
    settings = {"memory": "512MiB", "tmp": "64MiB", "shm": "16MiB", "pids": 128, **profile}
    return SandboxSpec(resource_id or secrets.token_hex(8), generation, ProfileSettings(**settings))


async def make(backend: DockerBackend, made: SandboxSpec) -> Sandbox:
    return await backend.create(made, lambda _: None)


async def ping(sandbox: Sandbox) -> None:
    await sandbox.request("ping", {}, reply_bytes_max=0, timeout_s=10)


async def run(sandbox: Sandbox, command: str) -> str:
    reply = await sandbox.request(
        "run",
        {"call_id": secrets.token_hex(4), "timeout_s": 20.0},
        command.encode(),
        reply_bytes_max=1024 * 1024,
        timeout_s=30.0,
    )
    return reply.body.decode()


async def inspected(made: SandboxSpec) -> dict[str, Any]:
    text = await asyncio.to_thread(docker, "inspect", f"sandboxd-{made.resource_id}")
    found: dict[str, Any] = json.loads(text)[0]
    return found


async def listed(made: SandboxSpec) -> str:
    label = f"label=sandboxd.resource={made.resource_id}"
    return await asyncio.to_thread(docker, "ps", "-aq", "--filter", label)


def cgroups_with(container: str) -> list[str]:
    """Cgroup folders of a container, in every hierarchy and of any driver."""
    names = (container, f"docker-{container}.scope")
    return [
        f"{folder}/{name}"
        for folder, below, _ in os.walk("/sys/fs/cgroup")
        for name in below
        if name in names
    ]


def mounts_with(text: str) -> bool:
    return text in Path("/proc/mounts").read_text()


def cause_of(sandbox: Sandbox) -> str:
    lost = sandbox.lost.result()
    assert isinstance(lost, SandboxLost)
    return lost.cause


async def test_create_answers_and_remove_leaves_nothing(backend: DockerBackend) -> None:
    made = spec()
    phases: list[str] = []
    sandbox = await backend.create(made, phases.append)
    assert phases == list(sandbox.facts.phases_s) == ["pull", "create", "start", "guest_ready"]
    assert sandbox.facts.working_directory == "/workspace"
    assert sandbox.facts.shell == "/bin/bash"
    assert sandbox.facts.search_engine.startswith("ripgrep ")
    await ping(sandbox)
    container = (await inspected(made))["Id"]
    assert cgroups_with(container)
    await run(sandbox, "setsid sleep 300 & echo x > f; echo")
    begun = time.monotonic()
    await backend.remove(made.resource_id)
    assert time.monotonic() - begun < 5
    assert await listed(made) == ""
    assert not cgroups_with(container)
    assert not mounts_with(made.resource_id)
    assert await backend.owned() == set()
    assert cause_of(sandbox) == "DELETED"
    with pytest.raises(SandboxLost):
        await ping(sandbox)
    await backend.remove(made.resource_id)
    await backend.remove("never-existed")


async def test_session_runs_as_its_own_user_and_can_write_its_places(
    backend: DockerBackend,
) -> None:
    sandbox = await make(backend, spec())
    printed = await run(
        sandbox,
        "id -u; id -un; id -gn; touch /workspace/a ~/b /tmp/c /run/d /var/tmp/e /dev/shm/f && "
        "echo written; touch /usr/x /etc/x /.sandboxd/x 2>/dev/null || echo refused; "
        "ls -A /.sandboxd/session; ulimit -c; grep -c . /proc/net/dev; getent passwd $(id -u)",
    )
    rows = printed.splitlines()
    assert int(rows[0]) == sandbox.facts.uid > 0
    assert rows[1:5] == ["sandbox", "sandbox", "written", "refused"]
    # The secret is gone: nothing but the socket is left.
    assert rows[5:7] == ["guest.sock", "0"]
    assert rows[-1].startswith("sandbox:x:")


async def test_profile_can_fix_the_user(backend: DockerBackend) -> None:
    sandbox = await make(backend, spec(user="1234:4321"))
    assert (sandbox.facts.uid, sandbox.facts.gid) == (1234, 4321)
    assert await run(sandbox, "id -u; id -g; touch f; stat -c %u f") == "1234\n4321\n1234\n"


async def test_more_cpus_than_the_worker_has_are_all_that_it_has(backend: DockerBackend) -> None:
    made = spec(cpus=1000.0)
    sandbox = await make(backend, made)
    cpus = os.cpu_count() or 1
    assert sandbox.facts.cpu_millis == cpus * 1000
    assert (await inspected(made))["HostConfig"]["NanoCpus"] == cpus * 1_000_000_000


async def test_killed_init_is_lost_at_once_and_the_store_outlives_it(
    backend: DockerBackend,
) -> None:
    made = spec()
    sandbox = await make(backend, made)
    await run(sandbox, "echo kept > f")
    waiting = asyncio.create_task(run(sandbox, "sleep 20"))
    await ping(sandbox)
    begun = time.monotonic()
    os.kill((await inspected(made))["State"]["Pid"], signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await waiting
    await asyncio.wait_for(asyncio.shield(sandbox.lost), 2)
    assert time.monotonic() - begun < 2
    assert cause_of(sandbox) == "ENDED"
    await backend.release(made.resource_id)
    await backend.release(made.resource_id)
    assert await listed(made) == ""
    again = await make(backend, spec(2, made.resource_id))
    assert again.secret_digest != sandbox.secret_digest
    assert await run(again, "cat f") == "kept\n"


async def test_s3_paused_container_is_ended_without_waiting(backend: DockerBackend) -> None:
    made = spec()
    await make(backend, made)
    await asyncio.to_thread(docker, "pause", f"sandboxd-{made.resource_id}")
    begun = time.monotonic()
    await backend.remove(made.resource_id)
    assert time.monotonic() - begun < 4
    assert await listed(made) == ""


async def test_container_ended_by_the_engine_is_lost(backend: DockerBackend) -> None:
    made = spec()
    sandbox = await make(backend, made)
    await asyncio.to_thread(docker, "rm", "-f", f"sandboxd-{made.resource_id}")
    await asyncio.wait_for(asyncio.shield(sandbox.lost), 5)
    assert cause_of(sandbox) == "ENDED"
    await backend.remove(made.resource_id)
    assert await backend.owned() == set()


async def test_s5_s8_connect_loop_inside_takes_no_place_and_costs_nothing(
    backend: DockerBackend,
) -> None:
    sandbox = await make(backend, spec())
    await run(
        sandbox,
        "cat > /tmp/loop.py <<'END'\n"
        "import socket, time\n"
        "end = time.monotonic() + 5\n"
        "while time.monotonic() < end:\n"
        "    s = socket.socket(socket.AF_UNIX); s.setblocking(False)\n"
        "    try:\n"
        "        s.connect('/.sandboxd/session/guest.sock'); s.send(b'garbage' * 100)\n"
        "    except OSError: pass\n"
        "    s.close()\n"
        "END\n"
        "python3 /tmp/loop.py >/dev/null 2>&1 & echo",
    )
    used = time.process_time()
    await asyncio.sleep(1.0)
    assert time.process_time() - used < 0.1
    for _ in range(100):
        await ping(sandbox)
    assert not sandbox.lost.done()


HOSTILE_GUEST = """
import json, socket, struct, sys, time
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
secret = open(arguments["--secret-file"]).read()
{before}
s = socket.socket(socket.AF_UNIX); s.connect(arguments["--socket"])
hello = json.dumps({{"hello": {{"protocol": 2, "version": "x", "secret": secret, "pid": 1,
    "mode": "container", "workdir": arguments["--workdir"], "home": arguments["--home"],
    "shell": None, "search": None, "maps_closed": True,
    "report": {{"calls": [], "sequence": 0}}}}}}).encode()
s.sendall(struct.pack("!II", len(hello), 0) + hello)
{after}
time.sleep(60)
"""


def with_guest(backend: DockerBackend, before: str = "", after: str = "") -> None:
    """Lets the backend start a program of the test's in place of the guest."""
    assert backend._toolbox is not None
    source = HOSTILE_GUEST.format(before=before, after=after)
    backend._toolbox = dataclasses.replace(
        backend._toolbox, guest_argv=("/usr/bin/python3", "-c", source)
    )


@pytest.mark.parametrize(
    "after",
    [
        "s.recv(100); s.sendall(b'\\xff' * 10_000_000)",
        "s.recv(100); s.sendall(struct.pack('!II', 20, 0) + b'x' * 20)",
        "s.recv(100); s.sendall(struct.pack('!II', 18, 1 << 20) + b'{\"id\": 1, \"ok\": {}}')",
    ],
)
async def test_s8_guest_that_breaks_the_protocol_ends_its_own_sandbox_only(
    backend: DockerBackend, after: str
) -> None:
    neighbour = await make(backend, spec())
    with_guest(backend, after=after)
    hostile = await make(backend, spec())
    await asyncio.wait_for(asyncio.shield(hostile.lost), 10)
    assert cause_of(hostile) == "PROTOCOL"
    await ping(neighbour)
    assert not neighbour.lost.done()


async def test_guest_that_closes_its_connection_is_ended_after_a_while(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxd.backends.sandbox.RECONNECT_S", 0.5)
    with_guest(backend, after="s.recv(100); s.close()")
    sandbox = await make(backend, spec())
    await asyncio.wait_for(asyncio.shield(sandbox.lost), 10)
    assert cause_of(sandbox) == "ENDED"


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("sys.exit('cannot start today')", "cannot start today"),
        ("secret = '0' * 64", "was not ready within 2 s"),
        ("time.sleep(60)", "was not ready within 2 s"),
        # The right secret, but from another process than the container's first.
        ("import os\nif os.fork(): time.sleep(60)", "was not ready within 2 s"),
    ],
)
async def test_s5_guest_that_does_not_prove_itself_is_not_ready_and_leaves_nothing(
    state_dir: Path, before: str, words: str
) -> None:
    backend = await started(state_dir, guest_ready_timeout_s=2)
    with_guest(backend, before=before)
    made = spec()
    with pytest.raises(CreateFailed) as failed:
        await make(backend, made)
    assert failed.value.reason == "GUEST_NOT_READY"
    assert words in failed.value.operator_text
    assert await listed(made) == ""
    assert await backend.owned() == set()
    await backend.stop()


async def test_next_daemon_adopts_and_running_commands_go_on(
    backend: DockerBackend, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = spec()
    first = await make(backend, made)
    await run(first, "echo kept > f; (sleep 1; echo later >> f) > /dev/null 2>&1 & echo")
    await backend.stop()
    assert cause_of(first) == "SHUTDOWN"
    successor = await started(state_dir)
    assert await successor.owned() == {made.resource_id}
    newer = dataclasses.replace(made, generation=2)
    assert await successor.adopt(newer, first.facts, first.secret_digest) is None
    with monkeypatch.context() as patched:
        patched.setattr(docker_backend, "ADOPT_S", 1.0)
        assert await successor.adopt(made, first.facts, "0" * 64) is None
    begun = time.monotonic()
    second = await successor.adopt(made, first.facts, first.secret_digest)
    assert second is not None
    assert time.monotonic() - begun < 5

    async def went_on() -> bool:
        assert second is not None
        return await run(second, "cat f") == "kept\nlater\n"

    await until(went_on, 10)
    assert second.facts.uid == first.facts.uid
    await successor.remove(made.resource_id)
    assert await successor.adopt(made, first.facts, first.secret_digest) is None
    await successor.stop()


async def test_daemon_that_forgot_everything_still_removes_what_runs(
    backend: DockerBackend, state_dir: Path
) -> None:
    made = spec()
    await make(backend, made)
    container = (await inspected(made))["Id"]
    await backend.stop()
    successor = await started(state_dir)
    await successor.remove(made.resource_id)
    assert not cgroups_with(container)
    assert await listed(made) == ""
    assert await successor.owned() == set()
    await successor.stop()


async def test_containers_of_others_are_neither_listed_nor_touched(
    backend: DockerBackend,
) -> None:
    made = spec()
    labels = [f"sandboxd.resource={made.resource_id}", "sandboxd.worker=somebody-elses"]
    options = [word for label in labels for word in ("--label", label)]
    stranger = await asyncio.to_thread(docker, "create", *options, "sandboxd/base:dev", "true")
    try:
        assert await backend.owned() == set()
        await backend.remove(made.resource_id)
        assert (await listed(made)) in stranger
        assert await listed(made)
    finally:
        await asyncio.to_thread(docker, "rm", "-f", stranger)


async def test_failed_starts_name_their_phase_and_leave_nothing(backend: DockerBackend) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"image": "sandboxd/never-built:dev"}, "PULL_FAILED", "never-built"),
        ({"image": "127.0.0.1:1/no-registry:1"}, "PULL_FAILED", "could not be pulled"),
        ({"runtime": "no-such-runtime"}, "START_FAILED", "no-such-runtime"),
        ({"user": "image"}, "START_FAILED", "allow_root"),
    ]
    for profile, reason, words in cases:
        made = spec(**profile)
        with pytest.raises(CreateFailed) as failed:
            await make(backend, made)
        assert failed.value.reason == reason, failed.value.operator_text
        assert words in str(failed.value)
        assert await listed(made) == ""
    assert await backend.owned() == set()


@pytest.mark.parametrize("phase", ["pull", "create", "start", "guest_ready"])
async def test_create_cancelled_in_any_phase_leaves_nothing(
    backend: DockerBackend, phase: str
) -> None:
    reached = asyncio.Event()

    def on_phase(name: str) -> None:
        if name == phase:
            reached.set()

    made = spec()
    creating = asyncio.create_task(backend.create(made, on_phase))
    await reached.wait()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert await listed(made) == ""
    assert await backend.owned() == set()


async def test_many_sandboxes_are_made_and_removed_at_once(backend: DockerBackend) -> None:
    specs = [spec() for _ in range(6)]
    sandboxes = await asyncio.gather(*[make(backend, made) for made in specs])
    await asyncio.gather(*[ping(sandbox) for sandbox in sandboxes])
    # Twice each, as the sweeper and a client might do it together.
    await asyncio.gather(*[backend.remove(made.resource_id) for made in specs * 2])
    assert await backend.owned() == set()
    assert not mounts_with("/store/workspace")


Fault = Callable[[pytest.MonkeyPatch], dict[str, Any]]


def _no_engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    return {}


def _no_toolbox(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    del monkeypatch
    return {"toolbox_image": "sandboxd/none:none"}


def _no_toolbox_inside(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    del monkeypatch
    return {"toolbox_image": "sandboxd/base:dev"}


def _no_base(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    del monkeypatch
    return {"profiles": {"default": {"image": "sandboxd/none:none"}}}


@pytest.mark.parametrize(
    ("fault", "exit_code", "words"),
    [
        (_no_engine, EXIT_ENGINE, "does not answer"),
        (_no_toolbox, EXIT_IMAGE, "sandboxd/none:none"),
        (_no_toolbox_inside, EXIT_IMAGE, "holds no toolbox"),
        (_no_base, EXIT_IMAGE, "sandboxd/none:none"),
    ],
)
async def test_start_refuses_in_one_line_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, exit_code: int, words: str
) -> None:
    backend = DockerBackend(Settings(state_dir=tmp_path, **fault(monkeypatch)), Metrics(), "b1")
    with pytest.raises(StartupError) as refused:
        await backend.start()
    assert refused.value.exit_code == exit_code
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    await backend.stop()
