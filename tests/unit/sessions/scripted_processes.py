"""What a guest answers about processes, as far as a test needs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from sandboxd.backends.base import Reply
from sandboxd.backends.fake import FakeRequest
from sandboxd.errors import GuestFault

STAND: dict[str, Any] = {
    "pid": 7,
    "running": True,
    "exit_code": None,
    "signal": None,
    "ended_s": None,
}
ENDED: dict[str, Any] = {**STAND, "running": False, "exit_code": 3, "ended_s": 0.5}


class ScriptedProcesses:
    """Starts what it is told to, under the rules of the real one. A test changes the rest."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self.started: list[str] = []
        """Ids in the order of their starts: each is one effect."""
        self.asked: list[FakeRequest] = []
        self.bodies: dict[str, Any] = {}
        self.jobs: list[dict[str, Any]] = []
        self.outputs: list[tuple[dict[str, Any], bytes]] = []
        """What `process_read` answers, one after the other."""
        self.facts: dict[str, dict[str, Any]] = {}
        """Facts by op that take the place of the usual ones."""
        self.fault: GuestFault | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.before_start: Callable[[], Awaitable[None]] | None = None

    async def answer(self, request: FakeRequest) -> Reply:
        self.asked.append(request)
        if not request.op.startswith("process_"):
            return Reply({})
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        if request.op in self.facts:
            return Reply(self.facts[request.op])
        if request.op == "process_list":
            known = [{"process_id": name, **stand} for name, stand in self.known.items()]
            return Reply({"processes": [*known, *self.jobs], "next": None})
        process_id = str(request.args["process_id"])
        if request.op == "process_start":
            return await self._start(process_id, request)
        for job in self.jobs:
            if job["process_id"] == process_id:
                return Reply({**job, "delivered": True})
        if process_id not in self.known:
            raise GuestFault("PROCESS_UNKNOWN", f"no process `{process_id}`", {})
        if request.op == "process_read":
            if not self.outputs:
                # Nothing comes any more, to whoever waits for it now.
                await asyncio.Event().wait()
            facts, data = self.outputs.pop(0)
            return Reply(facts, data)
        usual = {"written": int(request.args.get("offset", 0)) + len(request.body), "closed": False}
        return Reply({**self.known[process_id], **usual, "delivered": True})

    async def _start(self, process_id: str, request: FakeRequest) -> Reply:
        if self.before_start is not None:
            await self.before_start()
        created = process_id not in self.known
        if created:
            self.started.append(process_id)
            self.known[process_id] = dict(STAND)
            self.bodies[process_id] = json.loads(request.body)
        return Reply({**self.known[process_id], "created": created})

    @property
    def ops(self) -> list[str]:
        return [request.op for request in self.asked if request.op.startswith("process_")]


def piece(
    data: bytes, offset: int = 0, *, end: int | None = None, dropped: int = 0, closed: bool = False
) -> tuple[dict[str, Any], bytes]:
    """One answer of `process_read`."""
    end = offset + len(data) if end is None else end
    return {"offset": offset, "dropped": dropped, "end": end, "closed": closed}, data
