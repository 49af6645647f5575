"""Doing one kind of harm while the daemon stands at a point."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from tests.faults.fault_daemon import ENGINE_TIMEOUT_S
from tests.faults.harm import cut, stop_for_a_while
from tests.faults.kinds import Fault, Kind
from tests.faults.point_server import Hold
from tests.faults.worker import Worker, demand

NOTICE_S: Final = 0.15
"""Every other time the daemon's other tasks get this long to see what was done."""


async def inflict(worker: Worker, fault: Fault, hold: Hold, resource_id: str) -> None:
    """Does the harm of `fault` and lets the daemon go on, or ends it.

    `resource_id` names the sandbox whose container or connection is harmed. Afterwards
    the daemon may be gone: `worker.recover()` comes next.
    """
    try:
        match fault.kind:
            case Kind.DAEMON_KILL:
                await asyncio.to_thread(worker.daemon.kill)
            case Kind.DAEMON_TERM:
                worker.daemon.process_signal(signal.SIGTERM)
                await _notice(fault)
            case Kind.DAEMON_STOP:
                await stop_for_a_while(worker.daemon.pid)
            case Kind.ENGINE_FAIL:
                hold.answer("fail")
            case Kind.ENGINE_HANG:
                hold.answer(f"hang {ENGINE_TIMEOUT_S + 1}")
            case _:
                await _harm_container(worker, fault, resource_id)
    finally:
        hold.answer()
    if fault.kind is Kind.DAEMON_TERM:
        code = await asyncio.to_thread(worker.daemon.wait_for_end)
        demand(code == 0, f"a daemon told to end in order exits with {code}")


async def _harm_container(worker: Worker, fault: Fault, resource_id: str) -> None:
    container = await worker.container(resource_id)
    if fault.kind is Kind.CONTAINER_KILL:
        await worker.engine.kill(container.id)
        await _notice(fault)
        return
    guest = await worker.engine.pid(container.id)
    demand(guest > 0, "the container does not run")
    if fault.kind is Kind.GUEST_STOP:
        await stop_for_a_while(guest)
    else:
        demand(cut(worker.daemon.pid, guest) > 0, "there is no connection to cut")
        await _notice(fault)


async def _notice(fault: Fault) -> None:
    if fault.round % 2:
        await asyncio.sleep(NOTICE_S)
