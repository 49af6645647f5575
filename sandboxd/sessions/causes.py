"""Limits that a call met, as the host sees them (contract.md 4; security S4).

What the kernel counted is read before and after a command. The first reading goes into
the call's memo, so that a daemon that takes over compares with the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sandbox_adapter.v1 import tool_pb2
from sandboxd.backends.base import Sandbox
from sandboxd.sessions import outcomes
from sandboxd.tools.base import Ask

COUNTED_OPS: Final = frozenset({"run"})
"""Ops whose processes are the caller's own; searches start only what the guest brings."""

Seen = Sequence[int]
"""Processes killed for lack of memory, and forks refused, since the sandbox began."""


def seen_before(sandbox: Sandbox, ask: Ask) -> Seen | None:
    """What was counted before an op; None where it is not counted, or the host cannot tell."""
    counted = sandbox.counted() if ask.op in COUNTED_OPS else None
    return None if counted is None else (counted.oom_kills, counted.forks_refused)


async def met(sandbox: Sandbox, seen: Seen | None) -> Mapping[str, Any]:
    """What an op met since `seen`, as `met` of a tool's memo (`tools/endings.py`)."""
    now = None if seen is None else sandbox.counted()
    if seen is None or now is None:
        return {}
    kinds: dict[str, Any] = {}
    if now.oom_kills > seen[0]:
        kinds["memory"] = {
            "limit": sandbox.facts.memory_bytes,
            "peak": now.memory_peak_bytes,
            "victim": await sandbox.oom_victim(),
        }
    if now.forks_refused > seen[1]:
        kinds["pids"] = {"limit": sandbox.facts.pids, "peak": now.pids_peak, "victim": ""}
    return {"met": kinds} if kinds else {}


async def explain_loss(result: tool_pb2.ToolResult, sandbox: Sandbox) -> None:
    """Makes a sandbox lost for lack of memory say so; waits two seconds at most for the cause."""
    if result.ending != tool_pb2.ENDING_SANDBOX_LOST or not await sandbox.ended_by_oom():
        return
    now = sandbox.counted()
    peak = None if now is None else now.memory_peak_bytes
    victim = await sandbox.oom_victim()
    outcomes.blame_memory(result, sandbox.facts.memory_bytes, peak, victim)
