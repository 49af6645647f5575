"""Who is taken for the guest: real processes at the other end of a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends.base import Report
from sandboxd.backends.hello import Expected, check_hello, digest_of, new_secret
from sandboxd.backends.listener import BACKLOG, SOCKET_NAME, Listener
from sandboxd.guest import protocol
from tests.unit.backends.wire import frame

SECRET = new_secret()


def hello(**changes: Any) -> dict[str, Any]:
    said = {
        "protocol": protocol.PROTOCOL_VERSION,
        "version": "0.1.0",
        "secret": SECRET,
        "pid": 1,
        "mode": "container",
        "workdir": "/workspace",
        "home": "/home/sandbox",
        "shell": "/bin/bash",
        "search": None,
        "maps_closed": True,
        "report": {"calls": [], "sequence": 0},
    }
    return {"hello": said | changes}


def expected(pid: int | None = None) -> Expected:
    return Expected(digest_of(SECRET), pid, "container", "/workspace", "/home/sandbox")


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    made = Listener(tmp_path, os.geteuid(), os.getegid(), "b1")
    yield made
    made.close()


class Dialler:
    """A process of its own that dials, says something, and prints what it gets."""

    def __init__(self, folder: Path, said: bytes) -> None:
        source = (
            "import socket, sys\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            "s.connect(sys.argv[1])\n"
            "s.sendall(bytes.fromhex(sys.argv[2]))\n"
            "try:\n    print(s.recv(4096).hex(), flush=True)\n"
            "except OSError as e:\n    print('', flush=True)\n"
            "sys.stdin.read()\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", source, str(folder / SOCKET_NAME), said.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    async def received(self) -> bytes:
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        return bytes.fromhex(line.decode().strip())

    def close(self) -> None:
        self.process.communicate(b"", timeout=10)


@pytest.fixture
def dial(tmp_path: Path) -> Iterator[Any]:
    diallers: list[Dialler] = []

    def start(said: bytes) -> Dialler:
        diallers.append(Dialler(tmp_path, said))
        return diallers[-1]

    yield start
    for dialler in diallers:
        dialler.close()


async def accept(listener: Listener, wanted: Expected, seconds: float = 10.0) -> Any:
    greeted = await asyncio.wait_for(listener.accept_guest(wanted), seconds)
    greeted.writer.close()
    await greeted.writer.wait_closed()
    return greeted.hello


async def test_s5_guest_with_its_pid_and_secret_is_welcomed(listener: Listener, dial: Any) -> None:
    guest = dial(frame(hello()))
    taken = await accept(listener, expected(guest.pid))
    assert (taken.shell, taken.search) == ("/bin/bash", "")
    assert b"welcome" in await guest.received()


async def test_s5_right_secret_from_another_process_is_closed_unread(
    listener: Listener, dial: Any
) -> None:
    thief = dial(frame(hello()))
    with pytest.raises(TimeoutError):
        await accept(listener, expected(os.getpid()), 1.0)
    assert await thief.received() == b""


async def test_s5_guests_own_process_with_a_wrong_secret_is_refused(
    listener: Listener, dial: Any
) -> None:
    guest = dial(frame(hello(secret=new_secret())))
    with pytest.raises(TimeoutError):
        await accept(listener, expected(guest.pid), 1.0)
    assert await guest.received() == b""


async def test_s5_where_pids_mean_nothing_the_secret_alone_decides(
    listener: Listener, dial: Any
) -> None:
    thief = dial(frame(hello(secret="0" * 64)))
    assert_refused = asyncio.create_task(accept(listener, expected()))
    assert await thief.received() == b""
    guest = dial(frame(hello()))
    assert (await assert_refused).shell == "/bin/bash"
    assert b"welcome" in await guest.received()


async def test_s8_silent_connection_does_not_keep_the_guest_out(
    listener: Listener, dial: Any
) -> None:
    silent = dial(b"")
    taken = asyncio.create_task(accept(listener, expected()))
    assert await silent.received() == b""
    dial(frame(hello()))
    await taken


async def test_s8_listener_is_not_read_while_nobody_is_awaited(
    listener: Listener, tmp_path: Path
) -> None:
    flood = [socket.socket(socket.AF_UNIX) for _ in range(BACKLOG * 4)]
    try:
        full = 0
        for each in flood:
            each.setblocking(False)
            try:
                each.connect(str(tmp_path / SOCKET_NAME))
            except BlockingIOError:
                full += 1
        assert full >= len(flood) - BACKLOG - 1
        begun = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - begun < 0.05
    finally:
        for each in flood:
            each.close()


async def test_s8_refused_connections_are_taken_at_a_bounded_rate(
    listener: Listener, dial: Any, tmp_path: Path
) -> None:
    source = (
        "import socket, sys, time\n"
        "count, end = 0, time.monotonic() + 1.0\n"
        "while time.monotonic() < end:\n"
        "    s = socket.socket(socket.AF_UNIX)\n"
        "    s.connect(sys.argv[1]); s.close(); count += 1\n"
        "print(count)\n"
    )
    waiting = asyncio.create_task(listener.accept_guest(expected(os.getpid())))
    begun = time.process_time()
    flood = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", source, str(tmp_path / SOCKET_NAME), stdout=subprocess.PIPE
    )
    printed, _ = await flood.communicate()
    assert int(printed) <= 300
    assert time.process_time() - begun < 0.5
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_socket_is_bound_anew_over_an_earlier_one(tmp_path: Path, dial: Any) -> None:
    first = Listener(tmp_path, os.geteuid(), os.getegid(), "b1")
    first.close()
    second = Listener(tmp_path, os.geteuid(), os.getegid(), "b1")
    guest = dial(frame(hello()))
    await accept(second, expected(guest.pid))
    second.close()


async def test_socket_of_a_deep_folder_is_bound_and_closed_to_others(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    made = Listener(deep, os.geteuid(), os.getegid(), "b1")
    found = os.lstat(deep / SOCKET_NAME)
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    made.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": 1},
        {"protocol": True},
        {"protocol": "1"},
        {"mode": "local"},
        {"workdir": "/"},
        {"home": "/root"},
        {"pid": 2},
        {"pid": True},
        {"maps_closed": False},
        {"maps_closed": 1},
        {"secret": None},
        {"secret": ["x"]},
        {"secret": ""},
        {"shell": 5},
        {"shell": "/bin/sh\n"},
        {"search": "x" * 5000},
        {"report": None},
        {"report": {"calls": [], "sequence": -1}},
        {"report": {"calls": [], "sequence": True}},
        {"report": {"calls": "c", "sequence": 0}},
        {"report": {"calls": ["../c"], "sequence": 0}},
        {"report": {"calls": [7], "sequence": 0}},
        {"report": {"calls": [f"c{n}" for n in range(1025)], "sequence": 0}},
    ],
)
def test_hello_that_is_not_what_was_started_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(protocol.ProtocolError):
        check_hello(hello(**changes), expected())


def test_hello_tells_which_calls_the_guest_knows() -> None:
    report = {"calls": ["c-1", "c-2"], "sequence": 7}
    found = check_hello(hello(report=report), expected()).report
    assert found == Report(frozenset({"c-1", "c-2"}), 7)


@pytest.mark.parametrize(
    "header", [{}, {"hello": []}, {"hello": None}, {"id": 1, "ok": {}}, {**hello(), "id": 1}]
)
def test_first_frame_that_is_no_hello_is_refused(header: dict[str, Any]) -> None:
    with pytest.raises(protocol.ProtocolError):
        check_hello(header, expected())


def test_secret_itself_is_not_kept() -> None:
    assert SECRET not in json.dumps(digest_of(SECRET))
    assert len(SECRET) == 64
    assert new_secret() != SECRET
