"""Processes and their rows: started once, known for ever, lost with their generation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd import limits
from sandboxd.backends.fake import FakeBackend
from sandboxd.errors import (
    CallsExhausted,
    EpochStale,
    GuestFault,
    IdConflict,
    ProcessFault,
    ProcessUnknown,
    SessionDeleted,
    VerbSandboxLost,
)
from sandboxd.sessions.process_table import ProcessRecord, ProcessTable
from sandboxd.sessions.processes import Piece, Processes, ProcessSpecification
from sandboxd.sessions.records import TENANT, SessionKey, State
from tests.unit.sessions.scripted_processes import ENDED, STAND, ScriptedProcesses, piece
from tests.unit.worker import Worker, running, until

KEY = SessionKey(TENANT, "s1")
ASKED = ProcessSpecification(argv=("sh", "-c", "x"), env={"A": "1"})
JOB: dict[str, Any] = {
    **STAND,
    "process_id": "job-9-99",
    "pid": 9,
    "call_id": "c1",
    "argv": ["sleep", "5"],
    "age_s": 2.0,
}


class Place:
    """A worker with a session, its guest's processes, and what is under test."""

    def __init__(self, worker: Worker, guest: ScriptedProcesses) -> None:
        self.worker = worker
        self.guest = guest
        self.table = ProcessTable(worker.store)
        directory = worker.parts.directory
        self.processes = Processes(directory, self.table, worker.store.digest_key)

    async def start(self, process_id: str = "p", epoch: int | None = None, **changes: Any) -> Any:
        asked = ProcessSpecification(**{**vars(ASKED), **changes})
        return await self.processes.start(KEY, process_id, epoch, asked)

    async def pieces(self, offset: int = 0, *, follow: bool = False) -> list[Piece]:
        found = self.processes.read(KEY, "p", "stdout", offset, follow=follow)
        return [piece async for piece in found]

    async def restart(self) -> None:
        """The sandbox ends by itself, and with it everything that ran."""
        (live,) = self.worker.parts.directory.all()
        before = live.record.generation
        self.guest.known.clear()
        self.worker.sandbox().lose()
        await until(lambda: live.record.state is State.READY and live.record.generation > before)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running(tmp_path) as worker:
        guest = ScriptedProcesses()
        worker.backend.on_request = guest.answer
        await worker.create()
        yield Place(worker, guest)


async def test_row_is_durable_before_the_guest_is_asked(place: Place) -> None:
    rows: list[ProcessRecord | None] = []

    async def look() -> None:
        rows.append(await place.table.find(KEY, "p"))

    place.guest.before_start = look
    view, replayed = await place.start()

    assert [row is not None and row.pid for row in rows] == [0]
    assert (view.process_id, view.pid, view.state, view.argv) == ("p", 7, "RUNNING", ASKED.argv)
    assert not replayed
    assert place.guest.bodies["p"] == {"argv": ["sh", "-c", "x"], "env": {"A": "1"}}


async def test_repeat_starts_nothing_and_shows_the_process_as_it_is(place: Place) -> None:
    first, _ = await place.start()
    place.guest.known["p"] = dict(ENDED)
    again, replayed = await place.start()

    assert replayed
    assert (again.state, again.exit_code, again.started_at) == ("ENDED", 3, first.started_at)
    assert place.guest.started == ["p"]
    assert place.guest.ops == ["process_start", "process_wait"]


async def test_start_that_a_crash_cut_off_is_made_good_by_its_repeat(place: Place) -> None:
    """Between the row and the start: the guest is asked again, and knows what it did."""
    await place.start("other")
    await place.start()
    await place.table.started(KEY, "p", 0)  # as the row stands before the guest has answered
    view, replayed = await place.start()
    assert (view.pid, replayed) == (7, True)
    del place.guest.known["other"]
    await place.table.started(KEY, "other", 0)
    view, replayed = await place.start("other")
    assert (view.pid, replayed) == (7, False)
    assert place.guest.started == ["other", "p", "other"]


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": ("sh", "-c", "y")},
        {"argv": ("sh", "-c x")},
        {"cwd": "/"},
        {"env": {}},
        {"terminal": (24, 80)},
        {"timeout_s": 1.0},
    ],
)
async def test_other_parameters_conflict(place: Place, changes: dict[str, Any]) -> None:
    await place.start()
    with pytest.raises(IdConflict):
        await place.start(**changes)
    assert place.guest.ops == ["process_start"]


async def test_refused_start_frees_its_id(place: Place) -> None:
    place.guest.fault = GuestFault("FILE_NOT_FOUND", "no such program", {})
    with pytest.raises(ProcessFault) as refused:
        await place.start()
    assert (refused.value.status, refused.value.reason) == ("FAILED_PRECONDITION", "FILE_NOT_FOUND")
    with pytest.raises(ProcessUnknown):
        await place.processes.wait(KEY, "p", 0)
    place.guest.fault = None
    assert not (await place.start(argv=("other",)))[1]


async def test_starts_of_one_id_at_once_ask_the_guest_once(place: Place) -> None:
    place.guest.gate.clear()
    tasks = [asyncio.create_task(place.start()) for _ in range(5)]
    await until(lambda: "process_start" in place.guest.ops)
    place.guest.gate.set()
    answers = await asyncio.gather(*tasks)

    assert sorted(replayed for _, replayed in answers) == [False, True, True, True, True]
    assert place.guest.ops.count("process_start") == 1


async def test_caller_that_leaves_does_not_undo_a_start(place: Place) -> None:
    place.guest.gate.clear()
    task = asyncio.create_task(place.start())
    await until(lambda: "process_start" in place.guest.ops)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    place.guest.gate.set()

    async def noted() -> bool:
        row = await place.table.find(KEY, "p")
        return row is not None and row.pid == 7

    await until(noted)
    assert (await place.start())[1]


async def test_owner_that_became_stale_meanwhile_starts_nothing(place: Place) -> None:
    (live,) = place.worker.parts.directory.all()
    insert = place.table.insert

    async def slow(key: SessionKey, record: ProcessRecord) -> None:
        await insert(key, record)
        live.record.epoch = 9

    place.table.insert = slow  # type: ignore[method-assign]
    with pytest.raises(EpochStale):
        await place.start(epoch=5)
    assert place.guest.started == []
    assert await place.table.find(KEY, "p") is None


@pytest.mark.parametrize("stale", [False, True])
async def test_refused_repeat_keeps_the_row_of_a_process_that_may_run(
    place: Place, stale: bool
) -> None:
    """Seen: its row went, and the process that ran was nobody's."""
    await place.start()
    await place.table.started(KEY, "p", 0)  # as the row stands before the guest has answered
    (live,) = place.worker.parts.directory.all()
    if stale:
        find = place.table.find

        async def slow(key: SessionKey, process_id: str) -> ProcessRecord | None:
            live.record.epoch = 9
            return await find(key, process_id)

        place.table.find = slow  # type: ignore[method-assign]
    else:
        place.guest.fault = GuestFault("CALLS_EXHAUSTED", "full", {})
    with pytest.raises(EpochStale if stale else CallsExhausted):
        await place.start(epoch=5)
    place.guest.fault = None
    assert (await place.start())[1]
    assert place.guest.started == ["p"]


async def test_start_that_reached_the_guest_twice_is_no_repeat(place: Place) -> None:
    """Its connection ended in between, and the guest was asked again."""
    place.guest.known["p"] = dict(STAND)
    view, replayed = await place.start()
    assert (view.pid, replayed) == (7, False)
    assert (await place.start())[1]


async def test_guest_that_answers_waits_at_once_is_not_asked_without_rest(place: Place) -> None:
    await place.start()
    await place.processes.wait(KEY, "p", 0.3)
    assert 2 <= place.guest.ops.count("process_wait") <= 70
    place.guest.facts["process_read"] = piece(b"")[0]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await place.pieces(follow=True)
    assert 2 <= place.guest.ops.count("process_read") <= 70


async def test_end_that_was_seen_keeps_its_time(place: Place) -> None:
    await place.start()
    place.guest.known["p"] = dict(ENDED)
    first = await place.processes.wait(KEY, "p", 5)
    place.guest.known["p"]["ended_s"] = 100.0
    assert await place.processes.wait(KEY, "p", 5) == first
    assert first.ended_at is not None
    assert first.ended_at >= first.started_at


async def test_first_end_that_is_noted_counts(place: Place) -> None:
    await place.start()
    await place.table.ended(KEY, "p", 5.0, 1, None)
    await place.table.ended(KEY, "p", 6.0, None, 9)
    row = await place.table.find(KEY, "p")
    assert row is not None
    assert (row.ended_at, row.exit_code, row.signal) == (5.0, 1, None)


async def test_signal_is_told_as_128_and_more(place: Place) -> None:
    await place.start()
    place.guest.known["p"] = {**ENDED, "exit_code": None, "signal": 9}
    view = await place.processes.wait(KEY, "p", 5)
    assert (view.exit_code, view.signal) == (137, 9)


async def test_processes_of_an_earlier_generation_are_lost_unless_their_end_was_seen(
    place: Place,
) -> None:
    await place.start("p")
    await place.start("ended")
    place.guest.known["ended"] = dict(ENDED)
    seen = await place.processes.wait(KEY, "ended", 5)
    await place.restart()
    asked = len(place.guest.asked)

    lost = await place.processes.wait(KEY, "p", 60)
    assert (lost.state, lost.exit_code, lost.ended_at, lost.generation) == ("LOST", None, None, 1)
    assert await place.processes.wait(KEY, "ended", 60) == seen
    assert (await place.start("p")) == (lost, True)
    assert not await place.processes.signal(KEY, "p", None, 9)
    with pytest.raises(VerbSandboxLost):
        await place.pieces()
    with pytest.raises(ProcessFault) as closed:
        await place.processes.write(KEY, "p", None, 0, b"x", close=False)
    assert closed.value.reason == "INVALID_INPUT"
    # The guest that is there now has nothing to do with it.
    assert len(place.guest.asked) == asked
    views = await place.processes.list(KEY)
    assert [(view.process_id, view.state) for view in views] == [("p", "LOST"), ("ended", "ENDED")]


async def test_sandbox_that_ends_meanwhile_aborts_the_wait(place: Place) -> None:
    await place.start()
    place.guest.gate.clear()
    waiting = asyncio.create_task(place.processes.wait(KEY, "p", 60))
    await until(lambda: "process_wait" in place.guest.ops)
    place.worker.sandbox().lose()
    with pytest.raises(VerbSandboxLost):
        await waiting


async def test_rows_go_with_their_session(place: Place) -> None:
    await place.start()
    await place.worker.delete()
    assert await place.table.all(KEY) == []
    with pytest.raises(SessionDeleted):
        await place.start()


async def test_row_count_has_a_bound(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROCESSES_RECORDED_MAX", 2)
    await place.start("a")
    await place.start("b")
    with pytest.raises(CallsExhausted):
        await place.start("c")
    assert (await place.start("a"))[1]


async def test_verbs_that_wait_have_a_bound_and_leave_file_verbs_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROCESS_VERBS_MAX", 3)
    await place.start()
    place.guest.gate.clear()
    waits = [asyncio.create_task(place.processes.wait(KEY, "p", 60)) for _ in range(3)]
    await until(lambda: place.guest.ops.count("process_wait") == 3)
    with pytest.raises(CallsExhausted):
        await place.processes.wait(KEY, "p", 60)
    assert place.worker.parts.directory.all()[0].verbs == 0
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    place.guest.gate.set()
    assert (await place.processes.wait(KEY, "p", 0)).state == "RUNNING"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"full": "processes"}, "64 running processes"),
        ({"full": "waits"}, "512 requests that wait"),
        ({"full": ["processes"]}, "512 requests queued"),
        ({}, "512 requests queued"),
    ],
)
async def test_refusal_says_what_is_full(place: Place, facts: dict[str, Any], words: str) -> None:
    place.guest.fault = GuestFault("CALLS_EXHAUSTED", "full", facts)
    with pytest.raises(CallsExhausted, match=words):
        await place.start()
    assert await place.table.find(KEY, "p") is None


# --- outputs ---------------------------------------------------------------------------


async def test_read_without_follow_ends_where_the_output_stood(place: Place) -> None:
    await place.start()
    place.guest.outputs = [piece(b"abc", end=5), piece(b"defgh", 3, end=100)]
    pieces = await place.pieces()
    assert b"".join(each.data for each in pieces) == b"abcdefgh"
    assert place.guest.outputs == []
    assert [request.args["wait_s"] for request in place.guest.asked[-2:]] == [0.0, 0.0]


async def test_read_of_nothing_says_so_once(place: Place) -> None:
    await place.start()
    place.guest.outputs = [piece(b"")]
    assert await place.pieces() == [Piece(0, b"", 0, False)]


async def test_follow_waits_in_small_steps_until_the_output_is_closed(place: Place) -> None:
    await place.start()
    place.guest.outputs = [
        piece(b""),
        piece(b""),
        piece(b"ab", end=4),
        piece(b"cd", 2),
        piece(b"", 4, closed=True),
    ]
    pieces = await place.pieces(follow=True)
    assert [each.data for each in pieces] == [b"", b"ab", b"cd", b""]
    assert [each.closed for each in pieces] == [False, False, False, True]
    reads = [request for request in place.guest.asked if request.op == "process_read"]
    assert [request.args["wait_s"] > 0 for request in reads] == [False, True, True, False, True]
    # A reader that only waits holds little of the session's byte budget.
    assert [request.reply_bytes_max for request in reads[1:3]] == [32 * 1024] * 2
    assert reads[3].reply_bytes_max == limits.CHUNK_BYTES_MAX


async def test_dropped_bytes_are_told(place: Place) -> None:
    await place.start()
    place.guest.outputs = [piece(b"xy", 100, dropped=100, closed=True)]
    assert await place.pieces() == [Piece(100, b"xy", 100, True)]


@pytest.mark.parametrize(
    "answer",
    [
        piece(b"x", 5),
        piece(b"x", 0, dropped=1),
        ({"offset": -1, "dropped": 0, "end": 0, "closed": True}, b""),
        ({"offset": 0, "dropped": 0, "end": 0}, b""),
        ({"offset": 0, "dropped": 0, "end": 10, "closed": False}, b""),
    ],
)
async def test_outputs_that_do_not_fit_fail_the_session(place: Place, answer: Any) -> None:
    await place.start()
    place.guest.outputs = [answer] * 3
    with pytest.raises(VerbSandboxLost):
        await place.pieces()
    (live,) = place.worker.parts.directory.all()
    await until(lambda: live.record.state is State.FAILED)


# --- jobs -------------------------------------------------------------------------------


async def test_background_jobs_are_listed_waited_for_and_signalled(place: Place) -> None:
    await place.start()
    place.guest.jobs = [dict(JOB)]
    listed = await place.processes.list(KEY)
    (job,) = [view for view in listed if view.call_id]
    assert (job.process_id, job.pid, job.argv) == ("job-9-99", 9, ("sleep", "5"))
    assert (job.state, job.call_id, job.generation) == ("RUNNING", "c1", 1)
    assert await place.processes.signal(KEY, "job-9-99", None, 15)
    place.guest.jobs[0].update(running=False, signal=15, ended_s=0.0)
    ended = await place.processes.wait(KEY, "job-9-99", 60)
    assert (ended.state, ended.exit_code, ended.signal) == ("ENDED", 143, 15)


async def test_background_job_has_no_streams_of_its_own(place: Place) -> None:
    place.guest.jobs = [dict(JOB)]
    for verb in (
        place.processes.write(KEY, "job-9-99", None, 0, b"", close=True),
        place.processes.resize(KEY, "job-9-99", None, 1, 1),
        anext(place.processes.read(KEY, "job-9-99", "stdout", 0, follow=False)),
    ):
        with pytest.raises(ProcessFault) as refused:
            await verb
        assert refused.value.reason == "INVALID_INPUT"


async def test_guest_cannot_invent_processes_that_nobody_started(place: Place) -> None:
    await place.start()
    place.guest.known["invented"] = dict(STAND)
    assert [view.process_id for view in await place.processes.list(KEY)] == ["p"]
    with pytest.raises(ProcessUnknown):
        await place.processes.wait(KEY, "invented", 0)


async def test_list_shows_all_that_run_and_the_latest_ends(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROCESSES_ENDED_MAX", 2)
    for name in ("a", "b", "c", "d"):
        await place.start(name)
    for name in ("b", "c", "d"):
        place.guest.known[name] = dict(ENDED)
    views = await place.processes.list(KEY)
    assert [view.process_id for view in views] == ["a", "c", "d"]


@pytest.mark.parametrize(
    "facts",
    [
        {"processes": [{**STAND, "process_id": "p", "pid": 0}], "next": None},
        {"processes": [{**JOB, "call_id": "no call"}], "next": None},
        {"processes": [{**JOB, "age_s": float("nan")}], "next": None},
        {"processes": [{**JOB, "argv": ["x" * 2_000]}], "next": None},
        {"processes": [dict(JOB)] * 65, "next": None},
        {"processes": [], "next": 0},
        {"processes": [], "next": "1"},
        {},
    ],
)
async def test_lists_that_do_not_fit_fail_the_session(place: Place, facts: Any) -> None:
    place.guest.facts["process_list"] = facts
    with pytest.raises(VerbSandboxLost):
        await place.processes.list(KEY)
    (live,) = place.worker.parts.directory.all()
    await until(lambda: live.record.state is State.FAILED)


# --- the next daemon ------------------------------------------------------------------------


async def test_next_daemon_knows_the_processes_of_the_one_before(tmp_path: Path) -> None:
    guest = ScriptedProcesses()
    first_backend = FakeBackend(tmp_path)
    async with running(tmp_path, first_backend) as worker:
        worker.backend.on_request = guest.answer
        await worker.create()
        view, _ = await Place(worker, guest).start()
    second_backend = FakeBackend(tmp_path, first_backend.containers)
    second_backend.on_request = guest.answer
    async with running(tmp_path, second_backend) as worker:
        worker.backend.on_request = guest.answer
        place = Place(worker, guest)
        assert await place.processes.wait(KEY, "p", 0) == view
        assert (await place.start())[1]
    assert guest.started == ["p"]
