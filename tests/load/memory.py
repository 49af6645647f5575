"""What the processes behind a session hold in memory, by the kernel's own count."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.integration.daemon_process import DaemonProcess, containers_of, docker


def resident_of_session(daemon: DaemonProcess) -> Callable[[], dict[str, int]]:
    """Peaks in bytes of the daemon and of the guest of its only session.

    The peak, because a page that is read in between must not hide in a later figure.
    """
    (container,) = containers_of(daemon.state_dir)
    guest = int(docker("inspect", "--format", "{{.State.Pid}}", container))
    assert daemon.process is not None
    pids = {"daemon": daemon.process.pid, "guest": guest}
    return lambda: {name: _peak_bytes(pid) for name, pid in pids.items()}


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no VmHWM (page size {os.sysconf('SC_PAGE_SIZE')})")
