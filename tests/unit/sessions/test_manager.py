"""Sessions over a real store and a real server: create, list, update, delete, restart, expiry."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc import aio

from sandbox_adapter.v1 import error_pb2, session_pb2, tool_pb2
from sandboxd.backends.fake import FakeBackend
from sandboxd.errors import CreateFailed, EngineDown, SandboxdError
from sandboxd.sessions import starts
from tests.unit.worker import Worker, reason_of, retry_s, running, until

READY = session_pb2.SESSION_STATE_READY


async def _code_and_reason(attempt: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as failed:
        await attempt  # type: ignore[misc]
    return failed.value.code(), reason_of(failed.value)


async def test_create_echoes_what_is_in_force_and_times_its_phases(worker: Worker) -> None:
    session = await worker.create(labels={"team": "a"})
    assert session.state == READY
    assert session.generation == 1
    assert session.effective.working_directory == "/workspace"
    assert session.effective.image_digest.startswith("sha256:")
    assert [phase.name for phase in session.phases] == [
        "admit",
        "pull",
        "create",
        "start",
        "guest_ready",
    ]
    assert dict(session.labels) == {"team": "a"}
    sent = [request for request in worker.sandbox().requests if request.op == "configure"]
    assert len(sent) == 1


async def test_parallel_creates_of_one_id_make_one_sandbox(worker: Worker) -> None:
    request = session_pb2.CreateSessionRequest(session_id="s1")
    answers = await asyncio.gather(*(worker.sessions.CreateSession(request) for _ in range(20)))
    assert [step for step, _ in worker.backend.calls].count("create") == 1
    assert sum(not answer.replayed for answer in answers) == 1


async def test_create_with_other_parameters_is_a_conflict(worker: Worker) -> None:
    await worker.create(env={"A": "1"})
    found = await _code_and_reason(worker.create(env={"A": "2"}))
    assert found == (grpc.StatusCode.ALREADY_EXISTS, "ID_CONFLICT")


async def test_id_of_a_deleted_session_is_remembered_across_daemons(tmp_path: Path) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
        await worker.delete()
        await worker.delete()
        backend = worker.backend
    async with running(tmp_path, backend) as worker:
        expected = (grpc.StatusCode.FAILED_PRECONDITION, "SESSION_DELETED")
        assert await _code_and_reason(worker.create()) == expected
        assert await _code_and_reason(worker.get()) == expected
        assert await _code_and_reason(worker.call("c1")) == expected
        await worker.delete()


async def test_unknown_session_is_not_found(worker: Worker) -> None:
    expected = (grpc.StatusCode.NOT_FOUND, "SESSION_UNKNOWN")
    assert await _code_and_reason(worker.get("nobody")) == expected
    assert await _code_and_reason(worker.delete("nobody")) == expected


@pytest.mark.parametrize("reason", ["PULL_FAILED", "START_FAILED", "GUEST_NOT_READY"])
async def test_failed_create_leaves_nothing_and_its_id_can_be_used_again(
    worker: Worker, reason: str
) -> None:
    worker.backend.fail_next("create", CreateFailed(reason, "no", "the engine's own words"))
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.create()
    assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason_of(failed.value) == reason
    assert "engine's own" not in (failed.value.details() or "")
    assert len(worker.parts.directory) == 0
    assert (await worker.create()).state == READY


async def test_engine_that_is_down_is_unavailable_with_a_delay(worker: Worker) -> None:
    worker.backend.fail_next("create", EngineDown("connection refused"))
    with pytest.raises(aio.AioRpcError) as failed:
        await worker.create()
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert reason_of(failed.value) == "ENGINE_DOWN"
    assert retry_s(failed.value) > 0


async def test_last_place_is_given_once(tmp_path: Path) -> None:
    async with running(tmp_path, sessions_max=3) as worker:
        answers = await asyncio.gather(
            *(worker.create(f"s{index}") for index in range(8)), return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, aio.AioRpcError)]
        assert len(refused) == 5
        assert {reason_of(error) for error in refused} == {"SESSIONS_EXHAUSTED"}
        assert min(retry_s(error) for error in refused) > 0
        await worker.delete(next(x.session_id for x in worker.parts.directory.all()))
        await worker.create("another")


async def test_creates_at_the_engine_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, creates_parallel_max=2) as worker:
        gate = worker.backend.hold("create")
        waiting = [asyncio.ensure_future(worker.create(f"s{index}")) for index in range(6)]
        await until(lambda: len(worker.parts.directory) == 6)
        await until(lambda: _creates(worker) == 2)
        gate.set()
        await asyncio.gather(*waiting)
        assert _creates(worker) == 6


def _creates(worker: Worker) -> int:
    return sum(step == "create" for step, _ in worker.backend.calls)


async def test_create_goes_on_when_its_caller_leaves(worker: Worker) -> None:
    gate = worker.backend.hold("create")
    rpc = worker.sessions.CreateSession(session_pb2.CreateSessionRequest(session_id="s1"))
    await until(lambda: _creates(worker) == 1)
    rpc.cancel()
    gate.set()
    await worker.state_is(READY)
    assert (await worker.create()).generation == 1
    assert _creates(worker) == 1


async def test_delete_ends_a_create_under_way(worker: Worker) -> None:
    worker.backend.hold("create")
    creating = asyncio.ensure_future(worker.create())
    await until(lambda: _creates(worker) == 1)
    await worker.delete()
    assert await _code_and_reason(creating) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "SESSION_DELETED",
    )
    assert len(worker.parts.directory) == 0


async def test_delete_ends_running_calls_and_leaves_nothing(worker: Worker) -> None:
    await worker.create()
    worker.guest.gate.clear()
    waiting = asyncio.ensure_future(worker.call("c1"))
    await until(lambda: worker.guest.started)
    await worker.delete()
    result = (await waiting).result
    assert result.ending == tool_pb2.ENDING_CANCELLED
    assert result.reason == error_pb2.REASON_CANCELLED_BY_DELETE
    assert worker.backend.stores == set()
    assert worker.backend.containers == {}

    def rows(connection: object) -> int:
        found: int = connection.execute("SELECT count(*) FROM calls").fetchone()[0]  # type: ignore[attr-defined]
        return found

    assert await worker.store.run(rows) == 0


async def test_delete_that_fails_is_finished_by_the_sweeper(worker: Worker) -> None:
    await worker.create()
    worker.backend.fail_next("remove", EngineDown("gone"), SandboxdError("busy"))
    assert await _code_and_reason(worker.delete()) == (
        grpc.StatusCode.UNAVAILABLE,
        "ENGINE_DOWN",
    )
    assert (await _code_and_reason(worker.call("c1")))[1] == "SESSION_DELETED"
    for _ in range(3):
        await worker.parts.sweeper.sweep()
    await until(lambda: len(worker.parts.directory) == 0)
    assert worker.backend.stores == set()
    await worker.delete()


async def test_delete_with_a_stale_epoch_is_refused(worker: Worker) -> None:
    await worker.create()
    await worker.call("c1", epoch=7)
    assert (await _code_and_reason(worker.delete(epoch=6)))[1] == "EPOCH_STALE"
    await worker.delete(epoch=7)


async def test_list_pages_through_sessions_in_the_order_of_their_creation(worker: Worker) -> None:
    for index in range(7):
        await worker.create(f"s{index}")
    await worker.delete("s3")
    seen, token = [], ""
    while True:
        page = await worker.sessions.ListSessions(
            session_pb2.ListSessionsRequest(page_size=2, page_token=token)
        )
        assert len(page.sessions) <= 2
        seen += [session.session_id for session in page.sessions]
        token = page.next_page_token
        if not token:
            break
    assert seen == ["s0", "s1", "s2", "s4", "s5", "s6"]


async def test_update_changes_what_is_given(worker: Worker) -> None:
    session = await worker.create(labels={"a": "1", "b": "2"})
    answer = await worker.sessions.UpdateSession(
        session_pb2.UpdateSessionRequest(
            session_id="s1",
            idle_timeout=Duration(seconds=90),
            labels={"a": "", "c": "3"},
            epoch=3,
        )
    )
    changed = answer.session
    assert dict(changed.labels) == {"b": "2", "c": "3"}
    assert changed.idle_timeout.seconds == 90
    assert changed.max_lifetime == session.max_lifetime
    assert changed.epoch == 3
    assert changed.idle_expires_at.ToMilliseconds() < session.idle_expires_at.ToMilliseconds()


async def test_times_outside_the_profile_are_forbidden(worker: Worker) -> None:
    await worker.create()
    for field in ("idle_timeout", "max_lifetime"):
        request = session_pb2.UpdateSessionRequest(session_id="s1")
        getattr(request, field).FromSeconds(10**8)
        assert await _code_and_reason(worker.sessions.UpdateSession(request)) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "PROFILE_FORBIDS",
        )


async def test_idle_session_expires_and_a_running_call_holds_it_off(worker: Worker) -> None:
    await worker.create(idle_timeout=Duration(nanos=1_000_000))
    worker.guest.gate.clear()
    waiting = asyncio.ensure_future(worker.call("c1"))
    await until(lambda: worker.guest.started)
    await worker.parts.sweeper.sweep()
    assert (await worker.get()).state == READY
    worker.guest.gate.set()
    await waiting
    await _expired(worker)


async def _expired(worker: Worker) -> None:
    async def gone() -> bool:
        await worker.parts.sweeper.sweep()
        return len(worker.parts.directory) == 0

    await until(gone)
    assert worker.backend.stores == set()


async def test_lifetime_ends_a_running_call_with_its_reason(worker: Worker) -> None:
    await worker.create(max_lifetime=Duration(nanos=200_000_000))
    worker.guest.gate.clear()
    waiting = asyncio.ensure_future(worker.call("c1"))
    await until(lambda: worker.guest.started)
    await _expired(worker)
    result = (await waiting).result
    assert result.ending == tool_pb2.ENDING_CANCELLED
    assert result.reason == error_pb2.REASON_CANCELLED_BY_EXPIRY


async def test_looking_at_a_session_is_no_use_of_it(worker: Worker) -> None:
    before = await worker.create()
    await worker.get_call("c1")
    await worker.sessions.ListSessions(session_pb2.ListSessionsRequest())
    assert (await worker.get()).idle_expires_at == before.idle_expires_at
    await worker.call("c1")
    after = (await worker.get()).idle_expires_at
    assert after.ToMicroseconds() > before.idle_expires_at.ToMicroseconds()


async def test_sixth_restart_in_ten_minutes_fails_the_session(worker: Worker) -> None:
    await worker.create()
    for generation in range(2, 7):
        worker.sandbox().lose("ENDED")

        async def restarted(wanted: int = generation) -> bool:
            found = await worker.get()
            return found.generation == wanted and found.state == READY

        await until(restarted)
    worker.sandbox().lose("SILENT")
    await worker.state_is(session_pb2.SESSION_STATE_FAILED)
    assert (await worker.get()).reason == "RESTART_LIMIT"
    await until(lambda: worker.backend.running == {})
    assert worker.backend.stores != set(), "files are kept until deletion"
    assert await _code_and_reason(worker.call("c1")) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "SESSION_FAILED",
    )
    await worker.delete()
    assert worker.backend.stores == set()


async def test_restart_waits_for_an_engine_that_is_down(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "ENGINE_REST_S", 0.01)
    await worker.create()
    worker.backend.fail_next("create", *[EngineDown("down")] * 8)
    worker.sandbox().lose("ENDED")

    async def restarted() -> bool:
        found = await worker.get()
        return found.state == READY and found.generation == 2

    await until(restarted)


async def test_session_that_waits_for_the_engine_says_so(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "ENGINE_REST_S", 0.2)
    await worker.create()
    worker.backend.fail_next("release", *[EngineDown("down")] * 3)
    gate = worker.backend.hold("create")
    worker.sandbox().lose("ENDED")

    async def waits() -> bool:
        return (await worker.get()).reason == "ENGINE_DOWN"

    await until(waits)
    found = await worker.get()
    assert found.state == session_pb2.SESSION_STATE_RESTARTING
    assert "engine does not answer" in found.message
    with pytest.raises(aio.AioRpcError) as refused:
        await worker.call("c1")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert reason_of(refused.value) == "ENGINE_DOWN"
    assert retry_s(refused.value) > 0

    async def goes_on() -> bool:
        return (await worker.get()).reason == "SANDBOX_LOST"

    await until(goes_on)
    assert await _code_and_reason(worker.call("c1")) == (
        grpc.StatusCode.UNAVAILABLE,
        "SESSION_NOT_READY",
    )
    gate.set()
    await worker.state_is(READY)
    assert (await worker.get()).reason == ""


async def test_calls_are_refused_while_the_sandbox_starts_anew(worker: Worker) -> None:
    await worker.create()
    gate = worker.backend.hold("release")
    worker.sandbox().lose("ENDED")
    await worker.state_is(session_pb2.SESSION_STATE_RESTARTING)
    found = await _code_and_reason(worker.call("c1"))
    assert found == (grpc.StatusCode.UNAVAILABLE, "SESSION_NOT_READY")
    gate.set()
    await worker.state_is(READY)
    assert (await worker.call("c1")).result.generation == 2


async def test_next_daemon_adopts_live_sessions_with_everything_they_had(tmp_path: Path) -> None:
    async with running(tmp_path) as worker:
        before = await worker.create(env={"A": "1"}, labels={"l": "v"})
        await worker.call("c1", epoch=2**63)
        backend = worker.backend
        containers = dict(backend.containers)
    async with running(tmp_path, FakeBackend(tmp_path, containers)) as worker:
        after = await worker.get()
        assert after.state == READY
        assert after.generation == 1
        assert (after.created_at, after.effective) == (before.created_at, before.effective)
        assert dict(after.labels) == {"l": "v"}
        assert after.epoch == 2**63
        assert (await worker.call("c1")).result.replayed
        assert (await worker.create(env={"A": "1"}, labels={"l": "v"})).state == READY
        (sent,) = [item for item in worker.sandbox().requests if item.op == "configure"]
        assert sent.body == b'{"A": "1"}'


async def test_sandbox_that_did_not_outlive_the_daemon_is_started_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as worker:
        await worker.create()
    async with running(tmp_path, FakeBackend(tmp_path)) as worker:
        await worker.state_is(READY)
        assert (await worker.get()).generation == 2
        assert "restarted" in (await worker.call("c1")).result.text


async def test_create_cut_off_by_a_daemon_leaves_nothing_and_can_be_repeated(
    tmp_path: Path,
) -> None:
    """The row of a creation is written first; what it may have made belongs to nobody."""
    async with running(tmp_path) as worker:
        await worker.create()
        record = worker.parts.directory.all()[0].record

        def back_to_creating(connection: object) -> None:
            connection.execute("UPDATE sessions SET state = 'CREATING'")  # type: ignore[attr-defined]

        await worker.store.run(back_to_creating)
        containers = dict(worker.backend.containers)
    async with running(tmp_path, FakeBackend(tmp_path, containers)) as worker:
        await worker.parts.sweeper.sweep()
        assert worker.backend.stores == set()
        assert (await worker.create()).state == READY
        assert worker.parts.directory.all()[0].record.resource_id != record.resource_id


async def test_sweeper_removes_only_what_no_session_owns(worker: Worker) -> None:
    await worker.create()
    worker.backend.stores.add("left-over")
    await worker.parts.sweeper.sweep()
    assert worker.backend.stores == {worker.sandbox().resource_id}


async def test_environment_of_a_dead_session_is_not_in_the_state_folder(tmp_path: Path) -> None:
    async with running(tmp_path) as worker:
        await worker.create(env={"TOKEN": "hunter2-hunter2"})
        await worker.delete()
    folder = tmp_path / "state"
    for path in folder.iterdir():
        assert b"hunter2" not in path.read_bytes(), path
        assert path.stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0
