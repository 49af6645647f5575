"""Faults within a call, and what must be true of the call whatever came of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from sandbox_adapter.errors import AdapterError
from sandbox_adapter.v1 import tool_pb2
from tests.faults.inflict import inflict
from tests.faults.kinds import Fault, Kind
from tests.faults.worker import Box, Worker, demand

RESTARTED: Final = (
    "[The sandbox was restarted: files in the workspace are kept, running processes are gone.]\n"
)
LINES_SHORT: Final = 20
LINES_LONG: Final = 120
"""At one line every 10 ms: still running when the next daemon is there."""
FINAL_S_MAX: Final = 30.0

_EXITED = tool_pb2.ENDING_EXITED
_LOST = tool_pb2.ENDING_SANDBOX_LOST
_UNKNOWN = tool_pb2.ENDING_UNKNOWN


@dataclass
class Asked:
    """A call under way: it notes its id in the workspace, then prints numbered lines."""

    worker: Worker
    box: Box
    call_id: str
    lines: int
    asking: asyncio.Task[tool_pb2.ToolResult]

    @property
    def text(self) -> str:
        return "".join(f"{number}\n" for number in range(1, self.lines + 1))

    async def begun(self) -> None:
        """Waits until the command has had its effect; it still runs then."""
        while not self.box.effects(self.call_id):
            demand(not self.asking.done(), "the call ended without an effect")
            await asyncio.sleep(0.01)


def ask(worker: Worker, box: Box, lines: int) -> Asked:
    call_id = worker.name("c")
    return Asked(
        worker, box, call_id, lines, asyncio.create_task(_call(worker, box, call_id, lines))
    )


async def _call(worker: Worker, box: Box, call_id: str, lines: int) -> tool_pb2.ToolResult:
    command = f"echo {call_id} >> effects; for i in $(seq {lines}); do echo $i; sleep 0.01; done"

    async def once() -> tool_pb2.ToolResult:
        answer = await worker.client.call_tool(
            box.session_id, "bash", {"command": command}, call_id=call_id, timeout_s=60
        )
        return answer.result

    return await worker.insist(once)


def endings(fault: Fault) -> set[tool_pb2.Ending]:
    """How a call may end that met the fault; anything else would be a lie or a loss."""
    match fault.kind:
        case Kind.CONTAINER_KILL if fault.point.startswith("recovery."):
            # No daemon saw it die.
            return {_EXITED, _LOST, _UNKNOWN}
        case Kind.CONTAINER_KILL:
            return {_EXITED, _LOST}
        case Kind.DAEMON_KILL if fault.point == "call.reserved":
            # Nothing was sent, but the next daemon has only the reservation to go by.
            return {_EXITED, _UNKNOWN}
    return {_EXITED}


async def judge(asked: Asked, allowed: set[tool_pb2.Ending]) -> tool_pb2.ToolResult:
    """Waits for the call's end and holds every promise of the contract against it."""
    box, call_id = asked.box, asked.call_id
    try:
        result = await asked.asking
    except AdapterError as error:
        demand(False, f"the call is not answered: {error!r}")
        raise
    name = tool_pb2.Ending.Name(result.ending)
    demand(result.ending in allowed, f"the call ended as {name}: {result.text[:200]!r}")
    effects = box.effects(call_id)
    if result.ending == _EXITED:
        demand(effects == 1, f"a call that ran left {effects} effects")
        text = result.text.removeprefix(RESTARTED)
        demand(result.exit_code == 0, f"exit code {result.exit_code}: {text[-200:]!r}")
        demand(text == asked.text, f"the output is not the command's: {text[-200:]!r}")
    else:
        demand(effects <= 1, f"a call had {effects} effects")
    await _one_ending(asked, result)
    demand(box.effects(call_id) == effects, "asking again had an effect")
    return result


async def _one_ending(asked: Asked, result: tool_pb2.ToolResult) -> None:
    """The ledger, and whoever asks again, say the same, byte for byte."""
    worker, box, call_id = asked.worker, asked.box, asked.call_id
    end = time.monotonic() + FINAL_S_MAX
    while True:
        known = await worker.insist(lambda: worker.client.get_call(box.session_id, call_id))
        if known.state != tool_pb2.CALL_STATE_RUNNING:
            break
        demand(time.monotonic() < end, "a call that was answered is RUNNING")
        await asyncio.sleep(0.05)
    final = tool_pb2.CALL_STATE_UNKNOWN if result.ending == _UNKNOWN else None
    state = tool_pb2.CallState.Name(known.state)
    demand(known.state == (final or tool_pb2.CALL_STATE_FINISHED), f"an answered call is {state}")
    again = await _call(worker, box, call_id, asked.lines)
    demand(again.replayed, "asking again is not told as a repeat")
    for other in (known.result, again):
        demand(_bytes(other) == _bytes(result), f"two results of one call: {result} and {other}")


def _bytes(result: tool_pb2.ToolResult) -> bytes:
    copy = tool_pb2.ToolResult()
    copy.CopyFrom(result)
    copy.ClearField("replayed")
    return copy.SerializeToString(deterministic=True)


async def meet(worker: Worker, fault: Fault) -> None:
    """A call meets the fault at its point."""
    box = await worker.standing()
    hold = worker.points.arm(fault.point)
    asked = ask(worker, box, LINES_LONG if fault.round % 2 else LINES_SHORT)
    try:
        await worker.reached(hold, asked.asking)
        await inflict(worker, fault, hold, box.resource_id)
        await worker.recover()
        await judge(asked, endings(fault))
    finally:
        asked.asking.cancel()
    await worker.settle()


async def run_short(worker: Worker, box: Box, *, restarted: bool | None = None) -> None:
    """A call that must work now; `restarted`: whether its text says that the sandbox was."""
    asked = ask(worker, box, 3)
    result = await judge(asked, {_EXITED})
    if restarted is not None:
        told = result.text.startswith(RESTARTED)
        demand(told == restarted, f"told of a restart: {told}, there was one: {restarted}")
