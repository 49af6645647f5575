"""Signals, timeouts and terminals of processes, in a real guest."""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.unit.guest.process_ops import Processes, refusal
from tests.unit.guest.real_guest import Guest
from tests.unit.guest.test_run import runs, until


@pytest.fixture
def processes(guest: Guest) -> Processes:
    return Processes(guest)


@pytest.fixture(scope="module")
def shared(shared_guest: Guest) -> Processes:
    return Processes(shared_guest)


# --- signals and timeouts ----------------------------------------------------------------


def test_signal_reaches_the_group_and_nobody_after_the_end(processes: Processes) -> None:
    processes.script("p", "sleep 300 & echo $!; wait")
    child = int(processes.until("p", b"\n"))

    assert processes.signal("p", signal.SIGTERM)
    ended = processes.wait("p")
    assert (ended["exit_code"], ended["signal"]) == (None, signal.SIGTERM)
    until(lambda: not runs(child))
    assert not processes.signal("p", signal.SIGTERM)


@pytest.mark.parametrize("trap", ["", "trap '' TERM;"])
def test_timeout_ends_the_tree(processes: Processes, trap: str) -> None:
    begun = time.monotonic()
    text = f"{trap} setsid sleep 300 & echo $!; {trap} sleep 300; sleep 300"
    processes.script("p", text, timeout_s=0.3)
    child = int(processes.until("p", b"\n"))
    ended = processes.wait("p")

    assert not runs(child)
    assert ended["signal"] == (signal.SIGKILL if trap else signal.SIGTERM)
    assert (2.0 if trap else 0.3) < time.monotonic() - begun < 15


def test_timeouts_of_several_run_at_the_same_time(processes: Processes) -> None:
    begun = time.monotonic()
    for number in range(6):
        processes.script(f"p{number}", "trap '' TERM; sleep 300; sleep 300", timeout_s=0.1)
    for number in range(6):
        assert processes.wait(f"p{number}", 30)["signal"] == signal.SIGKILL
    assert time.monotonic() - begun < 10


def test_process_that_ends_in_time_is_left_alone(processes: Processes) -> None:
    processes.script("p", "sleep 300 >/dev/null 2>&1 & echo $!; exit 0", timeout_s=0.5)
    child = int(processes.until("p", b"\n"))
    processes.wait("p")
    processes.script("q", "sleep 1")
    processes.wait("q")

    assert runs(child)


# --- terminals -------------------------------------------------------------------------


def test_terminal_is_controlling_and_has_its_size_from_the_start(shared: Processes) -> None:
    text = "stty size; tty < /dev/tty; [ -t 2 ] && echo $TERM"
    shared.script("tty", text, rows=33, columns=99)
    lines = shared.all("tty").decode().split("\r\n")

    assert lines[0] == "33 99"
    assert re.fullmatch(r"/dev/(pts/\d+|tty)", lines[1])
    assert lines[2] == "xterm-256color"
    assert shared.all("tty", "stderr") == b""


def test_resize_is_seen_and_told(shared: Processes) -> None:
    text = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"
    shared.script("winch", text, rows=24, columns=80)
    shared.until("winch", b"ready")
    shared.guest.request("process_resize", {"process_id": "winch", "rows": 50, "columns": 132})

    assert shared.all("winch").endswith(b"50 132\r\n")


def test_resize_of_one_without_a_terminal_is_refused(shared: Processes) -> None:
    shared.start("pipes", ["true"])
    args = {"process_id": "pipes", "rows": 1, "columns": 1}
    assert refusal(shared.guest.request, "process_resize", args) == "INVALID_INPUT"


@pytest.mark.parametrize("typed", [b"", b"line\n", b"begun"])
def test_closing_a_terminals_input_is_typing_its_end(shared: Processes, typed: bytes) -> None:
    name = f"eof{len(typed)}"
    shared.start(name, ["cat"], rows=24, columns=80)
    shared.write(name, typed, close=True)

    assert shared.wait(name)["exit_code"] == 0


def test_process_that_lets_go_of_its_terminal_is_not_hung_up(processes: Processes) -> None:
    """Seen: cat closes its streams before it exits, and was killed by SIGHUP in between."""
    text = "exec 3>&1 </dev/null >/dev/null 2>&1; exec 3>&-; sleep 0.6; echo back > /dev/tty"
    processes.script("p", f"{text}; exit 5", rows=24, columns=80)

    assert processes.wait("p")["exit_code"] == 5
    assert processes.all("p") == b"back\r\n"


def test_interrupt_character_interrupts(shared: Processes) -> None:
    # Not a shell: dash loses the signal where it comes while a child is about to be made.
    shared.start("int", ["cat"], rows=24, columns=80)
    shared.write("int", b"x\n")
    shared.until("int", b"x\r\nx\r\n")
    shared.write("int", b"\x03", 2)

    assert shared.wait("int")["signal"] == signal.SIGINT
