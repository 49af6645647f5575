"""The guest as process 1: what it does when its own commands turn against it.

Nothing of this may run outside a container with limits.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.container_guest import PIDS_MAX, UID, ContainerGuest, docker, export_toolbox

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]
MIB = 1024 * 1024

FORKS_WITHOUT_END = """
import os, sys, time
while True:
    try:
        if os.fork() == 0 and "setsid" in sys.argv:
            os.setsid()
    except OSError:
        time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def toolbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_toolbox(tmp_path_factory.mktemp("toolbox"))


@pytest.fixture
def guest(toolbox: Path) -> Iterator[ContainerGuest]:
    running = ContainerGuest(toolbox)
    (running.root / "workspace" / "bomb.py").write_text(FORKS_WITHOUT_END)
    try:
        yield running
    finally:
        running.close()


def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def assert_works(guest: ContainerGuest) -> None:
    """A command that needs processes of its own, several at a time."""
    ran = guest.run("echo alive | cat | cat; (sleep 0.01 & wait); exit 5")
    assert (ran.text, ran.facts["exit_code"]) == ("alive\n", 5)


def test_guest_is_hardened_process_1(guest: ContainerGuest) -> None:
    assert guest.hello["pid"] == 1
    assert guest.hello["maps_closed"] is True
    assert guest.hello["search"].startswith("ripgrep ")
    status = Path(f"/proc/{guest.pid}/status").read_text()
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (lines["Seccomp"], lines["NoNewPrivs"]) == ("2", "1")
    # No handler and nothing ignored but the C library's two internal signals.
    assert int(lines["SigCgt"], 16) & ~(0b11 << 31) == 0
    assert int(lines["SigIgn"], 16) & ~(0b11 << 31) == 0
    # Undumpable: its files in /proc belong to root, not to the session's user.
    assert Path(f"/proc/{guest.pid}/environ").stat().st_uid == 0
    assert Path(f"/proc/{guest.pid}/oom_score_adj").read_text() == "0\n"


def test_s1_signals_limits_and_looks_at_process_1_fail(guest: ContainerGuest) -> None:
    guest.run(
        "for s in $(seq 1 64); do kill -$s 1; done; kill -9 -1;"
        "python3 -c 'import os; os.kill(-1, 9)'"
    )

    ran = guest.run(
        "for f in environ maps mem exe fd/0; do cat /proc/1/$f; done;"
        "prlimit --pid 1 --nofile=4; chrt -i -p 0 1; ionice -c 3 -p 1; renice 10 -p 1;"
        "taskset -p 1 1; echo 999 > /proc/1/oom_score_adj"
    )

    assert ran.text.count("ermitted") + ran.text.count("denied") == 11
    own = guest.run("ulimit -n 77; ulimit -n; nice -n 5 nice; taskset 1 echo t; ionice -c 3 echo i")
    assert own.text == "77\n5\nt\ni\n"
    assert_works(guest)


def test_children_are_killed_first_for_lack_of_memory(guest: ContainerGuest) -> None:
    assert guest.run("cat /proc/self/oom_score_adj").text == "500\n"

    ran = guest.run("python3 -c 'x = bytearray(2**30)'; echo $?")

    assert ran.text.endswith("137\n")
    assert_works(guest)


def test_commands_see_nothing_of_the_toolbox(guest: ContainerGuest) -> None:
    environment = guest.run("env; ls -l /proc/self/fd").text

    assert "toolbox" not in environment
    assert guest.secret not in environment
    assert "LC_ALL=C.UTF-8" in environment


@pytest.mark.parametrize("mode", ["group", "setsid"])
def test_fork_bomb_ends_with_its_timeout(guest: ContainerGuest, mode: str) -> None:
    ran = guest.run(f"python3 bomb.py {mode} & python3 bomb.py {mode}", timeout_s=1.5)

    assert (ran.facts["ended"], ran.facts["survivors"]) == ("timed_out", [])
    assert ran.seconds < 8.0
    assert guest.processes() == []
    assert_works(guest)


def test_fork_bomb_of_a_shell_that_has_exited_makes_room(guest: ContainerGuest) -> None:
    bomb = guest.run("setsid python3 bomb.py setsid >/dev/null 2>&1 &")
    assert bomb.facts["ended"] == "exited"
    until(lambda: len(guest.processes()) > PIDS_MAX // 2)

    ran = guest.run("echo first | cat")

    # The result says that it was at the expense of what ran in the background.
    assert ran.text == "first\n"
    assert ran.facts["freed"] > 16
    assert_works(guest)


def test_few_background_jobs_are_spared_when_a_bomb_is_ended(guest: ContainerGuest) -> None:
    guest.run("setsid sleep 300 >/dev/null 2>&1 & sleep 301 >/dev/null &")
    guest.run("python3 bomb.py group >/dev/null 2>&1 &")
    until(lambda: len(guest.processes()) > PIDS_MAX // 2)

    assert guest.run("true").facts["freed"] > 16

    assert sorted(guest.processes()) == ["sleep 300", "sleep 301"]


def test_timeout_spares_the_calls_beside_it(guest: ContainerGuest) -> None:
    guest.run("setsid sleep 300 >/dev/null 2>&1 & sleep 301 >/dev/null &")
    beside = guest.begin(
        "run", {"call_id": "beside", "timeout_s": 60}, b"setsid -w sh -c 'sleep 4; echo done'"
    )
    # No session, no ancestry, no marker: only process 1 can know that it is nobody's.
    untraceable = "(env -i setsid sh -c '(exec setsid sleep 302) &' &) >/dev/null 2>&1; sleep 303"

    ran = guest.run(untraceable, timeout_s=1.0)

    assert (ran.facts["ended"], ran.facts["survivors"]) == ("timed_out", [])
    left = guest.processes()
    assert not [line for line in left if "302" in line or "303" in line]
    assert {"sleep 300", "sleep 301"} <= set(left)
    assert beside.result(30)[1] == b"done\n"
    assert ran.facts["swept"] is False


def test_bomb_beside_another_call_ends_and_the_other_is_kept(guest: ContainerGuest) -> None:
    beside = guest.begin(
        "run", {"call_id": "beside", "timeout_s": 60}, b"sleep 6 & wait; echo done"
    )
    until(lambda: "sleep 6" in guest.processes())

    ran = guest.run("env -i python3 bomb.py setsid & python3 bomb.py setsid", timeout_s=1.5)

    assert (ran.facts["ended"], ran.facts["survivors"]) == ("timed_out", [])
    assert beside.result(30)[1] == b"done\n"
    assert guest.processes() == []


def test_s6_a_held_shell_does_not_stop_the_reaping_of_others(guest: ContainerGuest) -> None:
    # For two seconds the dead shell of this call stays a zombie, since its job goes
    # on writing; meanwhile four times the pid limit is started and orphaned.
    chatty = guest.begin(
        "run",
        {"call_id": "chatty", "timeout_s": 60},
        b"(for i in $(seq 60); do echo x; sleep 0.05; done) & :",
    )
    orphans = "for i in $(seq 512); do (true & ) ; done; echo all"

    assert guest.run(orphans).text == "all\n"

    assert chatty.result(30)[0]["ended"] == "exited"
    until(lambda: not [line for line in guest.processes() if "defunct" in line])


def test_floods_leave_the_guest_small(guest: ContainerGuest) -> None:
    guest.run("true")
    before = guest.rss_bytes()

    zeros = guest.run("head -c 1G /dev/zero", timeout_s=60)
    yes = guest.run("yes", timeout_s=2)

    assert (zeros.facts["bytes_total"], zeros.facts["binary"]) == (2**30, True)
    assert (yes.facts["ended"], yes.text) == ("timed_out", "y\n" * 2000)
    assert guest.rss_bytes() - before < 8 * MIB


def test_spill_needs_no_space_where_there_is_none(guest: ContainerGuest) -> None:
    guest.run("head -c 64M /dev/zero > /tmp/full")

    ran = guest.run("seq 100000")

    assert ran.text.endswith("99999\n100000\n")
    assert (ran.facts["cut"], ran.facts["spill"]) == (True, None)
    guest.run("rm /tmp/full")
    assert guest.run("seq 100000").facts["spill"]["complete"] is True


def test_guest_that_is_not_hardened_says_no_hello(toolbox: Path, tmp_path: Path) -> None:
    # Started by a loader outside of the toolbox, its memory maps name foreign files.
    (tmp_path / "secret").write_text("s")
    done = subprocess.run(
        [
            *["docker", "run", "--rm", "--network", "none", "--user", f"{UID}:{UID}"],
            *["-v", f"{toolbox}:/.sandboxd/toolbox:ro", "-v", f"{tmp_path}:/s:ro"],
            *["sandboxd/base:dev", "python3", "-I", "-S", "/.sandboxd/toolbox/guest.pyz"],
            *["--mode", "container", "--socket", "/s/s", "--secret-file", "/s/secret"],
            *["--workdir", "/", "--home", "/"],
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("guest: cannot start: mapped from outside the toolbox: /usr/")
    assert docker("ps", "-q", "--filter", f"volume={tmp_path}") == ""
