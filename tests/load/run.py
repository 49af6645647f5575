"""Runs the load measures in full, on containers, and prints what came of each.

    python tests/load/run.py            # everything: `make test-load`
    python tests/load/run.py --only rare_word

Ends with 1 where one answer was wrong. Times are printed and never judged.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from rich.console import Console
from rich.progress import Progress

from sandbox_adapter import errors
from sandbox_adapter.client import AdapterClient
from tests.integration.daemon_process import DaemonProcess
from tests.load import measures
from tests.load.measures import Bench, Done
from tests.load.memory import resident_of_session

RUNS = 10_000
BIG_BYTES = 5 * 1000**3
TREE_FILES = 50_000
ROUNDS = 9

Measure = Callable[[Bench, Done], Awaitable[Mapping[str, float] | None]]

MEASURES: Mapping[str, tuple[int, Measure]] = {
    "exit_three": (RUNS, lambda bench, done: measures.exit_three(bench, RUNS, done)),
    "exact_codes": (RUNS, lambda bench, done: measures.exact_codes(bench, RUNS, done)),
    "parallel_edits": (RUNS, lambda bench, done: measures.parallel_edits(bench, RUNS, done)),
    "pages_of_a_big_file": (
        3,
        lambda bench, done: measures.pages_of_a_big_file(bench, BIG_BYTES, done),
    ),
    "rare_word": (
        ROUNDS + 1,
        lambda bench, done: measures.rare_word(bench, TREE_FILES, ROUNDS, done),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=tuple(MEASURES), action="append")
    names = parser.parse_args().only or list(MEASURES)
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        daemon = DaemonProcess("docker", Path(folder) / "state").start()
        try:
            return asyncio.run(_run(daemon, names))
        finally:
            daemon.end_for_good()


async def _run(daemon: DaemonProcess, names: list[str]) -> int:
    console = Console(soft_wrap=True, markup=False)
    wrong = 0
    async with AdapterClient(daemon.address) as client:
        for name in names:
            begun = time.monotonic()
            try:
                figures = await _measure(client, daemon, name, console)
                said = "right"
            except (AssertionError, ExceptionGroup, errors.AdapterError) as error:
                # The others still run: each has a session of its own.
                figures, said = None, f"WRONG: {error!r}"
                wrong += 1
            seconds = time.monotonic() - begun
            console.print(f"{name}: {MEASURES[name][0]:,} {said} in {seconds:.1f} s")
            for key, value in (figures or {}).items():
                console.print(f"  {key}: {value}")
    return 1 if wrong else 0


async def _measure(
    client: AdapterClient, daemon: DaemonProcess, name: str, console: Console
) -> Mapping[str, float] | None:
    """The figures of one measure, in a session that is ended whatever came of it."""
    count, measure = MEASURES[name]
    session = await client.create_session()
    try:
        bench = Bench(client, session.session_id, resident_of_session(daemon))
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(name, total=count)
            return await measure(bench, lambda more: progress.advance(task, more))
    finally:
        await client.delete_session(session.session_id)


if __name__ == "__main__":
    sys.exit(main())
