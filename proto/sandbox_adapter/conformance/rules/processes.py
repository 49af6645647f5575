"""Rules on ProcessService: starting, waiting, ending, listing; ids and their repeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import PROCESSES, SIX_TOOLS, rule
from sandbox_adapter.conformance.rules.bash_jobs import alive
from sandbox_adapter.conformance.rules.started import (
    UNTIL_FED,
    WAIT_S,
    Started,
    script,
    shell,
    start,
    state_of,
)
from sandbox_adapter.v1 import process_pb2

RUNNING: Final = process_pb2.PROCESS_STATE_RUNNING


@rule("processes.start-and-wait", needs=(PROCESSES,), level="full", cases=["contract 1"])
async def start_and_wait(place: Place) -> None:
    """A started process runs under its id, and waiting for it tells how it ended."""
    process_id = new_id("p")
    argv = [shell(place), "-c", UNTIL_FED]
    started = await start(place, argv, process_id=process_id)
    first = started.answer.process
    expect.equal(started.answer.replayed, False, "replayed")
    expect.equal(first.process_id, process_id, "process_id")
    expect.equal(list(first.argv), argv, "argv")
    expect.equal(state_of(first), "RUNNING", "state")
    expect.holds(first.pid > 0, f"pid {first.pid}")
    expect.equal(first.call_id, "", "call_id")
    expect.equal(first.generation, place.session.generation, "generation")
    expect.holds(first.HasField("started_at"), "a process without `started_at`")
    expect.holds(not first.HasField("ended_at"), "a running process has `ended_at`")
    expect.holds(not first.HasField("exit_code"), "a running process has an exit code")
    await started.write(b"\n", close=True)
    last = await started.ended(0)
    expect.equal(last.pid, first.pid, "pid at the end")
    expect.equal(last.started_at, first.started_at, "started_at at the end")
    began, ended = last.started_at.ToNanoseconds(), last.ended_at.ToNanoseconds()
    expect.holds(began <= ended, "it ended before it began")
    expect.equal(await started.wait(0), last, "the process when asked again")


@rule("processes.exit-codes", needs=(PROCESSES,), level="full")
async def exit_codes(place: Place) -> None:
    """An exit code is told as it is, the end by signal n as n and 128 + n."""
    for code in (1, 3, 126, 255):
        await (await script(place, f"exit {code}")).ended(code)
    for number in (9, 15, 10):
        await (await script(place, f"kill -{number} $$; {UNTIL_FED}")).ended(128 + number, number)
    # Its own choice of 137 is no signal.
    await (await script(place, "exit 137")).ended(137)


@rule("processes.wait-gives-up-in-time", needs=(PROCESSES,), level="full")
async def wait_gives_up_in_time(place: Place) -> None:
    """WaitProcess returns a running process when its time is over, and an ended one at once."""
    started = await script(place, UNTIL_FED)
    try:
        begun = time.monotonic()
        expect.equal(state_of(await started.wait(0.5)), "RUNNING", "state")
        expect.holds(0.4 < time.monotonic() - begun < 10, "the wait of 0.5 s was not kept")
        waiting = asyncio.create_task(started.wait())
        await asyncio.sleep(0.1)
        await started.signal(9)
        async with asyncio.timeout(WAIT_S):
            expect.equal(
                state_of(await waiting), "ENDED", "state of the process that was waited for"
            )
    finally:
        await started.end()


@rule("processes.start-is-idempotent", needs=(PROCESSES,), level="full", cases=["contract 2"])
async def start_is_idempotent(place: Place) -> None:
    """The same start again, during and after its run, is the same process and starts nothing."""
    await place.make_folder()
    process_id = new_id("p")
    text = f'echo x >> "{place.at("effects")}"; {UNTIL_FED}; exit 4'
    how = {"process_id": process_id, "env": {"A": "1", "B": "2"}}
    first = await script(place, text, **how)
    answers = await asyncio.gather(*(script(place, text, **how) for _ in range(5)))
    answers.append(await script(place, text, process_id=process_id, env={"B": "2", "A": "1"}))
    for again in answers:
        expect.equal(again.answer.replayed, True, "replayed")
        expect.equal(again.answer.process.pid, first.answer.process.pid, "pid")
    await first.write(b"\n", close=True)
    await first.ended(4)
    late = await script(place, text, **how)
    expect.equal(late.answer.replayed, True, "replayed after its end")
    expect.equal(late.answer.process.exit_code, 4, "exit code after its end")
    expect.equal(await place.content("effects"), b"x\n", "what it did")


@rule("processes.simultaneous-starts-are-one", needs=(PROCESSES,), level="full")
async def simultaneous_starts_are_one(place: Place) -> None:
    """Starts of one id at the same time start one process, and one of them is told so."""
    await place.make_folder()
    how = {"process_id": new_id("p")}
    text = f'echo x >> "{place.at("effects")}"'
    answers = await asyncio.gather(*(script(place, text, **how) for _ in range(8)))
    expect.equal(sum(not each.answer.replayed for each in answers), 1, "starts not replayed")
    await answers[0].ended(0)
    expect.equal(await place.content("effects"), b"x\n", "what they did")


@rule("processes.ids-conflict", needs=(PROCESSES,), level="full", cases=["contract 2"])
async def ids_conflict(place: Place) -> None:
    """An id with other parameters is refused: argv, folder, environment, terminal, timeout."""
    how: dict[str, Any] = {"process_id": new_id("p")}
    await (await script(place, "exit 0", **how)).ended(0)
    others: list[dict[str, Any]] = [
        {"cwd": "/"},
        {"env": {"A": "1"}},
        {"terminal": (24, 80)},
        {"run_s_max": 60},
    ]
    for other in others:
        with expect.fails("ALREADY_EXISTS", "ID_CONFLICT"):
            await script(place, "exit 0", **how, **other)
    with expect.fails("ALREADY_EXISTS", "ID_CONFLICT"):
        await script(place, "exit 1", **how)


@rule("processes.makes-an-id", needs=(PROCESSES,), level="full", cases=["contract 2"])
async def makes_an_id(place: Place) -> None:
    """A start without an id gets one made, each its own."""
    request = process_pb2.StartProcessRequest(
        session_id=place.session_id, argv=[shell(place), "-c", "exit 0"]
    )
    stub = place.client.processes.stub
    answers = [await place.target.send(stub.StartProcess, request) for _ in range(2)]
    ids = {answer.process.process_id for answer in answers}
    expect.equal(len(ids - {""}), 2, "different ids")
    for answer in answers:
        await Started(place, answer).ended(0)


@rule("processes.unknown", needs=(PROCESSES,), level="full", cases=["contract 4"])
async def unknown(place: Place) -> None:
    """An id that no process has is NOT_FOUND for every verb, as is an unknown session."""
    sid, processes, nobody = place.session_id, place.client.processes, new_id("p")
    verbs: list[Callable[[str, str], Awaitable[Any]]] = [
        lambda sid, pid: processes.wait(sid, pid, wait_s=0),
        lambda sid, pid: processes.signal(sid, pid, 15),
        lambda sid, pid: processes.write(sid, pid, b"x", offset=0),
        lambda sid, pid: processes.resize(sid, pid, 24, 80),
        lambda sid, pid: anext(aiter(processes.output(sid, pid)), None),
    ]
    for verb in verbs:
        with expect.fails("NOT_FOUND", "PROCESS_UNKNOWN"):
            await verb(sid, nobody)
        with expect.fails("NOT_FOUND", "SESSION_UNKNOWN"):
            await verb("never-made", nobody)
    with expect.fails("NOT_FOUND", "SESSION_UNKNOWN"):
        await processes.list("never-made")
    with expect.fails("NOT_FOUND", "SESSION_UNKNOWN"):
        await processes.start("never-made", ["x"])


@rule("processes.envelopes", needs=(PROCESSES,), level="full", cases=["contract 4"])
async def envelopes(place: Place) -> None:
    """What no start, wait, signal or write can be is INVALID_ARGUMENT, with the field."""
    sid, processes = place.session_id, place.client.processes
    starts: list[tuple[str, list[str], dict[str, Any]]] = [
        ("argv", [], {}),
        ("argv", ["a\0b"], {}),
        ("process_id", ["a"], {"process_id": "-a"}),
        ("process_id", ["a"], {"process_id": "a" * 65}),
        ("cwd", ["a"], {"cwd": "a\0b"}),
        ("env", ["a"], {"env": {"A=B": "1"}}),
        ("env", ["a"], {"env": {"A": "\0"}}),
        ("terminal.rows", ["a"], {"terminal": (0, 80)}),
        ("terminal.columns", ["a"], {"terminal": (24, 10_001)}),
        ("timeout", ["a"], {"run_s_max": 0}),
    ]
    for field, argv, how in starts:
        with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field=field):
            await processes.start(sid, argv, **how)
    with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field="session_id"):
        await processes.list("")
    started = await script(place, "exit 0")
    for number in (0, 65):
        with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field="signal"):
            await started.signal(number)
    request = process_pb2.WaitProcessRequest(session_id=sid, process_id=started.id)
    request.wait_timeout.FromSeconds(61)
    with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field="wait_timeout"):
        await place.target.send(processes.stub.WaitProcess, request)
    with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field="stream"):
        await started.output(process_pb2.OUTPUT_STREAM_UNSPECIFIED)
    chunk = b"x" * (place.bound("chunk_bytes_max") + 1)
    write = process_pb2.WriteInputRequest(session_id=sid, process_id=started.id, data=chunk)
    with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field="data"):
        await place.target.send(processes.stub.WriteInput, write)


@rule("processes.epochs-fence", needs=(PROCESSES,), level="full", cases=["contract 2"])
async def epochs_fence(place: Place) -> None:
    """A stale owner starts, feeds, signals and resizes nothing."""
    async with place.target.session() as session:
        own = Place(place.target, session, session.effective.working_directory)
        sid, processes = session.session_id, place.client.processes
        started = await script(own, UNTIL_FED)
        await place.client.update_session(sid, epoch=3)
        process_id = new_id("p")
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await script(own, "exit 0", process_id=process_id, epoch=2)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await started.write(b"x", epoch=2)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await processes.signal(sid, started.id, 9, epoch=2)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await processes.resize(sid, started.id, 24, 80, epoch=2)
        expect.equal(state_of(await started.wait(0)), "RUNNING", "state")
        expect.equal((await started.write(b"")).bytes_written, 0, "bytes of its input")
        with expect.fails("NOT_FOUND", "PROCESS_UNKNOWN"):
            await processes.wait(sid, process_id, wait_s=0)
        await processes.signal(sid, started.id, 9, epoch=3)
        await started.ended(137, 9)


@rule("processes.end-with-their-session", needs=(PROCESSES,), level="full", cases=["contract 3"])
async def end_with_their_session(place: Place) -> None:
    """After DeleteSession its processes are gone, and asking for them says why."""
    async with place.target.session() as session:
        own = Place(place.target, session, session.effective.working_directory)
        started = await script(own, UNTIL_FED)
        following = asyncio.create_task(started.output())
        await place.client.delete_session(session.session_id)
        await asyncio.gather(following, return_exceptions=True)
        expect.holds(following.done(), "a stream outlives its session")
        with expect.fails("FAILED_PRECONDITION", "SESSION_DELETED"):
            await started.wait(0)


@rule("processes.listed-oldest-first", needs=(PROCESSES,), level="full")
async def listed_oldest_first(place: Place) -> None:
    """ListProcesses has the running and the ended, oldest first, as waiting for each has them."""
    async with place.target.session() as session:
        own = Place(place.target, session, session.effective.working_directory)
        expect.equal(await place.client.processes.list(session.session_id), [], "of a new session")
        made = [await script(own, f"exit {code}") for code in (1, 2)]
        ends = [await each.ended(code) for each, code in zip(made, (1, 2), strict=True)]
        made.append(await script(own, UNTIL_FED))
        ends.append(await made[2].wait(0))
        listed = await place.client.processes.list(session.session_id)
        expect.equal([each.process_id for each in listed], [each.id for each in made], "ids")
        expect.equal(listed, ends, "processes")


@rule("processes.list-has-background-jobs", needs=(PROCESSES, SIX_TOOLS), level="full")
async def list_has_background_jobs(place: Place) -> None:
    """A background job of a call is listed with the call's id until it has ended."""
    await place.require("sleep")
    sid, processes, call_id = place.session_id, place.client.processes, new_id("call")
    result = place.with_shell(
        await place.call("bash", {"command": "sleep 300 & echo"}, call_id=call_id)
    )
    expect.equal(len(result.survivors), 1, "survivors of the call")
    jobs = [each for each in await processes.list(sid) if each.call_id == call_id]
    expect.equal([each.pid for each in jobs], [result.survivors[0].pid], "pids of the job")
    (job,) = jobs
    expect.equal(state_of(job), "RUNNING", "state of the job")
    expect.equal(job.argv[-1:], ["300"], "its last argument")
    again = [each for each in await processes.list(sid) if each.call_id == call_id]
    expect.equal([each.process_id for each in again], [job.process_id], "its id, asked again")
    expect.equal(await processes.signal(sid, job.process_id, 15), True, "delivered")
    ended = await processes.wait(sid, job.process_id, wait_s=WAIT_S)
    expect.equal(state_of(ended), "ENDED", "state after the signal")
    expect.equal(await alive(place, [job.pid]), [], "jobs that run afterwards")
    left = [each for each in await processes.list(sid) if each.call_id == call_id]
    expect.equal(
        [state_of(each) for each in left if each.state == RUNNING], [], "listed as running"
    )


@rule("processes.calls-leave-them-alone", needs=(PROCESSES, SIX_TOOLS), level="full")
async def calls_leave_them_alone(place: Place) -> None:
    """The end of a call, by itself or by its timeout, ends no process of the session."""
    await place.require("sleep")
    started = await script(place, f"sleep 300 & {UNTIL_FED}")
    try:
        expect.exited(await place.bash("exit 3"), 3)
        expect.ending_is(await place.bash("sleep 300 & sleep 300", timeout=0.5), "TIMED_OUT")
        expect.equal(state_of(await started.wait(0)), "RUNNING", "state")
        listed = await place.client.processes.list(place.session_id)
        own = [each for each in listed if each.process_id == started.id]
        expect.equal([state_of(each) for each in own], ["RUNNING"], "state in the list")
    finally:
        await started.end()


@rule("processes.timeout-ends-the-tree", needs=(PROCESSES, SIX_TOOLS), level="full")
async def timeout_ends_the_tree(place: Place) -> None:
    """A process over its time is ended with all that it started."""
    await place.require("sleep")
    begun = time.monotonic()
    started = await script(place, "sleep 300 & echo $!; sleep 300", run_s_max=0.4)
    child = int(await started.until(b"\n"))
    process = await started.ended(143, 15)
    expect.holds(time.monotonic() - begun < 15, "it ran far longer than its time")
    expect.holds(process.HasField("signal"), "no signal is told")
    deadline = time.monotonic() + WAIT_S
    while await alive(place, [child]):
        expect.holds(time.monotonic() < deadline, "what it started runs on")
        await asyncio.sleep(0.05)


@rule("processes.timeout-kills-what-ignores-it", needs=(PROCESSES,), level="full")
async def timeout_kills_what_ignores_it(place: Place) -> None:
    """A process that ignores TERM is killed after the time of grace."""
    started = await script(place, f"trap '' TERM; {UNTIL_FED}", run_s_max=0.2)
    begun = time.monotonic()
    await started.ended(137, 9)
    expect.holds(1.5 < time.monotonic() - begun < 15, "the time of grace was not kept")


@rule("processes.signals-reach-the-group", needs=(PROCESSES, SIX_TOOLS), level="full")
async def signals_reach_the_group(place: Place) -> None:
    """A signal reaches the process and what it started in its group; one that ended gets none."""
    await place.require("sleep")
    started = await script(place, "sleep 300 & echo $!; sleep 300")
    child = int(await started.until(b"\n"))
    expect.equal(await started.signal(15), True, "delivered")
    await started.ended(143, 15)
    deadline = time.monotonic() + WAIT_S
    while await alive(place, [child]):
        expect.holds(time.monotonic() < deadline, "what it started in its group runs on")
        await asyncio.sleep(0.05)
    expect.equal(await started.signal(15), False, "delivered after its end")


@rule("processes.signals-can-be-caught", needs=(PROCESSES,), level="full")
async def signals_can_be_caught(place: Place) -> None:
    """The process gets just the signal that was sent."""
    await place.require("sleep")
    text = "trap 'echo usr1' USR1; trap 'echo hup' HUP; echo ready; while :; do sleep 1; done"
    started = await script(place, text)
    try:
        await started.until(b"ready\n")
        await started.signal(10)
        await started.until(b"usr1\n")
        await started.signal(1)
        expect.equal(await started.until(b"hup\n"), b"ready\nusr1\nhup\n", "output")
    finally:
        await started.end()
