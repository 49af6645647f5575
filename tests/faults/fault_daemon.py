"""A daemon that stops at fault points, on an engine of the test's own."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Final

from sandboxd.fault_points import VARIABLE
from tests.integration.daemon_process import STOP_S_MAX, DaemonProcess

ENGINE_TIMEOUT_S: Final = 4.0
"""Deadline of an engine call: short, as some are made to hang, and longer than slow ones take."""
CONFIG: Final = f"""
engine_timeout_s = {ENGINE_TIMEOUT_S}
sweep_interval_s = 0.5
shutdown_grace_s = 15
sessions_max = 64
"""


class FaultDaemon(DaemonProcess):
    """Listens on one Unix socket for all its lives, so that a client finds the next one."""

    def __init__(self, folder: Path, engine_host: str, points: Path) -> None:
        super().__init__(
            "docker",
            folder / "state",
            "--listen",
            f"unix:{folder / 'grpc.sock'}",
            "--metrics",
            "off",
            config=CONFIG,
        )
        self._environment = {
            "DOCKER_HOST": engine_host,
            VARIABLE: str(points),
            # It starts hundreds of times: compiled once, and not into the source tree.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(folder.parent / "compiled"),
        }
        self.lives = 0

    def command(self) -> list[str]:
        # `env` becomes the daemon: the process id is the daemon's own.
        return ["env", *(f"{k}={v}" for k, v in self._environment.items()), *super().command()]

    def start(self) -> FaultDaemon:
        self.lives += 1
        super().start()
        return self

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def wait_for_end(self) -> int:
        """The exit code, once it has ended by itself."""
        assert self.process is not None
        return self.process.wait(STOP_S_MAX)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def abandon(self) -> None:
        """Kills it, whatever state it is in."""
        if self.alive:
            self.process_signal(signal.SIGCONT)
            self.kill()

    def process_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def keep_log(self, folder: Path) -> Path:
        """Copies what it has printed so far to where it outlives the run."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in self.state_dir.parent.glob(f"{self.state_dir.name}.log.*"):
            shutil.copy(file, folder)
        return folder
