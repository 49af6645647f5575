"""What a command had printed when nobody could see its end (contract.md 4: partial output).

A command's output reaches the daemon with its answer. Where the sandbox is lost first, or
ended with its session, that answer never comes; so the tail of each command that takes more
than a moment is asked for as it grows, and the last that came is in the result.
"""

from __future__ import annotations

import asyncio
from typing import Final

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Sandbox
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.sessions.call import Call
from sandboxd.sessions.live import LiveSession
from sandboxd.tools.bash import BashTool, seen_so_far
from sandboxd.tools.wording import own_line

FOLLOWED_AFTER_S: Final = 0.05
"""Most commands are over by then, and cost nothing."""
REST_S: Final = 0.1
"""Between two looks: this much of the output may be missing in the end."""
REFUSED_REST_S: Final = 1.0
"""After a guest that has too many requests waiting refused one."""
POLL_S: Final = 60.0
ANSWER_S: Final = 30.0


class Partial:
    """Follows one call from `__init__` to `stop`, where it is a command."""

    def __init__(self, live: LiveSession, call: Call) -> None:
        self._live = live
        self._call_id = call.call_id
        self._seen: tool_pb2.ToolResult | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if call.tool == BashTool.name:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FOLLOWED_AFTER_S, self._begin)

    def stop(self) -> None:
        """Ends the following. The guest answers the last look as the command ends."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def before(self, result: tool_pb2.ToolResult) -> tool_pb2.ToolResult:
        """The result with what was printed put before its text, and the facts of that."""
        if self._seen is not None:
            text = own_line(self._seen.text, result.text)
            result.MergeFrom(self._seen)
            result.text = text
        return result

    def _begin(self) -> None:
        sandbox = self._live.sandbox
        if sandbox is not None and not sandbox.lost.done():
            self._task = asyncio.create_task(self._follow(sandbox))

    async def _follow(self, sandbox: Sandbox) -> None:
        after = 0
        try:
            while True:
                try:
                    reply = await sandbox.request(
                        "peek",
                        {"call_id": self._call_id, "after": after, "wait_s": POLL_S},
                        reply_bytes_max=limits.BASH_BYTES_MAX,
                        timeout_s=POLL_S + ANSWER_S,
                    )
                except GuestFault:
                    await asyncio.sleep(REFUSED_REST_S)
                    continue
                if not reply.facts.get("known"):
                    return  # it has ended, and its answer is on the way
                self._seen = seen_so_far(reply)
                after = self._seen.bytes_total
                await asyncio.sleep(REST_S)
        except SandboxLost:
            # Whether the guest is to be believed is judged by the call's own answer.
            return
