"""The fault suite in short, for every change: each point and each kind at least once.

`make test-faults` is the whole of it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.fault_points import POINTS
from tests import machine
from tests.faults.engine_view import IMAGE
from tests.faults.kinds import Fault, Kind, applicable
from tests.faults.own_engine import OwnEngine
from tests.faults.suite import Suite, Tally

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    machine.OWN_ENGINE,
]
WORKERS = 3
FAULTS = [
    *(Fault(point, Kind.DAEMON_KILL, number) for number, point in enumerate(POINTS)),
    Fault("call.sent", Kind.DAEMON_STOP, 1),
    Fault("call.sent", Kind.DAEMON_TERM, 0),
    Fault("call.sent", Kind.CONTAINER_KILL, 1),
    Fault("call.answered", Kind.GUEST_STOP, 1),
    Fault("call.sent", Kind.SOCKET_CUT, 1),
    Fault("engine.create.after", Kind.ENGINE_FAIL, 0),
    Fault("engine.remove.after", Kind.ENGINE_HANG, 0),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path, as sockets lie in it."""
    made = Path(tempfile.mkdtemp(prefix="faults-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def engine(folder: Path) -> Iterator[OwnEngine]:
    started = OwnEngine(folder / "engine")
    try:
        started.start().load(IMAGE, "sandboxd/toolbox:dev")
        yield started
    finally:
        started.end()


async def test_faults_at_every_point_break_no_promise(engine: OwnEngine, folder: Path) -> None:
    suite = Suite(folder, engine.host, Tally())
    suite.on_done = lambda what, violation: print(what, violation or "well")
    await suite.run(FAULTS, WORKERS)
    assert [f"{each.what}: {each.wrong}" for each in suite.tally.found] == []
    assert suite.tally.total == len(FAULTS)


def test_every_kind_applies_somewhere_and_the_plan_meets_every_point() -> None:
    pairs = set(applicable(list(POINTS)))
    assert {point for point, _ in pairs} == set(POINTS)
    assert {kind for _, kind in pairs} == set(Kind)
    assert {(fault.point, fault.kind) for fault in FAULTS} <= pairs
    assert {fault.kind for fault in FAULTS} == set(Kind)
