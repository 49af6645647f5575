"""Processes for programs, in a real guest: starts, ends, ids, background jobs."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from sandboxd.guest import run
from sandboxd.guest.children import CHILDREN
from tests.unit.guest.direct import machine_in
from tests.unit.guest.process_ops import Processes, refusal
from tests.unit.guest.real_guest import Guest
from tests.unit.guest.test_run import until


@pytest.fixture
def processes(guest: Guest) -> Processes:
    return Processes(guest)


@pytest.fixture(scope="module")
def shared(shared_guest: Guest) -> Processes:
    return Processes(shared_guest)


# --- start and end -----------------------------------------------------------------


def test_start_tells_the_pid_and_wait_the_end(shared: Processes) -> None:
    facts = shared.script("end", "exit 3")
    ended = shared.wait("end")

    assert facts["created"]
    assert (ended["pid"], ended["running"], ended["exit_code"]) == (facts["pid"], False, 3)
    assert ended["signal"] is None
    assert 0 <= ended["ended_s"] < 20


def test_start_again_is_the_same_process_and_has_no_effect(processes: Processes) -> None:
    first = processes.script("p", "echo x >> effects; read line")
    answers = [processes.script("p", "echo x >> effects; read line") for _ in range(3)]
    processes.write("p", b"\n")
    processes.wait("p")

    assert [(each["created"], each["pid"]) for each in answers] == [(False, first["pid"])] * 3
    assert not processes.script("p", "anything")["created"]
    assert (processes.guest.workdir / "effects").read_text() == "x\n"


def test_starts_of_one_id_at_once_are_one_process(processes: Processes) -> None:
    body = json.dumps({"argv": ["sh", "-c", "echo x >> effects"], "env": {}}).encode()
    begun = [
        processes.guest.begin("process_start", {"process_id": "p", "cwd": ""}, body)
        for _ in range(20)
    ]
    answers = [each.result()[0] for each in begun]

    assert sum(each["created"] for each in answers) == 1
    processes.wait("p")
    assert (processes.guest.workdir / "effects").read_text() == "x\n"


def test_what_a_process_wrote_before_its_end_is_there_with_it(processes: Processes) -> None:
    """Nobody who has seen the end may find less than the whole output."""
    for number in range(40):
        name = f"p{number}"
        processes.start(name, ["head", "-c", "65536", "/dev/zero"])
        processes.wait(name)
        assert len(processes.read(name)[1]) == 65_536


def test_output_of_a_large_pipe_is_whole_with_the_end(processes: Processes) -> None:
    """A process may make its pipe larger than one read of the guest."""
    code = "import fcntl, os; fcntl.fcntl(1, 1031, 1 << 20); os.write(1, b'x' * 1000000)"
    processes.start("p", [sys.executable, "-c", code])
    processes.wait("p")
    assert processes.read("p")[0]["end"] == 1_000_000


def test_failed_start_says_why_and_leaves_the_id_free(processes: Processes) -> None:
    work = processes.guest.workdir
    (work / "plain").write_text("x")
    (work / "no-interpreter").write_text("#!/no/such/thing\n")
    (work / "no-interpreter").chmod(0o755)

    assert refusal(processes.start, "p", ["no-such-program"]) == "FILE_NOT_FOUND"
    assert refusal(processes.start, "p", ["./missing"]) == "FILE_NOT_FOUND"
    assert refusal(processes.start, "p", ["./no-interpreter"]) == "FILE_NOT_FOUND"
    assert refusal(processes.start, "p", ["./plain"]) == "PERMISSION_DENIED"
    assert refusal(processes.start, "p", [""]) == "FILE_NOT_FOUND"
    assert refusal(processes.start, "p", ["./"]) == "PERMISSION_DENIED"
    assert refusal(processes.start, "p", ["sh", "x" * 200_000]) == "SPAWN_FAILED"
    assert refusal(processes.start, "p", ["ls"], cwd="plain") == "WORKING_DIRECTORY_MISSING"
    assert refusal(processes.start, "p", ["ls"], cwd="/") == "PATH_OUTSIDE"
    assert refusal(processes.wait, "p") == "PROCESS_UNKNOWN"
    assert processes.start("p", ["true"])["created"]


def test_failed_starts_leave_no_descriptor(processes: Processes) -> None:
    def count() -> int:
        return len(os.listdir(f"/proc/{processes.guest.process.pid}/fd"))

    processes.start("warm", ["true"], rows=1, columns=1)
    processes.wait("warm")
    before = count()
    for number in range(10):
        refusal(processes.start, "p", ["missing"], rows=24, columns=80)
        refusal(processes.start, "p", ["missing"])
        processes.start(f"t{number}", ["true"], rows=24, columns=80)
        processes.start(f"p{number}", ["true"])
        processes.wait(f"t{number}")
        processes.wait(f"p{number}")
    until(lambda: count() <= before)


def test_start_looks_a_name_up_in_its_own_path(processes: Processes) -> None:
    for name in ("one", "two"):
        folder = processes.guest.workdir / name
        folder.mkdir()
        (folder / "prog").write_text(f"#!/bin/sh\necho {name}\n")
        (folder / "prog").chmod(0o755)
    processes.start("p", ["prog"], {"PATH": "missing:two:one"})
    processes.start("q", ["./prog"], cwd="one")

    assert processes.all("p") == b"two\n"
    assert processes.all("q") == b"one\n"


def test_working_directories_of_starts_and_commands_do_not_mix(processes: Processes) -> None:
    """Seen as a danger: all threads of the guest share one working directory."""
    guest = processes.guest
    (guest.workdir / "d").mkdir()
    stop = threading.Event()
    wrong: list[bytes] = []

    def run_commands() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            args = {"call_id": f"c{number}", "timeout_s": 20}
            _, text = guest.request("run", args, b"pwd")
            if text.decode() != f"{guest.workdir}\n":
                wrong.append(text)

    thread = threading.Thread(target=run_commands)
    thread.start()
    try:
        for number in range(60):
            processes.start(f"p{number}", ["pwd"], cwd="d")
            assert processes.all(f"p{number}").decode() == f"{guest.workdir}/d\n"
    finally:
        stop.set()
        thread.join()
    assert wrong == []


def test_command_waits_while_a_start_stands_somewhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the guest back to the working directory in the middle of that start."""
    monkeypatch.chdir("/")
    entering = threading.Thread(target=run._enter_workdir, args=(machine_in(tmp_path),))
    with CHILDREN.lock:
        entering.start()
        entering.join(0.2)
        assert entering.is_alive()
        assert os.getcwd() == "/"
    entering.join(10)
    assert os.getcwd() == str(tmp_path / "workspace")


def test_environment_lies_over_the_sessions(processes: Processes) -> None:
    processes.guest.request("configure", {}, b'{"A": "session", "B": "session"}')
    processes.start("p", ["env", "-0"], {"A": "own"})
    found = dict(
        line.partition("=")[::2] for line in processes.all("p").decode().split("\0") if line
    )

    assert (found["A"], found["B"]) == ("own", "session")
    assert found["PWD"] == str(processes.guest.workdir)
    assert found["TERM"] == "dumb"
    assert processes.guest.secret not in " ".join(found.values())


# --- calls and jobs ---------------------------------------------------------------------


def test_end_of_a_call_ends_no_process(processes: Processes) -> None:
    processes.script("p", "sleep 300 & sleep 301")
    args = {"call_id": "c", "timeout_s": 0.3}
    facts, _ = processes.guest.request("run", args, b"setsid sleep 302 & sleep 303")

    assert facts["ended"] == "timed_out"
    assert processes.wait("p", 0.0)["running"]


def test_background_jobs_are_listed_under_ids_that_stay(processes: Processes) -> None:
    processes.start("p", ["sleep", "300"])
    args = {"call_id": "the-call", "timeout_s": 20}
    facts, _ = processes.guest.request("run", args, b"sleep 400 >/dev/null 2>&1 & :")
    [[pid, _]] = facts["survivors"]

    first, second = processes.list(), processes.list()
    (job,) = [each for each in first if each.get("call_id")]
    assert (job["pid"], job["argv"], job["call_id"]) == (pid, ["sleep", "400"], "the-call")
    assert [each["process_id"] for each in first] == [each["process_id"] for each in second]
    assert [each["process_id"] for each in first] == ["p", job["process_id"]]

    waiting = processes.guest.begin(
        "process_wait", {"process_id": job["process_id"], "wait_s": 20.0}
    )
    assert processes.signal(job["process_id"], signal.SIGTERM)
    ended, _ = waiting.result()
    assert (ended["running"], ended["signal"]) == (False, signal.SIGTERM)
    assert not processes.signal(job["process_id"], signal.SIGTERM)
    assert [each["running"] for each in processes.list()] == [True, False]


def test_ids_that_look_like_jobs_reach_no_other_process(processes: Processes) -> None:
    guest = processes.guest
    started = Path(f"/proc/{guest.process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    for name in (f"job-{guest.process.pid}-{started}", "job-1-1", "job-0-0", "job--1-1"):
        assert refusal(processes.signal, name, 9) == "PROCESS_UNKNOWN"
        assert refusal(processes.wait, name) == "PROCESS_UNKNOWN"


def test_long_lists_come_in_pages(processes: Processes) -> None:
    for number in range(100):
        processes.start(f"p{number}", ["true"])
        processes.wait(f"p{number}")

    listed = processes.list()
    assert [each["process_id"] for each in listed] == [f"p{number}" for number in range(100)]
    assert all(each["exit_code"] == 0 for each in listed)
