"""Faults within a call."""

from __future__ import annotations

from typing import Final

from sandbox_adapter.v1 import tool_pb2
from tests.faults.asked import EXITED, LOST, RESTARTED, UNKNOWN, Asked
from tests.faults.inflict import inflict
from tests.faults.kinds import Fault, Kind
from tests.faults.worker import Box, Worker, demand

LINES_SHORT: Final = 20
LINES_LONG: Final = 150
"""At one line every 10 ms: mostly still running when the next daemon is there."""


def endings(fault: Fault) -> set[tool_pb2.Ending]:
    """How a call may end that met the fault; anything else would be a lie or a loss."""
    match fault.kind:
        case Kind.CONTAINER_KILL if fault.point.startswith("recovery."):
            # No daemon saw it die.
            return {EXITED, LOST, UNKNOWN}
        case Kind.CONTAINER_KILL:
            return {EXITED, LOST}
        case Kind.DAEMON_KILL if fault.point in ("call.reserved", "call.sent"):
            # Nothing was sent, or it was not begun when the guest saw the connection's end: the
            # next daemon has only the reservation to go by.
            return {EXITED, UNKNOWN}
    return {EXITED}


def keeps_output(fault: Fault) -> bool:
    """Whether all output can be watched: the next daemon may find that a call has ended."""
    return fault.kind not in (Kind.DAEMON_KILL, Kind.DAEMON_TERM, Kind.CONTAINER_KILL)


async def meet(worker: Worker, fault: Fault) -> None:
    """A call meets the fault at its point; every other time another one runs beside it."""
    box = await worker.standing()
    busy = bool(fault.round % 2)
    calls: list[Asked] = []
    try:
        if busy:
            calls.append(Asked(worker, box, LINES_LONG))
            await calls[0].begun()
        hold = worker.points.arm(fault.point)
        asked = Asked(worker, box, LINES_LONG if busy else LINES_SHORT)
        calls.append(asked)
        await worker.reached(hold, asked.asking)
        await inflict(worker, fault, hold, box.resource_id)
        await worker.recover()
        await asked.judge(endings(fault), all_watched=keeps_output(fault))
        if busy:
            allowed = {EXITED, LOST} if fault.kind is Kind.CONTAINER_KILL else {EXITED}
            await calls[0].judge(allowed, all_watched=keeps_output(fault))
    finally:
        for each in calls:
            await each.leave()
    await worker.settle()


async def run_short(worker: Worker, box: Box, *, restarted: bool | None = None) -> None:
    """A call that must work now; `restarted`: whether its text says that the sandbox was."""
    asked = Asked(worker, box, 3)
    try:
        result = await asked.judge({EXITED})
    finally:
        await asked.leave()
    if restarted is not None:
        told = result.text.startswith(RESTARTED)
        demand(told == restarted, f"told of a restart: {told}, there was one: {restarted}")
