"""What processes write and are fed, in a real guest: by offset, across lost connections."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from tests.unit.guest.process_ops import MIB, Processes, refusal
from tests.unit.guest.real_guest import Guest
from tests.unit.guest.test_run import until


@pytest.fixture
def processes(guest: Guest) -> Processes:
    return Processes(guest)


@pytest.fixture(scope="module")
def shared(shared_guest: Guest) -> Processes:
    return Processes(shared_guest)


# --- outputs -------------------------------------------------------------------------


def test_streams_are_separate_and_closed_with_the_process(shared: Processes) -> None:
    shared.script("streams", "printf 'a\\000\\377'; printf b >&2; printf c")

    assert shared.all("streams") == b"a\0\xffc"
    assert shared.all("streams", "stderr") == b"b"


def test_read_waits_for_more_and_gives_it_at_once(shared: Processes) -> None:
    shared.start("cat", ["cat"])
    waiting = shared.begin_read("cat")
    assert not waiting.done
    begun = time.monotonic()
    shared.write("cat", b"x")
    assert waiting.result()[1] == b"x"
    assert time.monotonic() - begun < 5
    shared.write("cat", b"", 1, close=True)
    assert shared.wait("cat")["exit_code"] == 0


def test_flood_drops_old_bytes_and_says_how_many(processes: Processes) -> None:
    processes.start("warm", ["true"])
    before = processes.guest.rss_bytes()
    processes.script("p", "head -c 100000000 /dev/zero; printf end")
    processes.wait("p", 60)
    facts, data = processes.read("p")

    assert facts["end"] == 100_000_003
    assert facts["dropped"] == facts["offset"] > 98 * 1_000_000
    rest = processes.read("p", facts["offset"] + len(data))[1]
    assert facts["offset"] + len(data) + len(rest) == 100_000_003
    assert (data + rest).endswith(b"\0end")
    assert processes.guest.rss_bytes() - before < 8 * MIB


def test_process_that_nobody_reads_is_not_held_up(processes: Processes) -> None:
    processes.script("p", "head -c 5000000 /dev/zero; head -c 5000000 /dev/zero >&2; echo > done")
    processes.wait("p", 30)

    assert (processes.guest.workdir / "done").exists()


def test_end_is_told_while_a_child_holds_the_output(processes: Processes) -> None:
    processes.script("p", "echo hi; sleep 300 & exit 2")

    assert processes.wait("p")["exit_code"] == 2
    facts, data = processes.read("p")
    assert (data, facts["closed"]) == (b"hi\n", False)


# --- input ---------------------------------------------------------------------------


def test_write_skips_what_was_written_and_refuses_a_gap(shared: Processes) -> None:
    shared.start("in", ["cat"])

    assert shared.write("in", b"abc") == {"written": 3, "closed": False}
    assert shared.write("in", b"abc") == {"written": 3, "closed": False}
    assert shared.write("in", b"cde", 2) == {"written": 5, "closed": False}
    assert refusal(shared.write, "in", b"x", 6) == "INVALID_INPUT"
    assert shared.write("in", b"e!", 4, close=True) == {"written": 6, "closed": True}
    assert shared.write("in", b"e!", 4, close=True) == {"written": 6, "closed": True}
    assert refusal(shared.write, "in", b"x", 6) == "INVALID_INPUT"
    assert shared.all("in") == b"abcde!"


def test_write_to_one_that_reads_no_more_is_refused(shared: Processes) -> None:
    shared.script("deaf", "exec <&-; echo; sleep 300")
    shared.until("deaf", b"\n")

    assert refusal(shared.write, "deaf", b"x") == "INVALID_INPUT"
    assert shared.signal("deaf", 9)


def test_writes_that_wait_hold_up_nothing_else(processes: Processes) -> None:
    processes.start("p", ["sleep", "300"])
    filled = processes.write("p", b"x" * 200_000, wait_s=0.0)["written"]
    waiting = [processes.begin_write("p", b"y" * 10, filled, 10.0) for _ in range(8)]

    begun = time.monotonic()
    processes.guest.request("stat", {"path": ".", "follow": True})
    assert processes.signal("p", signal.SIGCONT)
    assert processes.start("q", ["true"])["created"]
    assert time.monotonic() - begun < 5
    assert not any(each.done for each in waiting)

    # Its end breaks the pipe, which answers them all.
    processes.signal("p", 9)
    assert {refusal(each.result) for each in waiting} == {"INVALID_INPUT"}


def test_write_returns_when_its_time_is_over_and_goes_on_later(processes: Processes) -> None:
    os.mkfifo(processes.guest.workdir / "go")
    processes.script("p", "read line < go; cat > got")
    data = bytes(range(256)) * 1_000
    taken = processes.write("p", data, wait_s=0.2)["written"]
    assert 0 < taken < len(data)

    rest = processes.begin_write("p", data, close=True, wait_s=20.0)
    (processes.guest.workdir / "go").write_text("\n")

    assert rest.result()[0] == {"written": len(data), "closed": True}
    processes.wait("p")
    assert (processes.guest.workdir / "got").read_bytes() == data


# --- the connection ------------------------------------------------------------------------


def test_processes_outlive_the_connection(processes: Processes) -> None:
    processes.start("p", ["cat"])
    processes.write("p", b"before ")
    processes.until("p", b"before ")
    waiting = processes.begin_read("p", 7)
    processes.guest.disconnect()
    processes.guest.accept()

    assert not waiting.done
    assert not processes.start("p", ["cat"])["created"]
    processes.write("p", b"before after", close=True)
    assert processes.all("p") == b"before after"


BODIES = [
    b"",
    b"[]",
    b"{}",
    b'{"argv": [], "env": {}}',
    b'{"argv": ["a\\u0000"], "env": {}}',
    b'{"argv": "true", "env": {}}',
    b'{"argv": [1], "env": {}}',
    b"{" * 100_000,
]
START_FAULTS: list[dict[str, Any]] = [
    {"cwd": 1},
    {"rows": 0, "columns": 1},
    {"rows": 1},
    {"timeout_s": -1},
    {"timeout_s": "x"},
    {"process_id": None},
]
READ_FAULTS: list[dict[str, Any]] = [
    {"stream": "stdin"},
    {"offset": -1},
    {"bytes_max": 0},
    {"bytes_max": 2**30},
    {"wait_s": "x"},
    {"wait_s": -1},
]


def test_garbage_is_refused_and_the_guest_stays(shared: Processes) -> None:
    ask = shared.guest.request
    body = json.dumps({"argv": ["true"], "env": {}}).encode()
    start: dict[str, Any] = {"process_id": "g", "cwd": ""}
    for raw in BODIES:
        assert refusal(ask, "process_start", start, raw) == "INVALID_INPUT"
    for wrong in START_FAULTS:
        assert refusal(ask, "process_start", {**start, **wrong}, body) == "INVALID_INPUT"
    shared.start("known", ["true"])
    read = {"process_id": "known", "stream": "stdout", "offset": 0, "bytes_max": 1}
    for wrong in READ_FAULTS:
        assert refusal(ask, "process_read", {**read, **wrong}) == "INVALID_INPUT"
    for number in (0, 65, None):
        asked: dict[str, Any] = {"process_id": "known", "signal": number}
        assert refusal(ask, "process_signal", asked) == "INVALID_INPUT"
    assert shared.wait("known")["exit_code"] == 0


def test_outputs_of_all_processes_together_are_bounded(processes: Processes) -> None:
    """What the guest holds has a byte bound (security S18)."""
    processes.start("warm", ["true"])
    before = processes.guest.rss_bytes()
    for number in range(40):
        processes.script(f"p{number}", "head -c 1500000 /dev/zero; read line")
    names = [f"p{number}" for number in range(40)]
    until(lambda: all(processes.read(name)[0]["end"] == 1_500_000 for name in names))

    assert processes.guest.rss_bytes() - before < 28 * MIB
    kept = [processes.read(name, 1_499_999)[1] for name in names]
    assert kept == [b"\0"] * 40
