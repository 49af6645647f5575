"""What a guest's "no" becomes for a model: every text ends with what can be done."""

from __future__ import annotations

import pytest

from sandboxd.errors import GuestFault
from sandboxd.tools.bash import BashTool
from sandboxd.tools.faults import ADVICE, file_fault
from tests.unit.tools.direct_channel import FixedChannel, run_unworded


def worded(reason: str, text: str) -> str:
    return str(file_fault("f", GuestFault(reason, text, {}), "Use glob."))


@pytest.mark.parametrize("reason", ADVICE)
@pytest.mark.parametrize(
    "text",
    [
        "Cannot write f: it failed.",
        "Cannot write a. Use b.: it failed.",
        "Other calls hold the file since 120 seconds.",
        "grep was killed.",
    ],
)
def test_line_without_advice_gets_that_of_its_reason(reason: str, text: str) -> None:
    assert worded(reason, text) == f"{text} {ADVICE[reason]}"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("FILE_TOO_LARGE", "f is larger than 64 MiB, the most that edit takes. Use bash with sed."),
        ("IO_ERROR", "Writing f failed (no space). Check the file before you use it."),
        ("NOT_DIRECTORY", "f is a link. Leave the slash out to mean the link."),
        ("NOT_REGULAR", "f is a FIFO, not a regular file. Use bash to work with it."),
    ],
)
def test_line_with_advice_stays_as_it_is(reason: str, text: str) -> None:
    assert worded(reason, text) == text


@pytest.mark.parametrize(
    "why", ["could not start: Exec format error", "the script does not fit: x.", "\x1b[31m\0" * 900]
)
async def test_command_that_was_not_started_says_so_and_what_can_be_done(why: str) -> None:
    fault = GuestFault("SPAWN_FAILED", why, {"exhausted": True})
    with pytest.raises(Exception, match="was not started") as caught:
        await run_unworded(BashTool(), FixedChannel(fault), {"command": "x"})
    text = str(caught.value)
    assert text.startswith("The command was not started: ")
    assert text.endswith(
        ". End background processes that are not needed, or use a shorter command, then try again."
    )
    assert "\x1b" not in text
    assert len(text) < 3_000
    assert caught.value.reason == "SPAWN_FAILED"  # type: ignore[attr-defined]
