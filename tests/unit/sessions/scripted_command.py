"""A command in a scripted guest: the ops `run`, `feed` and `peek` of one call."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from sandboxd.backends.base import Reply
from sandboxd.backends.fake import FakeRequest


@dataclass
class Command:
    """A guest's command: its output so far, the ring's start, and whether it has ended."""

    output: bytes = b""
    start: int = 0
    ended: bool = False
    known: bool = True
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    feeds: list[dict[str, Any]] = field(default_factory=list)
    peeks: list[dict[str, Any]] = field(default_factory=list)
    cut: bool = False
    peek_lie: Reply | None = None
    lie: Reply | None = None
    """An answer that no guest of ours gives, in place of every answer to a read."""

    def write(self, data: bytes) -> None:
        self.output += data
        self._change()

    def end(self) -> None:
        self.ended = True
        self._change()

    def _change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def answer(self, request: FakeRequest) -> Reply:
        if request.op == "run":
            while not self.ended:
                await self.changed.wait()
            return Reply(self._run_facts(), self.output[-1000:])
        if request.op == "feed":
            return await self._feed(dict(request.args))
        if request.op == "peek":
            return await self._peek(dict(request.args))
        return Reply({})

    async def _peek(self, args: dict[str, Any]) -> Reply:
        self.peeks.append(args)
        if self.peek_lie is not None:
            return self.peek_lie
        while len(self.output) <= args["after"] and not self.ended:
            await self.changed.wait()
        if self.ended:
            return Reply({"known": False})
        facts = {
            "known": True,
            "timeout_s": 120.0,
            "bytes_total": len(self.output),
            "lines_total": self.output.count(b"\n"),
            "lines_shown": 1,
            "cut": self.cut,
            "binary": False,
        }
        return Reply(facts, self.output[-1000:])

    async def _feed(self, args: dict[str, Any]) -> Reply:
        self.feeds.append(args)
        if not self.known:
            return Reply({"known": False})
        if self.lie is not None and args["bytes_max"]:
            return self.lie
        if args["wait_s"]:
            while len(self.output) <= args["after"] and not self.ended:
                await self.changed.wait()
        start = max(args["after"], self.start)
        facts = {"known": True, "start": start, "end": len(self.output), "ended": self.ended}
        return Reply(facts, self.output[start : start + args["bytes_max"]])

    def _run_facts(self) -> dict[str, Any]:
        return {
            "ended": "exited",
            "exit_code": 0,
            "signal": None,
            "bytes_total": len(self.output),
            "lines_total": self.output.count(b"\n"),
            "lines_shown": 1,
            "cut": False,
            "binary": False,
            "spill": None,
            "survivors": [],
            "survivors_total": 0,
            "output_open": False,
            "swept": False,
            "freed": 0,
        }
