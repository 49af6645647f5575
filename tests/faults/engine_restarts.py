"""The engine itself ends and comes back, while a call runs in a session.

All of this goes on without a restart of the daemon. Where the engine leaves its containers
alone (`--live-restore`, or for the time that a killed one is away) sessions do not notice;
where it ends them, each is started anew and the call that ran says that its sandbox was lost.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import Final

from sandbox_adapter.errors import EngineDown
from tests.faults import call_scene
from tests.faults.asked import EXITED, LOST, Asked
from tests.faults.engine_view import EngineView
from tests.faults.own_engine import OwnEngine
from tests.faults.suite import Suite
from tests.faults.worker import Violation, Worker, demand

POINT: Final = "engine"
LINES: Final = 300
LINES_NEVER_PRINTED: Final = 2_000
"""At one every 10 ms: longer than an engine that ends takes to end its containers."""


@dataclass(frozen=True)
class Restart:
    """One end of the engine and the start after it."""

    signal: signal.Signals
    live_restore: bool

    @property
    def kind(self) -> str:
        return f"{self.signal.name} {'with' if self.live_restore else 'without'} live-restore"


def plan(rounds: int) -> list[Restart]:
    """Both signals with and without live-restore, `rounds` times each."""
    return [
        Restart(number, live)
        for live in (False, True)
        for _ in range(rounds)
        for number in (signal.SIGTERM, signal.SIGKILL)
    ]


async def run(suite: Suite, engine: OwnEngine, restarts: list[Restart]) -> None:
    """Meets every restart with one daemon, which is never restarted itself."""
    view = EngineView(engine.host)
    worker: Worker | None = None
    try:
        for restart in restarts:
            # The flag counts at the engine's end as well as at its start.
            await asyncio.to_thread(engine.stop)
            await asyncio.to_thread(engine.start, restart.live_restore)
            if worker is None:
                worker = await suite.new_worker(view)
            violation = await suite.judged(
                worker, f"engine restart: {restart.kind}", _meet(worker, engine, restart)
            )
            suite.done(POINT, restart.kind, violation)
            if violation is not None:
                await worker.end()
                worker = None
                if engine.pid is None:
                    await asyncio.to_thread(engine.start, restart.live_restore)
    finally:
        if worker is not None:
            await worker.end()
        view.close()


async def _meet(worker: Worker, engine: OwnEngine, restart: Restart) -> None:
    box = await worker.standing()
    generation = (await worker.ready(box)).generation
    life = worker.daemon.lives
    things = await worker.engine.things()
    lines = LINES if restart.live_restore else LINES_NEVER_PRINTED
    asked = Asked(worker, box, lines)
    try:
        await asked.begun()
        end = engine.stop if restart.signal is signal.SIGTERM else engine.kill
        await asyncio.to_thread(end)
        await _refused(worker)
        await asyncio.to_thread(engine.start, restart.live_restore)
        await asked.judge({EXITED if restart.live_restore else LOST})
    finally:
        await asked.leave()
    await worker.settle()
    after = (await worker.ready(box)).generation
    demand(after == generation + (not restart.live_restore), f"generation {generation} to {after}")
    demand(worker.daemon.alive and worker.daemon.lives == life, "the daemon ended as well")
    demand(await worker.engine.things() == things, "networks or volumes are not as before")
    await call_scene.run_short(worker, box)


async def _refused(worker: Worker) -> None:
    """Without an engine a session cannot be made, and that is said at once and plainly."""
    try:
        await worker.client.create_session(session_id=worker.name("refused"), timeout_s=20)
    except EngineDown:
        return
    raise Violation("a session was made without an engine")
