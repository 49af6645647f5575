"""Injects faults at every named step of the daemon, and looks that nothing comes of it.

    python tests/faults/run.py                        # everything: `make test-faults`
    python tests/faults/run.py --points call.sent --rounds 3 --workers 1
    python tests/faults/run.py --kinds SOCKET_CUT --no-engine-restarts

Works on an engine of its own, which it ends. Prints a table of points and kinds; ends with 1
where an invariant did not hold, and says then where the daemon's log is. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sandboxd.fault_points import POINTS
from tests.faults import engine_restarts
from tests.faults.engine_view import IMAGE
from tests.faults.kinds import Kind, plan
from tests.faults.own_engine import OwnEngine
from tests.faults.suite import LOGS, Found, Suite, Tally

TOOLBOX = "sandboxd/toolbox:dev"
ROUNDS = 10
WORKERS = 3
ENGINE_ROUNDS = 3
SAID_EVERY = 200
"""Where nobody watches a terminal, a line comes after so many faults."""
WIDTH = 150
INTERRUPTED = 130


def main() -> int:
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else WIDTH, markup=False, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    engine = OwnEngine(folder / "engine")
    begun = time.monotonic()
    # Told to end, it ends its engine as well: as at a person's Ctrl-C, which a shell may have
    # had ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    tally = Tally()
    code = 0
    try:
        with console.status("starting an engine of its own"):
            engine.start().load(IMAGE, TOOLBOX)
        asyncio.run(_run(options, Suite(folder, engine.host, tally), engine, console))
    except KeyboardInterrupt:
        console.print("interrupted; this is what came of it so far", style="yellow")
        code = INTERRUPTED
    finally:
        _print(console, tally)
        took = f"{time.monotonic() - begun:.0f} s"
        console.print(f"{tally.total:,} faults, {len(tally.found)} violations, {took}")
        engine.end()
        _tidy(folder)
    if tally.not_run:
        console.print(f"{tally.not_run} not run: too many violations in a row", style="red")
    return 1 if tally.found or tally.not_run else code


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each pair is met")
    parser.add_argument("--points", nargs="+", choices=list(POINTS), default=list(POINTS))
    parser.add_argument("--kinds", nargs="+", choices=[kind.name for kind in Kind])
    parser.add_argument("--workers", type=int, default=WORKERS, help="daemons side by side")
    parser.add_argument(
        "--engine-restarts",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether the engine itself is restarted as well",
    )
    return parser.parse_args()


async def _run(
    options: argparse.Namespace, suite: Suite, engine: OwnEngine, console: Console
) -> None:
    kinds = {Kind[name] for name in options.kinds} if options.kinds else set(Kind)
    faults = [each for each in plan(options.points, options.rounds) if each.kind in kinds]
    restarts = engine_restarts.plan(ENGINE_ROUNDS) if options.engine_restarts else []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("faults", total=len(faults) + len(restarts))

        def done(what: str, violation: Found | None) -> None:
            progress.update(task, advance=1, description=what)
            if not console.is_terminal and suite.tally.total % SAID_EVERY == 0:
                console.print(f"{suite.tally.total:,} faults so far")
            if violation is not None:
                progress.console.print(f"VIOLATION: {violation.what}: {violation.wrong}")
                progress.console.print(f"  the daemon's log: {violation.log}")

        suite.on_done = done
        await suite.run(faults, options.workers)
        if restarts and not suite.tally.not_run:
            await engine_restarts.run(suite, engine, restarts)


def _tidy(folder: Path) -> None:
    """Removes what the daemons had; only logs of violations stay."""
    for entry in folder.iterdir():
        if entry.name != LOGS:
            shutil.rmtree(entry)
    if not any(folder.iterdir()):
        folder.rmdir()


def _print(console: Console, tally: Tally) -> None:
    """Points down, kinds across; a cell has how often, and how many of these went wrong."""
    engine = [pair for pair in tally.met if pair[0] == engine_restarts.POINT]
    titles = [kind.value for kind in Kind]
    table = Table(box=None, header_style="bold")
    table.add_column("point", no_wrap=True)
    for title in (*titles, "all"):
        table.add_column("\n".join(title.rsplit(" ", 1)), justify="right", no_wrap=True)
    sums: Counter[str] = Counter()
    for point in POINTS:
        cells = [_cell(tally, point, kind) for kind in titles]
        count = sum(tally.met[point, kind] for kind in titles)
        if count:
            table.add_row(Text(point), *cells, str(count))
        sums.update({kind: tally.met[point, kind] for kind in titles})
    table.add_row("all", *(str(sums[kind]) for kind in titles), str(sums.total()))
    console.print(table)
    for pair in engine:
        console.print(f"engine restart, {pair[1]}: {_cell(tally, *pair)}")


def _cell(tally: Tally, point: str, kind: str) -> str:
    count, broken = tally.met[point, kind], tally.broken[point, kind]
    return f"{count} ({broken} WRONG)" if broken else str(count or "")


if __name__ == "__main__":
    sys.exit(main())
