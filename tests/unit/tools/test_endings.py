"""What is said of a command that met a limit: only what it shows itself (contract.md 4, 9)."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_adapter.v1 import error_pb2, tool_pb2
from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.tools.base import worded
from sandboxd.tools.bash import BashTool
from sandboxd.tools.write import WriteTool
from tests.unit.tools.test_bash import FACTS

MIB = 1024 * 1024
MEMORY = {"memory": {"limit": 256 * MIB, "peak": 236 * MIB + 7, "victim": "python3"}}
PIDS = {"pids": {"limit": 128, "peak": 120, "victim": ""}}
OUT_OF_MEMORY = "[Command was killed: out of memory (limit 256 MB, peak 236 MB)]"
FULL_TMP = {"mount": "/tmp", "size": 64 * MIB}
REFUSED = "sh: 1: Cannot fork\n"


def ended(met: dict[str, Any] | None = None, text: str = "hi\n", **facts: Any) -> Any:
    memo = {"timeout_s": 120.0, "asked_s": 0.0, **({"met": met} if met else {})}
    return BashTool().word(memo, Reply({**FACTS, **facts}, text.encode()))


def name(result: tool_pb2.ToolResult) -> str:
    return tool_pb2.Ending.Name(result.ending).removeprefix("ENDING_")


@pytest.mark.parametrize(
    ("facts", "signal"),
    [({"exit_code": 137}, 0), ({"exit_code": 137, "signal": 9}, 9)],
    ids=["as a child of the shell", "as the shell itself"],
)
def test_command_killed_for_memory_says_so_in_place_of_its_exit(
    facts: dict[str, Any], signal: int
) -> None:
    result = ended(MEMORY, **facts)
    assert name(result) == "OOM_KILLED"
    assert result.text == f"hi\n{OUT_OF_MEMORY}"
    assert (result.exit_code, result.signal) == (137, signal)
    assert not result.is_error
    limit = result.limit
    assert (limit.kind, limit.limit, limit.peak) == ("memory", 256 * MIB, 236 * MIB + 7)
    assert limit.victim == "python3"


@pytest.mark.parametrize("facts", [{"exit_code": 0}, {"exit_code": 1}, {"signal": 15}])
def test_command_that_was_not_killed_only_carries_the_limit(facts: dict[str, Any]) -> None:
    result = ended(MEMORY, **facts)
    assert name(result) in ("EXITED", "SIGNALED")
    assert result.limit.kind == "memory"
    assert "memory" not in result.text


def test_killed_command_is_just_killed_while_no_counter_rose() -> None:
    result = ended(None, exit_code=137, signal=9)
    assert name(result) == "SIGNALED"
    assert not result.HasField("limit")
    assert result.text == "hi\n[Command was killed by SIGKILL (exit code 137)]"


def test_peak_that_is_not_known_is_not_told() -> None:
    result = ended({"memory": {**MEMORY["memory"], "peak": None, "victim": ""}}, exit_code=137)
    assert result.text == "hi\n[Command was killed: out of memory (limit 256 MB)]"
    assert not result.limit.HasField("peak")


@pytest.mark.parametrize(
    "text",
    [
        REFUSED,
        "bash: fork: Resource temporarily unavailable\n",
        "RuntimeError: can't start new thread\n",
        "sh: can't fork: Resource temporarily unavailable\n",
        "java.lang.OutOfMemoryError: unable to create native thread\n",
        "Error: spawn sleep EAGAIN\n",
    ],
)
def test_command_that_could_not_fork_is_out_of_processes(text: str) -> None:
    result = ended(PIDS, text, exit_code=2)
    assert name(result) == "PIDS_EXHAUSTED"
    assert (result.limit.kind, result.limit.limit, result.limit.peak) == ("pids", 128, 120)
    lines = result.text.splitlines()
    assert lines[-2] == "[Command exited with code 2]"
    assert lines[-1].startswith("[The limit of 128 processes was reached.")
    assert result.exit_code == 2


def test_exit_code_of_bash_that_cannot_fork_is_enough() -> None:
    assert name(ended(PIDS, "", exit_code=254)) == "PIDS_EXHAUSTED"


def test_command_that_got_over_a_refused_fork_is_not_out_of_processes() -> None:
    result = ended(PIDS, REFUSED)
    assert name(result) == "EXITED"
    assert result.limit.kind == "pids"


def test_bomb_whose_own_shell_ended_well_is_out_of_processes() -> None:
    result = ended(PIDS, REFUSED, survivors=[[7, "sh"]], survivors_total=1)
    assert name(result) == "PIDS_EXHAUSTED"
    assert result.exit_code == 0


@pytest.mark.parametrize("text", [REFUSED, "x\n"])
def test_failure_beside_a_full_limit_is_not_blamed_on_it(text: str) -> None:
    assert name(ended(None, text, exit_code=2)) == "EXITED"
    assert name(ended(PIDS, "x\n", exit_code=2)) == "EXITED"


@pytest.mark.parametrize(
    "text",
    ["cat: write error: No space left on device\n", "OSError: [Errno 122] Disk quota exceeded\n"],
)
def test_command_that_met_full_storage_says_which(text: str) -> None:
    result = ended(None, text, exit_code=1, full=[FULL_TMP])
    assert name(result) == "DISK_FULL"
    assert (result.limit.kind, result.limit.limit) == ("disk", 64 * MIB)
    assert result.text.endswith(
        "[Command exited with code 1]\n[Storage is full: /tmp holds 64 MB. "
        "Remove files that are not needed, then try again.]"
    )


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("No space left on device\n", {"exit_code": 1, "full": []}),
        ("No space left on device\n", {"exit_code": 0, "full": [FULL_TMP]}),
        ("fine\n", {"exit_code": 1, "full": [FULL_TMP]}),
    ],
    ids=["nothing is full", "it ended well", "it does not show it"],
)
def test_other_failures_are_not_blamed_on_storage(text: str, facts: dict[str, Any]) -> None:
    result = ended(None, text, **facts)
    assert name(result) == "EXITED"
    assert not result.HasField("limit")


@pytest.mark.parametrize("how", ["timed_out", "cancelled"])
def test_timeout_and_cancel_stay_what_they_are(how: str) -> None:
    met = {**MEMORY, **PIDS}
    result = ended(met, REFUSED, ended=how, exit_code=137, signal=9, full=[FULL_TMP])
    assert name(result) == how.upper()
    assert "limit" not in result.text
    assert result.limit.kind == ("time" if how == "timed_out" else "")


def test_lack_of_memory_comes_before_the_other_limits() -> None:
    result = ended({**MEMORY, **PIDS}, REFUSED, exit_code=137, full=[FULL_TMP])
    assert name(result) == "OOM_KILLED"


@pytest.mark.parametrize(
    "full",
    [
        [{"mount": "/tmp", "size": -1}],
        [{"mount": "", "size": 1}],
        [{"mount": "/tmp", "size": "1"}],
        [FULL_TMP] * 9,
        "/tmp",
        [{"size": 1}],
    ],
)
def test_hostile_facts_of_storage_end_the_sandbox(full: object) -> None:
    with pytest.raises(SandboxLost):
        ended(None, "x\n", exit_code=1, full=full)


def test_hostile_name_of_a_mount_is_made_fit() -> None:
    mount = {"mount": "/a\x1b[31m\0b", "size": 5}
    result = ended(None, "No space left on device\n", exit_code=1, full=[mount])
    assert "\x1b" not in result.text
    assert "\0" not in result.text
    assert "holds 5 bytes" in result.text


def not_started(met: dict[str, Any] | None, **facts: Any) -> tool_pb2.ToolResult:
    fault = GuestFault("SPAWN_FAILED", "no process could be made", facts)
    memo = {"timeout_s": 1.0, "asked_s": 0.0, **({"met": met} if met else {})}
    return worded(BashTool(), memo, fault)


def test_shell_that_could_not_be_started_for_want_of_processes() -> None:
    result = not_started(PIDS, exhausted=True)
    assert name(result) == "PIDS_EXHAUSTED"
    assert result.is_error
    assert result.reason == error_pb2.REASON_SPAWN_FAILED
    assert (result.limit.kind, result.limit.limit) == ("pids", 128)
    assert not result.HasField("exit_code")


@pytest.mark.parametrize(
    ("met", "facts"),
    [(None, {"exhausted": True}), (PIDS, {}), (PIDS, {"exhausted": "yes"})],
    ids=["no counter rose", "the guest does not say so", "no fact"],
)
def test_shell_that_could_not_be_started_for_another_reason(
    met: dict[str, Any] | None, facts: dict[str, Any]
) -> None:
    result = not_started(met, **facts)
    assert name(result) == "COMPLETED"
    assert result.is_error
    assert result.reason == error_pb2.REASON_SPAWN_FAILED
    assert not result.HasField("limit")


def write_refused(**facts: Any) -> tool_pb2.ToolResult:
    fault = GuestFault("DISK_FULL", "Cannot write f: no space is left.", facts)
    return worded(WriteTool(), {"path": "f"}, fault)


def test_write_that_met_a_full_disk_carries_its_size() -> None:
    result = write_refused(size=64 * MIB)
    assert name(result) == "DISK_FULL"
    assert result.is_error
    assert (result.limit.kind, result.limit.limit) == ("disk", 64 * MIB)


@pytest.mark.parametrize("facts", [{}, {"size": None}, {"size": 0}])
def test_full_disk_of_unknown_size_carries_none(facts: dict[str, Any]) -> None:
    result = write_refused(**facts)
    assert name(result) == "DISK_FULL"
    assert not result.HasField("limit")


@pytest.mark.parametrize("size", [-1, "64", 2**60, True])
def test_hostile_size_ends_the_sandbox(size: object) -> None:
    with pytest.raises(SandboxLost):
        write_refused(size=size)
