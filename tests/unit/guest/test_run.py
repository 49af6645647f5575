"""Commands in a real guest: their endings, output, jobs, and the end of their trees."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.unit.guest.real_guest import Guest, GuestSaidNo

DEADLINE_S = 10.0
MIB = 1024 * 1024


class Ran(NamedTuple):
    facts: dict[str, Any]
    text: str
    seconds: float


class Shell:
    """Runs scripts in the guest, each as a call of its own."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._calls = 0

    def __call__(self, script: str | bytes, timeout_s: float = 20.0) -> Ran:
        self._calls += 1
        raw = script if isinstance(script, bytes) else script.encode()
        begun = time.monotonic()
        facts, body = self.guest.request(
            "run", {"call_id": f"call-{self._calls}", "timeout_s": timeout_s}, raw, timeout_s + 20
        )
        return Ran(facts, body.decode("utf-8"), time.monotonic() - begun)


@pytest.fixture
def shell(guest: Guest) -> Shell:
    return Shell(guest)


@pytest.fixture(scope="module")
def shared(shared_guest: Guest) -> Shell:
    """For scripts that leave nothing behind."""
    return Shell(shared_guest)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids_in(file: Path, count: int) -> list[int]:
    until(lambda: file.exists() and len(file.read_text().split()) == count)
    return [int(pid) for pid in file.read_text().split()]


# --- endings -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "exit_code", "number"),
    [
        ("true", 0, None),
        ("exit 3", 3, None),
        ("exit 256", 0, None),
        ("no-such-program", 127, None),
        ("/etc/passwd", 126, None),
        ("kill -9 $$", 137, 9),
        ("kill -TERM $$", 143, 15),
        ("kill -PIPE $$", 141, 13),
        ("sh -c 'kill -SEGV $$'; exit $?", 139, None),
        ("set -e; false; echo never", 1, None),
        ("trap 'exit 4' EXIT; true", 4, None),
    ],
)
def test_run_reports_how_the_shell_ended(
    shared: Shell, script: str, exit_code: int, number: int | None
) -> None:
    ran = shared(script)

    assert ran.facts["ended"] == "exited"
    assert (ran.facts["exit_code"], ran.facts["signal"]) == (exit_code, number)
    assert ran.facts["survivors"] == []


def test_run_keeps_the_order_of_both_streams(shared: Shell) -> None:
    script = "for i in 1 2 3 4 5; do echo out$i; echo err$i >&2; done"
    expected = "".join(f"out{i}\nerr{i}\n" for i in range(1, 6))

    assert shared(script).text == expected


def test_run_gives_no_input_and_no_terminal(shared: Shell) -> None:
    ran = shared("cat; read x; echo read:$?; tty; (: < /dev/tty) 2>&1 | grep -c tty")

    assert ran.text == "read:1\nnot a tty\n1\n"


def test_run_starts_afresh_in_the_working_directory(shared: Shell) -> None:
    shared("cd /; export LEFT=1; f() { :; }")

    ran = shared(
        "pwd; echo ${LEFT-unset}; type f 2>&1 | tail -1; shopt -q login_shell || echo plain"
    )

    assert ran.text.splitlines()[:2] == [str(shared.guest.workdir), "unset"]
    assert ran.text.splitlines()[-1] == "plain"


def test_run_takes_scripts_of_any_size(shared: Shell) -> None:
    # Around the longest argument that the kernel passes, and far above it.
    for size in (131_070, 131_071, 131_072, 131_073, 5 * MIB):
        head = b"read line || echo no input; echo size\n"
        script = head + b"#" * (size - len(head) - 1) + b"\n"
        ran = shared(script)
        assert (len(script), ran.text, ran.facts["exit_code"]) == (size, "no input\nsize\n", 0)


def test_run_takes_scripts_that_end_in_anything(shared: Shell) -> None:
    assert shared("echo a # comment").text == "a\n"
    assert shared("cat <<E\nb\nE").text == "b\n"
    assert shared("echo c \\").text == "c \\\n"
    assert shared(b"printf '\xff\xfe' | xxd -p").text == "fffe\n"


def test_run_leaves_no_descriptor_behind(shell: Shell) -> None:
    def count() -> int:
        return len(os.listdir(f"/proc/{shell.guest.process.pid}/fd"))

    shell("true")
    before = count()
    for n in range(20):
        shell(f"sleep 0.01 & seq {n * 2000}")
        shell("sleep 300", timeout_s=0.01)
    with pytest.raises(GuestSaidNo) as refused:
        shell("a\0b")
    assert refused.value.reason == "INVALID_INPUT"

    # The first count may hold the descriptor of a shell that was about to be reaped; a leak
    # would be one for each of the forty commands.
    until(lambda: count() <= before)


def test_run_says_that_the_working_directory_is_gone(shell: Shell) -> None:
    shutil.rmtree(shell.guest.workdir)
    with pytest.raises(GuestSaidNo) as refused:
        shell("pwd")
    assert refused.value.reason == "WORKING_DIRECTORY_MISSING"

    # Made anew it is another directory: the guest has to go there.
    shell.guest.workdir.mkdir()
    assert shell("pwd; touch here").text == f"{shell.guest.workdir}\n"
    assert (shell.guest.workdir / "here").exists()


# --- environment ---------------------------------------------------------------


def environment(shell: Shell) -> dict[str, str]:
    listed = shell("env -0 | tr '\\0' '\\n'").text
    return dict(line.partition("=")[::2] for line in listed.splitlines())


def test_run_sets_what_keeps_programs_from_asking(shared: Shell) -> None:
    found = environment(shared)

    assert found["GIT_TERMINAL_PROMPT"] == "0"
    assert found["GIT_ASKPASS"] == found["SSH_ASKPASS"] == "/bin/false"
    assert found["PAGER"] == found["GIT_PAGER"] == found["MANPAGER"] == "cat"
    assert (found["TERM"], found["NO_COLOR"], found["LC_ALL"]) == ("dumb", "1", "C.UTF-8")
    assert (found["EDITOR"], found["DEBIAN_FRONTEND"]) == (":", "noninteractive")
    assert found["HOME"] == str(shared.guest.home)
    assert found["PWD"] == str(shared.guest.workdir)
    assert found["USER"] == found["LOGNAME"] == "sandbox"
    assert Path(found["TMPDIR"]).is_dir()
    assert shared.guest.secret not in " ".join(found.values())
    # The guest's own settings are none of a command's business.
    assert not {name for name in found if name.startswith(("LD_", "PYTHON"))}


@pytest.mark.tool_case("B16")
def test_run_sets_nothing_that_changes_what_programs_mean(shared: Shell) -> None:
    found = environment(shared)
    assert not found.keys() & {"CI", "FORCE_COLOR", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}


def test_run_lets_the_session_override_but_not_what_is_forced(shared: Shell) -> None:
    session = b"""{"PAGER": "less", "GIT_TERMINAL_PROMPT": "1", "BASH_ENV": "/tmp/x",
                   "MINE": "\\u00e9 =", "HOME": "/elsewhere", "PROMPT_COMMAND": "date"}"""
    shared.guest.request("configure", {}, session)

    found = environment(shared)

    assert (found["PAGER"], found["MINE"], found["HOME"]) == ("less", "é =", "/elsewhere")
    assert found["GIT_TERMINAL_PROMPT"] == "0"
    assert "BASH_ENV" not in found
    assert "PROMPT_COMMAND" not in found

    shared.guest.request("configure", {}, b"{}")
    assert "MINE" not in environment(shared)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"A": 1}', b'{"": "x"}', b'{"A=B": "x"}', b'{"A": "x\\u0000"}', b"{" * 9999],
)
def test_configure_refuses_what_is_no_environment(shared: Shell, body: bytes) -> None:
    with pytest.raises(GuestSaidNo) as refused:
        shared.guest.request("configure", {}, body)
    assert refused.value.reason == "INVALID_INPUT"


# --- background jobs -----------------------------------------------------------


def test_run_returns_when_the_shell_exits_and_lists_its_jobs(shell: Shell) -> None:
    ran = shell("sleep 300 & echo hi")

    assert ran.seconds < 1.0
    assert (ran.text, ran.facts["output_open"]) == ("hi\n", True)
    [[pid, name]] = ran.facts["survivors"]
    assert name == "sleep"
    assert runs(pid)


def test_run_lists_jobs_that_let_go_of_the_pipe(shell: Shell) -> None:
    ran = shell("sleep 300 >/dev/null 2>&1 & setsid -f sleep 301 >/dev/null 2>&1; echo hi")

    assert ran.seconds < 1.0
    assert not ran.facts["output_open"]
    assert [name for _, name in ran.facts["survivors"]] == ["sleep", "sleep"]


def test_run_takes_output_that_comes_soon_after_the_shell(shared: Shell) -> None:
    ran = shared("(sleep 0.1; echo late) & echo soon")

    assert ran.text == "soon\nlate\n"
    assert ran.facts["survivors"] == []


def test_run_leaves_a_job_that_never_goes_quiet(shell: Shell) -> None:
    ran = shell("(while :; do echo tick; sleep 0.05; done) & echo started")

    # Far less than the job would take: it never ends.
    assert 1.9 < ran.seconds < 15.0
    assert ran.text.startswith("started\ntick\n")
    assert ran.facts["output_open"]


def test_background_job_keeps_its_pipe_after_the_call(shell: Shell) -> None:
    # A closed pipe would end it by SIGPIPE; a full one would stop it.
    script = "(sleep 0.6; head -c 1000000 /dev/zero; echo x; echo ok > done) & echo $! > pid"
    shell(script)

    until((shell.guest.workdir / "done").exists)


def test_background_jobs_survive_the_end_of_another_call(shell: Shell) -> None:
    [[pid, _]] = shell("sleep 300 & :").facts["survivors"]

    assert shell("sleep 301", timeout_s=0.2).facts["ended"] == "timed_out"

    assert runs(pid)
    assert shell(f"kill {pid}").facts["survivors"] == []
    until(lambda: not runs(pid))


# --- timeout and cancel ----------------------------------------------------------


def test_timeout_keeps_the_output_and_lets_traps_run(shared: Shell) -> None:
    ran = shared("trap 'echo cleaning; exit 9' TERM; echo begun; sleep 300 & wait", timeout_s=0.3)

    assert ran.facts["ended"] == "timed_out"
    assert ran.text == "begun\ncleaning\n"
    # Before the two seconds of grace are over, so by itself.
    assert ran.seconds < 0.3 + 2.0
    assert ran.facts["timeout_s"] == 0.3


def test_timeout_kills_what_ignores_term(shell: Shell) -> None:
    ran = shell("trap '' TERM; echo $$ > pids; sleep 300", timeout_s=0.2)

    assert (ran.facts["ended"], ran.facts["signal"]) == ("timed_out", signal.SIGKILL)
    assert 2.0 < ran.seconds < 15.0
    assert not any(runs(pid) for pid in pids_in(shell.guest.workdir / "pids", 1))


ESCAPES = {
    "setsid": "setsid sh -c 'echo $$ >> pids; exec sleep 300' &",
    "setsid_fork": "setsid -f sh -c 'echo $$ >> pids; exec sleep 300';",
    "double_fork": "(setsid sh -c 'echo $$ >> pids; sleep 300 & wait' &);",
    "no_marker": "env -i setsid sh -c 'echo $$ >> pids; exec sleep 300' &",
    "ignores_term": "setsid sh -c 'trap \"\" TERM; echo $$ >> pids; while :; do sleep 1; done' &",
    "own_group": "set -m; sh -c 'echo $$ >> pids; exec sleep 300' & set +m;",
}


@pytest.mark.parametrize("escape", ESCAPES)
def test_timeout_leaves_no_process(shell: Shell, escape: str) -> None:
    ran = shell(f"{ESCAPES[escape]} sleep 300", timeout_s=1.0)

    assert ran.facts["ended"] == "timed_out"
    assert ran.facts["survivors"] == []
    assert not any(runs(pid) for pid in pids_in(shell.guest.workdir / "pids", 1))


def test_cancel_returns_when_the_tree_is_gone(shell: Shell) -> None:
    pids = shell.guest.workdir / "pids"
    script = "echo $$ >> pids; setsid sh -c 'echo $$ >> pids; exec sleep 300' & sleep 300"
    running = shell.guest.begin("run", {"call_id": "c", "timeout_s": 60}, script.encode())
    started = pids_in(pids, 2)

    facts, _ = shell.guest.request("cancel", {"call_id": "c"})

    assert facts == {"found": True, "survivors": []}
    assert not any(runs(pid) for pid in started)
    assert running.result()[0]["ended"] == "cancelled"


def test_cancel_reaches_a_call_that_waits_for_its_jobs(shell: Shell) -> None:
    # The shell is dead already; the call drains the pipe of what it left behind.
    script = "(echo $$ $BASHPID >> pids; while :; do echo x; sleep 0.02; done) & :"
    running = shell.guest.begin("run", {"call_id": "c", "timeout_s": 60}, script.encode())
    started = pids_in(shell.guest.workdir / "pids", 2)
    until(lambda: not runs(started[0]))
    # Now in the two seconds for which a chatty job is listened to.
    assert not running.done

    assert shell.guest.request("cancel", {"call_id": "c"})[0]["survivors"] == []

    assert running.result()[0]["ended"] == "cancelled"
    assert not any(runs(pid) for pid in started)


def test_timeout_never_touches_processes_of_the_host(shell: Shell, tmp_path: Path) -> None:
    # Only process 1 of a pid namespace may kill what it cannot trace (security S6).
    pid = os.posix_spawn("/bin/sleep", ["sleep", "300"], {})
    try:
        shell("setsid sleep 300 & sleep 300", timeout_s=0.2)
        assert runs(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


# --- amounts ------------------------------------------------------------------------


def test_run_counts_a_flood_in_constant_memory(shell: Shell) -> None:
    shell("true")
    before = shell.guest.rss_bytes()

    ran = shell("yes | head -c 300000000", timeout_s=60)

    assert ran.facts["bytes_total"] == 300_000_000
    assert ran.facts["lines_total"] == 150_000_000
    assert (ran.facts["lines_shown"], ran.text) == (2000, "y\n" * 2000)
    assert ran.facts["cut"]
    assert shell.guest.rss_bytes() - before < 8 * MIB


def test_run_says_that_output_is_binary(shared: Shell) -> None:
    ran = shared("head -c 3000000 /dev/zero")

    assert (ran.facts["binary"], ran.text, ran.facts["bytes_total"]) == (True, "", 3_000_000)


def test_run_spills_what_it_does_not_show(shared: Shell) -> None:
    ran = shared("seq 100000")

    whole = "".join(f"{n}\n" for n in range(1, 100_001))
    spill = ran.facts["spill"]
    assert spill["complete"]
    assert Path(spill["path"]).read_text() == whole
    assert not Path(spill["path"]).is_relative_to(shared.guest.workdir)
    assert whole.endswith(ran.text)
    assert ran.facts["lines_shown"] == 2000
    assert Path(spill["path"]).parent.stat().st_mode & 0o777 == 0o700


def test_run_leaves_no_spill_file_where_everything_is_shown(shell: Shell) -> None:
    # Far more bytes than are kept in memory, all overwritten but the last.
    ran = shell("for i in $(seq 60000); do printf 'progress %d\\r' $i; done; echo")

    assert ran.facts["bytes_total"] > 200_000
    assert (ran.text, ran.facts["cut"], ran.facts["spill"]) == ("progress 60000\n", False, None)
    assert list((shell.guest.root / "tmp").rglob("*.txt")) == []


def test_run_caps_the_spill_file(shell: Shell) -> None:
    ran = shell("head -c 20000000 /dev/zero | tr '\\0' x")

    assert ran.facts["spill"]["bytes"] == 16 * MIB
    assert not ran.facts["spill"]["complete"]
    assert os.path.getsize(ran.facts["spill"]["path"]) == 16 * MIB


def test_spill_files_stay_below_their_total(shell: Shell) -> None:
    paths = [shell("head -c 17000000 /dev/zero").facts["spill"]["path"] for _ in range(6)]

    assert [os.path.exists(path) for path in paths] == [False, False, True, True, True, True]
    assert shell("echo still").text == "still\n"
