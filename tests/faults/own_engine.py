"""A container engine of the test's own, which may be stopped and killed at will.

It shares nothing with the machine's engine but the kernel: own data root, exec root, socket,
pid file and bridge, and no rule of the packet filter. Its images come from the machine's.

    engine = OwnEngine(folder).start()
    engine.load("sandboxd/base:dev", "sandboxd/toolbox:dev")
    ...                     # DOCKER_HOST=engine.host for daemons and the command line
    engine.kill()           # SIGKILL; `start` brings it back, with the same data
    engine.end()            # nothing of it is left: no container, mount, bridge, process, file

Needs root. One instance is used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 60.0
"""Without live-restore the engine stops its containers first, which may take 15 s."""
LOAD_S_MAX: Final = 300.0
END_S_MAX: Final = 30.0
_POLL_S: Final = 0.02
_SUBNETS: Final = [f"10.{second}.{third}.1/28" for second in (213, 214) for third in range(256)]
_LIFE_FLAG: Final = "--live-restore"


class EngineFault(Exception):
    """The engine did not do what it was told within its time."""


class OwnEngine:
    """One dockerd with everything below `folder`, which is made and in the end removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Paths of Unix sockets have at most 107 bytes, and a test's folder may be deep.
        self._short = Path(tempfile.mkdtemp(prefix="oe-"))
        self.socket = self._short / "docker.sock"
        self.host = f"unix://{self.socket}"
        self._exec_root = self._short / "exec"
        self.bridge = "oe-" + hashlib.sha256(os.fsencode(self._short)).hexdigest()[:10]
        self._process: subprocess.Popen[bytes] | None = None
        self._subnet = ""

    @property
    def pid(self) -> int | None:
        """The dockerd's process id while it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def log(self) -> str:
        """What all starts so far have printed."""
        path = self.folder / "dockerd.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, live_restore: bool = False) -> OwnEngine:
        """Starts it, for the first time or again, and waits until it answers."""
        if self.pid is not None:
            raise EngineFault("it runs already")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_bridge()
        # A killed engine leaves these, and other processes may have the numbers by now.
        for name in ("docker.pid", "exec/containerd/containerd.pid"):
            (self._short / name).unlink(missing_ok=True)
        with (self.folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(live_restore),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait(self._answers, START_S_MAX, "an answer")
        return self

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, such as SIGSTOP: then the engine hangs and does not refuse."""
        if self._process is None:
            raise EngineFault("it was never started")
        self._process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, and waits for the end; containers end with it unless it restores them."""
        self.signal(signal.SIGTERM)
        assert self._process is not None
        self._process.wait(STOP_S_MAX)

    def kill(self) -> None:
        """SIGKILL: its containerd dies with it, and containers go on under their shims."""
        containerd = self._containerd()
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(STOP_S_MAX)
        # The next dockerd takes one that is about to die for a living one, and waits for it.
        self._wait(lambda: not containerd or is_gone(containerd), END_S_MAX, "containerd's end")

    def docker(self, *arguments: str) -> str:
        """Output of a `docker` command on this engine that must succeed."""
        done = subprocess.run(
            ["docker", "--host", self.host, *arguments],
            capture_output=True,
            text=True,
            timeout=STOP_S_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise EngineFault(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def load(self, *images: str) -> None:
        """Copies images of the engine that `docker` finds by itself; seconds for each."""
        with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as saving:
            loaded = subprocess.run(
                ["docker", "--host", self.host, "load", "--quiet"],
                stdin=saving.stdout,
                capture_output=True,
                timeout=LOAD_S_MAX,
                check=False,
            )
            if saving.wait(STOP_S_MAX) or loaded.returncode:
                raise EngineFault(f"images are not loaded: {loaded.stderr.decode()}")

    def end(self) -> None:
        """Ends it and all that it made, in whatever state it is. Safe to repeat.

        Raises `EngineFault` where something of it cannot be removed.
        """
        if self._process is not None and self._process.poll() is None:
            # Killed, not stopped: its own way of stopping containers waits for each.
            self.signal(signal.SIGCONT)
            self.kill()
        # Shims hold the containers, and each ends with the last process of its own.
        self._wait(self._kill_rest, END_S_MAX, "the end of its processes")
        self._wait(self._remove_cgroups, END_S_MAX, "the end of its control groups")
        for mount in reversed(self._mounts()):
            subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
        if self._mounts():
            raise EngineFault(f"still mounted: {self._mounts()}")
        if self._bridge_exists():
            subprocess.run(["ip", "link", "delete", self.bridge], check=True, capture_output=True)
        for folder in (self._short, self.folder):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)

    # --- its parts ------------------------------------------------------------

    def _command(self, live_restore: bool) -> list[str]:
        command = ["dockerd", "--host", self.host, "--bridge", self.bridge]
        command += ["--data-root", str(self.folder / "data"), "--exec-root", str(self._exec_root)]
        command += ["--pidfile", str(self._short / "docker.pid"), "--config-file"]
        # The machine's own settings must not reach it.
        settings = self.folder / "daemon.json"
        settings.write_text("{}", encoding="ascii")
        command += [str(settings), "--log-level", "warn"]
        # The filter's chains are shared by all engines of a machine, so this one has no rules.
        command += ["--iptables=false", "--ip6tables=false", "--ip-masq=false"]
        command += ["--userland-proxy=false"]
        return [*command, _LIFE_FLAG] if live_restore else command

    def _make_bridge(self) -> None:
        """A device of its own: with `--bridge none` an engine removes the other one's docker0."""
        if self._bridge_exists():
            return
        self._ip("link", "add", self.bridge, "type", "bridge")
        self._subnet = _free_subnet()
        self._ip("addr", "add", self._subnet, "dev", self.bridge)
        self._ip("link", "set", self.bridge, "up")

    def _bridge_exists(self) -> bool:
        return Path("/sys/class/net", self.bridge).exists()

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise EngineFault(f"dockerd ended with {self._process.returncode}:\n{self.log[-3000:]}")
        asked = subprocess.run(
            ["docker", "--host", self.host, "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            timeout=START_S_MAX,
            check=False,
        )
        return asked.returncode == 0

    def _wait(self, what: Callable[[], bool], seconds_max: float, name: str) -> None:
        end = time.monotonic() + seconds_max
        while not what():
            if time.monotonic() > end:
                raise EngineFault(f"not seen within {seconds_max:g} s: {name}")
            time.sleep(_POLL_S)

    # --- its end --------------------------------------------------------------

    def _containerd(self) -> int:
        """The process id of the engine's containerd, 0 where none is known."""
        try:
            return int((self._exec_root / "containerd" / "containerd.pid").read_text())
        except (OSError, ValueError):
            return 0

    def _kill_rest(self) -> bool:
        """Kills what is left of its processes; whether nothing was."""
        pids = self._own_programs() | self._contained()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    def _own_programs(self) -> set[int]:
        """containerd and shims: they name a path of this engine in their arguments."""
        mark = os.fsencode(self._exec_root)
        found: set[int] = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "cmdline").read_bytes():
                        found.add(int(entry.name))
        return found - {os.getpid()}

    def _contained(self) -> set[int]:
        found: set[int] = set()
        for folder in self._cgroups():
            with contextlib.suppress(OSError):
                found |= {int(row) for row in (folder / "cgroup.procs").read_text().split()}
        return found - {0}

    def _cgroups(self) -> list[Path]:
        """Of its containers, by their ids, which are random and so nobody else's; inner first."""
        containers = self.folder / "data" / "containers"
        ids = [entry.name for entry in containers.iterdir()] if containers.exists() else []
        roots = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()]
        tops = [root / "docker" / id_ for root in roots for id_ in ids]
        found = [Path(at) for top in tops for at, _, _ in os.walk(top)]
        return sorted(found, key=lambda place: len(place.parts), reverse=True)

    def _remove_cgroups(self) -> bool:
        for folder in self._cgroups():
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not self._cgroups()

    def _mounts(self) -> list[str]:
        """Mount points of its own, parents first."""
        roots = (os.path.realpath(self._short) + "/", os.path.realpath(self.folder) + "/")
        rows = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [row.split()[4] for row in rows]
        return [point for point in points if (point + "/").startswith(roots)]


def is_gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for yet counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _free_subnet() -> str:
    """An address for a bridge that overlaps nothing on this machine."""
    shown = subprocess.run(["ip", "-json", "addr"], check=True, capture_output=True)
    taken = [
        ipaddress.ip_network(f"{row['local']}/{row['prefixlen']}", strict=False)
        for device in json.loads(shown.stdout)
        for row in device["addr_info"]
        if row["family"] == "inet"
    ]
    for candidate in _SUBNETS:
        network = ipaddress.ip_interface(candidate).network
        if not any(network.overlaps(other) for other in taken):
            return candidate
    raise EngineFault("no free addresses for a bridge")
