"""The steps at which a test can stop the daemon: inert unless one listens, and all in place."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxd import fault_points
from sandboxd.errors import EngineDown
from tests.faults.point_server import PointServer

SOURCES = Path(fault_points.__file__).parent
PLACED = re.compile(r'fault_points\.(reach|around)\(\s*"([a-z_.]+)"')


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PointServer]:
    started = PointServer(tmp_path / "points.sock")
    await started.start()
    monkeypatch.setattr(fault_points, "_SOCKET", str(started.path))
    yield started
    await started.close()


def test_point_that_no_test_listens_to_does_not_even_suspend() -> None:
    for point in (*fault_points.POINTS, "no such point"):
        with pytest.raises(StopIteration):
            fault_points.reach(point).send(None)


def test_work_that_no_test_listens_to_is_left_as_it_is() -> None:
    def work() -> None: ...

    assert fault_points.around("engine.create", work) is work


def test_every_point_of_the_table_is_placed_once_and_no_other_is() -> None:
    placed: list[str] = []
    for path in SOURCES.rglob("*.py"):
        for way, name in PLACED.findall(path.read_text(encoding="utf-8")):
            placed += [name] if way == "reach" else [f"{name}.before", f"{name}.after"]
    assert sorted(placed) == sorted(fault_points.POINTS)


async def test_held_point_waits_for_its_answer_and_others_pass(server: PointServer) -> None:
    hold = server.arm("call.sent")
    held = asyncio.create_task(fault_points.reach("call.sent"))
    await asyncio.wait_for(hold.reached.wait(), 5)
    await asyncio.wait_for(fault_points.reach("call.found"), 5)
    assert not held.done()
    hold.answer()
    await asyncio.wait_for(held, 5)
    # One hold is for one arrival.
    await asyncio.wait_for(fault_points.reach("call.sent"), 5)
    assert server.met == {"call.sent": 2, "call.found": 1}


async def test_test_can_ask_for_a_fault_and_for_a_pause(server: PointServer) -> None:
    server.arm("call.sent").answer("fail")
    with pytest.raises(fault_points.FaultWanted):
        await fault_points.reach("call.sent")
    server.arm("call.sent").answer("hang 0.2")
    begun = time.monotonic()
    await fault_points.reach("call.sent")
    assert time.monotonic() - begun >= 0.2


async def test_work_on_a_thread_fails_before_or_after_it_had_its_effect(
    server: PointServer,
) -> None:
    done: list[str] = []
    work = fault_points.around("engine.remove", lambda: done.append("effect"), EngineDown)
    for point, effects in (("engine.remove.before", 0), ("engine.remove.after", 1)):
        done.clear()
        server.arm(point).answer("fail")
        with pytest.raises(EngineDown):
            await asyncio.to_thread(work)
        assert len(done) == effects
    await asyncio.to_thread(work)
    assert len(done) == 2


async def test_test_that_is_gone_holds_nothing_up(server: PointServer) -> None:
    await server.close()
    server.path.unlink()
    await fault_points.reach("call.sent")
    work = fault_points.around("engine.start", lambda: "well")
    assert await asyncio.to_thread(work) == "well"


async def test_point_that_is_not_in_the_table_is_refused_while_a_test_listens(
    server: PointServer,
) -> None:
    with pytest.raises(KeyError):
        await fault_points.reach("no such point")
