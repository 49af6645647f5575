"""A real daemon in a process of its own, as an operator would start it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

READY = re.compile(r"ready: listening on (\S+) .*?metrics on (\S+)")
START_S_MAX = 60.0
STOP_S_MAX = 60.0

_Found = TypeVar("_Found")


def wait_for(what: Callable[[], _Found | None], seconds_max: float, name: str) -> _Found:
    """Polls until `what` gives something true, and fails by name when the time is over."""
    end = time.monotonic() + seconds_max
    while not (found := what()):
        if time.monotonic() > end:
            raise AssertionError(f"not seen within {seconds_max} s: {name}")
        time.sleep(0.02)
    return found


async def until(what: Callable[[], Awaitable[bool]], seconds_max: float) -> None:
    """As `wait_for`, for a question that has to be awaited."""
    async with asyncio.timeout(seconds_max):
        while not await what():  # noqa: ASYNC110 - another process answers, there is no event
            await asyncio.sleep(0.02)


class DaemonProcess:
    """Starts and ends `python -m sandboxd serve` on free ports with a state folder of its own."""

    def __init__(self, backend: str, state_dir: Path, *arguments: str, config: str = "") -> None:
        self.backend = backend
        self.state_dir = state_dir
        self._arguments = list(arguments)
        self._config = config
        self._starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self.metrics = ""

    @property
    def log(self) -> str:
        """What all starts so far have printed."""
        files = sorted(self.state_dir.parent.glob(f"{self.state_dir.name}.log.*"))
        return "".join(file.read_text(errors="replace") for file in files)

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "sandboxd", "serve", "--backend", self.backend]
        command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        command += ["--state-dir", str(self.state_dir)]
        if self.backend == "local":
            command.append("--allow-unsafe-local")
        if self._config:
            path = self.state_dir.parent / f"{self.state_dir.name}.toml"
            path.write_text(self._config, encoding="utf-8")
            command += ["--config", str(path)]
        return command + self._arguments

    def start(self) -> DaemonProcess:
        self._starts += 1
        log_path = self.state_dir.parent / f"{self.state_dir.name}.log.{self._starts:02}"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.process = process

        def ready() -> re.Match[str] | None:
            text = log_path.read_text(errors="replace")
            if process.poll() is not None:
                raise AssertionError(f"the daemon ended with {process.returncode}:\n{text}")
            return READY.search(text)

        found = wait_for(ready, START_S_MAX, "the daemon's ready line")
        self.address, self.metrics = found.group(1), found.group(2)
        return self

    def kill(self) -> None:
        """SIGKILL: the daemon gets no chance to tidy up."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_S_MAX)

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S_MAX)

    def rss_bytes(self) -> int:
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def end_for_good(self) -> None:
        """Ends the daemon and every session that it has, whatever state the test left."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_S_MAX)
        last = DaemonProcess(
            self.backend,
            self.state_dir,
            *self._arguments,
            "--on-shutdown=delete",
            config=self._config,
        )
        last._starts = self._starts
        last.start().terminate()
        shutil.rmtree(self.state_dir, ignore_errors=True)


def docker(*arguments: str) -> str:
    """Output of a `docker` command that must succeed."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def containers_of(state_dir: Path) -> list[str]:
    """Ids of all containers, running or not, that the worker of a state folder owns."""
    worker = (state_dir / "worker-id").read_text().strip()
    return docker("ps", "-aq", "--no-trunc", "--filter", f"label=sandboxd.worker={worker}").split()
