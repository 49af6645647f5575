"""Rules on the end of a session's time: idle timeout and lifetime (contract.md 3).

Times are as short as a session of the profile can be started and used in.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from google.protobuf.duration_pb2 import Duration

from sandbox_adapter import errors
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.v1 import session_pb2

END_S: Final = 75.0
"""Time in which a session whose time is over must be gone: its end begins within a minute
(session.proto), and takes a moment."""
EXPIRY_S: Final = 180.0
"""Time for rules that wait for a session's end."""


@rule("sessions.lifetime-ends-calls", cases=["contract 3"], timeout_s=EXPIRY_S)
async def lifetime_ends_calls(place: Place) -> None:
    """The end of the lifetime ends a running call and deletes the session."""
    await place.require("sleep")
    async with _short(place, max_lifetime_s=2 * _start_s(place) + 3) as session:
        own = Place(place.target, session, session.effective.working_directory)
        result = await own.bash("sleep 300")
        expect.ending_is(result, "CANCELLED")
        expect.equal(expect.reason_of(result), "CANCELLED_BY_EXPIRY", "reason")
        await _until_deleted(place, session.session_id)


@rule("sessions.idle-ones-expire", cases=["contract 3"], needs=(), timeout_s=EXPIRY_S)
async def idle_ones_expire(place: Place) -> None:
    """A session that nobody uses is deleted when its idle timeout is over; looking is no use."""
    idle_s = _idle_s(place)
    async with _short(place, idle_timeout_s=idle_s) as session:
        expect.equal(session.idle_timeout, Duration(seconds=idle_s), "idle timeout")
        await _until_deleted(place, session.session_id)


@rule("sessions.running-calls-hold-off-idle-expiry", cases=["contract 3"], timeout_s=EXPIRY_S)
async def running_calls_hold_off_idle_expiry(place: Place) -> None:
    """A running call holds off idle expiry."""
    await place.require("sleep")
    idle_s = _idle_s(place)
    async with _short(place, idle_timeout_s=idle_s) as session:
        own = Place(place.target, session, session.effective.working_directory)
        script = ": > begun; until [ -e over ]; do sleep 1; done; echo done"
        running = asyncio.create_task(own.bash(script))
        await own.until_made("begun", running)
        # Used later than the one whose call runs: once it is gone, that one's time was over.
        async with _short(place, idle_timeout_s=idle_s) as unused:
            await _until_deleted(place, unused.session_id)
        expect.fine(await own.write("over", ""))
        expect.exited(await running, 0, "done\n")


def _start_s(place: Place) -> int:
    """How long a session of this profile takes to start, in whole seconds, rounded up."""
    phases = place.session.phases
    return math.ceil(sum(phase.duration.ToNanoseconds() for phase in phases) / 1e9)


def _idle_s(place: Place) -> int:
    return _start_s(place) + 1


@asynccontextmanager
async def _short(place: Place, **times: float) -> AsyncIterator[session_pb2.Session]:
    """A session that soon expires. Raises `Uncheckable` where the profile allows none."""
    async with AsyncExitStack() as stack:
        try:
            session = await stack.enter_async_context(place.target.session(**times))
        except errors.AdapterError as error:
            if error.reason != "PROFILE_FORBIDS":
                raise
            raise Uncheckable(f"the profile forbids so short a time: {times}") from None
        yield session


async def _until_deleted(place: Place, session_id: str) -> None:
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        try:
            await place.client.get_session(session_id)
        except errors.SessionDeleted:
            return
        await asyncio.sleep(0.2)
    raise Broken(f"the session is still there {END_S:.0f} s after its time was to end")
