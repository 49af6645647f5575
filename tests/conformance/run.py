"""Runs the kit on every kind of sandbox and prints what came of each as a table.

    python tests/conformance/run.py               # `make conformance`
    python tests/conformance/run.py --only musl

Ends with 1 where a kind does not conform.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

import pytest
from rich.console import Console
from rich.table import Table

from tests.conformance.kit import KitRun
from tests.conformance.targets import KINDS, Kind

WIDTH = 150
"""Columns of the table: it is copied into notes, and must not be folded."""
SHOWN = ("pass", "fail", "known difference", "no longer different", "uncheckable", "not claimed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=[kind.name for kind in KINDS], action="append")
    names = parser.parse_args().only or [kind.name for kind in KINDS]
    console = Console(width=WIDTH)
    table = Table(box=None, header_style="bold")
    for title in ("kind", "what it is", *SHOWN, "s"):
        table.add_column(title, no_wrap=True, overflow="ignore")
    bad: list[KitRun] = []
    for kind in KINDS:
        if kind.name not in names:
            continue
        begun = time.monotonic()
        with console.status(f"{kind.name}: {kind.about}"):
            run = _run(kind)
        seconds = f"{time.monotonic() - begun:.0f}"
        if isinstance(run, str):
            console.print(f"{kind.name}: skipped: {run}", style="yellow")
            continue
        table.add_row(
            kind.name, kind.about, *(str(run.counts[each] or "") for each in SHOWN), seconds
        )
        console.print(f"{kind.name}: {run.output.rstrip().splitlines()[-1]}", soft_wrap=True)
        for outcome in ("known difference", "uncheckable"):
            for detail, count in run.details(outcome).most_common():
                console.print(f"  {outcome}, {count}: {detail}", style="dim", soft_wrap=True)
        if run.code:
            bad.append(run)
            console.print(run.said, markup=False, highlight=False, soft_wrap=True)
    console.print(table)
    return 1 if bad else 0


def _run(kind: Kind) -> KitRun | str:
    """The run, or why there is none."""
    try:
        config = kind.config()
    except pytest.skip.Exception as skipped:
        return str(skipped)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        return kind.judge(Path(folder), config)


if __name__ == "__main__":
    sys.exit(main())
