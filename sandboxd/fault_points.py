"""Named steps at which a test can stop the daemon, and do harm meanwhile.

Inert unless the variable SANDBOXD_FAULT_POINTS names a Unix socket on which a test listens.
Then the daemon that comes to a point connects, sends the point's name as one line, and does
what the line that comes back says:

    go              goes on
    fail            raises the fault that the caller of the point named
    hang SECONDS    goes on after that time

Until the answer comes the daemon stands at the point, and only the step that came there does:
the test may kill, stop or starve whatever it likes. A test that is gone is as good as `go`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

VARIABLE: Final = "SANDBOXD_FAULT_POINTS"

POINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "call.found": "its turn has come, nothing of it is in the ledger, nothing was sent",
        "call.reserved": "the reservation is durable, nothing was sent",
        "call.sent": "the request has been handed to the guest's connection, nothing came back",
        "call.answered": "its outcome is known to this daemon alone, nothing is recorded",
        "call.recorded": "the result is durable, nobody was told, the guest still keeps it",
        "create.inserted": "the session's row is durable, nothing else exists",
        "create.prepared": "its folder, secret and socket exist, no container does",
        "engine.create.before": "the engine has not been asked for the container",
        "engine.create.after": "the container exists, nobody was told its id",
        "engine.start.before": "the container exists and has not been started",
        "engine.start.after": "the container runs, nobody was told",
        "create.greeted": "the guest has proved itself, it has no settings, the row is as before",
        "create.saved": "the row says READY, nobody was told",
        "delete.buried": "the tombstone is durable, everything else exists",
        "delete.killed": "the processes are dead, the engine was not told",
        "engine.remove.before": "the engine has not been asked to remove the container",
        "engine.remove.after": "the container is gone, nobody was told",
        "delete.store_removed": "container and folder are gone, the ledger's rows exist",
        "delete.marked": "the row says that nothing is left, the caller was not told",
        "sweep.listed": "what exists has been listed, nothing was compared",
        "sweep.removed": "one thing that no session owned is gone, others may be left",
        "recovery.loaded": "the rows have been read, no session is taken up",
        "recovery.adopted": "a guest of an earlier daemon is back, its session is not READY",
        "restart.counted": "the next generation is durable, the last one may still exist",
        "restart.released": "nothing runs of the last generation, the next has not begun",
    }
)
"""Every point, and what is true while the daemon stands there."""

_SOCKET: Final = os.environ.get(VARIABLE, "")

_Result = TypeVar("_Result")


class FaultWanted(Exception):
    """A test asked for a failure at a point whose caller names none."""


async def reach(point: str, fail: Callable[[str], Exception] = FaultWanted) -> None:
    """Says that the daemon has come to this point; returns at once unless a test listens.

    `fail` makes the exception that a test can ask for, of one text.
    """
    if not _SOCKET:
        return
    if point not in POINTS:
        raise KeyError(point)
    try:
        reader, writer = await asyncio.open_unix_connection(_SOCKET)
    except OSError:
        return
    try:
        writer.write(point.encode() + b"\n")
        answer = (await reader.readline()).decode().split()
    except OSError:
        return
    finally:
        writer.close()
    hang_s = _hang_s(point, answer, fail)
    if hang_s:
        await asyncio.sleep(hang_s)


def around(
    step: str, work: Callable[[], _Result], fail: Callable[[str], Exception] = FaultWanted
) -> Callable[[], _Result]:
    """`work` between the points `step.before` and `step.after`. For a thread of its own."""
    if not _SOCKET:
        return work

    def met() -> _Result:
        _reach_on_thread(f"{step}.before", fail)
        result = work()
        _reach_on_thread(f"{step}.after", fail)
        return result

    return met


def _reach_on_thread(point: str, fail: Callable[[str], Exception]) -> None:
    if point not in POINTS:
        raise KeyError(point)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(_SOCKET)
            connection.sendall(point.encode() + b"\n")
            answer = connection.makefile("rb").readline().decode().split()
    except OSError:
        return
    time.sleep(_hang_s(point, answer, fail))


def _hang_s(point: str, answer: list[str], fail: Callable[[str], Exception]) -> float:
    """Seconds to wait as the answer says. Raises what `fail` makes where it says that."""
    match answer:
        case ["fail"]:
            raise fail(f"a test wants `{point}` to fail")
        case ["hang", seconds]:
            return float(seconds)
    return 0.0
