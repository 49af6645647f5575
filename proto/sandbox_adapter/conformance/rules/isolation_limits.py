"""Rules on what fills a machine: bombs, zombies, memory, `/tmp` (security S3, S4, S6).

Each runs as those of `isolation`, and only where a limit stops the attack in time.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from typing import Final

from sandbox_adapter import errors
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import SIX_TOOLS, rule
from sandbox_adapter.conformance.rules.isolation import RECOVER_S_MAX, attack, lives, no_success
from sandbox_adapter.v1 import adapter_pb2, error_pb2

LONG_S: Final = 150.0
"""Time for rules whose attack itself takes long on a busy machine."""
MIB: Final = 1024 * 1024
HOG: Final = (
    "if command -v tail; then cat /dev/zero | tail -n 1; "
    "else x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done; fi >/dev/null"
)
"""Takes all memory: what has no line feed is a last line without end."""


def bound(place: Place, name: str, most: int) -> int:
    """A limit in force. Raises `Uncheckable` where none stops the attack in time."""
    value: int = getattr(place.session.effective.resources, name)
    if not 0 < value <= most:
        raise Uncheckable(f"`resources.{name}` is {value}: nothing would stop the attack")
    return value


# --- Bombs ------------------------------------------------------------------------------------


@rule("isolation.fork-bomb", cases=["B41", "B6", "security S6"], harmful=True, timeout_s=LONG_S)
async def fork_bomb(place: Place) -> None:
    """A fork bomb ends with its timeout, all of it, and is no success."""
    await place.require("sleep")
    bound(place, "pids", 100_000)
    before = await _processes(place)
    # What doubles dies of its own greed where a fork fails; what sleeps, deaf to TERM, stays.
    sleepers = "( trap '' TERM; i=0; while [ $i -lt 20 ]; do sleep 1000 & i=$((i+1)); done )"
    # The shell itself starts nothing more: one that may not fork ends, and its sleepers would be
    # background jobs of a call that is over, which rightly stay.
    bomb = f"b() {{ b | b & }}; {sleepers}; b 2>/dev/null; while :; do :; done"
    result = await attack(place, bomb, 2)
    no_success(result)
    await lives(place)
    after = await _processes(place)
    expect.holds(after <= before + 5, f"{before} processes before the bomb, {after} after it")


@rule(
    "isolation.fork-bomb-left-behind", cases=["B41", "security S6"], harmful=True, timeout_s=LONG_S
)
async def fork_bomb_left_behind(place: Place) -> None:
    """A bomb that outlives its call does not keep the session from answering for good."""
    await place.require("sleep")
    bound(place, "pids", 100_000)
    await attack(place, "b() { b | b & }; b >/dev/null 2>&1 & sleep 1", 10)
    # A timeout beside it ends what cannot be traced to any call.
    await place.call("bash", {"command": "sleep 60", "timeout": 1})
    await lives(place)


@rule(
    "isolation.deletion-beside-a-bomb", cases=["security S3", "B41"], harmful=True, timeout_s=LONG_S
)
async def deletion_beside_a_bomb(place: Place) -> None:
    """A session whose processes multiply can be deleted, and its running call says why."""
    await place.require("sleep")
    bound(place, "pids", 100_000)
    async with place.target.session() as session:
        other = Place(place.target, session, place.folder)
        script = "b() { b | b & }; b 2>/dev/null; while :; do sleep 1; done"
        bomb = asyncio.ensure_future(attack(other, script, 120))
        await asyncio.sleep(1)
        begun = time.monotonic()
        await place.client.delete_session(session.session_id)
        took_s = time.monotonic() - begun
        expect.holds(took_s < 60, f"deletion took {took_s:.0f} s")
        try:
            no_success(await bomb)
        except errors.AdapterError as error:
            expect.equal(error.status, "FAILED_PRECONDITION", "status of the running call")
    await lives(place)


@rule(
    "isolation.spinners-starve-nobody",
    cases=["security S3", "sandbox 60"],
    harmful=True,
    timeout_s=LONG_S,
)
async def spinners_starve_nobody(place: Place) -> None:
    """A hundred busy loops leave the session time to answer."""
    await place.require("mkfifo")
    # They wait for a line each, so that the first do not starve the shell that starts the rest.
    spin = (
        "mkfifo /tmp/go && exec 3<>/tmp/go || exit 3; i=0; go=; while [ $i -lt 100 ]; do "
        '( read -r _ <&3; while :; do :; done ) & i=$((i+1)); go="$go\\n"; done; '
        'echo begun; printf "$go" >&3'
    )
    result = await attack(place, spin, 30)
    expect.says(result.text, "begun")
    begun = time.monotonic()
    expect.exited(await attack(place, "echo here | cat", RECOVER_S_MAX), 0, "here\n")
    expect.fine(await place.write("f", "kept\n"))
    took_s = time.monotonic() - begun
    expect.holds(took_s < RECOVER_S_MAX, f"answering took {took_s:.0f} s")
    # Or they would slow down the rules beside this one, where one machine has all sessions.
    await attack(place, "kill -9 -1")
    await lives(place)


@rule("isolation.zombies-are-reaped", cases=["B11", "security S6", "sandbox 57"], harmful=True)
async def zombies_are_reaped(place: Place) -> None:
    """Thousands of orphans that end leave no zombie behind."""
    script = "i=0; while [ $i -lt 2000 ]; do ( : & ) ; i=$((i+1)); done; echo end"
    expect.exited(await attack(place, script, 120), 0, "end\n")
    deadline = time.monotonic() + 10
    while (left := await _zombies(place)) > 0:
        expect.holds(time.monotonic() < deadline, f"{left} zombies stay")
        await asyncio.sleep(0.2)
    await lives(place)


@rule("isolation.zombies-of-a-sleeper", cases=["B11", "security S6", "sandbox 57"], harmful=True)
async def zombies_of_a_sleeper(place: Place) -> None:
    """Zombies that their own parent keeps fill no more than what ends with it."""
    await place.require("sleep")
    pids = bound(place, "pids", 100_000)
    count = min(200, pids // 3)
    script = (
        f"sh -c 'i=0; while [ $i -lt {count} ]; do sleep 1 & i=$((i+1)); done; exec sleep 60'"
        " >/dev/null 2>&1 & echo $!"
    )
    result = await attack(place, script, 60)
    deadline = time.monotonic() + 6
    while (shown := await _zombies(place)) < count // 2:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.2)
    if shown == 0:
        raise Uncheckable("the sandbox shows no zombie of a parent that does not wait")
    await lives(place)
    parent = result.text.split("\n")[0]
    await place.bash(f"kill -9 {parent} 2>/dev/null; true")
    deadline = time.monotonic() + 10
    while (left := await _zombies(place)) > 0:
        expect.holds(time.monotonic() < deadline, f"{left} zombies outlive their parent")
        await asyncio.sleep(0.2)


async def _zombies(place: Place) -> int:
    script = (
        "n=0; for f in /proc/[0-9]*/status; do while read -r k v _; do "
        '[ "$k $v" = "State: Z" ] && n=$((n+1)); done 2>/dev/null < $f; done; echo $n'
    )
    return int(await place.shell(script))


async def _processes(place: Place) -> int:
    return int(await place.shell("set -- /proc/[0-9]*; echo $#"))


# --- Memory and space ------------------------------------------------------------------------


@rule(
    "isolation.memory-hog",
    cases=["B41", "security S4", "sandbox 54", "sandbox 55"],
    harmful=True,
    timeout_s=LONG_S,
)
async def memory_hog(place: Place) -> None:
    """A command that takes all memory has no success; calls beside it go on or are lost with it."""
    await place.require("sleep")
    bound(place, "memory_bytes", 8192 * MIB)
    await attack(place, "true")
    await place.make_folder()
    script = (
        f"cd {shlex.quote(place.folder)}; : > begun; until [ -e over ]; do sleep 1; done; echo end"
    )
    beside = asyncio.ensure_future(attack(place, script, 90))
    await place.until_made("begun", beside)
    result = await attack(place, HOG, 60)
    no_success(result)
    await place.write("over", "")
    # A sandbox that goes down with it takes both: then `lives` judges what comes back.
    lost = error_pb2.REASON_SANDBOX_LOST
    if lost not in (result.reason, (await beside).reason):
        expect.exited(await beside, 0, "end\n")
    await lives(place)


@rule(
    "isolation.out-of-memory-is-named",
    cases=["contract 4", "contract 9", "sandbox 54"],
    harmful=True,
    needs=(SIX_TOOLS, adapter_pb2.CAPABILITY_OOM_CAUSE),
    timeout_s=LONG_S,
)
async def out_of_memory_is_named(place: Place) -> None:
    """A command that the kernel killed for memory says so, with limit and peak."""
    limit = bound(place, "memory_bytes", 8192 * MIB)
    result = await attack(place, HOG, 60)
    expect.ending_is(result, "OOM_KILLED")
    expect.equal((result.limit.kind, result.limit.limit), ("memory", limit), "limit")
    start = f"[Command was killed: out of memory (limit {limit // MIB} MB, peak "
    expect.says(result.text, start)
    await lives(place)


@rule(
    "isolation.full-tmp", cases=["B25", "security S4", "sandbox 33"], harmful=True, timeout_s=LONG_S
)
async def full_tmp(place: Place) -> None:
    """With `/tmp` full, commands run, long output is cut as ever, and room can be made."""
    bound(place, "tmp_bytes", 4096 * MIB)
    await place.require("cat", "seq", "head")
    filled = await attack(place, "cat /dev/zero > /tmp/fill", 60)
    no_success(filled)
    result = await place.bash("seq 1 2500")
    expect.holds(result.text.partition("\n")[2].endswith("\n2500\n"), "the output is missing")
    start = "[Showing the last 2000 of 2500 lines (9501 of 11393 bytes)."
    expect.says(result.text.partition("\n")[0], start)
    expect.exited(
        await place.bash("seq 1 2000 | head -n 1; : > /tmp/fill; echo end"), 0, "1\nend\n"
    )
    await lives(place)


@rule("isolation.tmp-taken-away", cases=["B25", "sandbox 33"], harmful=True)
async def tmp_taken_away(place: Place) -> None:
    """Deleting everything in `/tmp` costs no call its output."""
    await place.require("seq", "rm", "chmod")
    await place.bash("seq 1 30000 >/dev/null; seq 1 2500")
    await place.bash("rm -rf /tmp/* /tmp/.[!.]* 2>/dev/null; chmod 0 /tmp 2>/dev/null; true")
    result = await place.bash("seq 1 2500")
    expect.holds(result.text.endswith("\n2499\n2500\n"), f"output: {expect.shown(result.text)}")
    await lives(place)
