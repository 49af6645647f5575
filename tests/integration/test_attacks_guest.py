"""A guest that was taken over, at the real listener and link (security S5, S8).

Its own process proves itself by pid and secret: what it does from then on is
hostile all the same, and may cost this sandbox but not the daemon.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.backends.base import SandboxFacts
from sandboxd.backends.hello import Expected, digest_of, new_secret
from sandboxd.backends.listener import SOCKET_NAME, Listener
from sandboxd.backends.sandbox import GuestSandbox
from sandboxd.guest import protocol

HELLO = {
    "protocol": protocol.PROTOCOL_VERSION,
    "version": "0.1.0",
    "pid": 1,
    "mode": "container",
    "workdir": "/workspace",
    "home": "/home/sandbox",
    "shell": "/bin/bash",
    "search": None,
    "maps_closed": True,
    "report": {"calls": [], "sequence": 0},
}
REDIAL = """
import json, os, socket, struct, sys
path, said = sys.argv[1], sys.stdin.readline().strip().encode()
message = struct.pack("!II", len(said), 0) + said
while True:
    dialled = socket.socket(socket.AF_UNIX)
    try:
        dialled.connect(path)
        dialled.sendall(message)
        if dialled.recv(100):
            os.write(1, b".")
    except OSError:
        pass
    dialled.close()
"""


@pytest.fixture
def redialler(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    secret = new_secret()
    counted = tmp_path / "welcomes"
    with counted.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", REDIAL, str(tmp_path / SOCKET_NAME)],
            stdin=subprocess.PIPE,
            stdout=out,
        )
    yield process, secret, counted
    process.kill()
    process.communicate()


async def test_s8_guest_that_dials_again_and_again_costs_the_daemon_little(
    tmp_path: Path, redialler: tuple[subprocess.Popen[bytes], str, Path]
) -> None:
    process, secret, counted = redialler
    expected = Expected(digest_of(secret), process.pid, "container", "/workspace", "/home/sandbox")
    listener = Listener(tmp_path, os.geteuid(), os.getegid(), "b1")
    facts = SandboxFacts(
        image="",
        image_digest="",
        runtime="",
        uid=0,
        gid=0,
        memory_bytes=0,
        cpu_millis=0,
        pids=0,
        disk_bytes=0,
        tmp_bytes=0,
        network="none",
        quota_mechanism="none",
        working_directory="/workspace",
        home_directory="/home/sandbox",
        shell="/bin/bash",
        search_engine="",
    )
    box = GuestSandbox("r", 1, facts, expected, listener, None)
    assert process.stdin is not None
    process.stdin.write(json.dumps({"hello": {**HELLO, "secret": secret}}).encode() + b"\n")
    process.stdin.flush()
    await box.connect(10)
    used_s, begun = time.process_time(), time.monotonic()
    await asyncio.sleep(2)
    used_s, passed_s = time.process_time() - used_s, time.monotonic() - begun
    await box.close("ENDED", "the test is over")
    assert used_s < 0.1 * passed_s
    assert 1 <= counted.stat().st_size < 30 * passed_s
