"""The kinds of faults, and where each applies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from sandboxd.fault_points import POINTS


class Kind(Enum):
    """What is done to the daemon, or to what it works with, while it stands at a point.

    Whatever is stopped goes on after 0.3 s.
    """

    DAEMON_KILL = "daemon SIGKILL"
    DAEMON_TERM = "daemon SIGTERM"
    DAEMON_STOP = "daemon SIGSTOP"
    CONTAINER_KILL = "container SIGKILL"
    GUEST_STOP = "guest SIGSTOP"
    SOCKET_CUT = "socket cut"
    ENGINE_FAIL = "engine call fails"
    ENGINE_HANG = "engine call hangs"


_CALL = frozenset(point for point in POINTS if point.startswith("call."))
_LINKED = _CALL | {"create.greeted", "create.saved", "recovery.adopted"}
"""Points at which a guest is connected."""
_RUNNING = _LINKED | {"engine.start.after", "delete.buried", "recovery.loaded"}
"""Points at which a container runs."""
_ENGINE = frozenset(point for point in POINTS if point.startswith("engine."))
"""At `before` a failing call had no effect; at `after` it had, and its answer is lost."""

_WHERE = {
    Kind.DAEMON_KILL: frozenset(POINTS),
    Kind.DAEMON_TERM: frozenset(POINTS),
    Kind.DAEMON_STOP: frozenset(POINTS),
    Kind.CONTAINER_KILL: _RUNNING,
    Kind.GUEST_STOP: _RUNNING,
    Kind.SOCKET_CUT: _LINKED,
    Kind.ENGINE_FAIL: _ENGINE,
    Kind.ENGINE_HANG: _ENGINE,
}


@dataclass(frozen=True)
class Fault:
    """One kind of harm at one point, for the given time."""

    point: str
    kind: Kind
    round: int

    def __str__(self) -> str:
        return f"{self.point} x {self.kind.value} (round {self.round})"


def applicable(points: list[str]) -> Iterator[tuple[str, Kind]]:
    """Every pair of a point and a kind that applies there."""
    for point in points:
        for kind in Kind:
            if point in _WHERE[kind]:
                yield point, kind


def plan(points: list[str], rounds: int) -> list[Fault]:
    """All faults, round by round, so that a run that is cut short has met every pair."""
    pairs = list(applicable(points))
    return [Fault(point, kind, number) for number in range(rounds) for point, kind in pairs]
