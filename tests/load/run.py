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
from tests.load import endurance, measures, readers
from tests.load.many_sessions import many_sessions
from tests.load.measures import Bench, Done
from tests.load.memory import resident_of_session

RUNS = 10_000
BIG_BYTES = 5 * 1000**3
TREE_FILES = 50_000
ROUNDS = 9
MIXED_CALLS = 100_000
STREAMED_BYTES = 100 * 1000**2
LINES, KILLS = 6_000, 5
STREAMS = 10_000
SESSIONS = 300
CLIENTS = 20
CONFIG = f"sessions_max = {SESSIONS + 64}\n"

Measure = Callable[[Bench, Done], Awaitable[Mapping[str, float] | None]]
OnDaemon = Callable[[DaemonProcess, Done], Awaitable[Mapping[str, float]]]

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
    "slow_reader": (
        4 * STREAMED_BYTES // readers.BLOCK_BYTES,
        lambda bench, done: readers.slow_reader(bench, STREAMED_BYTES, done),
    ),
    "mixed_calls": (
        MIXED_CALLS,
        lambda bench, done: endurance.mixed_calls(bench, MIXED_CALLS, done),
    ),
    "cancelled_streams": (
        STREAMS,
        lambda bench, done: endurance.cancelled_streams(bench, STREAMS, done),
    ),
}
ON_DAEMON: Mapping[str, tuple[int, OnDaemon]] = {
    "many_sessions": (
        3 * SESSIONS,
        lambda daemon, done: many_sessions(daemon, SESSIONS, CLIENTS, done),
    ),
    "lines_over_kills": (
        KILLS,
        lambda _, done: readers.lines_over_kills(LINES, KILLS, done),
    ),
}
"""These make their own sessions."""
NAMES = (*MEASURES, *ON_DAEMON)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=NAMES, action="append")
    names = parser.parse_args().only or list(NAMES)
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        daemon = DaemonProcess("docker", Path(folder) / "state", config=CONFIG).start()
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
            console.print(f"{name}: {_count(name):,} {said} in {seconds:.1f} s")
            for key, value in (figures or {}).items():
                console.print(f"  {key}: {value}")
    return 1 if wrong else 0


def _count(name: str) -> int:
    return MEASURES[name][0] if name in MEASURES else ON_DAEMON[name][0]


async def _measure(
    client: AdapterClient, daemon: DaemonProcess, name: str, console: Console
) -> Mapping[str, float] | None:
    """The figures of one measure, in a session that is ended whatever came of it."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(name, total=_count(name))

        def done(more: int) -> None:
            progress.advance(task, more)

        if name in ON_DAEMON:
            return await ON_DAEMON[name][1](daemon, done)
        session = await client.create_session()
        try:
            bench = Bench(client, session.session_id, resident_of_session(daemon))
            return await MEASURES[name][1](bench, done)
        finally:
            await client.delete_session(session.session_id)


if __name__ == "__main__":
    sys.exit(main())
