"""The control group of a container, seen and swept from the host (security S3).

The engine's own way of ending a container can fail or take long under load; a
sweep of its cgroup does not. Both versions: v2 has one file that kills all, v1 is
swept pid by pid, again until nothing is left.

Every function blocks for moments only, in files of the kernel's; the backend
calls them on a thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SWEEP_REST_S: Final = 0.005
COMMANDS: Final = "commands"
"""Name of the child cgroup that commands run in, where there is one; see `command_cgroup`."""
_MOUNTINFO: Final = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class ContainerCgroup:
    """The folders of one container's cgroup. Each path holds the container's id."""

    container_id: str
    folders: tuple[Path, ...]

    @property
    def gone(self) -> bool:
        return not any(folder.exists() for folder in self.folders)

    def with_file(self, name: str) -> Path | None:
        """The folder that has a file of this name, which tells the controller and its version."""
        return next((folder for folder in self.folders if (folder / name).exists()), None)

    @property
    def _with_children(self) -> list[Path]:
        """Every folder that may hold processes, those within others first."""
        return [folder / COMMANDS for folder in self.folders] + list(self.folders)

    def kill(self, deadline_s: float) -> bool:
        """SIGKILL to everything inside, until it is empty; whether it became so in time."""
        end = time.monotonic() + deadline_s
        while True:
            for folder in self._with_children:
                _write(folder / "cgroup.kill", b"1")
            pids = self.pids()
            if not pids:
                return True
            for pid in pids:
                self._kill_one(pid)
            for folder in self._with_children:
                # What is frozen dies only once it is thawed; killed first, it runs no more.
                _write(folder / "freezer.state", b"THAWED")
                _write(folder / "cgroup.freeze", b"0")
            if time.monotonic() >= end:
                return False
            time.sleep(SWEEP_REST_S)

    def remove_empty(self) -> None:
        """Removes folders without processes, which a runtime leaves where its start failed."""
        for folder in self._with_children:
            with contextlib.suppress(OSError):  # in use, or gone already
                folder.rmdir()

    def pids(self) -> set[int]:
        found: set[int] = set()
        for folder in self._with_children:
            # Gone, or (v2, threaded or mid-removal) not readable: nothing to kill there.
            with contextlib.suppress(OSError):
                found.update(int(row) for row in (folder / "cgroup.procs").read_text().split())
        # 0 stands for a process of another PID namespace: not ours to name.
        return found - {0}

    def _kill_one(self, pid: int) -> None:
        """Held first, then checked: between listing and killing a number may pass on."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return
        try:
            if self.container_id in Path(f"/proc/{pid}/cgroup").read_text():
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except OSError:
            return
        finally:
            os.close(handle)


def _write(path: Path, content: bytes) -> None:
    """Writes a file of the kernel's where it is there: each version has its own."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(handle, content)
        finally:
            os.close(handle)


def belongs(pid: int, container_id: str) -> bool:
    """Whether a process is in the container's cgroup."""
    try:
        return container_id in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def cgroup_of(container_id: str, init_pid: int) -> ContainerCgroup:
    """The container's cgroup, found through its first process or, once that is gone, by name.

    No folder is taken whose path lacks the container's id: sweeping a parent
    would end other containers.
    """
    paths = _paths_of(init_pid) if init_pid > 0 else []
    candidates = [path for _, path in paths]
    if not any(container_id in path for path in candidates):
        candidates = [f"/docker/{container_id}", f"/system.slice/docker-{container_id}.scope"]
    folders = {
        mount / path.removeprefix(root).lstrip("/")
        for mount, root in cgroup_mounts()
        for path in candidates
        if container_id in path and (root == "/" or path.startswith(f"{root}/"))
    }
    return ContainerCgroup(
        container_id, tuple(sorted(folder for folder in folders if folder.is_dir()))
    )


def _paths_of(pid: int) -> list[tuple[str, str]]:
    """Controllers and path of each hierarchy that a process is in."""
    try:
        rows = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return []
    return [(row.split(":", 2)[1], row.split(":", 2)[2]) for row in rows if row.count(":") >= 2]


def cgroup_mounts() -> list[tuple[Path, str]]:
    """Mount point and root of every cgroup hierarchy that this process sees."""
    mounts = []
    for row in _MOUNTINFO.read_text().splitlines():
        fields = row.split()
        kind = fields[fields.index("-") + 1]
        if kind in ("cgroup", "cgroup2"):
            mounts.append((Path(fields[4]), fields[3]))
    return mounts
