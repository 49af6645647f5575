"""Rules on endings by a limit: what is said of them, and what only looks like one (contract 4).

Those that meet a limit run only where ISOLATED is claimed, in a session of their own, and
only where a limit stops them in time.
"""

from __future__ import annotations

from typing import Final

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import SIX_TOOLS, rule
from sandbox_adapter.conformance.rules.isolation import attack, lives
from sandbox_adapter.conformance.rules.isolation_limits import HOG, LONG_S, MIB, bound
from sandbox_adapter.v1 import adapter_pb2, tool_pb2

OOM_CAUSE: Final = adapter_pb2.CAPABILITY_OOM_CAUSE
MEMORY_MAX: Final = 8192 * MIB
PIDS_MAX: Final = 1024
"""Most processes that are started to meet the limit."""
_KILLED: Final = 137
_OUT_OF_MEMORY: Final = "[Command was killed: out of memory"


def _carries(result: tool_pb2.ToolResult, kind: str, limit: int) -> None:
    """The result names the limit that the session has, and a peak that fits it."""
    expect.equal((result.limit.kind, result.limit.limit), (kind, limit), "limit")
    peak = result.limit.peak if result.limit.HasField("peak") else None
    expect.holds(peak is None or 0 < peak <= limit, f"a peak of {peak} with a limit of {limit}")


# --- Memory -----------------------------------------------------------------------------


@rule(
    "endings.memory-of-a-child",
    cases=["contract 4", "contract 9", "sandbox 54", "sandbox 55"],
    needs=(SIX_TOOLS, OOM_CAUSE),
    harmful=True,
    timeout_s=LONG_S,
)
async def memory_of_a_child(place: Place) -> None:
    """A shell that ends with 137 for a child killed for memory is out of memory, output kept."""
    await place.require("tail")
    limit = bound(place, "memory_bytes", MEMORY_MAX)
    result = await attack(place, f"echo before; ( {HOG} ); exit {_KILLED}", 60)
    expect.ending_is(result, "OOM_KILLED")
    expect.holds(not result.is_error, "a command that ran is called an error")
    expect.equal(result.exit_code, _KILLED, "exit code")
    _carries(result, "memory", limit)
    lines = result.text.split("\n")
    expect.equal(lines[0], "before", "first line of the output")
    peak = f", peak {result.limit.peak // MIB} MB" if result.limit.HasField("peak") else ""
    words = f"{_OUT_OF_MEMORY} (limit {limit // MIB} MB{peak})]"
    expect.equal(lines[-1], words, "last line, in place of the exit's")
    await lives(place)


@rule(
    "endings.memory-beside-is-carried",
    cases=["contract 4", "sandbox 54"],
    needs=(SIX_TOOLS, OOM_CAUSE),
    harmful=True,
    timeout_s=LONG_S,
)
async def memory_beside_is_carried(place: Place) -> None:
    """A command that outlives its child's lack of memory has exited, and carries the limit."""
    await place.require("tail")
    limit = bound(place, "memory_bytes", MEMORY_MAX)
    result = await attack(place, f"( {HOG} ) 2>/dev/null; echo then", 60)
    expect.ending_is(result, "EXITED")
    expect.equal(result.exit_code, 0, "exit code")
    _carries(result, "memory", limit)
    expect.holds(_OUT_OF_MEMORY not in result.text, "it is said to have been killed")
    after = await place.bash("kill -9 $$")
    expect.ending_is(after, "SIGNALED")
    expect.equal(after.limit.kind, "", "limit of a later call that met none")


@rule(
    "endings.memory-timeout-stays-one",
    cases=["contract 4"],
    needs=(SIX_TOOLS, OOM_CAUSE),
    harmful=True,
    timeout_s=LONG_S,
)
async def memory_timeout_stays_one(place: Place) -> None:
    """A command that lost a child for memory and then meets its timeout has timed out."""
    await place.require("sleep")
    await place.require("tail")
    bound(place, "memory_bytes", MEMORY_MAX)
    result = await attack(place, f"( {HOG} ); sleep 300", 15)
    expect.ending_is(result, "TIMED_OUT")
    expect.equal((result.limit.kind, result.limit.limit), ("time", 15_000), "limit")


@rule("endings.killed-is-not-out-of-memory", cases=["contract 4", "sandbox 55"])
async def killed_is_not_out_of_memory(place: Place) -> None:
    """A command that was killed, or ends as if it were, is out of memory only if it was."""
    for command, ending in (("kill -9 $$", "SIGNALED"), (f"exit {_KILLED}", "EXITED")):
        result = await place.bash(command)
        expect.ending_is(result, ending)
        expect.equal(result.exit_code, _KILLED, f"exit code of `{command}`")
        expect.holds(_OUT_OF_MEMORY not in result.text, f"`{command}` is called out of memory")
        expect.equal(result.limit.kind, "", f"limit of `{command}`")


# --- Processes --------------------------------------------------------------------------


def _out_of_pids(place: Place, result: tool_pb2.ToolResult, pids: int) -> None:
    """The result is one of what could not fork.

    An adapter that reads the kernel's counters, as OOM_CAUSE says, can attribute it.
    """
    name = tool_pb2.Ending.Name(result.ending).removeprefix("ENDING_")
    if place.target.claims(OOM_CAUSE) or name == "PIDS_EXHAUSTED":
        expect.ending_is(result, "PIDS_EXHAUSTED")
        _carries(result, "pids", pids)
    else:
        expect.ending_is(result, "EXITED")


@rule(
    "endings.command-that-cannot-fork",
    cases=["contract 4", "sandbox 57"],
    harmful=True,
    timeout_s=LONG_S,
)
async def command_that_cannot_fork(place: Place) -> None:
    """A command that fails for want of processes says so, and the next one works."""
    await place.require("sleep")
    pids = bound(place, "pids", PIDS_MAX)
    script = f"i=0; while [ $i -lt {pids + 50} ]; do sleep 60 & i=$((i+1)); done; echo all"
    result = await attack(place, script, 100)
    expect.holds("all\n" not in result.text, "more processes than the limit were made")
    expect.holds(result.exit_code != 0, "it failed to fork and ended well")
    _out_of_pids(place, result, pids)
    await lives(place)


@rule(
    "endings.fork-bomb-names-the-limit", cases=["contract 4", "B41"], harmful=True, timeout_s=LONG_S
)
async def fork_bomb_names_the_limit(place: Place) -> None:
    """A bomb whose own shell ends well still carries the limit that it met."""
    pids = bound(place, "pids", PIDS_MAX)
    if not place.target.claims(OOM_CAUSE):
        raise Uncheckable("the adapter does not say that it reads the kernel's counters")
    # It goes on long enough to meet the limit, whatever the machine does beside it.
    bomb = "b() { b | b & }; b; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"
    result = await attack(place, bomb, 60)
    _carries(result, "pids", pids)
    expect.holds(
        result.ending in (tool_pb2.ENDING_PIDS_EXHAUSTED, tool_pb2.ENDING_EXITED),
        f"it ended as {tool_pb2.Ending.Name(result.ending)}",
    )
    await lives(place)


# --- Storage ----------------------------------------------------------------------------


@rule("endings.full-storage", cases=["contract 4", "B25", "sandbox 33"], harmful=True)
async def full_storage(place: Place) -> None:
    """A command that fails for a full disk says so or has just failed, and its output stays."""
    await place.require("cat")
    await place.require("rm")
    size = bound(place, "tmp_bytes", 1024 * MIB)
    result = await attack(place, "echo before; cat /dev/zero > /tmp/fill", 60)
    expect.holds(result.exit_code != 0, "it met a full disk and ended well")
    expect.says(result.text, "before\n")
    if result.ending == tool_pb2.ENDING_DISK_FULL:
        expect.equal(result.limit.kind, "disk", "kind of the limit")
        # File systems keep some of their size for themselves.
        expect.holds(0 < result.limit.limit <= size, f"a limit of {result.limit.limit} bytes")
        expect.holds(not result.is_error, "a command that ran is called an error")
    else:
        expect.ending_is(result, "EXITED")
    expect.exited(await place.bash("rm /tmp/fill; echo end"), 0, "end\n")


@rule("endings.full-device-is-no-full-storage", cases=["contract 4"])
async def full_device_is_no_full_storage(place: Place) -> None:
    """A device that refuses every write is not blamed on storage."""
    await place.shell("[ -c /dev/full ]")
    result = await place.bash("echo x > /dev/full")
    expect.ending_is(result, "EXITED")
    expect.holds(result.exit_code != 0, "the write failed and the command ended well")
    expect.equal(result.limit.kind, "", "limit")
