"""Shows a run on a terminal, step by step, as a person wants to read it.

Colour only repeats what words say. What a model or a sandbox wrote is escaped, so
that it cannot steer the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from rich.console import Console
from rich.text import Text

from orchestrator import call_lines
from orchestrator.call_lines import plural, seconds, size
from orchestrator.errors import EXIT_COMPLETED
from orchestrator.escape import clipped, printable
from orchestrator.events import (
    AssistantSaid,
    AttemptDiscarded,
    CallEnded,
    CallStarted,
    CopiedIn,
    CopiedOut,
    Event,
    ModelAsked,
    ModelCalled,
    RunStarted,
    SandboxReady,
    Settled,
    TextDelta,
    UserSaid,
)
from orchestrator.messages import ToolCall

CHANGES_SHOWN_MAX: Final = 50
_NAME_WIDTH: Final = 6
_ROW_CHARS_MIN: Final = 20
_INDENT: Final = " " * (4 + _NAME_WIDTH + 1)
_MARKS: Final = {
    "added": ("A", "green"),
    "changed": ("M", "yellow"),
    "mode": ("M", "yellow"),
    "removed": ("D", "red"),
}
_TONES: Final = {"plain": "dim", "old": "red", "new": "green", "error": "red"}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # A reader that has seen enough (`| head`) must not end the run.
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class Terminal:
    """Watches a run. Plain text where the output is no terminal, or NO_COLOR is set."""

    def __init__(self, file: TextIO, log: Path) -> None:
        self._console = _Console(
            file=file, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        self._log = log
        self._column_open = False
        self._said_anything = False
        self._held = ""
        self._announced: set[str] = set()

    def __call__(self, event: Event) -> None:
        show = _SHOW.get(type(event))
        if show is not None:
            show(self, event)

    # --- Before the model ----------------------------------------------------

    def _run_started(self, event: RunStarted) -> None:
        self._field("model", event.model)

    def _sandbox_ready(self, event: SandboxReady) -> None:
        facts = event.sandbox
        words = [facts.adapter, facts.backend, facts.image, facts.working_directory]
        place = " · ".join(printable(word) for word in words if word)
        self._field("sandbox", place, f"ready in {seconds(facts.start_s)}")
        if not facts.isolated:
            self._line(
                "         this sandbox isolates nothing: commands run on this machine", "yellow"
            )

    def _copied_in(self, event: CopiedIn) -> None:
        copied = f"{plural(event.files, 'file')}, {size(event.bytes)} copied in"
        self._field("files", copied, seconds(event.duration_s))
        for fact in event.left[:CHANGES_SHOWN_MAX]:
            self._line(f"         not copied: {printable(fact.path)}: {fact.why}", "yellow")
        if len(event.left) > CHANGES_SHOWN_MAX:
            self._line(f"         and {len(event.left) - CHANGES_SHOWN_MAX} more", "yellow")

    def _user(self, event: UserSaid) -> None:
        self._field("task", printable(event.text, keep="\n").replace("\n", "\n         "))

    # --- The model -----------------------------------------------------------

    def _model_asked(self, event: ModelAsked) -> None:
        self._close_column()
        self._print(Text(f"\n[{event.number}] ", style="bold cyan"), end="")
        self._column_open, self._said_anything, self._held = True, False, ""

    def _text_delta(self, event: TextDelta) -> None:
        # Empty lines at the beginning and the end of a reply are for nobody: those at
        # the end wait here for a text that follows.
        text = self._held + event.text
        text = text if self._said_anything else text.lstrip()
        body = text.rstrip()
        self._held = text[len(body) :]
        if body:
            self._said_anything = True
            self._column_open = True
            self._print(Text(printable(body, keep="\n")), end="")

    def _attempt_discarded(self, event: AttemptDiscarded) -> None:
        void = " (what it said is void)" if self._said_anything else ""
        self._close_column()
        self._line(
            f"    attempt {event.attempt} failed{void}: {printable(event.error)}; "
            f"again in {seconds(event.wait_s)}",
            "yellow",
        )
        self._said_anything, self._held = False, ""

    def _model_called(self, event: ModelCalled) -> None:
        if not event.ok:
            self._close_column()
            return
        words = [seconds(event.duration_s)]
        if event.usage.reported:
            words.append(f"{event.usage.input:,} tokens in, {event.usage.output:,} out")
        said = "  " if self._said_anything else ""
        self._print(Text(f"{said}({' · '.join(words)})", style="dim"))
        self._column_open = False

    def _assistant(self, event: AssistantSaid) -> None:
        if event.reply.calls and event.reply.stop != "calls":
            why = event.reply.raw_stop or "no reason"
            self._line(
                f"    the reply ended with `{printable(why)}`: its calls are not run", "yellow"
            )

    # --- Calls ---------------------------------------------------------------

    def _call_started(self, event: CallStarted) -> None:
        if not event.effect:
            return
        # Effects run one at a time: what is about to happen is shown before it does.
        self._announced.add(event.call.call_id)
        self._head(event.call, "yellow")
        self._column_open = True
        self._body(call_lines.before(event.call))

    def _call_ended(self, event: CallEnded) -> None:
        call, outcome = event.call, event.outcome
        facts = call_lines.facts(call, outcome)
        failed = outcome.is_error or outcome.exit_code not in (None, 0)
        lines = call_lines.after(call, outcome)
        style = "red" if failed else "dim"
        if call.call_id in self._announced:
            self._announced.discard(call.call_id)
            self._body(lines)
            if not self._column_open:
                self._print(Text(_INDENT + facts, style="red" if failed else "green"))
                return
            self._print(Text(f"  {facts}", style=style))
        else:
            self._close_column()
            self._head(call, "cyan")
            self._print(Text(f"  {facts}", style=style))
            self._body(lines)
        self._column_open = False

    def _body(self, lines: list[call_lines.Line]) -> None:
        # A row that a terminal would wrap to its left edge is cut instead.
        room = max(_ROW_CHARS_MIN, self._console.width - len(_INDENT))
        for line in lines:
            text = clipped(line.text, room) if self._console.is_terminal else line.text
            self._line(_INDENT + text, _TONES[line.tone])

    def _head(self, call: ToolCall, style: str) -> None:
        name = clipped(printable(call.name), 40)
        head = Text().append(f"    {name:<{_NAME_WIDTH}} ", style=style)
        self._print(head.append(call_lines.title(call)), end="")

    # --- The end -------------------------------------------------------------

    def _copied_out(self, event: CopiedOut) -> None:
        self._close_column()
        verb = "would change" if event.dry_run else "changed"
        self._print(Text(""))
        if not event.changes:
            self._field("files", f"nothing {verb}")
        else:
            self._field("files", f"{len(event.changes)} {verb}", seconds(event.duration_s))
        for change in event.changes[:CHANGES_SHOWN_MAX]:
            mark, style = _MARKS[change.kind]
            slash = "/" if change.what == "directory" else ""
            note = " (mode)" if change.kind == "mode" else ""
            self._line(f"         {mark} {printable(change.path)}{slash}{note}", style)
        if len(event.changes) > CHANGES_SHOWN_MAX:
            self._line(f"         and {len(event.changes) - CHANGES_SHOWN_MAX} more", "dim")
        for fact in event.refused[:CHANGES_SHOWN_MAX]:
            style = "bold red" if fact.conflict else "yellow"
            self._line(
                f"         ! {printable(fact.path)}: not taken: {printable(fact.why)}", style
            )
        if len(event.refused) > CHANGES_SHOWN_MAX:
            self._line(f"         and {len(event.refused) - CHANGES_SHOWN_MAX} more", "bold red")
        if event.left:
            self._line(f"         stays in the sandbox: {', '.join(event.left)}", "dim")

    def _settled(self, event: Settled) -> None:
        self._close_column()
        self._print(Text(""))
        style = "bold green" if event.exit_code == EXIT_COMPLETED else "bold red"
        self._field("outcome", event.outcome, style=style)
        if event.error:
            self._line(f"         {printable(event.error)}", "red")
        if event.hint:
            self._line(f"         hint: {event.hint}", "yellow")
        cost = [plural(event.model_calls, "model call"), plural(event.tool_calls, "tool call")]
        if event.usage.reported:
            cost.append(f"{event.usage.input:,} tokens in, {event.usage.output:,} out")
        self._field("cost", " · ".join([*cost, seconds(event.duration_s)]))
        self._field("log", str(self._log))

    # --- Writing -------------------------------------------------------------

    def _field(self, name: str, value: str, note: str = "", style: str = "") -> None:
        self._close_column()
        # The style of a whole text would be that of its parts, too.
        line = Text().append(f"{name:<9}", style="bold").append(value, style=style)
        if note:
            line.append(f"  {note}", style="dim")
        self._print(line)

    def _line(self, text: str, style: str) -> None:
        self._close_column()
        self._print(Text(text, style=style))

    def _close_column(self) -> None:
        if self._column_open:
            self._column_open = False
            self._print(Text(""))

    def _print(self, text: Text, end: str = "\n") -> None:
        self._console.print(text, end=end)
        self._console.file.flush()


_SHOW: Final[Mapping[type, Callable[[Terminal, Any], None]]] = {
    RunStarted: Terminal._run_started,
    SandboxReady: Terminal._sandbox_ready,
    CopiedIn: Terminal._copied_in,
    UserSaid: Terminal._user,
    ModelAsked: Terminal._model_asked,
    TextDelta: Terminal._text_delta,
    AttemptDiscarded: Terminal._attempt_discarded,
    ModelCalled: Terminal._model_called,
    AssistantSaid: Terminal._assistant,
    CallStarted: Terminal._call_started,
    CallEnded: Terminal._call_ended,
    CopiedOut: Terminal._copied_out,
    Settled: Terminal._settled,
}
