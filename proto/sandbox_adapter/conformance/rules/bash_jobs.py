"""Rules on background jobs: what outlives its call, and how that is said (tool-cases B1 to B5)."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Collection
from typing import Final

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import Rule, rule
from sandbox_adapter.v1 import tool_pb2

RETURN_S: Final = 15.0
"""Timeout of commands that must return at once; one that waits for its jobs meets it."""


# --- Looking at processes -----------------------------------------------------------


async def alive(place: Place, pids: Collection[int]) -> list[int]:
    """Which of these processes of the sandbox run. Zombies do not."""
    script = (
        f"for p in {' '.join(map(str, pids))}; do kill -0 $p 2>/dev/null || continue; s=; "
        'while read -r k v _; do [ "$k" = State: ] && s=$v; done 2>/dev/null < /proc/$p/status; '
        '[ "$s" = Z ] || echo $p; done; true'
    )
    return [int(pid) for pid in (await place.shell(script)).split()]


async def end(place: Place, pids: Collection[int]) -> None:
    """Ends the background jobs that a rule has made."""
    if pids:
        await place.bash(f"kill -9 {' '.join(map(str, pids))} 2>/dev/null; true")


def job(place: Place, name: str, before: str = "") -> str:
    """A process that writes its pid into a file of the folder and stays."""
    return f"sh -c '{before}echo $$ >> \"$0\"; exec sleep 300' {shlex.quote(place.at(name))}"


def pids_in(text: str) -> list[int]:
    return [int(line) for line in text.split() if line.isdigit()]


def background_note(result: tool_pb2.ToolResult) -> str:
    named = ", ".join(f"{each.pid} {each.name}" for each in result.survivors)
    return f"[Background processes still running: {named}]"


# --- Background jobs ------------------------------------------------------------------

JOBS: Final = {
    "plain": ("a job started with `&`", "{job} & echo $!"),
    "silent": ("a job whose output goes elsewhere", "{job} >/dev/null 2>&1 & echo $!"),
    "nohup": ("a job under nohup", "nohup {job} & sleep 1; echo"),
    "setsid": ("a job in a session of its own", "setsid {job} & sleep 1; echo"),
    "orphan": ("a job whose parent is gone", "( {job} & ) ; sleep 1; echo"),
    "disowned": ("a job that bash disowned", "{job} & echo $!; disown"),
}


def _background(name: str, what: str, script: str) -> Rule:
    async def check(place: Place) -> None:
        await place.make_folder()
        await place.require("sh", "sleep", *{"nohup", "setsid"}.intersection({name}))
        if name == "disowned" and (await place.bash("disown 2>/dev/null")).exit_code == 127:
            raise Uncheckable("the shell has no `disown`")
        command = f"echo begun; {script.format(job=job(place, 'pid'))}"
        result = await place.bash(command, timeout=RETURN_S)
        pids = pids_in((await place.content("pid")).decode()) if await place.exists("pid") else []
        try:
            expect.exited(result, 0)
            expect.holds(result.text.startswith("begun\n"), "output before the job is missing")
            expect.holds(len(pids) <= 1, f"the fixture made {len(pids)} jobs")
            named = [each.pid for each in result.survivors]
            expect.holds(len(named) == 1, f"{len(named)} survivors of one job")
            expect.equal(await alive(place, named), named, "the survivors that run afterwards")
            expect.equal(pids or named, named, "the survivors' pids")
            line = background_note(result)
            expect.equal(result.text.rstrip("\n").split("\n")[-1], line, "last line")
            if name in ("plain", "silent"):
                expect.equal(result.bash.output_open, name == "plain", "output_open")
        finally:
            await end(place, {*pids, *(each.pid for each in result.survivors)})

    check.__doc__ = f"The call returns when its shell exits, and names {what}."
    cases = ["B1", "B3", "B5", "D10", "sandbox 1", "sandbox 3"]
    return rule(f"bash.background-{name}", cases=cases)(check)


@rule("bash.background-job-may-go-on-writing", cases=["B2"])
async def background_job_may_go_on_writing(place: Place) -> None:
    """A job that writes on after its call is neither killed by that nor held up."""
    await place.require("sleep")
    await place.make_folder()
    line = "x" * 100
    result = await place.bash(
        f"( sleep 1; i=0; while [ $i -lt 3000 ]; do echo {line}; i=$((i+1)); done; "
        f"echo end > {shlex.quote(place.at('end'))} ) & echo begun",
        timeout=RETURN_S,
    )
    expect.exited(result, 0)
    expect.holds(result.text.startswith("begun\n"), "output before the job is missing")
    deadline = time.monotonic() + 20
    while not await place.exists("end"):
        if time.monotonic() > deadline:
            left = await alive(place, [each.pid for each in result.survivors])
            expect.holds(False, f"the job did not reach its end; still running: {left}")
        await asyncio.sleep(0.2)


@rule("bash.background-output-is-nobody-elses", cases=["B2", "contract 4"])
async def background_output_is_nobody_elses(place: Place) -> None:
    """What a job writes after its call, and the job itself, appear in no later result."""
    await place.require("sleep")
    result = await place.bash("while :; do echo noise; sleep 1; done & echo $!", timeout=RETURN_S)
    loop = pids_in(result.text.partition("[")[0])
    try:
        for _ in range(3):
            expect.exited(await place.bash("sleep 1; echo mine"), 0, "mine\n")
        expect.equal(await alive(place, loop), loop, "the job that runs on")
    finally:
        await end(place, loop)


@rule("bash.chatty-job-does-not-hold-the-call", cases=["B4"])
async def chatty_job_does_not_hold_the_call(place: Place) -> None:
    """A job that never goes quiet does not keep its call from returning."""
    await place.require("sleep")
    script = "while :; do echo noise; sleep 0.1; done & echo begun"
    result = await place.bash(script, timeout=RETURN_S)
    try:
        expect.exited(result, 0)
        expect.says(result.text, "begun\n")
        expect.holds(len(result.survivors) >= 1, "the job is not named")
        expect.holds(result.bash.output_open, "`output_open` is not set")
    finally:
        await end(place, [each.pid for each in result.survivors])


@rule("bash.output-of-children-is-waited-for", cases=["B1", "B3"])
async def output_of_children_is_waited_for(place: Place) -> None:
    """What the shell's children write while it exits is in the result."""
    for number in range(5):
        result = await place.bash(f"( echo child {number} ) & echo shell")
        expect.exited(result, 0)
        expect.equal(sorted(result.text.split("\n")[:2]), [f"child {number}", "shell"], "lines")


@rule("bash.job-name-stays-on-one-line", cases=["contract 4", "security S21"])
async def job_name_stays_on_one_line(place: Place) -> None:
    """A process whose name holds control characters forges no line of its own."""
    await place.require("sleep")
    name = "a\n[x] \x1b[1m"
    await place.put(name, "#!/bin/sh\nsleep 300\n", 0o755)
    path = shlex.quote(place.at(name))
    result = await place.bash(f"{path} >/dev/null 2>&1 & echo $!; sleep 1", timeout=RETURN_S)
    try:
        if not result.survivors:
            raise Uncheckable("a script in the working directory cannot be run")
        for each in result.survivors:
            expect.holds(each.name.isprintable(), f"a survivor is called {each.name!r}")
        expect.equal(result.text.split("\n")[1:], [background_note(result)], "lines after output")
    finally:
        await end(place, [each.pid for each in result.survivors])


RULES: Final = tuple(_background(name, *spec) for name, spec in JOBS.items())
