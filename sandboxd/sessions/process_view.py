"""A process as clients see it, from its row, the guest's word, or both."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from sandboxd.sessions.process_facts import JobFacts, ListedFacts, StandFacts
from sandboxd.sessions.process_table import ProcessRecord


@dataclass(frozen=True)
class ProcessView:
    """Times are seconds of the wall clock."""

    process_id: str
    pid: int
    argv: tuple[str, ...]
    state: Literal["RUNNING", "ENDED", "LOST"]
    generation: int
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    """128 + n after signal n."""
    signal: int | None = None
    call_id: str = ""
    """The call that left it, for a background job."""


def of_record(
    record: ProcessRecord, stand: StandFacts | None = None, *, lost: bool = False
) -> ProcessView:
    """A process that was started by its id.

    An end that was seen before counts, so that its time stays the same. `lost`: its
    generation is over. Without the guest's word it has ended in a way that is not known.
    """
    ended_at, code, number = record.ended_at, record.exit_code, record.signal
    if ended_at is None and stand is not None and not stand.running:
        ended_at = max(record.started_at, time.time() - (stand.ended_s or 0.0))
        code, number = stand.code, stand.signal
    running = ended_at is None and stand is not None
    return ProcessView(
        process_id=record.process_id,
        pid=record.pid if stand is None else stand.pid,
        argv=record.argv,
        state="RUNNING" if running else "LOST" if lost and ended_at is None else "ENDED",
        generation=record.generation,
        started_at=record.started_at,
        ended_at=ended_at,
        exit_code=code,
        signal=number,
    )


def of_job(process_id: str, generation: int, job: JobFacts) -> ProcessView:
    """A background job of a tool call."""
    now = time.time()
    return ProcessView(
        process_id=process_id,
        pid=job.pid,
        argv=job.argv,
        state="RUNNING" if job.running else "ENDED",
        generation=generation,
        started_at=now - job.age_s,
        ended_at=None if job.running else now - (job.ended_s or 0.0),
        exit_code=None if job.running else job.code,
        signal=None if job.running else job.signal,
        call_id=job.call_id,
    )


def of_listed(generation: int, listed: ListedFacts) -> ProcessView:
    """The same, from a list."""
    job = JobFacts.model_construct(**listed.model_dump())
    return of_job(listed.process_id, generation, job)
