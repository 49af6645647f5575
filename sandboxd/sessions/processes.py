"""Long-lived processes of a session, for programs: `ProcessService` without its envelope.

The guest keeps the processes and what they wrote; the rows keep which id was used for
what. So both survive the daemon: the next one finds the rows and asks the same guest. A
process of an earlier generation of the session is LOST unless its end was seen.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from sandboxd import limits
from sandboxd.errors import (
    EpochStale,
    GuestFault,
    IdConflict,
    ProcessFault,
    ProcessUnknown,
    SandboxLost,
    VerbSandboxLost,
)
from sandboxd.sessions.digest import process_digest
from sandboxd.sessions.directory import Directory
from sandboxd.sessions.process_facts import (
    DeliveredFacts,
    InputFacts,
    JobFacts,
    OutputFacts,
    PageFacts,
    StandFacts,
    StartedFacts,
)
from sandboxd.sessions.process_guest import ProcessGuest, ProcessVerbs
from sandboxd.sessions.process_table import ProcessRecord, ProcessTable
from sandboxd.sessions.process_view import ProcessView, of_job, of_listed, of_record
from sandboxd.sessions.records import SessionKey
from sandboxd.tools.facts import parse_facts

STEP_S: Final = 20.0
"""Longest wait of one request to the guest; the next follows at once."""
JOB_STEP_S: Final = 0.5
"""The same for a background job, of whose end the guest may not be told."""
REST_S: Final = 0.005
"""After an answer that came before its wait was over: a guest that always has one at once
must not keep the daemon busy."""
IDLE_BYTES: Final = 32 * limits.KIB
"""What a request that waits for output asks for: it holds that much of the byte budget."""
PAGES_MAX: Final = 16
_JOB: Final = re.compile(r"job-[0-9]+-[0-9]+")


@dataclass(frozen=True)
class ProcessSpecification:
    """What a client asks of a process."""

    argv: tuple[str, ...]
    cwd: str = ""
    env: Mapping[str, str] | None = None
    terminal: tuple[int, int] | None = None
    """Rows and columns."""
    timeout_s: float | None = None

    def canonical(self) -> dict[str, Any]:
        """What the digest is made over."""
        return {
            "argv": list(self.argv),
            "cwd": self.cwd,
            "env": dict(self.env or {}),
            "terminal": None if self.terminal is None else list(self.terminal),
            "timeout_s": self.timeout_s,
        }


@dataclass(frozen=True)
class Piece:
    """A part of an output."""

    offset: int
    data: bytes
    dropped: int
    closed: bool


class Processes:
    """Every operation may be repeated as the contract says."""

    def __init__(self, directory: Directory, table: ProcessTable, digest_key: bytes) -> None:
        self._verbs = ProcessVerbs(directory)
        self._table = table
        self._digest_key = digest_key
        # Two starts of one process: between its row and its start nobody else looks.
        self._locks: WeakValueDictionary[tuple[SessionKey, str], asyncio.Lock] = (
            WeakValueDictionary()
        )
        self._starts: set[asyncio.Task[tuple[ProcessView, bool]]] = set()

    async def start(
        self, key: SessionKey, process_id: str, epoch: int | None, asked: ProcessSpecification
    ) -> tuple[ProcessView, bool]:
        """The process, and whether it was there before. An empty id gets one made."""
        async with self._verbs.verb(key, epoch) as guest:
            work = self._start(guest, process_id or f"p-{uuid.uuid4().hex}", asked)
            task = asyncio.create_task(work)
            self._starts.add(task)
            task.add_done_callback(self._start_ended)
            # Shielded: a caller that leaves must not leave a row without its process.
            return await asyncio.shield(task)

    async def read(
        self, key: SessionKey, process_id: str, stream: str, offset: int, *, follow: bool
    ) -> AsyncGenerator[Piece, None]:
        """An output from an offset: what is there, or until it is closed. At least one piece."""
        async with self._verbs.verb(key) as guest:
            await self._started(guest, process_id)
            args = {"process_id": process_id, "stream": stream}
            until: int | None = None
            first, wait_s, bytes_max = True, 0.0, limits.CHUNK_BYTES_MAX
            while True:
                asked = time.monotonic()
                reply = await guest.ask(
                    "process_read",
                    {**args, "offset": offset, "bytes_max": bytes_max},
                    wait_s=wait_s,
                    reply_bytes_max=bytes_max,
                    # Who follows may do so for ever: only what comes is use.
                    is_use=not follow,
                )
                facts = parse_facts(OutputFacts, reply.facts)
                if facts.offset != offset + facts.dropped:
                    raise SandboxLost("PROTOCOL", "an output goes on at another offset")
                until = facts.end if until is None else until
                if reply.body:
                    guest.live.touch()
                if first or reply.body or facts.dropped or facts.closed:
                    yield Piece(facts.offset, reply.body, facts.dropped, facts.closed)
                offset = facts.offset + len(reply.body)
                if facts.closed or not (follow or offset < until):
                    return
                if not (follow or reply.body or facts.dropped):
                    raise SandboxLost("PROTOCOL", "an output gave nothing before its end")
                if time.monotonic() - asked < wait_s:
                    await asyncio.sleep(REST_S)
                idle = offset >= facts.end
                first, wait_s = False, STEP_S if idle else 0.0
                bytes_max = IDLE_BYTES if idle else limits.CHUNK_BYTES_MAX

    async def write(
        self,
        key: SessionKey,
        process_id: str,
        epoch: int | None,
        offset: int,
        data: bytes,
        *,
        close: bool,
    ) -> tuple[int, bool]:
        """Bytes of the whole input that were written, and whether it is closed."""
        async with self._verbs.verb(key, epoch) as guest:
            await self._started(guest, process_id, lost_as_closed=True)
            guest.check_epoch()
            reply = await guest.ask(
                "process_write",
                {"process_id": process_id, "offset": offset, "close": close},
                data,
                wait_s=limits.PROCESS_INPUT_S,
            )
            facts = parse_facts(InputFacts, reply.facts)
        return facts.written, facts.closed

    async def signal(
        self, key: SessionKey, process_id: str, epoch: int | None, number: int
    ) -> bool:
        """Whether the process was there to get it."""
        async with self._verbs.verb(key, epoch) as guest:
            record = await self._find(guest, process_id)
            if record is not None and record.generation != guest.generation:
                return False
            guest.check_epoch()
            args = {"process_id": process_id, "signal": number}
            reply = await guest.ask("process_signal", args)
            return parse_facts(DeliveredFacts, reply.facts).delivered

    async def wait(self, key: SessionKey, process_id: str, timeout_s: float) -> ProcessView:
        """The process once it has ended, or as it is when the time is over."""
        async with self._verbs.verb(key) as guest:
            end = time.monotonic() + timeout_s
            record = await self._find(guest, process_id)
            if record is not None and record.generation != guest.generation:
                return of_record(record, lost=True)
            step_s = STEP_S if record is not None else JOB_STEP_S
            while True:
                asked = time.monotonic()
                wait_s = min(step_s, max(0.0, end - asked))
                reply = await guest.ask("process_wait", {"process_id": process_id}, wait_s=wait_s)
                stand = parse_facts(StandFacts if record else JobFacts, reply.facts)
                now = time.monotonic()
                if not stand.running or now >= end:
                    break
                if now - asked < wait_s:
                    await asyncio.sleep(REST_S)
            if record is not None:
                return await self._seen(guest, record, stand)
            assert isinstance(stand, JobFacts)
            return of_job(process_id, guest.generation, stand)

    async def list(self, key: SessionKey) -> list[ProcessView]:
        """Processes and background jobs, oldest first; of the ended ones the latest."""
        async with self._verbs.verb(key) as guest:
            listed = await self._pages(guest)
            records = await self._table.all(key)
            views: list[ProcessView] = []
            known = set()
            for record in records:
                known.add(record.process_id)
                stand = listed.get(record.process_id)
                if record.generation != guest.generation:
                    views.append(of_record(record, lost=True))
                elif stand is not None and stand.call_id is None:
                    views.append(await self._seen(guest, record, stand))
                elif record.pid:
                    views.append(of_record(record))
            views += [
                of_listed(guest.generation, stand)
                for process_id, stand in listed.items()
                if stand.call_id is not None and process_id not in known
            ]
        running = [view for view in views if view.state == "RUNNING"]
        ended = [view for view in views if view.state != "RUNNING"]
        shown = [*running, *ended[-limits.PROCESSES_ENDED_MAX :]]
        return sorted(shown, key=lambda view: (view.started_at, view.pid))

    async def resize(
        self, key: SessionKey, process_id: str, epoch: int | None, rows: int, columns: int
    ) -> None:
        async with self._verbs.verb(key, epoch) as guest:
            await self._started(guest, process_id, lost_as_closed=True)
            guest.check_epoch()
            args = {"process_id": process_id, "rows": rows, "columns": columns}
            await guest.ask("process_resize", args)

    # --- Steps -----------------------------------------------------------------

    async def _start(
        self, guest: ProcessGuest, process_id: str, asked: ProcessSpecification
    ) -> tuple[ProcessView, bool]:
        key = guest.key
        digest = process_digest(self._digest_key, asked.canonical())
        lock = self._locks.setdefault((key, process_id), asyncio.Lock())
        async with lock:
            record = await self._table.find(key, process_id)
            is_new = record is None
            if record is not None:
                if record.digest != digest:
                    raise IdConflict("process", process_id)
                if record.generation != guest.generation:
                    return of_record(record, lost=True), True
                if record.pid:
                    reply = await guest.ask("process_wait", {"process_id": process_id})
                    stand = parse_facts(StandFacts, reply.facts)
                    return await self._seen(guest, record, stand), True
            else:
                record = ProcessRecord(
                    process_id, digest, asked.argv, guest.generation, time.time()
                )
                await self._table.insert(key, record)
            return await self._begin(guest, record, asked, is_new=is_new)

    async def _begin(
        self,
        guest: ProcessGuest,
        record: ProcessRecord,
        asked: ProcessSpecification,
        *,
        is_new: bool,
    ) -> tuple[ProcessView, bool]:
        """Asks the guest, after the row is durable. A start that it refuses leaves no row.

        `is_new`: this request made the row. One of an earlier request stays whatever comes:
        its process may run.
        """
        key, process_id = guest.key, record.process_id
        args: dict[str, Any] = {"process_id": process_id, "cwd": asked.cwd}
        if asked.terminal is not None:
            args["rows"], args["columns"] = asked.terminal
        if asked.timeout_s is not None:
            args["timeout_s"] = asked.timeout_s
        body = json.dumps({"argv": asked.argv, "env": dict(asked.env or {})}).encode()
        try:
            guest.check_epoch()
            reply = await guest.ask("process_start", args, body)
        except (GuestFault, EpochStale):
            if is_new:
                await self._table.remove(key, process_id)
            raise
        facts = parse_facts(StartedFacts, reply.facts)
        await self._table.started(key, process_id, facts.pid)
        # Of a new row the guest may say that it knows the process: it was asked again after
        # its connection had ended.
        return await self._seen(guest, record, facts), not (is_new or facts.created)

    def _start_ended(self, task: asyncio.Task[tuple[ProcessView, bool]]) -> None:
        self._starts.discard(task)
        # Its caller may be gone; then nobody else would retrieve it.
        if not task.cancelled():
            task.exception()

    async def _find(self, guest: ProcessGuest, process_id: str) -> ProcessRecord | None:
        """Its row, or None for what may be a background job. Raises `ProcessUnknown`."""
        record = await self._table.find(guest.key, process_id)
        if record is None and not _JOB.fullmatch(process_id):
            raise ProcessUnknown(process_id)
        return record

    async def _started(
        self, guest: ProcessGuest, process_id: str, *, lost_as_closed: bool = False
    ) -> None:
        """Refuses what has no streams of its own: unknown ids, jobs, lost processes."""
        record = await self._find(guest, process_id)
        if record is None:
            await guest.ask("process_wait", {"process_id": process_id})
            raise ProcessFault("INVALID_INPUT", "a background job has no streams of its own")
        if record.generation != guest.generation:
            if lost_as_closed:
                raise ProcessFault("INVALID_INPUT", "the process ended with its sandbox")
            raise VerbSandboxLost

    async def _seen(
        self, guest: ProcessGuest, record: ProcessRecord, stand: StandFacts
    ) -> ProcessView:
        """The process as the guest has it; an end that is seen first is kept."""
        view = of_record(record, stand)
        if view.ended_at is not None and record.ended_at is None:
            await self._table.ended(
                guest.key, record.process_id, view.ended_at, view.exit_code, view.signal
            )
        return view

    async def _pages(self, guest: ProcessGuest) -> dict[str, Any]:
        """Everything that the guest lists, by id."""
        found: dict[str, Any] = {}
        after: int | None = 0
        for _ in range(PAGES_MAX):
            reply = await guest.ask("process_list", {"after": after})
            page = parse_facts(PageFacts, reply.facts)
            found.update((each.process_id, each) for each in page.processes)
            if page.next is None:
                return found
            if after is not None and page.next <= after:
                break
            after = page.next
        raise SandboxLost("PROTOCOL", "a list of processes has no end")
