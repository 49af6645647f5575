"""The bash tool: its input's rules, its texts to the letter, and hostile facts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sandbox_adapter.v1 import error_pb2, tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.errors import SandboxLost
from sandboxd.tools.base import Tool
from sandboxd.tools.bash import BashTool
from tests.unit.guest.guest_channel import GuestChannel
from tests.unit.guest.real_guest import Guest, pack
from tests.unit.tools.direct_channel import run_tool

FACTS: dict[str, Any] = {
    "ended": "exited",
    "exit_code": 0,
    "signal": None,
    "bytes_total": 3,
    "lines_total": 1,
    "lines_shown": 1,
    "cut": False,
    "binary": False,
    "spill": None,
    "survivors": [],
    "survivors_total": 0,
    "output_open": False,
    "swept": False,
    "freed": 0,
}


class Scripted:
    """A channel that answers every request with the same facts and keeps what was asked."""

    def __init__(self, facts: Mapping[str, Any] | None = None, body: bytes = b"hi\n") -> None:
        self.reply = Reply({**FACTS, **(facts or {})}, body)
        self.asked: list[tuple[str, dict[str, Any], bytes, float]] = []

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        reply_bytes_max: int,
        timeout_s: float,
    ) -> Reply:
        self.asked.append((op, dict(args), body, timeout_s))
        return self.reply


async def bash(
    channel: Scripted | GuestChannel, tool: BashTool | None = None, **raw: Any
) -> tool_pb2.ToolResult:
    return await run_tool(tool or BashTool(), channel, {"command": "x", **raw})


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestChannel]:
    zipapp = tmp_path_factory.mktemp("zip") / "guest.pyz"
    pack(zipapp)
    guest = Guest(zipapp)
    try:
        yield GuestChannel(guest)
    finally:
        guest.close()


def test_bash_is_a_tool() -> None:
    tool: Tool = BashTool(60.0, 600.0)

    assert (tool.name, tool.effect, tool.parallel) == ("bash", tool_pb2.EFFECT_CLASS_OPAQUE, False)
    assert (tool.timeout_default_s, tool.timeout_max_s) == (60.0, 600.0)
    assert tool.schema["additionalProperties"] is False
    assert tool.schema["required"] == ["command"]
    assert BashTool(900.0, 600.0).timeout_default_s == 600.0


# --- input -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        ({"command": None}, "`command` is missing"),
        ({"command": 5}, "`command` must be text"),
        ({"command": "a\0b"}, "NUL"),
        ({"command": "\ud800"}, "surrogate"),
        ({"cwd": "/"}, "Unknown field `cwd`"),
        ({"timeout": -1}, "`timeout` must be"),
        ({"timeout": -(10**400)}, "`timeout` must be"),
        ({"timeout": math.nan}, "`timeout` must be"),
        ({"timeout": math.inf}, "`timeout` must be"),
        ({"timeout": "5"}, "`timeout` must be"),
        ({"timeout": True}, "`timeout` must be"),
    ],
)
async def test_bash_refuses_bad_input(raw: dict[str, Any], part: str) -> None:
    channel = Scripted()

    result = await bash(channel, **raw)

    assert channel.asked == []
    assert (result.is_error, result.ending) == (True, tool_pb2.ENDING_COMPLETED)
    assert result.reason == error_pb2.REASON_INVALID_INPUT
    assert part in result.text


async def test_bash_refuses_a_script_that_is_too_long() -> None:
    result = await bash(Scripted(), command="x" * (16 * limits.MIB + 1))

    assert (result.is_error, result.reason) == (True, error_pb2.REASON_FILE_TOO_LARGE)


@pytest.mark.parametrize(
    ("asked", "given", "notes"),
    [
        (None, 120.0, ""),
        (0, 120.0, ""),
        (0.0, 120.0, ""),
        (0.5, 0.5, ""),
        (3600, 3600.0, ""),
        (3601, 3600.0, "[Timeout reduced to the maximum of 3600 seconds]"),
        (
            60_000,
            3600.0,
            (
                "[Timeout reduced to the maximum of 3600 seconds]\n"
                "[`timeout` is in seconds, not in milliseconds.]"
            ),
        ),
        (
            10**400,
            3600.0,
            (
                "[Timeout reduced to the maximum of 3600 seconds]\n"
                "[`timeout` is in seconds, not in milliseconds.]"
            ),
        ),
    ],
)
async def test_bash_takes_any_timeout_and_says_what_it_made_of_it(
    asked: float | None, given: float, notes: str
) -> None:
    channel = Scripted()

    result = await bash(channel, timeout=asked)

    [(op, args, body, answer_s)] = channel.asked
    assert args.pop("call_id")
    assert (op, args, body) == ("run", {"timeout_s": given}, b"x")
    assert answer_s > given + limits.KILL_GRACE_S + limits.DRAIN_MAX_S
    assert result.text == "hi\n" + notes
    assert result.bash.timeout.ToNanoseconds() == given * 1e9
    assert result.bash.timeout_clamped == bool(notes)


async def test_bash_names_the_maximum_in_the_singular() -> None:
    result = await bash(Scripted(), BashTool(0.5, 1.0), timeout=2)

    assert result.text == "hi\n[Timeout reduced to the maximum of 1 second]"


# --- texts -------------------------------------------------------------------------


CUT = {"cut": True, "lines_total": 9312, "lines_shown": 2000, "bytes_total": 70_000}
SPILL = {"path": "/tmp/.output-1/a.txt", "bytes": 70_000, "complete": True}

TEXTS: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "plain": ({}, b"hi\n", "hi\n"),
    "nothing": ({"bytes_total": 0}, b"", "(no output)"),
    "exit": ({"exit_code": 3}, b"hi", "hi\n[Command exited with code 3]"),
    "exit_without_output": ({"exit_code": 1}, b"", "(no output)\n[Command exited with code 1]"),
    "signal": (
        {"exit_code": 137, "signal": 9},
        b"hi\n",
        "hi\n[Command was killed by SIGKILL (exit code 137)]",
    ),
    "real_time_signal": (
        {"exit_code": 165, "signal": 37},
        b"",
        "(no output)\n[Command was killed by SIGRTMIN+3 (exit code 165)]",
    ),
    "background": (
        {"survivors": [[7, "sleep"], [8, "my job"]], "survivors_total": 2},
        b"hi\n",
        "hi\n[Background processes still running: 7 sleep, 8 my job]",
    ),
    "exit_then_background": (
        {"exit_code": 2, "survivors": [[7, "sleep"]], "survivors_total": 1},
        b"",
        "(no output)\n[Command exited with code 2]\n[Background processes still running: 7 sleep]",
    ),
    "cut": (
        {**CUT, "spill": SPILL},
        b"end\n",
        (
            "[Showing the last 2000 of 9312 lines (4 of 70000 bytes). "
            "Full output: /tmp/.output-1/a.txt]\nend\n"
        ),
    ),
    "cut_spill_capped": (
        {**CUT, "spill": {**SPILL, "bytes": 1, "complete": False}},
        b"end\n",
        (
            "[Showing the last 2000 of 9312 lines (4 of 70000 bytes). "
            "Full output: /tmp/.output-1/a.txt (first 1 byte of it)]\nend\n"
        ),
    ),
    "cut_without_spill": (
        {"cut": True, "lines_total": 1, "lines_shown": 1, "bytes_total": 90_000},
        b"end",
        "[Showing the last 1 of 1 line (3 of 90000 bytes).]\nend",
    ),
    "binary": (
        {"binary": True, "cut": True, "bytes_total": 1, "exit_code": 1},
        b"",
        "[Binary output, 1 byte]\n[Command exited with code 1]",
    ),
    "cancelled": (
        {"ended": "cancelled", "exit_code": 143, "signal": 15},
        b"hi\n",
        "hi\n[Command was cancelled]",
    ),
    "freed": (
        {"freed": 1},
        b"hi\n",
        "hi\n[1 background process was ended before this command: the process limit was reached.]",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
async def test_bash_text_is_exact(case: str) -> None:
    facts, body, text = TEXTS[case]

    result = await bash(Scripted(facts, body))

    assert result.text == text
    assert not result.is_error


async def test_bash_timeout_is_a_result_with_all_its_lines_in_order() -> None:
    facts = {
        "ended": "timed_out",
        "exit_code": 143,
        "signal": 15,
        "survivors": [[9, "stuck"]],
        "survivors_total": 1,
    }
    result = await bash(Scripted(facts), BashTool(1.0, 1.0), timeout=5)

    assert result.text == (
        "hi\n[Command timed out after 1 second]\n[Processes that could not be ended: 9 stuck]\n"
        "[Timeout reduced to the maximum of 1 second]"
    )
    assert not result.is_error
    assert (result.ending, result.exit_code) == (tool_pb2.ENDING_TIMED_OUT, 124)
    assert not result.HasField("signal")
    assert (result.limit.kind, result.limit.limit) == ("time", 1000)
    fraction = await bash(Scripted({"ended": "timed_out"}), timeout=0.25)
    assert fraction.text == "hi\n[Command timed out after 0.25 seconds]"


async def test_bash_fields_say_what_the_text_says() -> None:
    facts = {
        **CUT,
        "spill": SPILL,
        "exit_code": 137,
        "signal": 9,
        "survivors": [[7, "sleep"]],
        "survivors_total": 1,
        "output_open": True,
    }
    result = await bash(Scripted(facts))

    assert (result.ending, result.exit_code, result.signal) == (tool_pb2.ENDING_SIGNALED, 137, 9)
    assert (result.truncated, result.bytes_total, result.lines_total) == (True, 70_000, 9312)
    assert (result.spill_path, result.bash.spill_bytes) == (SPILL["path"], 70_000)
    assert [(each.pid, each.name) for each in result.survivors] == [(7, "sleep")]
    assert (result.bash.output_open, result.bash.binary) == (True, False)
    plain = await bash(Scripted())
    assert (plain.ending, plain.exit_code) == (tool_pb2.ENDING_EXITED, 0)
    assert not plain.HasField("signal")
    assert not plain.bash.HasField("spill_bytes")


async def test_bash_names_some_of_many_processes() -> None:
    many = [[pid, "bomb"] for pid in range(1, 65)]

    result = await bash(Scripted({"survivors": many, "survivors_total": 500}))

    assert result.text.count("bomb") == 20
    assert result.text.endswith("20 bomb and 480 more]")
    assert len(result.survivors) == 64


# --- a guest that lies --------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        {"ended": "fine"},
        {"exit_code": 256},
        {"exit_code": "0"},
        {"exit_code": True},
        {"exit_code": 1.0},
        {"signal": 0},
        {"bytes_total": -1},
        {"bytes_total": 2**63},
        {"lines_shown": 2001},
        {"cut": 1},
        {"spill": {"path": "", "bytes": 1, "complete": True}},
        {"spill": {"path": "/x", "bytes": 10**9, "complete": True}},
        {"spill": []},
        {"survivors": [[1, "x", 2]]},
        {"survivors": [[0, "x"]]},
        {"survivors": [["1", "x"]]},
        {"survivors": [[1, "x" * 65]]},
        {"survivors": [[1, "x"]] * 65},
        {"survivors": "no"},
        {"freed": None},
    ],
)
async def test_bash_facts_that_do_not_fit_end_the_sandbox(facts: dict[str, Any]) -> None:
    with pytest.raises(SandboxLost) as lost:
        await bash(Scripted(facts))
    assert lost.value.cause == "PROTOCOL"


async def test_bash_text_beyond_its_bound_ends_the_sandbox() -> None:
    with pytest.raises(SandboxLost):
        await bash(Scripted(body=b"x" * (limits.BASH_BYTES_MAX + 1)))


async def test_bash_text_is_fit_for_a_result_whatever_the_guest_sends() -> None:
    facts = {"survivors": [[1, "a\nb\0"]], "survivors_total": 1}

    result = await bash(Scripted(facts, b"a\0b\xff\x1b[31m\tc\n"))

    assert result.text.startswith("a\\x00b\ufffd\\x1b[31m\tc\n")
    assert "\0" not in result.text
    assert "\0" not in result.survivors[0].name


# --- with a real guest ----------------------------------------------------------------


async def test_bash_runs_in_a_guest(real: GuestChannel) -> None:
    result = await bash(real, command="echo out; echo err >&2; exit 3")

    assert result.text == "out\nerr\n[Command exited with code 3]"
    assert (result.bytes_total, result.lines_total, result.truncated) == (8, 2, False)


async def test_bash_shows_the_tail_and_where_the_whole_is(real: GuestChannel) -> None:
    result = await bash(real, command="seq 10000")

    first, _, rest = result.text.partition("\n")
    assert first == (
        f"[Showing the last 2000 of 10000 lines ({len(rest)} of 48894 bytes). "
        f"Full output: {result.spill_path}]"
    )
    assert rest == "".join(f"{n}\n" for n in range(8001, 10_001))
    whole = await asyncio.to_thread(Path(result.spill_path).read_text)
    assert whole == "".join(f"{n}\n" for n in range(1, 10_001))


async def test_bash_times_out_in_a_guest(real: GuestChannel) -> None:
    result = await bash(real, command="echo begun; sleep 300", timeout=0.3)

    assert result.text == "begun\n[Command timed out after 0.3 seconds]"
    assert (result.ending, result.exit_code) == (tool_pb2.ENDING_TIMED_OUT, 124)


async def test_bash_lists_background_jobs_of_a_guest(real: GuestChannel) -> None:
    result = await bash(real, command="sleep 300 & echo hi")

    [job] = result.survivors
    assert result.text == f"hi\n[Background processes still running: {job.pid} sleep]"
    await bash(real, command=f"kill {job.pid}")
