"""A run as a person sees it: a line for each rule, progress while it runs, a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sandbox_adapter.conformance.expect import printable
from sandbox_adapter.conformance.outcome import Outcome
from sandbox_adapter.conformance.reports import Run
from sandbox_adapter.conformance.rule import Rule
from sandbox_adapter.conformance.runner import Runner, Verdict

_STYLES: Final = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.NOT_CLAIMED: "dim",
    Outcome.UNCHECKABLE: "yellow",
    Outcome.KNOWN: "yellow",
    Outcome.FIXED: "bold red",
}
_OUTCOME_WIDTH: Final = max(len(outcome.value) for outcome in Outcome)
_RUNNING_SHOWN: Final = 2
"""Rules that the progress line names."""


class Terminal:
    """Shows a run. On a terminal with a line of progress, elsewhere plain lines."""

    def __init__(self, file: TextIO, total: int, runner: Runner) -> None:
        self._console = Console(
            file=file, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        self._runner = runner
        self._progress = Progress(
            TextColumn("judging"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[running]}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total, running="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, verdict: Verdict) -> None:
        """One line; the detail of what is no pass on lines below it."""
        line = Text(f"{verdict.outcome.value:<{_OUTCOME_WIDTH}}", _STYLES[verdict.outcome])
        line.append(f"  {verdict.rule.id}", "bold" if not verdict.outcome.ends_well else "")
        if verdict.outcome is Outcome.PASS:
            line.append(f"  {verdict.rule.title}", "dim")
        else:
            line.append(f"  {verdict.detail}", "" if not verdict.outcome.ends_well else "dim")
        self._console.print(line)
        names = sorted(self._runner.running)
        more = f" and {len(names) - _RUNNING_SHOWN} more" if len(names) > _RUNNING_SHOWN else ""
        self._progress.update(
            self._task, advance=1, running=", ".join(names[:_RUNNING_SHOWN]) + more
        )

    def summary(self, run: Run) -> None:
        """The table by area, what failed with its title, and one line that says it all."""
        self._console.print()
        self._console.print(_table(run.verdicts), soft_wrap=False)
        bad = [verdict for verdict in run.verdicts if not verdict.outcome.ends_well]
        for verdict in bad:
            self._console.print()
            self._console.print(Text(f"{verdict.outcome.value}: {verdict.rule.id}", "bold red"))
            self._console.print(Text(f"  rule:   {verdict.rule.title}"))
            if verdict.rule.cases:
                self._console.print(Text(f"  cases:  {', '.join(verdict.rule.cases)}"))
            self._console.print(Text(f"  seen:   {verdict.detail}"))
        counts = run.counts
        said = ", ".join(f"{counts[o]} {o.value}" for o in Outcome if counts[o])
        adapter = printable(f"{run.info.name} {run.info.version}".strip())
        where = f"{adapter}, profile {run.profile or '(default)'}"
        word = "CONFORMS" if run.passed else "DOES NOT CONFORM"
        style = "bold green" if run.passed else "bold red"
        self._console.print()
        self._console.print(Text(f"{word}: {where}: {said} in {run.seconds:.1f} s", style))


def show_list(file: TextIO, rules: Sequence[Rule]) -> None:
    """The rules, one on a line: id, level, cases, title."""
    console = Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True)
    width = max((len(rule.id) for rule in rules), default=0)
    for rule in rules:
        cases = f" [{', '.join(rule.cases)}]" if rule.cases else ""
        console.print(f"{rule.id:<{width}}  {rule.level:<4}  {rule.title}{cases}")


def _table(verdicts: Sequence[Verdict]) -> Table:
    shown = [outcome for outcome in Outcome if any(v.outcome is outcome for v in verdicts)]
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="bold")
    table.add_column("area")
    for outcome in shown:
        table.add_column(outcome.value, justify="right", style=_STYLES[outcome])
    areas = list(dict.fromkeys(verdict.rule.area for verdict in verdicts))
    for area in areas:
        counts = Counter(v.outcome for v in verdicts if v.rule.area == area)
        table.add_row(area, *(str(counts[outcome] or "") for outcome in shown))
    total = Counter(verdict.outcome for verdict in verdicts)
    table.add_row("all", *(str(total[outcome]) for outcome in shown), style="bold")
    return table
