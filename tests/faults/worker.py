"""One daemon under fault, its client, and the sessions that it is used with."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.errors import Exhausted, Unavailable
from sandbox_adapter.v1 import session_pb2
from tests.faults import traces
from tests.faults.engine_view import Container, EngineView
from tests.faults.fault_daemon import FaultDaemon
from tests.faults.point_server import Hold, PointServer

REACHED_S_MAX: Final = 30.0
SETTLED_S_MAX: Final = 30.0
"""From the end of a fault until everything is as recorded. A sweep is due every 0.5 s."""
INSIST_S_MAX: Final = 60.0
RESTARTS_USED_MAX: Final = 3
"""A session is replaced after these: a fault may cost two more, and the sixth fails it."""
DESCRIPTORS_MORE_MAX: Final = 32
"""What a daemon may have open beyond its first fault: idle connections to the engine."""
DESCRIPTORS_A_SESSION: Final = 4

_Answer = TypeVar("_Answer")


class Violation(Exception):
    """An invariant does not hold."""


def demand(holds: bool, what: str) -> None:
    """Raises `Violation` where it does not hold."""
    if not holds:
        raise Violation(what)


@dataclass
class Box:
    """A session in use."""

    session_id: str
    resource_id: str
    workspace: Path
    containers: set[str] = field(default_factory=set)
    """Every container that it is known to have had."""

    def effects(self, call_id: str) -> int:
        """How many lines a call has written."""
        path = self.workspace / "effects"
        return path.read_text().split().count(call_id) if path.exists() else 0


class Worker:
    """Owns a state folder. `start` and `end` bracket everything else."""

    def __init__(self, folder: Path, engine: EngineView) -> None:
        self.folder = folder
        self.engine = engine
        self.points = PointServer(folder / "points.sock")
        self.daemon = FaultDaemon(folder, engine.host, self.points.path)
        self.client = AdapterClient(f"unix:{folder / 'grpc.sock'}", retry_s_max=0.0)
        self.spare: list[Box] = []
        self._standing: Box | None = None
        self._names = itertools.count()
        self._descriptors: tuple[int, int, int] | None = None
        """Life of the daemon, its descriptors and sessions after the first fault of that life."""
        self.containers: defaultdict[str, set[str]] = defaultdict(set)
        """Every container that a resource id was seen with."""

    async def start(self) -> None:
        self.folder.mkdir(parents=True)
        await self.points.start()
        await asyncio.to_thread(self.daemon.start)
        await self.client.__aenter__()

    async def end(self) -> None:
        """Kills the daemon. Its containers are left to the end of the engine."""
        await asyncio.to_thread(self.daemon.abandon)
        await self.client.__aexit__(None, None, None)
        await self.points.close()

    @property
    def state_dir(self) -> Path:
        return self.daemon.state_dir

    @property
    def worker_id(self) -> str:
        return (self.state_dir / "worker-id").read_text().strip()

    def name(self, prefix: str) -> str:
        return f"{prefix}{next(self._names)}"

    # --- asking ---------------------------------------------------------------

    async def insist(
        self, ask: Callable[[], Awaitable[_Answer]], seconds_max: float = INSIST_S_MAX
    ) -> _Answer:
        """Repeats the same request while waiting helps, sooner than a client would."""
        end = time.monotonic() + seconds_max
        while True:
            try:
                return await ask()
            except (Unavailable, Exhausted) as error:
                if time.monotonic() > end:
                    raise Violation(f"not served within {seconds_max:g} s: {error}") from error
            await asyncio.sleep(0.1)

    async def reached(self, hold: Hold, acting: asyncio.Future[Any]) -> None:
        """Waits until the daemon stands at the point to which `acting` must bring it."""
        reaching = asyncio.create_task(hold.reached.wait())
        try:
            await asyncio.wait(
                {reaching, acting},
                timeout=REACHED_S_MAX,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            reaching.cancel()
        if not hold.reached.is_set():
            outcome = repr(acting.exception() or "well") if acting.done() else "not ended"
            raise Violation(f"{hold.point} was not reached; what should do so: {outcome}")

    # --- sessions -------------------------------------------------------------

    async def standing(self) -> Box:
        """A READY session that bears some restarts."""
        box = self._standing
        if box is not None:
            if (await self.ready(box)).generation <= RESTARTS_USED_MAX:
                return box
            self._standing = None
            await self.delete(box)
        self._standing = await self.take()
        return self._standing

    async def take(self) -> Box:
        """A READY session that nobody else uses."""
        while self.spare:
            box = self.spare.pop()
            if (await self.ready(box)).generation == 1:
                return box
            await self.delete(box)
        session_id = self.name("s")
        await self.insist(lambda: self.client.create_session(session_id=session_id))
        return self.box(session_id)

    def box(self, session_id: str) -> Box:
        """The session as the database knows it."""
        for row in traces.rows(self.state_dir):
            if row.session_id == session_id:
                workspace = self.state_dir / "s" / row.resource_id / "store" / "workspace"
                return Box(session_id, row.resource_id, workspace)
        raise Violation(f"session {session_id} has no row")

    async def ready(self, box: Box) -> session_pb2.Session:
        """Waits until the session is READY."""
        end = time.monotonic() + SETTLED_S_MAX
        while True:
            found = await self.insist(lambda: self.client.get_session(box.session_id))
            if found.state == session_pb2.SESSION_STATE_READY:
                return found
            state = session_pb2.SessionState.Name(found.state)
            demand(state != "SESSION_STATE_FAILED", f"{box.session_id} FAILED: {found.reason}")
            demand(time.monotonic() < end, f"{box.session_id} stays {state}: {found.reason}")
            await asyncio.sleep(0.05)

    async def delete(self, box: Box) -> None:
        """Deletes the session and looks that nothing of it is there, at once."""
        await self.insist(lambda: self.client.delete_session(box.session_id))
        await self.demand_gone(box.resource_id)

    async def demand_gone(self, resource_id: str) -> None:
        left = [c.id for c in await self.engine_list() if c.resource_id == resource_id]
        found = [f"container {each}" for each in left]
        folder = self.state_dir / "s" / resource_id
        found += traces.left_on_host(folder, self.containers.pop(resource_id, ()))
        demand(not found, f"left of a session that is deleted: {', '.join(found)}")

    async def container(self, resource_id: str) -> Container:
        """The one container of a sandbox, running or not."""
        found = [c for c in await self.engine_list() if c.resource_id == resource_id]
        demand(len(found) == 1, f"{len(found)} containers of one sandbox")
        return found[0]

    async def engine_list(self) -> list[Container]:
        found = await self.engine.containers(self.worker_id)
        for container in found:
            self.containers[container.resource_id].add(container.id)
        return found

    # --- after a fault --------------------------------------------------------

    async def recover(self) -> None:
        """Starts the daemon again where it died."""
        if not self.daemon.alive:
            await asyncio.to_thread(self.daemon.start)

    async def settle(self) -> None:
        """Waits until what exists is what is recorded, and every session is READY."""
        end = time.monotonic() + SETTLED_S_MAX
        while differences := await self._differences():
            if time.monotonic() > end:
                raise Violation(f"not settled: {'; '.join(differences)}")
            await asyncio.sleep(0.1)
        for resource_id in set(self.containers) - set(traces.living(self.state_dir)):
            folder = self.state_dir / "s" / resource_id
            left = traces.left_on_host(folder, self.containers.pop(resource_id))
            demand(not left, f"left of what nobody owns: {', '.join(left)}")
        self._watch_descriptors()

    async def _differences(self) -> list[str]:
        expected = {row.resource_id for row in traces.rows(self.state_dir)}
        unready = [
            f"{row.session_id} is {row.state}"
            for row in traces.rows(self.state_dir)
            if row.state != "READY"
        ]
        running = sorted(c.resource_id for c in await self.engine_list() if c.running)
        others = [
            f"container of {c.resource_id} does not run"
            for c in await self.engine_list()
            if not c.running
        ]
        if running != sorted(expected):
            others.append(f"containers run for {running}, sessions are {sorted(expected)}")
        if (found := traces.folders(self.state_dir)) != expected:
            others.append(f"folders of {sorted(found)}, sessions are {sorted(expected)}")
        return unready + others

    def _watch_descriptors(self) -> None:
        """A daemon that lived through faults has not gathered descriptors by them."""
        now = self.daemon.descriptors()
        sessions = len(traces.living(self.state_dir))
        if self._descriptors is None or self._descriptors[0] != self.daemon.lives:
            self._descriptors = (self.daemon.lives, now, sessions)
            return
        _, first, sessions_first = self._descriptors
        more = DESCRIPTORS_MORE_MAX + DESCRIPTORS_A_SESSION * max(0, sessions - sessions_first)
        demand(now <= first + more, f"the daemon has {now} descriptors, it had {first}")

    async def forget_all(self) -> None:
        """Deletes every session; afterwards nothing at all is left."""
        names = [session.session_id async for session in self.client.list_sessions()]
        for name in names:
            await self.insist(partial(self.client.delete_session, name))
        self.spare.clear()
        self._standing = None
        await self.settle()
        left = traces.left_on_host(self.state_dir / "s" / "", ())
        demand(left in ([], [f"folder {self.state_dir / 's'}"]), f"left at the end: {left}")
