"""gVisor as a runtime of the engine under test.

`runtime()` gives its name, or says why it cannot be had. It is made known to a running engine
by its configuration file and a SIGHUP, which touches no container; the file is as it was
afterwards, so the engine forgets the runtime when it starts anew.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import pytest

NAME: Final = "sandboxd-test-runsc"
_CONFIGURATION: Final = Path("/etc/docker/daemon.json")
_PID_FILE: Final = Path("/var/run/docker.pid")
_LOCK: Final = Path("/var/lock/sandboxd-test-gvisor.lock")
_RELOAD_S: Final = 10.0
_ARGUMENTS: Final = (
    # The guest dials a socket of the host.
    "--host-uds=open",
    # Where this machine is itself confined, gVisor takes the container's network for the host's.
    "--network=none",
)


class _NotHere(Exception):
    """The reason."""


def require() -> str:
    """The runtime's name; skips the test, and says why, where it cannot be had.

    With CI=true it is promised (`.ci/run` installs it where a package is offered and sets
    GVISOR=absent where none is), so its absence fails there.
    """
    name, reason = runtime()
    if name:
        return name
    if os.environ.get("CI") == "true" and os.environ.get("GVISOR") != "absent":
        pytest.fail(f"needs gVisor: {reason}", pytrace=False)
    pytest.skip(f"NO GVISOR, its runtime stays untested: {reason}")


@functools.cache
def runtime() -> tuple[str, str]:
    """The runtime's name and an empty text, or an empty name and the reason."""
    try:
        _LOCK.parent.mkdir(parents=True, exist_ok=True)
        with _LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if NAME not in _runtimes():
                _register()
    except _NotHere as reason:
        return "", str(reason)
    except OSError as error:
        return "", f"cannot configure the engine: {error}"
    return NAME, ""


def _runtimes() -> dict[str, Any]:
    asked = subprocess.run(
        ["docker", "info", "--format", "{{json .Runtimes}}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if asked.returncode != 0:
        raise _NotHere(f"no engine answers: {asked.stderr.strip()[:200]}")
    found: dict[str, Any] = json.loads(asked.stdout) or {}
    return found


def _register() -> None:
    program = shutil.which("runsc")
    if program is None:
        raise _NotHere("`runsc` is not installed")
    engine = _local_engine()
    before = _CONFIGURATION.read_bytes() if _CONFIGURATION.exists() else None
    try:
        configuration = json.loads(before or b"{}")
    except ValueError:
        raise _NotHere(f"`{_CONFIGURATION}` is not JSON") from None
    runtimes = configuration.setdefault("runtimes", {})
    runtimes[NAME] = {"path": program, "runtimeArgs": list(_ARGUMENTS)}
    _CONFIGURATION.parent.mkdir(exist_ok=True)
    try:
        _CONFIGURATION.write_text(json.dumps(configuration))
        os.kill(engine, signal.SIGHUP)
        deadline = time.monotonic() + _RELOAD_S
        while NAME not in _runtimes():
            if time.monotonic() > deadline:
                raise _NotHere(f"the engine did not take the runtime within {_RELOAD_S:g} s")
            time.sleep(0.05)
    finally:
        if before is None:
            _CONFIGURATION.unlink(missing_ok=True)
        else:
            _CONFIGURATION.write_bytes(before)


def _local_engine() -> int:
    """The engine's process, where it is one of this machine that reads the usual file."""
    if os.geteuid() != 0:
        raise _NotHere("only root can make a runtime known to the engine")
    if os.environ.get("DOCKER_HOST"):
        raise _NotHere("the engine is named by DOCKER_HOST")
    try:
        pid = int(_PID_FILE.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        raise _NotHere(f"no process of the engine under `{_PID_FILE}`") from None
    if not command[0].endswith(b"dockerd") or any(b"config-file" in word for word in command):
        raise _NotHere("the engine is started in a way of its own")
    return pid
