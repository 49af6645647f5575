"""The engine of the tests' own: it keeps to itself, comes back after a kill, and leaves nothing."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import machine
from tests.faults.own_engine import OwnEngine, is_gone
from tests.integration.daemon_process import docker

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    machine.OWN_ENGINE,
]

TOOLBOX = "sandboxd/toolbox:dev"
LIB = "/.sandboxd/toolbox/lib"
PYTHON = (f"{LIB}/ld.so", "--library-path", LIB, "/.sandboxd/toolbox/bin/python3", "-I", "-c")
SLEEP = (*PYTHON, "import time; time.sleep(1000)")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[OwnEngine]:
    made = OwnEngine(tmp_path / "engine")
    try:
        yield made.start()
    finally:
        made.end()


def make_container(engine: OwnEngine, folder: Path) -> str:
    """A container that never runs, of an image without a file."""
    archive = folder / "empty.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("empty"), io.BytesIO())
    engine.docker("import", str(archive), "empty:1")
    return engine.docker("create", "--network", "none", "empty:1", "none")


def run_in_inner_cgroup(engine: OwnEngine) -> int:
    """The process id of a container that lies in a cgroup below the container's own."""
    engine.load(TOOLBOX)
    made = engine.docker("run", "--detach", "--network", "none", TOOLBOX, *SLEEP)
    pid = int(engine.docker("inspect", "--format", "{{.State.Pid}}", made))
    top = next(Path("/sys/fs/cgroup").glob(f"**/{made}"))
    (top / "inner").mkdir()
    (top / "inner" / "cgroup.procs").write_text(str(pid))
    return pid


def traces(engine: OwnEngine) -> list[str]:
    """Of its processes, mounts and network devices, what is there."""
    short = engine.socket.parent
    marks = {str(short), str(engine.folder)}
    rows = Path("/proc/self/mountinfo").read_text().splitlines()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                rows.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return [row for row in rows if any(mark in row for mark in marks)]


def devices() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def test_own_engine_is_none_of_the_machines(engine: OwnEngine, tmp_path: Path) -> None:
    before = docker("ps", "--all", "--quiet", "--no-trunc").split()
    made = make_container(engine, tmp_path)
    assert engine.docker("ps", "--all", "--quiet", "--no-trunc") == made
    assert made not in before
    assert made not in docker("ps", "--all", "--quiet", "--no-trunc").split()


def test_own_engine_comes_back_with_what_it_had(engine: OwnEngine, tmp_path: Path) -> None:
    made = make_container(engine, tmp_path)
    for end in (engine.kill, engine.stop):
        end()
        assert engine.pid is None
        engine.start(live_restore=True)
        assert engine.docker("ps", "--all", "--quiet", "--no-trunc") == made


@pytest.mark.parametrize("number", [None, signal.SIGSTOP, signal.SIGKILL])
def test_own_engine_leaves_nothing_however_it_ends(
    tmp_path: Path, number: signal.Signals | None
) -> None:
    engine = OwnEngine(tmp_path / "engine")
    try:
        engine.start()
        assert traces(engine)
        assert engine.bridge in devices()
        pid = run_in_inner_cgroup(engine)
        if number is not None:
            engine.signal(number)
    finally:
        engine.end()
    engine.end()
    assert traces(engine) == []
    assert engine.bridge not in devices()
    assert is_gone(pid)
    assert not engine.folder.exists()
    assert not engine.socket.parent.exists()


def test_own_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    engine = OwnEngine(tmp_path / "engine")
    engine.folder.mkdir()
    (engine.folder / "data").write_text("a file where a folder must be")
    with pytest.raises(Exception, match="dockerd ended with 1"):
        engine.start()
    engine.end()
    assert subprocess.run(["pgrep", "-f", str(engine.socket)], check=False).returncode == 1
