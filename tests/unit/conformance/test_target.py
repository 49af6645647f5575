"""Sessions of a run: none is left behind, and ending one says nothing of a rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from sandbox_adapter import errors
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Outcome
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.conformance.runner import Runner
from sandbox_adapter.conformance.target import Target, TrackingClient
from sandbox_adapter.v1 import adapter_pb2, session_pb2, session_pb2_grpc
from tests.unit.orchestrator.folder_adapter import Context, fail

Made = Callable[[str], Awaitable[None]]


class Sessions(session_pb2_grpc.SessionServiceServicer):
    """Makes and ends sessions as a test wants, and knows which are there."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.made: list[str] = []
        self.stuck = False
        """Whether none can be ended."""
        self.slow = False
        """Whether no request to make one is answered."""
        self.asked = asyncio.Event()

    async def CreateSession(
        self, request: session_pb2.CreateSessionRequest, context: Context
    ) -> session_pb2.CreateSessionResponse:
        if request.profile == "refused":
            await fail(context, "INVALID_ARGUMENT", "PROFILE_UNKNOWN")
        session_id = request.session_id or "chosen"
        self.there.add(session_id)
        self.made.append(session_id)
        self.asked.set()
        if self.slow:
            await asyncio.Event().wait()
        session = session_pb2.Session(session_id=session_id)
        return session_pb2.CreateSessionResponse(session=session)

    async def DeleteSession(
        self, request: session_pb2.DeleteSessionRequest, context: Context
    ) -> session_pb2.DeleteSessionResponse:
        if self.stuck:
            await fail(context, "INTERNAL", "INTERNAL_ERROR")
        if request.session_id not in self.there:
            await fail(context, "NOT_FOUND", "SESSION_UNKNOWN")
        self.there.remove(request.session_id)
        return session_pb2.DeleteSessionResponse()


@asynccontextmanager
async def targeted(folder: Path, sessions: Sessions) -> AsyncIterator[Target]:
    server = grpc.aio.server()
    session_pb2_grpc.add_SessionServiceServicer_to_server(sessions, server)
    address = f"unix:{folder}/s.sock"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with TrackingClient(address) as client:
            yield Target(client, adapter_pb2.GetInfoResponse(), "")
    finally:
        await server.stop(0)


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
async def target(tmp_path: Path, sessions: Sessions) -> AsyncIterator[Target]:
    async with targeted(tmp_path, sessions) as found:
        yield found


async def test_session_that_cannot_be_ended_is_told_and_stays_no_verdict(
    target: Target, sessions: Sessions
) -> None:
    sessions.stuck = True

    @rule("a.own", needs=(), alone=True)
    async def own(place: Place) -> None:
        """It has a session of its own."""

    @rule("a.shared", needs=())
    async def shared(place: Place) -> None:
        """It shares one."""

    verdicts = [each async for each in Runner(target, {}).run([own, shared])]
    await target.close()
    assert [each.outcome for each in verdicts] == [Outcome.PASS, Outcome.PASS]
    assert len(set(target.problems)) == 2
    assert all("could not be ended: INTERNAL" in problem for problem in target.problems)


async def test_broken_rule_stays_broken_where_its_session_cannot_be_ended(
    target: Target, sessions: Sessions
) -> None:
    sessions.stuck = True

    @rule("a.own", needs=(), alone=True)
    async def own(place: Place) -> None:
        """It has a session of its own."""
        expect.equal(1, 2, "the number")

    (verdict,) = [each async for each in Runner(target, {}).run([own])]
    assert verdict.detail == "the number: 1, expected 2"


async def test_session_whose_request_was_cut_off_is_ended(
    target: Target, sessions: Sessions
) -> None:
    sessions.slow = True
    making = asyncio.create_task(target.client.create_session())
    await sessions.asked.wait()
    making.cancel()
    await asyncio.wait({making})
    assert sessions.there
    await target.close()
    assert (sessions.there, target.problems) == (set(), [])


@pytest.mark.parametrize("session_id", ["given", ""])
async def test_session_that_should_have_been_refused_is_ended(
    target: Target, sessions: Sessions, session_id: str
) -> None:
    request = session_pb2.CreateSessionRequest(session_id=session_id)
    await target.send(target.sessions.CreateSession, request)
    await target.client.create_session(labels={"bad": "label"})
    assert len(sessions.there) == 2
    await target.close()
    assert (sessions.there, target.problems) == (set(), [])


async def test_refused_session_is_none_to_end(target: Target, sessions: Sessions) -> None:
    with pytest.raises(errors.ProfileUnknown):
        await target.client.create_session(profile="refused")
    request = session_pb2.CreateSessionRequest(session_id="x", profile="refused")
    with pytest.raises(errors.ProfileUnknown):
        await target.send(target.sessions.CreateSession, request)
    assert target.client.opened == set()


async def test_refused_request_for_a_session_that_is_there_forgets_it_not(
    target: Target, sessions: Sessions
) -> None:
    await target.client.create_session(session_id="x")
    with pytest.raises(errors.ProfileUnknown):
        await target.client.create_session(session_id="x", profile="refused")
    await target.close()
    assert sessions.there == set()


async def test_session_with_a_call_left_in_it_is_replaced_and_ended_after_its_last_rule(
    target: Target, sessions: Sessions
) -> None:
    hung = asyncio.Event()

    @rule("a.hangs", needs=(), timeout_s=0.05)
    async def hangs(place: Place) -> None:
        """It hangs."""
        try:
            await asyncio.Event().wait()
        finally:
            hung.set()

    @rule("a.beside", needs=())
    async def beside(place: Place) -> None:
        """It runs beside it, in the same session."""
        await hung.wait()
        while target.problems or len(sessions.made) < 2:  # noqa: ASYNC110 - another rule makes it
            await asyncio.sleep(0.01)
        expect.holds(place.session_id in sessions.there, "its session is gone")

    @rule("a.after", needs=())
    async def after(place: Place) -> None:
        """It comes later."""
        expect.equal(place.session_id, sessions.made[1], "session")

    runner = Runner(target, {}, jobs=2)
    verdicts = [each async for each in runner.run([hangs, beside, after])]
    assert [each.outcome for each in verdicts] == [Outcome.FAIL, Outcome.PASS, Outcome.PASS]
    assert sessions.there == {sessions.made[1]}
    await target.close()
    assert sessions.there == set()
