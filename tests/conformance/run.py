"""Runs the kit on every kind of sandbox and prints what came of each as a table.

    python tests/conformance/run.py               # `make conformance`
    python tests/conformance/run.py --only musl

Ends with 1 where a kind does not conform, leaves rules unjudged that it should not, or
could not be run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.conformance.kit import KitRun
from tests.conformance.targets import KINDS, Kind

WIDTH = 150
"""Columns of the table: it is copied into notes, and must not be folded."""
SHOWN = ("pass", "fail", "uncheckable", "not claimed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=[kind.name for kind in KINDS], action="append")
    names = parser.parse_args().only or [kind.name for kind in KINDS]
    # What an adapter says is shown as it is: no markup, no colours by guess.
    console = Console(width=WIDTH, markup=False, highlight=False, emoji=False)
    table = Table(box=None, header_style="bold")
    for title in ("kind", "what it is", *SHOWN, "s"):
        table.add_column(title, no_wrap=True, overflow="ignore")
    kinds = [kind for kind in KINDS if kind.name in names]
    good = [_judge(kind, console, table) for kind in kinds]
    console.print(table)
    return 0 if all(good) else 1


def _judge(kind: Kind, console: Console, table: Table) -> bool:
    """Runs one kind and adds its row. Whether it is as it should be; what breaks is said."""
    begun = time.monotonic()
    try:
        with console.status(Text(f"{kind.name}: {kind.about}")):
            run = _run(kind)
    except pytest.skip.Exception as skipped:
        console.print(f"{kind.name}: skipped: {skipped}", style="yellow", soft_wrap=True)
        return True
    except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
        console.print(f"{kind.name}: not run: {error}", style="red", soft_wrap=True)
        return False
    seconds = f"{time.monotonic() - begun:.0f}"
    counts = (str(run.counts[each] or "") for each in SHOWN)
    table.add_row(Text(kind.name), Text(kind.about), *counts, seconds)
    console.print(f"{kind.name}: {run.output.rstrip().splitlines()[-1]}", soft_wrap=True)
    for outcome in ("uncheckable", "not claimed"):
        for detail, count in run.details(outcome).most_common():
            console.print(f"  {outcome}, {count}: {detail}", style="dim", soft_wrap=True)
    unforeseen = run.unforeseen(kind.unjudged)
    for each in unforeseen:
        console.print(f"  not judged, and not foreseen: {each}", style="red", soft_wrap=True)
    if run.code:
        console.print(run.said, soft_wrap=True)
    return not run.code and not unforeseen


def _run(kind: Kind) -> KitRun:
    config = kind.config()
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        return kind.judge(Path(folder), config)


if __name__ == "__main__":
    sys.exit(main())
