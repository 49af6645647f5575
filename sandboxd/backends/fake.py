"""A scripted backend, for tests of the rooms above.

It keeps the contract of `base.py`: what was created exists until it is removed,
a lost sandbox fails what is on its way, and removal can be repeated. A test says
what each op answers (`on_request`), makes the next step fail (`fail_next`) or
holds it (`hold`), and loses sandboxes (`FakeSandbox.lose`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxd.backends.base import Counted, Reply, Report, SandboxFacts, SandboxSpec
from sandboxd.errors import SandboxLost

Responder = Callable[["FakeRequest"], Awaitable[Reply]]


@dataclass(frozen=True)
class FakeRequest:
    """One request as the guest would see it."""

    sandbox: FakeSandbox
    op: str
    args: Mapping[str, Any]
    body: bytes
    reply_bytes_max: int


async def answer_nothing(request: FakeRequest) -> Reply:
    """The responder of a new backend: every op succeeds without facts."""
    del request
    return Reply({})


class FakeSandbox:
    """A sandbox whose guest is the backend's `on_request`."""

    def __init__(self, backend: FakeBackend, spec: SandboxSpec, facts: SandboxFacts) -> None:
        self.resource_id = spec.resource_id
        self.generation = spec.generation
        self.facts = facts
        self.secret_digest = secret_digest_of(spec)
        self.lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.report = Report(frozenset(backend.calls_alive), backend.sequence)
        self.on_report: Callable[[Report], None] = lambda _: None
        self.told_recorded: list[str] = []
        self.requests: list[FakeRequest] = []
        self.counts: Counted | None = None
        """What the host sees of its limits, the last victim, and why it ended."""
        self.victim = ""
        self.oom_end = False
        self._backend = backend
        self._running: set[asyncio.Task[Reply]] = set()

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        reply_bytes_max: int,
        timeout_s: float,
    ) -> Reply:
        """See `Channel.request`: who is cancelled leaves the op running."""
        if self.lost.done():
            raise self._loss()
        seen = FakeRequest(self, op, args, body, reply_bytes_max)
        self.requests.append(seen)
        task: asyncio.Task[Reply] = asyncio.create_task(self._answer(seen))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        either: set[asyncio.Future[Any]] = {task, self.lost}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not task.cancelled():
            return task.result()
        self.lose("SILENT")
        raise self._loss()

    def recorded(self, call_id: str) -> None:
        """Noted, for a test to look at."""
        self.told_recorded.append(call_id)

    def counted(self) -> Counted | None:
        """What a test set in `counts`."""
        return self.counts

    async def oom_victim(self) -> str:
        return self.victim

    async def ended_by_oom(self) -> bool:
        return self.oom_end

    async def _answer(self, request: FakeRequest) -> Reply:
        return await self._backend.on_request(request)

    def lose(self, cause: str = "ENDED") -> None:
        """The sandbox ends, as its own doing. Only the first call has an effect."""
        if not self.lost.done():
            self.lost.set_result(SandboxLost(cause, f"the test said {cause}"))
        for task in self._running:
            task.cancel()

    def _loss(self) -> SandboxLost:
        found = self.lost.result()
        assert isinstance(found, SandboxLost)
        return SandboxLost(found.cause, found.operator_text)


class FakeBackend:
    """A worker in memory.

    `running` holds the sandboxes of this daemon, `containers` the specifications
    of all that exist, also those of an earlier daemon: give both to another
    `FakeBackend` to play a restart.
    """

    name = "fake"
    isolated = True
    tells_oom = True

    def __init__(self, state_dir: Path, containers: dict[str, SandboxSpec] | None = None) -> None:
        self.containers: dict[str, SandboxSpec] = {} if containers is None else containers
        self.stores: set[str] = set(self.containers)
        self.running: dict[str, FakeSandbox] = {}
        self.on_request: Responder = answer_nothing
        self.calls: list[tuple[str, str]] = []
        """Every call of the interface and its resource id, in order."""
        self.calls_alive: set[str] = set()
        """What a guest that is adopted reports as its calls, and `sequence` with it."""
        self.sequence = 0
        self._state_dir = state_dir
        self._failures: dict[str, list[Exception]] = {}
        self._gates: dict[str, asyncio.Event] = {}

    def fail_next(self, step: str, *errors: Exception) -> None:
        """The next calls of `step` (`create`, `adopt`, `release`, `remove`, ...) raise these."""
        self._failures.setdefault(step, []).extend(errors)

    def hold(self, step: str) -> asyncio.Event:
        """Calls of `step` wait until the event is set."""
        return self._gates.setdefault(step, asyncio.Event())

    async def start(self) -> None:
        await self._step("start", "")

    async def stop(self) -> None:
        await self._step("stop", "")
        for sandbox in self.running.values():
            sandbox.lose("SHUTDOWN")
        self.running.clear()

    async def create(self, spec: SandboxSpec, on_phase: Callable[[str], None]) -> FakeSandbox:
        for phase in ("pull", "create", "start", "guest_ready"):
            on_phase(phase)
        await self._step("create", spec.resource_id)
        self.containers[spec.resource_id] = spec
        self.stores.add(spec.resource_id)
        return self._sandbox(spec, facts_of(spec))

    async def adopt(
        self, spec: SandboxSpec, facts: SandboxFacts, secret_digest: str
    ) -> FakeSandbox | None:
        await self._step("adopt", spec.resource_id)
        exists = self.containers.get(spec.resource_id)
        if exists is None or exists.generation != spec.generation:
            return None
        if secret_digest != secret_digest_of(exists):
            return None
        return self._sandbox(spec, facts)

    async def release(self, resource_id: str) -> None:
        await self._step("release", resource_id)
        self._end(resource_id)

    async def remove(self, resource_id: str) -> None:
        await self._step("remove", resource_id)
        self._end(resource_id)
        self.stores.discard(resource_id)

    async def owned(self) -> set[str]:
        await self._step("owned", "")
        return set(self.containers) | self.stores

    def state_folder_of(self, resource_id: str) -> Path:
        return self._state_dir / "s" / resource_id

    def _sandbox(self, spec: SandboxSpec, facts: SandboxFacts) -> FakeSandbox:
        sandbox = self.running[spec.resource_id] = FakeSandbox(self, spec, facts)
        return sandbox

    def _end(self, resource_id: str) -> None:
        self.containers.pop(resource_id, None)
        sandbox = self.running.pop(resource_id, None)
        if sandbox is not None:
            sandbox.lose("DELETED")

    async def _step(self, step: str, resource_id: str) -> None:
        self.calls.append((step, resource_id))
        gate = self._gates.get(step)
        if gate is not None:
            await gate.wait()
        failures = self._failures.get(step)
        if failures:
            raise failures.pop(0)


def secret_digest_of(spec: SandboxSpec) -> str:
    return hashlib.sha256(f"{spec.resource_id}:{spec.generation}".encode()).hexdigest()


def facts_of(spec: SandboxSpec) -> SandboxFacts:
    """Facts as a container with the profile's limits would have them."""
    profile = spec.profile
    return SandboxFacts(
        image=profile.image,
        image_digest="sha256:" + "0" * 64,
        runtime=profile.runtime,
        uid=60_000,
        gid=60_000,
        memory_bytes=int(profile.memory),
        cpu_millis=round(profile.cpus * 1000),
        pids=profile.pids,
        disk_bytes=0,
        tmp_bytes=int(profile.tmp),
        network=profile.network,
        quota_mechanism="none",
        working_directory="/workspace",
        home_directory="/home/sandbox",
        shell="/bin/bash",
        search_engine="ripgrep 14.1.0",
        phases_s={"pull": 0.0, "create": 0.0, "start": 0.0, "guest_ready": 0.0},
    )
