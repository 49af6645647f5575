"""Callers of process verbs that leave: what they asked ends in the guest as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.backends.fake import FakeRequest
from sandboxd.errors import GuestFault, SandboxLost, VerbSandboxLost
from sandboxd.sessions.guest_waits import WAITS_MAX, GuestWaits
from tests.unit.sessions.scripted_processes import STAND, ScriptedProcesses, piece
from tests.unit.sessions.test_processes import KEY, Place
from tests.unit.worker import running, until


class WaitingGuest(ScriptedProcesses):
    """Keeps waits under the rules of the real guest: to their end, or to `wait_end`."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, asyncio.Event] = {}
        self.most = 0
        self.ended = 0
        self.refuses: Exception | None = None
        """What `wait_end` is answered instead."""
        self.open = asyncio.Event()
        self.open.set()
        """Cleared while it does not come to `wait_end`."""

    async def answer(self, request: FakeRequest) -> Reply:
        if request.op == "wait_end":
            return await self._end(int(request.args["wait"]))
        wait_s = float(request.args.get("wait_s") or 0)
        if wait_s:
            await self._wait(int(request.args["wait"]), wait_s)
        if request.op == "process_read":
            return Reply(*piece(b""))
        return await super().answer(request)

    async def _wait(self, number: int, wait_s: float) -> None:
        left = self.waiting[number] = asyncio.Event()
        self.most = max(self.most, len(self.waiting))
        try:
            async with asyncio.timeout(wait_s):
                await left.wait()
        except TimeoutError:
            return
        finally:
            del self.waiting[number]
        raise GuestFault("CANCELLED_BY_CALLER", "nobody waits for it any more", {})

    async def _end(self, number: int) -> Reply:
        await self.open.wait()
        if self.refuses is not None:
            raise self.refuses
        self.ended += 1
        if number in self.waiting:
            self.waiting[number].set()
        return Reply({"found": True})


class Scene(Place):
    guest: WaitingGuest

    def wait(self) -> asyncio.Task[Any]:
        return asyncio.create_task(self.processes.wait(KEY, "p", 60))

    def holds(self, count: int) -> bool:
        return len(self.guest.waiting) == count

    def follow(self) -> asyncio.Task[Any]:
        return asyncio.create_task(self.pieces(follow=True))


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with running(tmp_path) as worker:
        guest = WaitingGuest()
        guest.known["p"] = dict(STAND)
        worker.backend.on_request = guest.answer
        await worker.create()
        found = Scene(worker, guest)
        await found.start()
        yield found


async def leave(*tasks: asyncio.Task[Any]) -> list[Any]:
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("kind", ["wait", "follow"])
async def test_wait_of_a_caller_that_left_ends_in_the_guest(scene: Scene, kind: str) -> None:
    stays = scene.wait()
    await until(lambda: len(scene.guest.waiting) == 1)
    task = getattr(scene, kind)()
    await until(lambda: len(scene.guest.waiting) == 2)
    await leave(task)
    await until(lambda: len(scene.guest.waiting) == 1)
    assert not stays.done()
    await leave(stays)


@pytest.mark.parametrize("kind", ["wait", "follow"])
async def test_thousands_that_left_are_refused_nothing(scene: Scene, kind: str) -> None:
    """Seen: 520 that left within seconds filled the guest, and everybody was refused."""
    for _ in range(20):
        tasks = [getattr(scene, kind)() for _ in range(100)]
        await until(lambda: len(scene.guest.waiting) >= 50)
        answers = await leave(*tasks)
        assert {type(answer) for answer in answers} == {asyncio.CancelledError}
    assert scene.guest.most <= WAITS_MAX < 512 - 2 * limits.CALLS_PARALLEL_MAX
    await until(lambda: not scene.guest.waiting)


async def test_who_leaves_faster_than_the_guest_lets_go_waits_for_it(scene: Scene) -> None:
    scene.guest.open.clear()
    for count in range(64, WAITS_MAX + 1, 64):
        tasks = [scene.wait() for _ in range(64)]
        await until(partial(scene.holds, count))
        await leave(*tasks)
    assert len(scene.guest.waiting) == WAITS_MAX
    late = scene.wait()
    # What does not wait in the guest is answered all the same.
    assert await scene.processes.signal(KEY, "p", None, 10)
    assert len(scene.guest.waiting) == WAITS_MAX
    assert not late.done()
    scene.guest.open.set()
    await until(lambda: len(scene.guest.waiting) == 1)
    await leave(late)


async def test_place_is_given_back_where_the_guest_cannot_end_a_wait(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = GuestWaits()
    scene.guest.refuses = GuestFault("INVALID_INPUT", "no such op", {})
    asked = waits.ask(
        scene.worker.sandbox(),
        "process_wait",
        {"process_id": "p"},
        b"",
        wait_s=0.3,
        reply_bytes_max=9,
    )
    task = asyncio.create_task(asked)
    await until(lambda: scene.guest.waiting)
    await leave(task)
    assert waits._places._value == WAITS_MAX - 1
    await until(lambda: waits._places._value == WAITS_MAX)
    assert not scene.guest.waiting


async def test_wait_is_ended_again_after_a_connection_that_ended(scene: Scene) -> None:
    scene.guest.refuses = SandboxLost("ENDED", "the connection ended")
    task = scene.wait()
    await until(lambda: scene.guest.waiting)
    await leave(task)
    await asyncio.sleep(0)
    scene.guest.refuses = None
    await until(lambda: not scene.guest.waiting)
    assert scene.guest.ended == 1


async def test_sandbox_that_ends_lets_go_of_all(scene: Scene) -> None:
    scene.guest.open.clear()
    left, stays = scene.wait(), scene.wait()
    await until(lambda: len(scene.guest.waiting) == 2)
    await leave(left)
    endings = [task for task in asyncio.all_tasks() if task.get_coro().__name__ == "_end"]  # type: ignore[union-attr]
    assert endings
    scene.worker.sandbox().lose()
    with pytest.raises(VerbSandboxLost):
        await stays
    await until(lambda: all(task.done() for task in endings))
