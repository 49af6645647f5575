"""The orchestrator as a person starts it, against the real daemon and a real model server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandbox_adapter.client import AdapterClient
from tests.integration.daemon_process import DaemonProcess, containers_of, docker, wait_for

RUN_S_MAX = 50.0


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


@dataclass
class Place:
    """Where one test's files are."""

    folder: Path

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def command(self, address: str, base_url: str, *more: str) -> list[str]:
        return [
            sys.executable, "-m", "orchestrator", "run", "Do it.", "--sandbox", address,
            "--workspace", str(self.workspace), "--model", "scripted",
            "--model-base-url", base_url, "--log", str(self.folder / "log.sqlite3"), *more,
        ]  # fmt: skip

    def run(self, address: str, turns: list[Any], *more: str) -> subprocess.CompletedProcess[str]:
        with self.scripted_model(turns) as base_url:
            return subprocess.run(
                self.command(address, base_url, *more),
                capture_output=True, text=True, timeout=RUN_S_MAX, check=False,
            )  # fmt: skip

    @contextmanager
    def scripted_model(self, turns: list[Any]) -> Iterator[str]:
        script = self.folder / "script.json"
        script.write_text(json.dumps({"turns": turns}))
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "scripted-model", "--script", str(script)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()
            with process:
                assert process.wait(20) == 0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "workspace").mkdir()
    return Place(tmp_path)


def sessions_of(address: str) -> int:
    async def count() -> int:
        async with AdapterClient(address) as client:
            return len([session async for session in client.list_sessions()])

    return asyncio.run(count())


def test_run_repairs_a_workspace(daemon: DaemonProcess, place: Place) -> None:
    (place.workspace / "sum.py").write_text("def add(a, b):\n    return a - b\n")
    check = "python3 -B -c 'import sum; assert sum.add(2, 3) == 5' && echo right"
    turns = [
        {"calls": [call("glob", pattern="*.py"), call("grep", pattern="return"),
                   call("read", path="sum.py"), call("bash", command=check)]},
        {"when": {"results": ["^sum.py$", "sum.py:2:", "AssertionError"]},
         "calls": [call("edit", path="sum.py", oldText="a - b", newText="a + b"),
                   call("write", path="docs/note.md", content="fixed\n"),
                   call("bash", command=check)]},
        {"when": {"results": ["1 replacement at line 2", "^right$"]}, "text": "It adds now."},
    ]  # fmt: skip
    before = sessions_of(daemon.address)
    done = place.run(daemon.address, turns)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (place.workspace / "sum.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert (place.workspace / "docs/note.md").read_text() == "fixed\n"
    assert sessions_of(daemon.address) == before
    assert "M sum.py" in done.stdout
    assert "A docs/note.md" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_dry_run_shows_the_changes_and_writes_nothing(daemon: DaemonProcess, place: Place) -> None:
    (place.workspace / "a").write_text("1")
    turns = [{"calls": [call("bash", command="echo 2 > b; rm a")]}, {"text": "Done."}]
    done = place.run(daemon.address, turns, "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "A b" in done.stdout
    assert "D a" in done.stdout
    assert [path.name for path in place.workspace.iterdir()] == ["a"]


@pytest.mark.docker
def test_what_comes_out_of_a_container_is_not_trusted(
    docker_daemon: DaemonProcess, place: Place
) -> None:
    (place.workspace / ".git/hooks").mkdir(parents=True)
    (place.workspace / ".git/config").write_text("mine")
    (place.workspace / "kept").write_text("mine")
    (place.workspace / "d").mkdir()
    (place.workspace / "d/x").write_text("mine")
    (place.workspace / "inside").symlink_to("kept")
    attack = r"""
        ln -s /etc/passwd abs; ln -s ../../etc up; ln -s d dirlink; ln -s dirlink/x through
        ln -s sub sublink
        rm -r d; ln -s /etc d
        rm kept; ln -s /etc/shadow kept
        echo evil > .git/config; echo evil > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
        mkdir -p sub/.git; echo evil > sub/.git/config; echo evil > .envrc
        mkfifo pipe; printf x > $'new\nline\e[2J'; printf x > $'bad\xff'
        printf x > suid; chmod 6777 suid; readlink inside; echo made
    """
    turns = [
        {"calls": [call("bash", command=attack)]},
        {"when": {"results": ["^kept$", "^made$"]}, "text": "Done."},
    ]
    done = place.run(docker_daemon.address, turns)
    assert done.returncode == 6, done.stdout + done.stderr
    assert (place.workspace / ".git/config").read_text() == "mine"
    assert not list((place.workspace / ".git/hooks").iterdir())
    assert (place.workspace / "kept").read_text() == "mine"
    assert (place.workspace / "d/x").read_text() == "mine"
    top = {path.name for path in place.workspace.iterdir()}
    assert top == {".git", "kept", "d", "inside", "sublink", "new\nline\x1b[2J", "suid", "sub"}
    assert not list((place.workspace / "sub").iterdir())
    # `dirlink` led to what then became a link to /etc; `sublink` leads to a directory.
    assert os.readlink(place.workspace / "sublink") == "sub"
    assert (place.workspace / "suid").stat().st_mode & 0o7000 == 0
    assert "\x1b" not in done.stdout


def test_interrupt_ends_the_call_and_the_session(daemon: DaemonProcess, place: Place) -> None:
    turns = [{"calls": [call("bash", command="echo begun > begun; sleep 300")]}]
    before = sessions_of(daemon.address)
    with place.scripted_model(turns) as base_url:
        output = place.folder / "output"
        with output.open("wb") as sink:
            process = subprocess.Popen(place.command(daemon.address, base_url), stdout=sink)
        wait_for(lambda: "sleep 300" in output.read_text(), 30, "the call's line")
        process.send_signal(signal.SIGINT)
        assert process.wait(RUN_S_MAX) == 130
    assert "aborted" in output.read_text()
    assert sessions_of(daemon.address) == before


@pytest.mark.docker
@pytest.mark.parametrize("container_too", [False, True])
def test_call_goes_on_over_the_daemons_death_and_is_unknown_only_where_its_container_died_too(
    place: Place, state_dir: Path, container_too: bool
) -> None:
    told = "not known" if container_too else "exited with code 3"
    socket = f"unix:{place.folder / 'd'}"
    daemon = DaemonProcess("docker", state_dir, "--listen", socket).start()
    try:
        turns = [
            {"calls": [call("bash", command="echo once >> effects; sleep 4; exit 3")]},
            {"when": {"results": [told]}, "calls": [call("read", path="effects")]},
            {"when": {"results": ["^once$"], "absent": ["once\nonce"]}, "text": "Done."},
        ]
        with place.scripted_model(turns) as base_url:
            output = place.folder / "output"
            with output.open("wb") as sink:
                process = subprocess.Popen(place.command(socket, base_url), stdout=sink)
            effects = "s/*/store/workspace/effects"
            wait_for(lambda: list(state_dir.glob(effects)), 30, "the call's effect")
            daemon.kill()
            if container_too:
                docker("kill", *containers_of(state_dir))
            daemon.start()
            assert process.wait(RUN_S_MAX) == 0, output.read_text()
        # Run once in any case; where its end was not seen, the person is told that much.
        said = output.read_text()
        assert ("unknown" in said) is container_too
        assert (place.workspace / "effects").read_text() == "once\n"
    finally:
        daemon.end_for_good()


def test_closed_pipe_does_not_end_the_run(daemon: DaemonProcess, place: Place) -> None:
    turns = [{"calls": [call("write", path="a", content="x")]}, {"text": "Done."}]
    with place.scripted_model(turns) as base_url:
        reader, writer = os.pipe()
        process = subprocess.Popen(place.command(daemon.address, base_url), stdout=writer)
        os.close(writer)
        os.close(reader)
        assert process.wait(RUN_S_MAX) == 0
    assert (place.workspace / "a").read_text() == "x"
