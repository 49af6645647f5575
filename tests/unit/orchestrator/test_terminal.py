"""What a person sees."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import (
    AttemptDiscarded,
    CallEnded,
    CallStarted,
    CopiedOut,
    Event,
    ModelAsked,
    ModelCalled,
    RunStarted,
    TextDelta,
)
from orchestrator.messages import ChangeFact, Outcome, RefusedFact, ToolCall
from orchestrator.terminal import Terminal


def shown(*events: Event) -> str:
    file = io.StringIO()
    terminal = Terminal(file, Path("log"))
    for event in events:
        terminal(event)
    return file.getvalue()


def edit(path: str = "a.py") -> ToolCall:
    arguments = {"path": path, "oldText": "x = 1\n", "newText": "x = 2\n"}
    return ToolCall(call_id="c", name="edit", arguments=arguments)


@pytest.mark.parametrize(
    "hostile", ["\x1b[2Jgone", "\x1b]0;title\x07", "a\rb", "\u202eevil", "\x9b2J"]
)
def test_nothing_that_a_model_or_sandbox_wrote_steers_the_terminal(hostile: str) -> None:
    outcome = Outcome(text=f"{hostile}\nline", exit_code=1, ending="EXITED")
    bash = ToolCall(call_id="c", name="bash", arguments={"command": hostile})
    odd = ToolCall(call_id="d", name=hostile, arguments=None, raw_arguments=hostile)
    text = shown(
        TextDelta(text=hostile),
        CallStarted(call=bash, effect=True),
        CallEnded(call=bash, outcome=outcome),
        CallEnded(call=odd, outcome=Outcome(text=hostile, is_error=True)),
        CallStarted(call=edit(hostile), effect=True),
        AttemptDiscarded(number=1, attempt=1, category="x", error=hostile, wait_s=1),
        CopiedOut(
            dry_run=False,
            changes=(ChangeFact(kind="added", path=hostile),),
            refused=(RefusedFact(path=hostile, why=hostile),),
            left=(),
            bytes=0,
            duration_s=0,
        ),
    )
    for char in ("\x1b", "\x07", "\r", "\u202e", "\x9b"):
        assert char not in text


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def tty(monkeypatch: pytest.MonkeyPatch) -> Tty:
    """A narrow terminal."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    return Tty()


def test_only_the_name_of_a_field_is_bold(tty: Tty) -> None:
    Terminal(tty, Path("log"))(RunStarted(model="some model", model_calls_max=5))
    assert tty.getvalue() == "\x1b[1mmodel    \x1b[0msome model\n"


def test_row_that_is_wider_than_the_terminal_is_cut(tty: Tty) -> None:
    call = ToolCall(call_id="c", name="bash", arguments={"command": "make"})
    terminal = Terminal(tty, Path("log"))
    terminal(CallStarted(call=call, effect=True))
    terminal(CallEnded(call=call, outcome=Outcome(text="x" * 100, exit_code=0, ending="EXITED")))
    assert f"{'':11}{'x' * 28}…\x1b" in tty.getvalue()


@pytest.mark.parametrize(
    ("facts", "said"),
    [({"paths": ["a", "b"]}, "2 paths"), ({"paths": 1000}, "1,000 paths"), ({}, "0 paths")],
)
def test_rows_are_counted_by_facts_never_by_text(facts: dict[str, Any], said: str) -> None:
    call = ToolCall(call_id="c", name="glob", arguments={"pattern": "*"})
    outcome = Outcome(text="one\ntwo\n[three]", facts=facts)
    assert said in shown(CallEnded(call=call, outcome=outcome))


def test_edit_is_shown_before_it_happens() -> None:
    text = shown(CallStarted(call=edit(), effect=True))
    assert "- x = 1" in text
    assert "+ x = 2" in text


def test_read_is_one_line() -> None:
    call = ToolCall(call_id="c", name="read", arguments={"path": "a.py", "offset": 7})
    facts = {"firstLine": "7", "lastLine": "90"}
    outcome = Outcome(text="...", duration_s=0.004, facts=facts)
    text = shown(CallStarted(call=call, effect=False), CallEnded(call=call, outcome=outcome))
    assert text == "    read   a.py from line 7  lines 7–90 · 4 ms\n"


def test_long_output_keeps_its_end() -> None:
    output = "\n".join(f"line {n}" for n in range(100)) + "\n[Command exited with code 2]"
    call = ToolCall(call_id="c", name="bash", arguments={"command": "make"})
    outcome = Outcome(text=output, exit_code=2, ending="EXITED", duration_s=2)
    text = shown(CallStarted(call=call, effect=True), CallEnded(call=call, outcome=outcome))
    assert "line 99" in text
    assert "line 80" not in text
    assert "… 88 lines" in text
    assert text.rstrip().endswith("exit 2 · 2.0 s")


def test_void_text_of_a_failed_attempt_is_called_void() -> None:
    text = shown(
        ModelAsked(number=1),
        TextDelta(text="half a sen"),
        AttemptDiscarded(number=1, attempt=1, category="network", error="cut", wait_s=2),
        TextDelta(text="A whole sentence.\n\n"),
        ModelCalled(number=1, attempts=2, ok=True, duration_s=3),
    )
    assert text == (
        "\n[1] half a sen\n    attempt 1 failed (what it said is void): cut; again in 2.0 s\n"
        "A whole sentence.  (3.0 s)\n"
    )


def test_long_list_of_changes_is_cut_and_says_so() -> None:
    changes = tuple(ChangeFact(kind="added", path=f"f{n}") for n in range(80))
    event = CopiedOut(dry_run=True, changes=changes, refused=(), left=(), bytes=0, duration_s=0)
    text = shown(event)
    assert "80 would change" in text
    assert "and 30 more" in text
