"""A running sandbox as both real backends have it: a process, a listener, a link.

It ends in one way whatever happened first: `lost` resolves, and the backend that
holds it ends what is left. The process's death is seen at once, by its pidfd; a
guest that only lost its connection has `RECONNECT_S` to dial again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from sandboxd.backends.base import Counted, Reply, Report, SandboxFacts
from sandboxd.backends.cgroups import ContainerCgroup
from sandboxd.backends.guest_link import GuestLink
from sandboxd.backends.hello import Expected, Hello
from sandboxd.backends.host_view import HostView, host_view
from sandboxd.backends.listener import Greeted, Listener
from sandboxd.backends.pidfd import WatchedProcess

RECONNECT_S: Final = 5.0
"""Time for a guest to dial again after its connection ended while the daemon lives."""
RECONNECTS_MAX: Final = 120
RECONNECTS_WITHIN_S: Final = 60.0
"""A guest that dials again more often than that is none of ours: each report costs a look at
the ledger."""
RECONNECT_REST_S: Final = 0.1
"""Rest before it is awaited: one that dials and leaves again and again costs little (S8)."""


class ProcessEnded(Exception):
    """The sandbox's first process ended before its guest said hello."""


class GuestSandbox:
    """See `backends/base.py`, `Sandbox`. Closed by the backend that made it."""

    def __init__(
        self,
        resource_id: str,
        generation: int,
        facts: SandboxFacts,
        expected: Expected,
        listener: Listener,
        process: WatchedProcess | None,
    ) -> None:
        """Takes over `listener` and `process`. `connect` must follow.

        `process` is None where the daemon cannot see it (a PID namespace of its
        own): then only the connection tells of the end.
        """
        self.resource_id = resource_id
        self.generation = generation
        self.facts = facts
        self.secret_digest = expected.secret_digest
        self.host: HostView | None = None
        """Set by `see_limits`; closed with this."""
        self._process = process
        self._expected = expected
        self._listener = listener
        self._link = GuestLink(listener.boot_id)
        self.report = Report()
        self.on_report: Callable[[Report], None] = lambda _: None
        self.lost = self._link.lost
        self._link.on_disconnect = self._await_again
        self._awaiting: asyncio.Task[None] | None = None
        self._reconnects: deque[float] = deque()
        if process is not None:
            process.ended.add_done_callback(lambda _: self._on_end())

    async def connect(self, timeout_s: float) -> Hello:
        """Waits for the guest's first connection; where none comes, closes this.

        Raises `TimeoutError`, and `ProcessEnded` as soon as the process ends.
        """
        greeting = asyncio.create_task(self._listener.accept_guest(self._expected))
        either: set[asyncio.Future[Any]] = {greeting}
        if self._process is not None:
            either.add(self._process.ended)
        try:
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self._process is not None and not self._process.alive:
                raise ProcessEnded
            if not greeting.done():
                raise TimeoutError
            greeted = greeting.result()
        except BaseException:
            await _discard(greeting)
            await self.close("ENDED", "its guest did not say hello")
            raise
        self.report = greeted.hello.report
        self._link.attach(greeted.reader, greeted.writer, self.report.calls)
        return greeted.hello

    async def see_limits(self, cgroup: ContainerCgroup | None, threads: Collection[int]) -> None:
        """Before the first command: the host's view of the limits, and a cgroup for commands.

        `cgroup` is None where the daemon does not see it; `threads` are as the guest numbers them.
        """
        if cgroup is not None and self._process is not None and self._process.alive:
            # Processes of a kernel of its own have no numbers on the host.
            known = threads if self._expected.pid is not None else ()
            self.host = await host_view(cgroup, self._process.pid, known)

    def recorded(self, call_id: str) -> None:
        self._link.recorded(call_id)

    def counted(self) -> Counted | None:
        return None if self.host is None else self.host.counted()

    async def oom_victim(self) -> str:
        return "" if self.host is None else await self.host.oom_victim()

    async def ended_by_oom(self) -> bool:
        if self.host is None or self._process is None or self._process.alive:
            return False
        return await self.host.ended_by_oom()

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        reply_bytes_max: int,
        timeout_s: float,
    ) -> Reply:
        return await self._link.request(
            op, args, body, reply_bytes_max=reply_bytes_max, timeout_s=timeout_s
        )

    async def close(self, cause: str, operator_text: str) -> None:
        """Lets go of everything and ends nothing: the process goes on. Idempotent."""
        await self._link.close(cause, operator_text)
        if self._awaiting is not None:
            self._awaiting.cancel()
            await asyncio.gather(self._awaiting, return_exceptions=True)
        self._listener.close()
        if self._process is not None:
            self._process.close()
        if self.host is not None:
            self.host.close()

    def _on_end(self) -> None:
        if self.host is not None:
            # First: what ends by it wants to know why.
            self.host.ended()
        self._link.lose("ENDED", "the sandbox's first process ended")

    def _await_again(self) -> None:
        self._awaiting = asyncio.get_running_loop().create_task(self._reconnect())

    def _dials_too_often(self, now: float) -> bool:
        self._reconnects.append(now)
        if len(self._reconnects) <= RECONNECTS_MAX:
            return False
        return now - self._reconnects.popleft() < RECONNECTS_WITHIN_S

    async def _reconnect(self) -> None:
        if self._dials_too_often(time.monotonic()):
            self._link.lose("PROTOCOL", "the guest dials again and again")
            return
        failed = "it did not dial again"
        greeted: Greeted | None = None
        try:
            async with asyncio.timeout(RECONNECT_S):
                while greeted is None:
                    await asyncio.sleep(RECONNECT_REST_S)
                    try:
                        greeted = await self._listener.accept_guest(self._expected)
                    except OSError as error:
                        # Such as no free descriptor, which may pass.
                        failed = str(error)
        except TimeoutError:
            self._link.lose("ENDED", f"the guest's connection ended; then: {failed}")
            return
        except Exception as error:  # noqa: BLE001 - requests wait for this task's word
            self._link.lose("ENDED", f"the guest's connection ended; then: {error!r}")
            return
        if self._link.lost.done():
            greeted.writer.transport.abort()
        else:
            self.report = greeted.hello.report
            self._link.attach(greeted.reader, greeted.writer, self.report.calls)
            self.on_report(self.report)


async def _discard(greeting: asyncio.Task[Greeted]) -> None:
    """Ends an attempt, and the connection of one that succeeded too late."""
    greeting.cancel()
    await asyncio.wait({greeting})
    if not greeting.cancelled() and greeting.exception() is None:
        greeting.result().writer.transport.abort()
