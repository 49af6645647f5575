"""Whether lack of memory ended a sandbox: who is believed, and for how long it is waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.backends import host_view
from sandboxd.backends.cgroup_counters import CgroupCounters
from sandboxd.backends.cgroups import ContainerCgroup
from sandboxd.backends.host_view import HostView
from sandboxd.backends.oom_victim import Victim
from sandboxd.errors import EngineDown

CONTAINER = "a" * 64
INIT = 4711


class Cgroup:
    """A v1 memory cgroup in a plain folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.killed(0, 0)
        (folder / "memory.max_usage_in_bytes").write_text("1000\n")
        self.counters = CgroupCounters(ContainerCgroup(CONTAINER, (folder,)))

    def killed(self, own: int, commands: int) -> None:
        (self.folder / "commands").mkdir(exist_ok=True)
        for name, count in (("", own), ("commands/", commands)):
            (self.folder / f"{name}memory.oom_control").write_text(f"oom_kill {count}\n")


@pytest.fixture
def cgroup(tmp_path: Path) -> Iterator[Cgroup]:
    made = Cgroup(tmp_path)
    yield made
    made.counters.close()


@pytest.fixture
async def view(cgroup: Cgroup) -> HostView:
    return HostView(CONTAINER, INIT, cgroup.counters)


@pytest.fixture(autouse=True)
def victims(monkeypatch: pytest.MonkeyPatch) -> list[Victim]:
    """What the kernel's log says; the real one knows nothing of these containers."""
    told: list[Victim] = []
    monkeypatch.setattr(host_view, "last_victims", lambda _container: told)
    return told


async def unasked() -> bool:
    raise AssertionError("the engine is not asked where the kernel tells")


async def test_killed_first_process_is_seen_in_its_own_cgroup(
    cgroup: Cgroup, view: HostView
) -> None:
    cgroup.killed(own=1, commands=0)
    view.ended()
    assert await view.ended_by_oom()
    await view.settle(unasked)


async def test_end_without_a_kill_is_no_lack_of_memory(view: HostView) -> None:
    view.ended()
    assert not await view.ended_by_oom()
    await view.settle(unasked)


async def test_kills_of_commands_before_the_end_are_not_the_end(
    cgroup: Cgroup, view: HostView
) -> None:
    cgroup.killed(own=0, commands=3)
    view.ended()
    assert not await view.ended_by_oom()


@pytest.mark.parametrize("told", [True, False])
async def test_engine_is_asked_where_the_kill_was_counted_before_the_end(
    cgroup: Cgroup, view: HostView, told: bool
) -> None:
    """Seen: the last reading came between the guest's kill and its end, and nothing rose."""
    cgroup.killed(own=1, commands=0)
    assert view.counted() is not None
    view.ended()

    async def ask() -> bool:
        return told

    await view.settle(ask)
    assert await view.ended_by_oom() is told


@pytest.mark.parametrize(("pid", "by_oom"), [(INIT, True), (INIT + 1, False)])
async def test_kernels_log_decides_where_the_kill_was_counted_before_the_end(
    cgroup: Cgroup, view: HostView, victims: list[Victim], pid: int, by_oom: bool
) -> None:
    victims.append(Victim("python3", pid))
    cgroup.killed(own=2, commands=0)
    assert view.counted() is not None
    view.ended()
    await view.settle(unasked)
    assert await view.ended_by_oom() is by_oom


@pytest.mark.parametrize(("pid", "by_oom"), [(INIT, True), (INIT + 1, False)])
async def test_kernels_log_decides_who_was_killed(
    cgroup: Cgroup, view: HostView, victims: list[Victim], pid: int, by_oom: bool
) -> None:
    victims.append(Victim("python3", pid))
    cgroup.killed(own=1, commands=0)
    view.ended()
    assert await view.ended_by_oom() is by_oom
    assert await view.oom_victim() == "python3"


@pytest.mark.parametrize("told", [True, False])
async def test_engine_is_asked_where_the_cgroup_is_gone(
    cgroup: Cgroup, view: HostView, told: bool
) -> None:
    cgroup.counters.close()
    view.ended()
    waiting = asyncio.create_task(view.ended_by_oom())

    async def ask() -> bool:
        return told

    await view.settle(ask)
    assert await waiting is told


async def test_engine_that_is_down_says_nothing(cgroup: Cgroup, view: HostView) -> None:
    cgroup.counters.close()
    view.ended()

    async def ask() -> bool:
        raise EngineDown("no answer")

    await view.settle(ask)
    assert not await view.ended_by_oom()


async def test_engine_that_hangs_costs_a_bounded_time(
    cgroup: Cgroup, view: HostView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_view, "VERDICT_S_MAX", 0.05)
    cgroup.counters.close()
    view.ended()

    async def ask() -> bool:
        return await asyncio.Future()

    begun = time.monotonic()
    assert not await view.ended_by_oom()
    await view.settle(ask)
    assert not await view.ended_by_oom()
    assert time.monotonic() - begun < 2


async def test_sandbox_that_is_ended_on_purpose_is_not_asked_about(view: HostView) -> None:
    await view.settle(unasked)
    view.close()
    assert not await view.ended_by_oom()


async def test_peak_is_known_after_the_cgroup_is_gone(cgroup: Cgroup, view: HostView) -> None:
    (cgroup.folder / "memory.max_usage_in_bytes").write_text("2000\n")
    view.ended()
    view.close()
    last = view.counted()
    assert last is not None
    assert last.memory_peak_bytes == 2000
