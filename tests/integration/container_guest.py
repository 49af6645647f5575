"""A guest in a throw-away container, without a daemon: for what only process 1 can show."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.unit.guest.real_guest import GuestSide, pack

UID = 54_321
PIDS_MAX = 128
MEMORY = "512m"


class Ran(NamedTuple):
    facts: dict[str, Any]
    text: str
    seconds: float


def docker(*arguments: str) -> str:
    return subprocess.run(
        ["docker", *arguments], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


def export_toolbox(folder: Path) -> Path:
    """The toolbox of the newest image, with the guest of this tree in it."""
    container = docker("create", "sandboxd/toolbox:dev")
    try:
        docker("cp", f"{container}:/.sandboxd/toolbox", str(folder))
    finally:
        docker("rm", container)
    pack(folder / "toolbox" / "guest.pyz")
    return folder / "toolbox"


class ContainerGuest(GuestSide):
    """Process 1 of a container with limits, capabilities dropped and no network."""

    def __init__(self, toolbox: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="guest-", dir="/tmp"))
        self.root.chmod(0o755)
        run = self.root / "run"
        run.mkdir()
        super().__init__(run)
        os.chmod(self.socket_path, 0o777)
        os.chown(self.secret_file, UID, UID)
        for folder in ("workspace", "home"):
            (self.root / folder).mkdir()
            os.chown(self.root / folder, UID, UID)
        record = json.loads((toolbox / "toolbox.json").read_text())
        argv = [
            *record["argv"],
            *["--mode", "container", "--socket", "/.sandboxd/session/s"],
            *["--secret-file", "/.sandboxd/session/secret"],
            *["--workdir", "/workspace", "--home", "/home/sandbox"],
            *["--rg-argv", json.dumps(record["rg"]), "--base-env", "{}"],
        ]
        mounts = {
            toolbox: "/.sandboxd/toolbox:ro",
            run: "/.sandboxd/session:ro",
            self.root / "workspace": "/workspace",
            self.root / "home": "/home/sandbox",
        }
        self.container = docker(
            *["run", "-d", "--network", "none", "--cap-drop", "ALL", "--read-only"],
            *["--security-opt", "no-new-privileges", "--user", f"{UID}:{UID}"],
            *["--pids-limit", str(PIDS_MAX), "-m", MEMORY, "--memory-swap", MEMORY],
            *["--tmpfs", "/tmp:size=64m,mode=1777", "-w", "/workspace"],
            *[word for source, target in mounts.items() for word in ("-v", f"{source}:{target}")],
            *["--entrypoint", argv[0], "sandboxd/base:dev", *argv[1:]],
        )
        self._calls = 0
        try:
            self.pid = int(docker("inspect", "-f", "{{.State.Pid}}", self.container))
            self.accept()
        except BaseException:
            self._remove()
            raise

    def run(self, script: str, timeout_s: float = 20.0) -> Ran:
        self._calls += 1
        begun = time.monotonic()
        facts, body = self.request(
            "run",
            {"call_id": f"call-{self._calls}", "timeout_s": timeout_s},
            script.encode(),
            timeout_s + 30,
        )
        return Ran(facts, body.decode(), time.monotonic() - begun)

    def processes(self) -> list[str]:
        """Command lines inside, the guest's own excluded, as the host sees them."""
        listed = docker("top", self.container, "-o", "pid,args").splitlines()[1:]
        return [line.split(None, 1)[1] for line in listed if int(line.split()[0]) != self.pid]

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        self._remove()
        self.disconnect()

    def _remove(self) -> None:
        docker("rm", "-f", self.container)
        self.listener.close()
        shutil.rmtree(self.root)
