"""One scene for each step that has points: it brings the daemon there, and judges afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from sandbox_adapter.errors import CreateFailed, SessionDeleted
from tests.faults import call_scene
from tests.faults.asked import Asked
from tests.faults.inflict import inflict
from tests.faults.kinds import Fault, Kind
from tests.faults.worker import Box, Violation, Worker, demand

SPARE_MAX: Final = 2
LINES_ACROSS: Final = 250
"""At one line every 10 ms: such a call runs across the change of daemons."""
Scene = Callable[[Worker, Fault], Awaitable[None]]


async def create(worker: Worker, fault: Fault) -> None:
    """Whatever happens, asking again makes the session whole; nothing of a first try stays."""
    session_id = worker.name("s")

    async def make() -> None:
        await worker.insist(lambda: worker.client.create_session(session_id=session_id))

    hold = worker.points.arm(fault.point)
    making = asyncio.create_task(make())
    try:
        await worker.reached(hold, making)
        first = worker.box(session_id)
        with contextlib.suppress(Violation):
            # Its containers are known by name from now on, whatever becomes of them.
            await worker.container(first.resource_id)
        await inflict(worker, fault, hold, first.resource_id)
        await worker.recover()
        try:
            await making
        except CreateFailed as error:
            # It says so where the sandbox died under it; then nothing is left of this try.
            demand(fault.kind is Kind.CONTAINER_KILL, f"not made: {error}")
            await worker.demand_gone(first.resource_id)
            await make()
    finally:
        making.cancel()
    box = worker.box(session_id)
    await worker.ready(box)
    await call_scene.run_short(worker, box)
    await worker.settle()
    await _keep_or_delete(worker, box)


async def _keep_or_delete(worker: Worker, box: Box) -> None:
    if len(worker.spare) < SPARE_MAX:
        worker.spare.append(box)
    else:
        await worker.delete(box)


async def delete(worker: Worker, fault: Fault) -> None:
    """Whatever happens, asking again ends the session, and then nothing of it is there."""
    box = await worker.take()
    await worker.container(box.resource_id)
    hold = worker.points.arm(fault.point)
    deleting = asyncio.create_task(worker.delete(box))
    try:
        await worker.reached(hold, deleting)
        await inflict(worker, fault, hold, box.resource_id)
        await worker.recover()
        await deleting
    finally:
        deleting.cancel()
    try:
        await worker.insist(lambda: worker.client.get_session(box.session_id))
    except SessionDeleted:
        await worker.settle()
    else:
        raise Violation("a session that was deleted is there")


async def sweep(worker: Worker, fault: Fault) -> None:
    """What nobody owns goes, and what a session has stays."""
    box = await worker.standing()
    orphan = worker.name("orphan")
    folder = worker.state_dir / "s" / orphan
    (folder / "store" / "workspace" / "deep").mkdir(parents=True)
    hold = worker.points.arm(fault.point)
    made = await worker.engine.make_orphan(worker.worker_id, orphan)
    worker.containers[orphan].add(made)
    waiting = asyncio.get_running_loop().create_future()
    await worker.reached(hold, waiting)
    await inflict(worker, fault, hold, box.resource_id)
    await worker.recover()
    await worker.settle()
    demand(not folder.exists(), "what nobody owned is there")
    await call_scene.run_short(worker, box)


async def recovery(worker: Worker, fault: Fault) -> None:
    """The next daemon meets a fault as well; a call that runs ends well all the same."""
    box = await worker.standing()
    asked = Asked(worker, box, LINES_ACROSS)
    starting: asyncio.Task[object] | None = None
    try:
        await asked.begun()
        await asyncio.to_thread(worker.daemon.kill)
        hold = worker.points.arm(fault.point)
        starting = asyncio.create_task(asyncio.to_thread(worker.daemon.start))
        await worker.reached(hold, starting)
        await inflict(worker, fault, hold, box.resource_id)
        try:
            await starting
        except AssertionError:
            # It says that the daemon ended; in these cases that was the harm.
            if fault.kind not in (Kind.DAEMON_KILL, Kind.DAEMON_TERM):
                raise
        await worker.recover()
        await asked.judge(call_scene.endings(fault), all_watched=call_scene.keeps_output(fault))
    finally:
        await asked.leave()
        if starting is not None:
            await asyncio.gather(starting, return_exceptions=True)
    await worker.settle()


async def restart(worker: Worker, fault: Fault) -> None:
    """A sandbox that ended is started anew, files kept, and exactly one result says so."""
    box = await worker.standing()
    await call_scene.run_short(worker, box)
    generation = (await worker.ready(box)).generation
    before = (box.workspace / "effects").read_text()
    hold = worker.points.arm(fault.point)
    await worker.engine.kill((await worker.container(box.resource_id)).id)
    await worker.reached(hold, asyncio.get_running_loop().create_future())
    await inflict(worker, fault, hold, box.resource_id)
    await worker.recover()
    await worker.settle()
    demand((await worker.ready(box)).generation > generation, "the generation is the old one")
    demand((box.workspace / "effects").read_text() == before, "the files are not kept")
    await call_scene.run_short(worker, box, restarted=True)
    await call_scene.run_short(worker, box, restarted=False)


_SCENES: Final[dict[str, Scene]] = {
    "call": call_scene.meet,
    "create": create,
    "engine.create": create,
    "engine.start": create,
    "delete": delete,
    "engine.remove": delete,
    "sweep": sweep,
    "recovery": recovery,
    "restart": restart,
}


def scene_of(point: str) -> Scene:
    """The scene that brings a daemon to the point."""
    return _SCENES[point.rpartition(".")[0]]
