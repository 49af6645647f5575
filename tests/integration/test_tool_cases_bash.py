"""Unusual commands, on both backends: what the result says, to the letter and in order."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from sandbox_adapter.v1 import error_pb2, tool_pb2
from tests.integration.conftest import OpenSession


async def test_notes_follow_the_output_in_the_order_of_the_contract(session: OpenSession) -> None:
    result = await session.bash("seq 1 2500; sleep 60 & exit 7", timeout=4000)
    first, *_, code, background, clamped = result.text.split("\n")
    assert first == (
        "[Showing the last 2000 of 2500 lines (9501 of 11393 bytes). "
        f"Full output: {result.spill_path}]"
    )
    assert code == "[Command exited with code 7]"
    assert re.fullmatch(r"\[Background processes still running: \d+ sleep\]", background)
    assert clamped == "[Timeout reduced to the maximum of 3600 seconds]"
    assert [each.name for each in result.survivors] == ["sleep"]
    await session.bash(f"kill {result.survivors[0].pid}")


@pytest.mark.parametrize(
    ("seconds", "words"), [(1, "1 second"), (0.5, "0.5 seconds"), (1.5, "1.5 seconds")]
)
async def test_timeout_is_a_result_with_what_was_written(
    session: OpenSession, seconds: float, words: str
) -> None:
    started = time.monotonic()
    result = await session.bash("printf part; setsid sleep 60 & sleep 60", timeout=seconds)
    assert time.monotonic() - started < seconds + 3
    assert result.text == f"part\n[Command timed out after {words}]"
    assert (result.exit_code, result.ending) == (124, tool_pb2.ENDING_TIMED_OUT)
    assert not result.is_error
    assert (result.limit.kind, result.limit.limit) == ("time", round(seconds * 1000))
    assert not result.survivors


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "PIPE", "RTMIN+3"])
async def test_end_by_a_signal_names_it(session: OpenSession, name: str) -> None:
    result = await session.bash(f"echo o; kill -{name} $$; sleep 9")
    number = {"TERM": 15, "KILL": 9, "SEGV": 11, "PIPE": 13, "RTMIN+3": 37}[name]
    assert result.text == f"o\n[Command was killed by SIG{name} (exit code {128 + number})]"
    assert (result.exit_code, result.signal) == (128 + number, number)
    assert result.ending == tool_pb2.ENDING_SIGNALED


@pytest.mark.parametrize("value", [-1, "5", True, [1], {}, -(10**300)])
async def test_timeout_that_is_no_number_of_seconds_runs_nothing(
    session: OpenSession, value: Any
) -> None:
    result = await session.bash("touch ran", timeout=value)
    assert result.is_error
    assert result.reason == error_pb2.REASON_INVALID_INPUT
    assert (await session.bash("ls ran 2>/dev/null")).exit_code == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
async def test_timeout_of_the_typed_form_is_checked_too(session: OpenSession, value: float) -> None:
    typed = tool_pb2.BashInput(command="touch ran", timeout_seconds=value)
    first = (await session.client.call_typed(session.id, typed, call_id="same")).result
    assert first.reason == error_pb2.REASON_INVALID_INPUT
    again = (await session.client.call_typed(session.id, typed, call_id="same")).result
    assert again.replayed


@pytest.mark.parametrize("size", [131_071, 131_072, 131_073, 3_000_000])
async def test_script_longer_than_an_argument_runs(session: OpenSession, size: int) -> None:
    head = "read line; echo $?\n#"
    result = await session.bash(head + "x" * (size - len(head)))
    assert result.text == "1\n"


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("cat <<'E'\nhi\nE", "hi\n"),
        ("echo a # comment", "a\n"),
        ("trap 'echo bye' EXIT; echo x", "x\nbye\n"),
        ("exec 1>&- 2>&-; exit 5", "(no output)\n[Command exited with code 5]"),
        ("printf '10%%\\r50%%\\r100%%\\n'", "100%\n"),
        ("printf '\\033]8;;u\\033\\\\link\\033[0m'", "link"),
        ("printf 'a\\0b and more text'", "a\\x00b and more text"),
        ("printf 'caf\\351 ok'", "caf\ufffd ok"),
        ("printf '\\0'", "[Binary output, 1 byte]"),
        ("echo '[Command exited with code 9]'", "[Command exited with code 9]\n"),
        ("# nothing", "(no output)"),
    ],
)
async def test_output_is_cleaned_and_nothing_is_added_to_the_script(
    session: OpenSession, script: str, text: str
) -> None:
    assert (await session.bash(script)).text == text


@pytest.mark.parametrize(("after", "shown"), [("", 1), ("\\n", 1), ("\\n\\n", 2)])
async def test_line_over_fifty_kilobytes_shows_its_end(
    session: OpenSession, after: str, shown: int
) -> None:
    result = await session.bash(f"head -c 60000 /dev/zero | tr '\\0' x; printf 'END{after}'")
    first, line = result.text.split("\n")[:2]
    total = 60_003 + after.count("n")
    lines = "1 line" if shown == 1 else "2 lines"
    assert first.startswith(
        f"[Showing the last {shown} of {lines} (51200 of {total} bytes). Full output: "
    )
    assert line.endswith("xEND")
    assert (result.bytes_total, result.truncated) == (total, True)


async def test_exactly_fifty_kilobytes_are_not_cut(session: OpenSession) -> None:
    for size, cut in ((51_200, False), (51_201, True)):
        result = await session.bash(f"head -c {size} /dev/zero | tr '\\0' x")
        assert (result.truncated, result.bytes_total) == (cut, size)
        assert len(result.text.split("\n")[-1]) == 51_200


async def test_command_sees_no_descriptor_but_its_own(session: OpenSession) -> None:
    # The fourth is bash's, of the folder that it lists.
    result = await session.bash("echo /proc/self/fd/*")
    assert [each.rpartition("/")[2] for each in result.text.split()] == ["0", "1", "2", "3"]
