"""Runs faults on several daemons side by side, and counts."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.faults.engine_view import EngineView
from tests.faults.kinds import Fault
from tests.faults.scenes import scene_of
from tests.faults.worker import Violation, Worker

LOGS: Final = "logs"
"""Folder in the suite's, with one for each violation."""
FAULT_S_MAX: Final = 150.0
"""Longest time of one fault with everything that follows it."""
DEAD_IN_A_ROW_MAX: Final = 3
"""So many violations of one worker in a row, and it gives up: something is broken for good."""


@dataclass(frozen=True)
class Found:
    """A violation: what was done, what is wrong, and where the daemon's log is."""

    what: str
    wrong: str
    log: Path


@dataclass
class Tally:
    """What has been met so far."""

    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By the names of point and kind; those that ended in a violation as well."""
    broken: Counter[tuple[str, str]] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)
    not_run: int = 0

    @property
    def total(self) -> int:
        return self.met.total()

    def count(self, point: str, kind: str, violation: Found | None) -> None:
        self.met[point, kind] += 1
        if violation is not None:
            self.broken[point, kind] += 1
            self.found.append(violation)


OnDone = Callable[[str, Found | None], None]


class Suite:
    """Shares faults among workers, each with a daemon and a state folder of its own."""

    def __init__(self, folder: Path, engine_host: str, tally: Tally) -> None:
        """`folder` should have a short path: sockets lie in it. Logs of violations stay there."""
        self.folder = folder
        self.tally = tally
        self.engine_host = engine_host
        self.on_done: OnDone = lambda what, violation: None
        """Told of every fault that has been judged."""
        self._made = 0

    async def run(self, faults: Iterable[Fault], workers: int) -> None:
        """Meets every fault; violations are in the tally."""
        waiting = deque(faults)
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work(waiting))
        self.tally.not_run += len(waiting)

    async def _work(self, waiting: deque[Fault]) -> None:
        engine = EngineView(self.engine_host)
        worker = await self.new_worker(engine)
        bad = 0
        try:
            while waiting and bad < DEAD_IN_A_ROW_MAX:
                fault = waiting.popleft()
                violation = await self._meet(worker, fault)
                self.done(fault.point, fault.kind.value, violation)
                bad = bad + 1 if violation else 0
                if violation:
                    # What is left of it must not disturb the next fault.
                    await worker.end()
                    worker = await self.new_worker(engine)
            if bad < DEAD_IN_A_ROW_MAX:
                await self._last(worker)
        finally:
            await worker.end()
            engine.close()

    async def new_worker(self, engine: EngineView) -> Worker:
        self._made += 1
        worker = Worker(self.folder / f"w{self._made}", engine)
        await worker.start()
        return worker

    def done(self, point: str, kind: str, violation: Found | None) -> None:
        self.tally.count(point, kind, violation)
        self.on_done(f"{point} x {kind}", violation)

    async def _meet(self, worker: Worker, fault: Fault) -> Found | None:
        async def meet() -> None:
            await scene_of(fault.point)(worker, fault)

        return await self.judged(worker, str(fault), meet())

    async def judged(self, worker: Worker, what: str, meeting: object) -> Found | None:
        """Awaits it, and turns whatever goes wrong into a violation."""
        assert asyncio.iscoroutine(meeting)
        try:
            async with asyncio.timeout(FAULT_S_MAX):
                await meeting
        except Violation as error:
            wrong = str(error)
        except Exception:  # noqa: BLE001 - whatever breaks a fault's judgement is to be seen
            wrong = traceback.format_exc()
        else:
            return None
        finally:
            worker.points.disarm()
        log = worker.daemon.keep_log(self.folder / LOGS / f"{len(self.tally.found)}")
        return Found(what, wrong, log)

    async def _last(self, worker: Worker) -> None:
        violation = await self.judged(worker, "the end of a daemon's sessions", worker.forget_all())
        if violation is not None:
            self.tally.found.append(violation)
            self.on_done("the end", violation)
