"""The connection: what is answered, what ends it, and what a new one finds."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.guest import protocol
from sandboxd.guest.kept import Kept
from sandboxd.guest.ops import OpError
from tests.unit.guest.real_guest import BOOT, Guest, GuestSaidNo, read_message

DEADLINE_S = 10.0
IDS = itertools.count(1_000_000)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def test_hello_says_what_the_guest_is(guest: Guest) -> None:
    assert guest.hello["protocol"] == protocol.PROTOCOL_VERSION
    assert guest.hello["secret"] == guest.secret
    assert guest.hello["mode"] == "local"
    assert guest.hello["pid"] == guest.process.pid
    assert guest.hello["workdir"] == str(guest.workdir)
    assert guest.hello["shell"] == "/bin/bash"
    assert guest.hello["search"].startswith("ripgrep ")


@pytest.mark.parametrize(
    "script", ["sleep 300 &", "sleep 300 & echo other 1.0", "exit 1", "echo ripgreppy 1.0"]
)
def test_hello_comes_soon_where_the_search_program_is_another(
    guest_zipapp: Path, script: str
) -> None:
    begun = time.monotonic()
    guest = Guest(guest_zipapp, rg_argv=["/bin/sh", "-c", script], search="ripgrep")
    try:
        assert time.monotonic() - begun < DEADLINE_S
        assert guest.hello["search"] is None
    finally:
        guest.close()


def test_link_answers_ping(guest: Guest) -> None:
    assert guest.request("ping") == ({}, b"")


@pytest.mark.parametrize(
    "header",
    [
        {"op": "no_such_op", "args": {}},
        {"op": 7, "args": {}},
        {"op": "ping", "args": []},
        {},
        {"op": "run", "args": {"call_id": 3, "timeout_s": 1}},
        {"op": "run", "args": {"call_id": "negative", "timeout_s": -1}},
        {"op": "run", "args": {"call_id": "timeless"}},
    ],
)
def test_link_refuses_what_is_no_request_and_stays(
    shared_guest: Guest, header: dict[str, object]
) -> None:
    guest, id_ = shared_guest, next(IDS)
    pending = guest.expect(id_)
    guest.send({**header, "id": id_, "boot": BOOT})

    with pytest.raises(GuestSaidNo) as refused:
        pending.result()

    assert refused.value.reason == "INVALID_INPUT"
    assert guest.request("ping") == ({}, b"")


@pytest.mark.parametrize(
    "raw",
    [
        protocol.PREFIX.pack(protocol.HEADER_BYTES_MAX + 1, 0),
        protocol.PREFIX.pack(10, protocol.BODY_BYTES_MAX + 1),
        protocol.PREFIX.pack(0, 0),
        protocol.PREFIX.pack(5, 0) + b"{bad}",
        protocol.PREFIX.pack(21, 0) + b'{"id":1,"args":[NaN]}',
        protocol.PREFIX.pack(40, 0) + b"[" * 40,
        protocol.PREFIX.pack(10, 0) + b'{"id":-12}',
        protocol.PREFIX.pack(11, 0) + b'{"id":true}',
    ],
)
def test_link_drops_a_connection_that_sends_no_frames(shared_guest: Guest, raw: bytes) -> None:
    guest = shared_guest
    guest.sock.sendall(raw)

    guest.disconnect()
    guest.accept()

    assert guest.request("ping") == ({}, b"")


def test_link_assembles_a_message_of_many_frames(guest: Guest) -> None:
    # Five frames, with another request between them.
    script = b"echo start\n" + b"# padding\n" * 450_000 + b"echo end\n"
    buffers = protocol.encode_frames(
        {"id": 900, "boot": BOOT, "op": "run", "args": {"call_id": "big", "timeout_s": 20}}, script
    )
    big, ping = guest.expect(900), guest.expect(901)
    for buffer in buffers[:4]:
        guest.sock.sendall(buffer)
    guest.send({"id": 901, "boot": BOOT, "op": "ping", "args": {}})
    assert ping.result() == ({}, b"")
    for buffer in buffers[4:]:
        guest.sock.sendall(buffer)

    facts, body = big.result()

    assert len(buffers) == 10
    assert (facts["ended"], body) == ("exited", b"start\nend\n")


def test_link_refuses_requests_beyond_its_memory_and_stays(guest: Guest) -> None:
    # Each holds its body until it has run: three of 24 MiB are over the bound of 64.
    padding = b"\n" * (protocol.MESSAGE_BYTES_MAX - 100)
    calls = [
        guest.begin("run", {"call_id": f"c{n}", "timeout_s": 30}, b"sleep 1\n" + padding)
        for n in range(3)
    ]

    endings = []
    for call in calls:
        try:
            endings.append(call.result()[0]["ended"])
        except GuestSaidNo as refused:
            endings.append(refused.reason)

    assert sorted(endings) == ["CALLS_EXHAUSTED", "exited", "exited"]
    assert guest.request("run", {"call_id": "d", "timeout_s": 9}, padding)[0]["ended"] == "exited"


def test_link_answers_ping_while_every_worker_is_busy(guest: Guest) -> None:
    started = guest.workdir / "started"
    script = b"trap '' TERM; echo x >> started; sleep 30"
    calls = [guest.begin("run", {"call_id": f"c{n}", "timeout_s": 30}, script) for n in range(20)]
    until(lambda: started.exists() and len(started.read_text().split()) == 16)
    cancels = [guest.begin("cancel", {"call_id": f"c{n}"}) for n in range(20)]

    begun = time.monotonic()
    assert guest.request("ping") == ({}, b"")
    assert time.monotonic() - begun < 1.0

    assert all(cancel.result()[0]["survivors"] == [] for cancel in cancels)
    endings = []
    for call in calls:
        try:
            endings.append(call.result()[0]["ended"])
        except GuestSaidNo as refused:
            endings.append(refused.reason)
    # Sixteen ran, four were still waiting.
    assert sorted(endings) == ["CANCELLED_BY_CALLER"] * 4 + ["cancelled"] * 16


def test_link_runs_sixteen_calls_at_a_time(guest: Guest) -> None:
    begun = time.monotonic()
    calls = [
        guest.begin("run", {"call_id": f"c{n}", "timeout_s": 30}, b"sleep 1") for n in range(16)
    ]
    for call in calls:
        assert call.result()[0]["exit_code"] == 0

    assert time.monotonic() - begun < 5.0


def test_link_refuses_a_call_id_that_runs(guest: Guest) -> None:
    script = b"touch started; sleep 30"
    first = guest.begin("run", {"call_id": "same", "timeout_s": 30}, script)
    until((guest.workdir / "started").exists)
    with pytest.raises(GuestSaidNo) as refused:
        guest.request("run", {"call_id": "same", "timeout_s": 30}, b"true")
    assert refused.value.reason == "ID_CONFLICT"
    assert guest.request("cancel", {"call_id": "same"})[0] == {"found": True, "survivors": []}
    assert first.result()[0]["ended"] == "cancelled"


def test_cancel_of_an_ended_call_finds_nothing(guest: Guest) -> None:
    guest.request("run", {"call_id": "c", "timeout_s": 9}, b"sleep 300 >/dev/null &")

    assert guest.request("cancel", {"call_id": "c"})[0] == {"found": False, "survivors": []}


def test_reconnect_keeps_what_runs_and_drops_what_waits(guest: Guest) -> None:
    started, waited = guest.workdir / "started", guest.workdir / "waited"
    for n in range(16):
        script = f"echo {n} >> {started}; sleep 1.5; echo done >> {guest.workdir}/done"
        guest.begin("run", {"call_id": f"c{n}", "timeout_s": 30}, script.encode())
    until(lambda: started.exists() and len(started.read_text().split()) == 16)
    guest.begin("run", {"call_id": "late", "timeout_s": 30}, f"touch {waited}".encode())
    guest.request("ping")

    guest.disconnect()
    guest.accept()

    done = guest.workdir / "done"
    until(lambda: done.exists() and len(done.read_text().split()) == 16)
    # A worker is free again: what waited would have run by now, before this.
    assert guest.request("run", {"call_id": "next", "timeout_s": 9}, b"echo next")[1] == b"next\n"
    assert not waited.exists()


def test_answer_is_kept_over_a_lost_connection_until_it_is_recorded(guest: Guest) -> None:
    guest.records = False
    guest.begin("run", {"call_id": "c1", "timeout_s": 9, "sequence": 4}, b"sleep 0.5; echo one")
    second = {"call_id": "c2", "timeout_s": 9, "sequence": 5}
    guest.begin("run", second, b"echo two; touch up; exit 3")
    until((guest.workdir / "up").exists)
    guest.disconnect()
    guest.accept()
    assert guest.hello["report"]["sequence"] == 5
    assert set(guest.hello["report"]["calls"]) == {"c1", "c2"}
    assert guest.request("attach", {"call_id": "c1"})[1] == b"one\n"
    facts, body = guest.request("attach", {"call_id": "c2"})
    assert (facts["exit_code"], body) == (3, b"two\n")
    # Asked once more it says the same, but for how long ago that was.
    again, same_body = guest.request("attach", {"call_id": "c2"})
    assert again.pop("ended_ago_s") > facts.pop("ended_ago_s") > 0
    assert (again, same_body) == (facts, body)
    with pytest.raises(GuestSaidNo) as refused:
        guest.request("run", {"call_id": "c2", "timeout_s": 9}, b"echo again")
    assert refused.value.reason == "ID_CONFLICT"

    guest.records = True
    guest.request("ping")
    guest.disconnect()
    guest.accept()
    assert guest.hello["report"]["calls"] == []
    with pytest.raises(GuestSaidNo) as gone:
        guest.request("attach", {"call_id": "c1"})
    assert gone.value.reason == "CALL_UNKNOWN"


def test_answers_beyond_their_bound_are_dropped_and_their_calls_still_reported() -> None:
    kept = Kept()
    for number in range(20):
        kept.keep(f"c{number}", ({}, b"x" * 1023 * 1024))
    assert kept.ids() == [f"c{number}" for number in range(20)]
    dropped = [call_id for call_id in kept.ids() if isinstance(kept.find(call_id), OpError)]
    assert dropped == ["c0", "c1", "c2", "c3"]
    for number in range(600):
        kept.keep(f"d{number}", ({}, b""))
    assert len(kept.ids()) == 512


def test_request_of_another_daemon_ends_the_connection(guest: Guest) -> None:
    marker = guest.workdir / "ran"
    guest.send(
        {"id": 1, "boot": "b-other", "op": "run", "args": {"call_id": "c", "timeout_s": 5}},
        f"touch {marker}".encode(),
    )
    guest.disconnect()
    guest.accept()
    assert guest.request("ping") == ({}, b"")
    assert not marker.exists()


def test_reconnect_needs_a_welcome(guest: Guest) -> None:
    guest.disconnect()
    sock, _ = guest.listener.accept()
    with sock:
        assert "hello" in read_message(sock)[0]
        for buffer in protocol.encode_frames({"welcome": {"protocol": 99}}):
            sock.sendall(buffer)
        assert sock.recv(1) == b""

    guest.accept()
    assert guest.request("ping") == ({}, b"")


def test_local_guest_ends_itself_and_its_tree_with_its_folder(guest: Guest) -> None:
    script = """
        setsid -f sh -c 'echo $$ >> pids; exec sleep 300' >/dev/null 2>&1
        sh -c 'echo $$ >> pids; exec sleep 301' >/dev/null 2>&1 &
    """
    guest.request("run", {"call_id": "c", "timeout_s": 9}, script.encode())
    pids = guest.workdir / "pids"
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    jobs = [int(pid) for pid in pids.read_text().split()]
    assert all(_runs(pid) for pid in jobs)

    shutil.rmtree(guest.root)
    guest.disconnect()

    assert guest.process.wait(DEADLINE_S) == 0
    until(lambda: not any(_runs(pid) for pid in jobs))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_guest_that_cannot_start_says_why_and_exits(guest_zipapp: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *[sys.executable, "-I", "-S", "-B", "-X", "utf8", str(guest_zipapp)],
            *["--mode", "local", "--socket", str(tmp_path / "s")],
            *["--secret-file", str(tmp_path / "no-such-file")],
            *["--workdir", str(tmp_path), "--home", str(tmp_path)],
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=dict(os.environ),
    )

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("guest: cannot start: ")
    assert len(done.stderr.splitlines()) == 1
