"""Rules that a machine must be isolated to survive: signals, process 1, sessions apart.

What fills processes, memory and space is in `isolation_limits`.

Each runs in a session of its own, and only where ISOLATED is claimed. Afterwards the
session answers, or its next generation does and says so; and what died is never
reported as a success.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from typing import Final

from sandbox_adapter import errors
from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.v1 import session_pb2, tool_pb2

RECOVER_S_MAX: Final = 60.0
"""Time in which a session that was attacked must answer again."""

DIED: Final = (
    tool_pb2.ENDING_SIGNALED,
    tool_pb2.ENDING_TIMED_OUT,
    tool_pb2.ENDING_CANCELLED,
    tool_pb2.ENDING_OOM_KILLED,
    tool_pb2.ENDING_PIDS_EXHAUSTED,
    tool_pb2.ENDING_DISK_FULL,
    tool_pb2.ENDING_SANDBOX_LOST,
    tool_pb2.ENDING_UNKNOWN,
)


_PROBE: Final = "for i in 1 2; do (echo $i | cat); done"


async def lives(place: Place) -> None:
    """The session answers, with commands that start processes, and tells a restart once."""
    first = place.session.generation
    deadline = time.monotonic() + RECOVER_S_MAX
    while said := await _amiss(place):
        if time.monotonic() > deadline:
            raise Broken(f"the session does not recover within {RECOVER_S_MAX:.0f} s: {said}")
        await asyncio.sleep(0.5)
    restarts = max(place.restarts_told) - first
    expect.holds(restarts <= 1, f"{restarts} restarts after one attack")
    # Of all the rule's results: one of the attack itself may be the one that tells.
    for generation, told in place.restarts_told.items():
        wanted = int(generation > first)
        expect.equal(sum(told), wanted, f"results of generation {generation} that told a restart")
        expect.equal(told[0], wanted == 1, f"whether the first of generation {generation} did")


async def _amiss(place: Place) -> str:
    """What is not as it was before; empty where the session answers.

    The sandbox may be lost at any step: what an attack took can end it a moment later.
    """
    steps = (
        ("bash", {"command": _PROBE, "timeout": 20}, "1\n2\n"),
        ("write", {"path": place.at("after"), "content": "kept\n"}, None),
        ("read", {"path": place.at("after")}, "kept\n"),
    )
    for tool, arguments, expected in steps:
        try:
            result = await place.call(tool, arguments)
        except errors.SessionNotReady as error:
            return str(error)
        text = result.text.removeprefix(expect.RESTARTED)
        if result.is_error and result.ending != tool_pb2.ENDING_SANDBOX_LOST and tool != "bash":
            expect.fine(result)
        if result.is_error or expected not in (None, text):
            return expect.shown(result.text)
    return ""


async def attack(place: Place, command: str, timeout: float = 20) -> tool_pb2.ToolResult:
    return await place.bash(command, timeout=timeout)


def no_success(result: tool_pb2.ToolResult) -> None:
    """What died is not said to have ended well (sandbox-case 25)."""
    name = tool_pb2.Ending.Name(result.ending)
    well = result.ending not in DIED and not (result.HasField("exit_code") and result.exit_code)
    expect.holds(not well, f"it died and is reported as {name} with code {result.exit_code}")
    if result.ending in (tool_pb2.ENDING_SANDBOX_LOST, tool_pb2.ENDING_UNKNOWN):
        expect.holds(result.is_error, f"{name} without `is_error`")


# --- Signals -----------------------------------------------------------------------------


@rule("isolation.signals-to-everything", cases=["B43", "security S1"], harmful=True)
async def signals_to_everything(place: Place) -> None:
    """`kill -9 -1` ends the session's commands and nothing else, and they say so."""
    await place.require("sleep")
    await place.make_folder()
    ready = shlex.quote(place.at("ready"))
    script = f": > {ready}; sleep 60; echo survived"
    beside = asyncio.ensure_future(attack(place, script, 90))
    await place.until_made("ready", beside)
    await attack(place, "kill -9 -1")
    no_success(await beside)
    await lives(place)


@rule("isolation.every-signal-to-everything", cases=["B43", "security S1"], harmful=True)
async def every_signal_to_everything(place: Place) -> None:
    """No signal to all processes ends the session, nor stops it."""
    numbers = " ".join(str(number) for number in range(1, 65) if number not in (32, 33))
    for number in ("INT", "TERM", "HUP", "STOP", "TSTP", "USR1", "PIPE", "CHLD", "CONT"):
        await attack(place, f"kill -{number} -1; true", 5)
    await attack(place, f"for s in {numbers}; do kill -$s -1 2>/dev/null; done; true", 5)
    await lives(place)


@rule("isolation.signals-to-process-1", cases=["B43", "security S1"], harmful=True)
async def signals_to_process_1(place: Place) -> None:
    """No signal that a command sends to process 1 ends the session."""
    numbers = " ".join(str(number) for number in range(1, 65) if number not in (32, 33))
    script = f"for s in {numbers}; do kill -$s 1 2>/dev/null; done; kill -9 1 2>/dev/null; echo end"
    await attack(place, script)
    await lives(place)


@rule("isolation.killing-all-that-is-seen", cases=["B43", "security S1"], harmful=True)
async def killing_all_that_is_seen(place: Place) -> None:
    """A command that kills every process it can see, again and again, ends no session."""
    kills = "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = $$ ] || kill -9 $p; done 2>/dev/null"
    script = f"i=0; while [ $i -lt 20 ]; do {kills}; i=$((i+1)); done; kill -9 $$"
    result = await attack(place, script)
    no_success(result)
    await lives(place)


@rule("isolation.parent-and-group-are-no-way-out", cases=["B43", "B40"], harmful=True)
async def parent_and_group_are_no_way_out(place: Place) -> None:
    """Signals to the parent, to group 0 and to the own group reach the command alone."""
    await place.require("sleep")
    for target in ("$PPID", "0", "-$$"):
        result = await attack(place, f"kill -9 {target} 2>/dev/null; sleep 1; kill -9 $$")
        no_success(result)
    await lives(place)


# --- Process 1 by other ways ----------------------------------------------------------------


@rule("isolation.process-1-by-proc", cases=["B42", "security S1"], harmful=True)
async def process_1_by_proc(place: Place) -> None:
    """Writing to what /proc shows of process 1 does not harm the session."""
    names = "mem environ oom_score_adj oom_adj comm timerslack_ns coredump_filter autogroup"
    script = (
        f"cd /proc/1 || exit 3; for f in {names} clear_refs loginuid uid_map setgroups; do "
        "( echo 1000 > $f ) 2>/dev/null; ( head -c 4096 $f >/dev/null ) 2>/dev/null; done; "
        "for t in task/*/comm fd/* ; do ( echo x > $t ) 2>/dev/null; done; echo end"
    )
    await attack(place, script)
    await lives(place)


@rule("isolation.process-1-by-system-calls", cases=["security S1"], harmful=True)
async def process_1_by_system_calls(place: Place) -> None:
    """Tampering with limits, priorities and tracing of process 1 leaves a session that answers."""
    await place.require("python3")
    await place.put(
        "tricks.py",
        "import ctypes, os, resource, signal\n"
        "libc = ctypes.CDLL(None)\n"
        "def attempt(trick):\n"
        "    try:\n"
        "        trick()\n"
        "    except (OSError, ValueError, PermissionError):\n"
        "        pass\n"
        "R = resource\n"
        "for what in (R.RLIMIT_NOFILE, R.RLIMIT_CPU, R.RLIMIT_AS, R.RLIMIT_DATA, R.RLIMIT_STACK):\n"
        "    for threads in range(1, 40):\n"
        "        attempt(lambda: resource.prlimit(threads, what, (1, 1)) if threads != os.getpid()"
        " else None)\n"
        "for pid in range(1, 40):\n"
        "    if pid == os.getpid():\n"
        "        continue\n"
        "    attempt(lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))\n"
        "    attempt(lambda: os.sched_setaffinity(pid, {0}))\n"
        "    attempt(lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))\n"
        "libc.ptrace(16, 1, 0, 0)\n"
        "libc.ptrace(0x4206, 1, 0, 0)\n"
        "attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(1), signal.SIGKILL))\n"
        "attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(1), signal.SIGSTOP))\n"
        "print('tried all')\n",
    )
    result = await attack(place, f"python3 {shlex.quote(place.at('tricks.py'))}")
    # A sandbox that is lost by it cannot say so; `lives` tells.
    if not result.is_error:
        expect.says(result.text, "tried all")
    await lives(place)


# --- Sessions apart ---------------------------------------------------------------------------


@rule("isolation.sessions-do-not-meet", cases=["security S2", "contract 1"], harmful=True)
async def sessions_do_not_meet(place: Place) -> None:
    """Files, processes and signals of one session do not reach another."""
    await place.require("sleep")
    secret = new_id("secret")
    await place.make_folder()
    script = f"echo {secret} > /tmp/{secret}; echo {secret} > ./{secret}; sleep 300 & echo $!"
    mine = await attack(place, script)
    async with place.target.session() as session:
        other = Place(place.target, session, place.folder)
        await attack(other, "kill -9 -1; true", 5)
        mine_there = shlex.quote(f"{place.workdir}/{secret}")
        seen = await other.bash(f"ls /tmp/{secret} ./{secret} {mine_there} 2>/dev/null")
        expect.holds(secret not in seen.text, f"files of another session: {seen.text}")
        await attack(other, "for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done 2>/dev/null", 10)
    pids = " ".join(str(each.pid) for each in mine.survivors)
    expect.exited(await place.bash(f"kill -0 {pids} && cat /tmp/{secret}"), 0, f"{secret}\n")
    await lives(place)


@rule("isolation.no-network-is-none", cases=["contract 3", "security S13"], harmful=True)
async def no_network_is_none(place: Place) -> None:
    """A session without network has no address, route or working device but loopback's."""
    if place.session.effective.network != session_pb2.NETWORK_NONE:
        raise Uncheckable("the session has a network")
    told = [line.split() for line in (await place.bash(_NETWORK)).text.split("\n")]
    devices = {words[1].partition(":")[0] for words in told if words[0:1] == ["device"]}
    if "lo" not in devices:
        raise Uncheckable("there is no /proc/net/dev to look at")
    for kind, name, *rest in (words for words in told if len(words) > 1):
        if kind in ("route", "address"):
            expect.holds(name == "lo", f"{kind} by {name}: {' '.join(rest)}")
        # A host's modules put devices of their own into every name space, which are down.
        if kind == "flags" and name != "lo":
            expect.holds(not int(rest[0], 16) & 1, f"the device {name} is up")
    hosts = re.findall(r"\|-- (\S+)\nleaf /32 host LOCAL", "\n".join(map(" ".join, told)))
    outward = [host for host in hosts if not host.startswith("127.")]
    expect.equal(outward, [], "addresses but loopback's")


_NETWORK: Final = r"""
cd /proc/net || exit
[ -r dev ] && while read -r name _; do echo "device $name"; done < dev
[ -r route ] && { read -r _; while read -r name to _; do echo "route $name $to"; done; } < route
[ -r if_inet6 ] && while read -r what _ _ _ _ name; do echo "address $name $what"; done < if_inet6
[ -r fib_trie ] && while read -r a b; do
case $a in '|--'|'+--') echo "$a $b";; *) echo "leaf $a $b";; esac; done < fib_trie
cd /sys/class/net || exit
for n in *; do [ -r $n/flags ] && read -r f < $n/flags && echo "flags $n $f"; done
"""
"""What the kernel tells of devices, routes and addresses; a file that is missing tells nothing."""
