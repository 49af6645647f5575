"""The filter and the rest of security S1, on a process that hardens itself and then tries."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from sandboxd.guest import harden
from sandboxd.guest.harden import ABIS, filter_program

ROOT = Path(__file__).parents[3]
ALLOW = 0x7FFF0000
ERRNO = 0x00050000

PRELUDE = """
import ctypes, errno, json, os, signal, socket, sys
from sandboxd.guest import harden
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *[ctypes.c_ulong(each) for each in arguments])
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""


def inside(script: str) -> Any:
    """Runs a script in a new process; what it prints is JSON."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the kernel would answer: the instructions, interpreted."""
    abi = ABIS[machine]
    program = filter_program(abi)
    words = [number, abi.audit if audit is None else audit, 0, 0]
    for argument in [*arguments, *[0] * 6][:6]:
        words += [argument & 0xFFFFFFFF, argument >> 32 & 0xFFFFFFFF]
    value = position = 0
    while True:
        code, on_true, on_false, operand = harden.INSTRUCTION.unpack_from(program, position * 8)
        position += 1
        if code == 0x20:
            value = words[operand // 4]
        elif code == 0x15:
            position += on_true if value == operand else on_false
        elif code == 0x45:
            position += on_true if value & operand else on_false
        else:
            return int(operand)


PRLIMIT = {"x86_64": 302, "aarch64": 261}
SETPRIORITY = {"x86_64": 141, "aarch64": 140}
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
SOCKET = {"x86_64": 41, "aarch64": 198}


@pytest.mark.parametrize("machine", ABIS)
def test_filter_lets_a_process_change_only_itself(machine: str) -> None:
    refused = ERRNO | errno.EPERM
    for number in ABIS[machine].pid_first:
        assert verdict(machine, number, 0, 7) == ALLOW
        for other in (1, 2, 77, 2**32 + 1, 0xFFFFFFFF):
            assert verdict(machine, number, other, 7) == refused
    priority, io_priority = SETPRIORITY[machine], IOPRIO_SET[machine]
    assert verdict(machine, priority, 0, 0, 5) == ALLOW
    assert verdict(machine, io_priority, 1, 0, 5) == ALLOW
    # A process, a group, a user: "0" of the last two includes others.
    for which, who in ((0, 1), (1, 0), (2, 0), (1, 1)):
        assert verdict(machine, priority, which, who) == refused
    for which, who in ((1, 1), (2, 0), (3, 0)):
        assert verdict(machine, io_priority, which, who) == refused


@pytest.mark.parametrize("machine", ABIS)
def test_filter_knows_four_kinds_of_sockets(machine: str) -> None:
    for number in ABIS[machine].sockets:
        allowed = [family for family in range(50) if verdict(machine, number, family) == ALLOW]
        assert allowed == [1, 2, 10, 16]


@pytest.mark.parametrize("machine", ABIS)
def test_filter_keeps_signals_from_process_1_and_from_nobody_else(machine: str) -> None:
    kill, tkill, tgkill, queue, thread_queue = ABIS[machine].signals
    for number, threads in (
        *((kill, ()), (tkill, ()), (queue, ())),
        *((tgkill, (0,)), (tgkill, (1,)), (tgkill, (7,)), (thread_queue, (0,))),
    ):
        for sent in (1, 9, 64, 0xFFFFFFFF):
            assert verdict(machine, number, 1, *threads, sent) == ERRNO | errno.EPERM
            # The kernel takes an int: what is above its 32 bits does not matter.
            assert verdict(machine, number, 0x1_0000_0001, *threads, sent) == ERRNO | errno.EPERM
            for target in (0, 2, 65_537, 0xFFFFFFFF):
                assert verdict(machine, number, target, *threads, sent) == ALLOW
        # It only asks whether there is such a process.
        assert verdict(machine, number, 1, *threads, 0, 9) == ALLOW


@pytest.mark.parametrize("machine", ABIS)
def test_filter_refuses_io_uring_and_foreign_abis(machine: str) -> None:
    absent = ERRNO | errno.ENOSYS
    assert [verdict(machine, number) for number in (425, 426, 427)] == [absent] * 3
    for audit in (0x40000003, 0x40000028, 0xC00000F3, 0):
        assert verdict(machine, 39, audit=audit) == absent
    if machine == "x86_64":
        assert verdict(machine, 39 | 0x40000000) == absent


@pytest.mark.parametrize("machine", ABIS)
def test_filter_lets_everything_else_pass(machine: str) -> None:
    abi = ABIS[machine]
    special = {*abi.pid_first, abi.setpriority, abi.ioprio_set, *abi.sockets, 425, 426, 427}
    others = [number for number in range(470) if number not in special]
    assert {verdict(machine, number, 5, 5) for number in others} == {ALLOW}


@pytest.mark.skipif(platform.machine() not in ABIS, reason="no filter for this architecture")
def test_hardened_process_and_its_children_are_bound_by_the_filter() -> None:
    machine = platform.machine()
    found = inside(f"""
        harden.no_core_dumps()
        harden.close()
        def look():
            return {{
                "prlimit_parent": call({PRLIMIT[machine]}, os.getppid(), 7, 0, 0),
                "prlimit_self": call({PRLIMIT[machine]}, 0, 7, 0, 0),
                "priority_user": call({SETPRIORITY[machine]}, 2, 0, 5),
                "priority_self": call({SETPRIORITY[machine]}, 0, 0, 5),
                "ask_1": call({ABIS[machine].signals[0]}, 1, 0),
                "io_uring": call(425, 1, 0),
                "packet": call({SOCKET[machine]}, 17, 3, 0),
                "unix": call({SOCKET[machine]}, 1, 1, 0),
            }}
        own = look()
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, json.dumps(look()).encode())
            os._exit(0)
        os.wait()
        status = open("/proc/self/status").read()
        print(json.dumps({{
            "own": own,
            "child": json.loads(os.read(reading, 9999)),
            "dumpable": libc.prctl(3, 0, 0, 0, 0),
            "status": [line for line in status.splitlines() if line.startswith(("Secc", "NoNew"))],
        }}))
    """)

    expected = {
        "prlimit_parent": "EPERM",
        "prlimit_self": "ok",
        "priority_user": "EPERM",
        "priority_self": "ok",
        "ask_1": "ok" if os.geteuid() == 0 else "EPERM",
        "io_uring": "ENOSYS",
        "packet": "EAFNOSUPPORT",
        "unix": "ok",
    }
    assert found["own"] == found["child"] == expected
    assert found["dumpable"] == 0
    assert "NoNewPrivs:\t1" in found["status"]
    assert "Seccomp:\t2" in found["status"]


def test_every_signal_is_at_its_default() -> None:
    found = inside("""
        harden.default_signals(keep_ignored=False)
        status = open("/proc/self/status").read()
        lines = dict(line.split(":\\t", 1) for line in status.splitlines() if ":\\t" in line)
        print(json.dumps([lines["SigCgt"], lines["SigIgn"]]))
    """)
    caught, ignored = (int(mask, 16) for mask in found)
    # The C library's two internal signals cannot be seen from Python.
    assert caught & ~(0b11 << 31) == 0
    assert ignored & ~(0b11 << 31) == 0


def test_maps_outside_the_toolbox_are_found() -> None:
    with pytest.raises(harden.NotHardened, match="mapped from outside the toolbox: /"):
        harden.check_maps("/no/such/toolbox")
    harden.check_maps("/")
