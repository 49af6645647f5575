"""Rules on timeouts and cancels: they end the whole tree, and say so (tool-cases B6 to B9)."""

from __future__ import annotations

import asyncio
import shlex
from typing import Final

from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import CONFIRMED_CANCEL, ISOLATED, SIX_TOOLS, Rule, rule
from sandbox_adapter.conformance.rules import bash_jobs
from sandbox_adapter.conformance.rules.bash_jobs import RETURN_S, alive, job, pids_in
from sandbox_adapter.v1 import adapter_pb2, tool_pb2

LATE_S_MAX: Final = 12.0
"""Time over timeout and grace in which even a busy machine has ended a command."""
ESCAPE_S: Final = (2.0, 15.0)
"""Timeouts that a command gets to start all its processes in; the second on slow machines."""


# --- Timeouts -------------------------------------------------------------------------


async def _begun(place: Place, script: str) -> tuple[tool_pb2.ToolResult, float]:
    """Runs a script into a timeout that let it make the file `ready`; the timeout in seconds."""
    short_s, long_s = ESCAPE_S
    result = await place.bash(script, timeout=short_s)
    if await place.exists("ready"):
        return result, short_s
    return await place.bash(script, timeout=long_s), long_s


async def _named(place: Place, call_id: str, arguments: dict[str, object]) -> tool_pb2.ToolResult:
    """A bash call under an id that it can be cancelled by."""
    return place.with_shell(await place.call("bash", arguments, call_id=call_id))


def timed_out(place: Place, result: tool_pb2.ToolResult, seconds: float) -> None:
    """The result of a command that met its timeout, in time."""
    expect.fine(result)
    expect.ending_is(result, "TIMED_OUT")
    expect.equal(result.exit_code, 124, "exit code")
    took_s = result.duration.ToNanoseconds() / 1e9
    grace_s = place.target.limits.kill_grace.ToNanoseconds() / 1e9
    expect.holds(took_s >= seconds - 0.05, f"timed out after {took_s:.2f} s of {seconds}")
    latest_s = seconds + grace_s + LATE_S_MAX
    expect.holds(took_s <= latest_s, f"took {took_s:.1f} s with a timeout of {seconds}")


@rule("bash.timeout-is-a-result", cases=["B8", "D11", "D12", "sandbox 9", "sandbox 15"])
async def timeout_is_a_result(place: Place) -> None:
    """A timeout is a result with code 124, what was written, and the timeout in words."""
    await place.require("sleep")
    words = {0.5: "0.5 seconds", 1.0: "1 second", 1.5: "1.5 seconds", 2.0: "2 seconds"}

    async def one(seconds: float) -> None:
        result = await place.bash("echo begun; sleep 300", timeout=seconds)
        timed_out(place, result, seconds)
        note = f"[Command timed out after {words[seconds]}]"
        # On a slow machine the shortest may end before the shell has begun.
        begun = "begun\n" if seconds > 1 or result.bytes_total else "(no output)\n"
        expect.equal(result.text, begun + note, "text")
        expect.equal((result.limit.kind, result.limit.limit), ("time", seconds * 1000), "limit")
        expect.holds(not result.survivors, "survivors of a tree that must be gone")
        expect.equal(result.bash.timeout.ToMilliseconds(), seconds * 1000, "timeout in force")

    await asyncio.gather(*map(one, words))


@rule("bash.timeout-without-output", cases=["B8", "contract 9"])
async def timeout_without_output(place: Place) -> None:
    """A command that timed out without output says both."""
    await place.require("sleep")
    result = await place.bash("sleep 300", timeout=0.5)
    timed_out(place, result, 0.5)
    expect.equal(result.text, "(no output)\n[Command timed out after 0.5 seconds]", "text")


@rule("bash.timeout-counts-time-and-not-silence", cases=["D11", "B24"])
async def timeout_counts_time_and_not_silence(place: Place) -> None:
    """A command that writes without end is timed out, and its last output kept."""
    result = await place.bash("while :; do echo line; done", timeout=1)
    timed_out(place, result, 1)
    lines = result.text.split("\n")
    expect.equal(lines[-2:], ["line", "[Command timed out after 1 second]"], "last lines")
    expect.holds(result.bytes_total == 5 * result.lines_total, "the totals do not fit")


@rule("bash.timeout-lets-traps-run", cases=["B6", "contract 4"])
async def timeout_lets_traps_run(place: Place) -> None:
    """A timeout asks with TERM first, and what traps write is in the result."""
    await place.require("sleep")
    await place.make_folder()
    made = f": > {shlex.quote(place.at('ready'))}"
    script = f"trap 'echo cleaned up; exit 0' TERM; echo begun; {made}; while :; do sleep 1; done"
    # Several: what is written last is easily lost, and not every time.
    for result, seconds in await asyncio.gather(*(_begun(place, script) for _ in range(6))):
        timed_out(place, result, seconds)
        # The shell may say between them that what it waited for was ended.
        lines = result.text.split("\n")
        expect.equal(lines[0], "begun", "first line")
        seen = expect.shown(result.text)
        expect.holds("cleaned up" in lines, f"the trap's line is missing: {seen}")


@rule("bash.timeout-ends-a-stopped-shell", cases=["B6"])
async def timeout_ends_a_stopped_shell(place: Place) -> None:
    """A shell that has stopped itself is ended by its timeout like any other."""
    await place.require("sleep")
    result = await place.bash("echo $$; kill -STOP $$; sleep 300", timeout=1.5)
    timed_out(place, result, 1.5)
    expect.equal(await alive(place, pids_in(result.text.split("\n")[0])), [], "left running")


@rule("bash.timeout-of-one-leaves-others", cases=["B5", "security S6"])
async def timeout_of_one_leaves_others(place: Place) -> None:
    """A timeout ends neither a running call beside it nor the job of a finished one."""
    await place.require("sleep")
    jobs = await place.bash("sleep 300 >/dev/null 2>&1 & echo $!", timeout=RETURN_S)
    pids = pids_in(jobs.text.split("\n")[0])
    try:
        beside = asyncio.ensure_future(place.bash("echo begun; sleep 5; echo end"))
        timed_out(place, await place.bash("sleep 300", timeout=1), 1)
        expect.exited(await beside, 0, "begun\nend\n")
        expect.equal(await alive(place, pids), pids, "jobs of the finished call that run")
    finally:
        await bash_jobs.end(place, pids)


# --- What must not escape a timeout or a cancel ------------------------------------------

ESCAPES: Final[dict[str, tuple[str, tuple[str, ...], str, tuple[adapter_pb2.Capability, ...]]]] = {
    "children": (
        "its children and theirs",
        (),
        "{job} & ( ( {job} & ) & ) ; sh -c '{inner} &'",
        (),
    ),
    "the-deaf": ("what ignores TERM", (), "{deaf} & ( {deaf} & ) ; sh -c '{inner} &'", ()),
    "escapees": (
        "what left its group and session",
        ("setsid",),
        "setsid {job} & ( setsid {job} & ) ; setsid sh -c '{inner} & exit' & setsid {deaf} &",
        (),
    ),
    "the-unmarked": (
        "what has another environment",
        ("env",),
        'env -i PATH="$PATH" {job} & ( env -i PATH="$PATH" {deaf} & ) ;',
        (),
    ),
    "the-untraceable": (
        "what shed its session, its environment and its parents",
        ("setsid",),
        '( env -i PATH="$PATH" setsid {job} & ) ; ( env -i PATH="$PATH" setsid {deaf} & ) ;',
        (ISOLATED,),
    ),
}


def escape_script(place: Place, template: str) -> str:
    """Starts the processes of an escape, waits until all have noted themselves, and stays."""
    # By a variable: the words of a path cannot be quoted three times over.
    inner = 'sh -c "echo \\$\\$ >> \\"\\$KIT_PIDS\\"; exec sleep 300"'
    pids = shlex.quote(place.at("pids"))
    script = template.format(
        job=job(place, "pids"), deaf=job(place, "pids", 'trap "" TERM; '), inner=inner
    )
    count = template.count("{")
    return (
        f"export KIT_PIDS={pids}; : > {pids}; {script}\n"
        f"while n=0; while read -r _; do n=$((n+1)); done < {pids}; "
        f"[ $n -lt {count} ]; do sleep 0.1; done\n"
        f": > {shlex.quote(place.at('ready'))}; echo ready; sleep 300"
    )


async def _nothing_left(place: Place, result: tool_pb2.ToolResult) -> None:
    pids = pids_in((await place.content("pids")).decode())
    named = {each.pid for each in result.survivors}
    left = await alive(place, pids)
    await bash_jobs.end(place, left)
    expect.holds(not left, f"of {len(pids)} processes {len(left)} run on ({len(named)} named)")
    expect.holds(not named, f"{len(named)} processes named that are gone")


def _escape_by_timeout(name: str) -> Rule:
    what, needed, template, needs = ESCAPES[name]

    async def check(place: Place) -> None:
        await place.make_folder()
        await place.require("sh", "sleep", *needed)
        result, seconds = await _begun(place, escape_script(place, template))
        timed_out(place, result, seconds)
        await _nothing_left(place, result)

    check.__doc__ = f"A timeout ends {what}."
    cases = ["B6", "B7", "B5", "sandbox 12", "sandbox 14", "contract 4"]
    needs = (SIX_TOOLS, *needs)
    return rule(f"bash.timeout-ends-{name}", cases=cases, needs=needs)(check)


def _escape_by_cancel(name: str) -> Rule:
    what, needed, template, needs = ESCAPES[name]

    async def check(place: Place) -> None:
        await place.make_folder()
        await place.require("sh", "sleep", *needed)
        call_id = new_id("call")
        arguments = {"command": escape_script(place, template), "timeout": 120}
        running = asyncio.ensure_future(_named(place, call_id, arguments))
        await place.until_made("ready", running)
        result = await place.client.cancel_call(place.session_id, call_id)
        await _nothing_left(place, result)
        await running
        cancelled(result)

    check.__doc__ = f"CancelCall returns when {what} are gone."
    cases = ["B6", "B7", "sandbox 17", "contract 4"]
    needs = (SIX_TOOLS, CONFIRMED_CANCEL, *needs)
    return rule(f"bash.cancel-ends-{name}", cases=cases, needs=needs)(check)


def cancelled(result: tool_pb2.ToolResult) -> None:
    expect.ending_is(result, "CANCELLED")
    expect.equal(expect.reason_of(result), "CANCELLED_BY_CALLER", "reason")
    expect.holds(not result.is_error, "a command that ran is no failure of the tool")


@rule("bash.cancel-keeps-the-output", cases=["sandbox 16", "sandbox 29", "contract 4"])
async def cancel_keeps_the_output(place: Place) -> None:
    """A cancelled command's result holds what it wrote, for whoever asks."""
    await place.require("sleep")
    await place.make_folder()
    call_id = new_id("call")
    made = f": > {shlex.quote(place.at('ready'))}"
    script = f"trap 'echo asked; exit 3' TERM; echo begun; {made}; while :; do sleep 1; done"
    running = asyncio.ensure_future(_named(place, call_id, {"command": script}))
    await place.until_made("ready", running)
    first = await place.client.cancel_call(place.session_id, call_id)
    second = await place.client.cancel_call(place.session_id, call_id)
    for result in (first, await running, second):
        cancelled(result)
        lines = result.text.split("\n")
        expect.equal(lines[0], "begun", "first line")
        expect.holds("asked" in lines, f"the trap's line is missing: {expect.shown(result.text)}")


@rule("bash.cancel-after-the-end-kills-nothing", cases=["contract 4"])
async def cancel_after_the_end_kills_nothing(place: Place) -> None:
    """CancelCall of a finished call returns its result and leaves its jobs running."""
    await place.require("sleep")
    call_id = new_id("call")
    script = "sleep 300 >/dev/null 2>&1 & echo $!"
    result = await _named(place, call_id, {"command": script})
    pids = [each.pid for each in result.survivors]
    try:
        again = await place.client.cancel_call(place.session_id, call_id)
        expect.exited(again, 0, result.text)
        expect.equal(await alive(place, pids), pids, "jobs that run after the cancel")
    finally:
        await bash_jobs.end(place, pids)


RULES: Final = (
    *map(_escape_by_timeout, ESCAPES),
    *map(_escape_by_cancel, ESCAPES),
)
