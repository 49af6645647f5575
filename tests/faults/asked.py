"""A call under way, who waits for it and who watches it, and what must be true of it in the end."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from sandbox_adapter.errors import AdapterError
from sandbox_adapter.v1 import tool_pb2
from tests.faults.watching import Watch
from tests.faults.worker import Box, Worker, demand

RESTARTED: Final = (
    "[The sandbox was restarted: files in the workspace are kept, running processes are gone.]\n"
)
FINAL_S_MAX: Final = 30.0
EXITED: Final = tool_pb2.ENDING_EXITED
LOST: Final = tool_pb2.ENDING_SANDBOX_LOST
UNKNOWN: Final = tool_pb2.ENDING_UNKNOWN


class Asked:
    """It notes its id in the workspace, then prints numbered lines, one every 10 ms."""

    def __init__(self, worker: Worker, box: Box, lines: int) -> None:
        self.worker = worker
        self.box = box
        self.call_id = worker.name("c")
        self.text = "".join(f"{number}\n" for number in range(1, lines + 1))
        self._command = (
            f"echo {self.call_id} >> effects; for i in $(seq {lines}); do echo $i; sleep 0.01; done"
        )
        self.watch = Watch(worker, box, self.call_id, self.text.encode())
        self.asking = asyncio.create_task(self._call())
        self._watching = asyncio.create_task(self.watch.result())

    async def begun(self) -> None:
        """Waits until the command has had its effect; it still runs then."""
        while not self.box.effects(self.call_id):
            demand(not self.asking.done(), "the call ended without an effect")
            await asyncio.sleep(0.01)

    async def leave(self) -> None:
        """Nobody waits or watches any more."""
        tasks = (self.asking, self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def judge(
        self, allowed: set[tool_pb2.Ending], *, all_watched: bool = True
    ) -> tool_pb2.ToolResult:
        """Waits for the end and holds every promise of the contract against it.

        `all_watched`: whether who watches must have been told every byte.
        """
        try:
            result = await self.asking
        except AdapterError as error:
            demand(False, f"the call is not answered: {error!r}")
            raise
        name = tool_pb2.Ending.Name(result.ending)
        demand(result.ending in allowed, f"the call ended as {name}: {result.text[:200]!r}")
        effects = self.box.effects(self.call_id)
        if result.ending == EXITED:
            demand(effects == 1, f"a call that ran left {effects} effects")
            text = result.text.removeprefix(RESTARTED)
            demand(result.exit_code == 0, f"exit code {result.exit_code}: {text[-200:]!r}")
            demand(text == self.text, f"the output is not the command's: {text[-200:]!r}")
        else:
            demand(effects <= 1, f"a call had {effects} effects")
        await self._one_ending(result)
        demand(self.box.effects(self.call_id) == effects, "asking again had an effect")
        await self._well_watched(result, all_watched)
        return result

    async def _call(self) -> tool_pb2.ToolResult:
        async def once() -> tool_pb2.ToolResult:
            answer = await self.worker.client.call_tool(
                self.box.session_id,
                "bash",
                {"command": self._command},
                call_id=self.call_id,
                timeout_s=60,
            )
            return answer.result

        return await self.worker.insist(once)

    async def _one_ending(self, result: tool_pb2.ToolResult) -> None:
        """The ledger, and whoever asks again, say the same, byte for byte."""
        client, session_id = self.worker.client, self.box.session_id
        end = time.monotonic() + FINAL_S_MAX
        while True:
            known = await self.worker.insist(lambda: client.get_call(session_id, self.call_id))
            if known.state != tool_pb2.CALL_STATE_RUNNING:
                break
            demand(time.monotonic() < end, "a call that was answered is RUNNING")
            await asyncio.sleep(0.05)
        final = tool_pb2.CALL_STATE_FINISHED
        if result.ending == UNKNOWN:
            final = tool_pb2.CALL_STATE_UNKNOWN
        state = tool_pb2.CallState.Name(known.state)
        demand(known.state == final, f"a call that was answered is {state}")
        again = await self._call()
        demand(again.replayed, "asking again is not told as a repeat")
        for other in (known.result, again):
            demand(same(other, result), f"two results of one call: {result} and {other}")

    async def _well_watched(self, result: tool_pb2.ToolResult, all_watched: bool) -> None:
        watched = await self._watching
        demand(same(watched, result), f"watched was {watched}, answered {result}")
        if result.ending == EXITED:
            told = self.watch.seen + self.watch.dropped
            demand(told == len(self.text), f"{told} of {len(self.text)} bytes were told")
            if all_watched:
                demand(not self.watch.dropped, f"{self.watch.dropped} bytes were not shown")


def same(one: tool_pb2.ToolResult, other: tool_pb2.ToolResult) -> bool:
    """Whether two results are the same to the byte, whoever was told first."""
    return _bytes(one) == _bytes(other)


def _bytes(result: tool_pb2.ToolResult) -> bytes:
    copy = tool_pb2.ToolResult()
    copy.CopyFrom(result)
    copy.ClearField("replayed")
    return copy.SerializeToString(deterministic=True)
