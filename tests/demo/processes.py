"""The demo's processes: started, waited for until they say that they are ready, ended."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.demo.package import DemoFailed

READY_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 40.0


@contextmanager
def server(
    name: str, arguments: Sequence[str], ready: str, output: Path, env: Mapping[str, str]
) -> Iterator[re.Match[str]]:
    """Runs `python ARGUMENTS` until the block ends; yields what `ready` matched.

    Output goes to a file, so that a full pipe can never stop the server. A server
    that does not end on SIGTERM fails the demo, and is killed.
    """
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=dict(env),
            # Ctrl-C is for the demo, which then ends its servers in order.
            start_new_session=True,
        )
    try:
        yield _wait_ready(name, process, re.compile(ready), output)
    finally:
        _end(name, process)


def _wait_ready(
    name: str, process: subprocess.Popen[bytes], ready: re.Pattern[str], output: Path
) -> re.Match[str]:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        said = output.read_text(errors="replace")
        if (match := ready.search(said)) is not None:
            return match
        if process.poll() is not None:
            raise DemoFailed(f"{name} ended with code {process.returncode}: {said.strip()}")
        time.sleep(0.05)
    raise DemoFailed(f"{name} was not ready after {READY_TIMEOUT_S:g} seconds")


def _end(name: str, process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise DemoFailed(f"{name} did not end {END_TIMEOUT_S:g} seconds after SIGTERM") from None
