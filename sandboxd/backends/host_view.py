"""What the host knows of one sandbox's limits, and whether lack of memory ended it (security S4).

A sandbox whose first process was killed for memory is said to have ended so only on the
word of the kernel, or of the engine where the kernel's files went before they were read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from sandboxd.backends.base import Counted
from sandboxd.backends.cgroup_counters import CgroupCounters
from sandboxd.backends.cgroups import ContainerCgroup
from sandboxd.backends.command_cgroup import confine
from sandboxd.backends.oom_victim import Victim, last_victims
from sandboxd.errors import SandboxdError
from sandboxd.log import EventLog

_log = EventLog("backends")
_unconfined: set[str] = set()
"""Why commands have no cgroup of their own: each reason is logged once."""

VERDICT_S_MAX: Final = 2.0
"""Longest time that a result waits for why its sandbox ended, and that the engine is asked."""


def _own_kills(counted: Counted | None) -> int | None:
    return None if counted is None else counted.own_oom_kills


async def host_view(cgroup: ContainerCgroup, init_pid: int, threads: Collection[int]) -> HostView:
    """The view of a container whose guest has said hello, its commands confined if they can be.

    `threads` are those that start the guest's processes, in its own numbering; none
    where its processes have no numbers on the host.
    """
    if threads:
        why = await asyncio.to_thread(confine, cgroup, init_pid, threads)
        if why and why not in _unconfined:
            _unconfined.add(why)
            _log.warning("commands have no cgroup of their own", why=why)
    return HostView(cgroup.container_id, init_pid, CgroupCounters(cgroup))


class HostView:
    """Belongs to one container. Used on the event loop."""

    def __init__(self, container_id: str, init_pid: int, counters: CgroupCounters) -> None:
        """Takes over `counters`. `init_pid` is the first process as the host numbers it."""
        self._container_id = container_id
        self._init_pid = init_pid
        self._counters = counters
        self._last = self._first = counters.read()
        self._ended = False
        self._judging: asyncio.Task[None] | None = None
        self._verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def counted(self) -> Counted | None:
        """See `Sandbox.counted`; of a container that is gone, as it was read last."""
        self._last = self._counters.read() or self._last
        return self._last

    async def oom_victim(self) -> str:
        """See `Sandbox.oom_victim`."""
        victims = await self._victims()
        return victims[-1].name if victims else ""

    def ended(self) -> None:
        """The first process has just ended by itself: its cgroup may vanish any moment."""
        self._ended = True
        before, now = self._last, self._counters.read()
        self._last = now or before
        if _own_kills(now) == _own_kills(self._first) is not None:
            self._settle(by_oom=False)
            return
        rose = (_own_kills(now) or 0) > (_own_kills(before) or 0)
        self._judging = asyncio.create_task(self._judge(rose))

    async def settle(self, ask_engine: Callable[[], Awaitable[bool]]) -> None:
        """Before the container goes: has the engine say what the kernel no longer tells."""
        if self._judging is not None:
            await asyncio.wait({self._judging})
        if not self._ended or self._verdict.done():
            return
        by_oom = False
        try:
            async with asyncio.timeout(VERDICT_S_MAX):
                by_oom = await ask_engine()
        except (TimeoutError, SandboxdError):
            pass  # not known: nothing is claimed
        self._settle(by_oom=by_oom)

    async def ended_by_oom(self) -> bool:
        """See `Sandbox.ended_by_oom`."""
        await asyncio.wait({self._verdict}, timeout=VERDICT_S_MAX)
        return self._verdict.done() and self._verdict.result()

    def close(self) -> None:
        """Idempotent. Nobody need wait for a verdict that has not come by now."""
        self._counters.close()
        if self._judging is None:
            self._settle(by_oom=False)

    async def _judge(self, rose: bool) -> None:
        """By the kernel's log, which names the very process, or else by the last counter.

        That alone is not enough where commands share the guest's cgroup: a kill may have been
        one of theirs, or the last reading may have come after the guest's. Without
        a log and a rise the engine is asked.
        """
        victims = await self._victims()
        if victims or rose:
            self._settle(by_oom=not victims or any(each.pid == self._init_pid for each in victims))

    async def _victims(self) -> list[Victim]:
        return await asyncio.to_thread(last_victims, self._container_id)

    def _settle(self, *, by_oom: bool) -> None:
        if not self._verdict.done():
            self._verdict.set_result(by_oom)
