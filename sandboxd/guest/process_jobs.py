"""Background jobs of finished tool calls, under ids that stay theirs.

Nobody started them by an id, so they get one from what is theirs alone: pid and start.
What they write is read and thrown away (`drain`).
"""

from __future__ import annotations

import bisect
import itertools
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from . import tree
from .calls import CALLS
from .children import CHILDREN
from .ops import OpError
from .process_table import NUMBERS

JOBS_MAX: Final = 256
"""Jobs that are known, those that have ended included; the oldest ended go first."""
ARGUMENT_BYTES_MAX: Final = 512
"""Program and arguments of a job, as far as they are told: so much of what the kernel has, and
so much of what a header then holds of it. A page of jobs, all of the largest, fits a header."""
_QUOTES: Final = '"",'
"""What a word takes in a header besides its letters."""
_ESCAPED: Final = '"\\'
"""Letters that a header puts another one before."""
_TICKS_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Job:
    """A job, or how it ended."""

    process: tree.Process
    number: int
    call_id: str
    argv: list[str]
    ended_at: float | None = None
    """On the monotonic clock, when it was first seen gone."""

    @property
    def process_id(self) -> str:
        return f"job-{self.process.pid}-{self.process.started}"

    def facts(self) -> dict[str, Any]:
        """How it stands, as it leaves the guest. Who waits for it learns how it ended."""
        ended = self.ended_at is not None
        code, number = CHILDREN.orphan_end(self.process.pid) if ended else (None, None)
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - self.process.started * _TICKS_S
        return {
            "pid": self.process.pid,
            "running": not ended,
            "exit_code": code,
            "signal": number,
            "ended_s": None if self.ended_at is None else time.monotonic() - self.ended_at,
            "call_id": self.call_id,
            "argv": self.argv,
            "age_s": max(0.0, age_s),
        }


class Jobs:
    """All of them; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}

    def all(self) -> list[Job]:
        """What is known now, after a look at the process table."""
        found = CALLS.jobs()
        with self._lock:
            for call_id, process in found:
                job_id = f"job-{process.pid}-{process.started}"
                if job_id not in self._jobs and self._room():
                    argv = _argv(process)
                    self._jobs[job_id] = Job(process, next(NUMBERS), call_id, argv)
            for job in self._jobs.values():
                _look(job)
            return list(self._jobs.values())

    def find(self, process_id: str) -> Job:
        """A job that was listed, as it is now. Raises `OpError` PROCESS_UNKNOWN."""
        with self._lock:
            job = self._jobs.get(process_id)
            if job is None:
                raise OpError("PROCESS_UNKNOWN", f"no process `{process_id}` in this session")
            _look(job)
            return job

    def _room(self) -> bool:
        if len(self._jobs) < JOBS_MAX:
            return True
        ended = [job for job in self._jobs.values() if job.ended_at is not None]
        if not ended:
            return False
        oldest = min(ended, key=lambda job: job.ended_at or 0.0)
        del self._jobs[oldest.process_id]
        return True


def send(job: Job, number: int) -> bool:
    """Signals the group that a job leads, or else the job alone; false where it has ended."""
    if job.ended_at is not None:
        return False
    if job.process.group == job.process.pid:
        try:
            os.killpg(job.process.group, number)
        except OSError:
            return False
    else:
        tree.send(job.process, number)
    return True


def _look(job: Job) -> None:
    if job.ended_at is None:
        now = tree.read(job.process.pid)
        if now is None or now.started != job.process.started or not now.alive:
            job.ended_at = time.monotonic()


def _argv(process: tree.Process) -> list[str]:
    try:
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:
            raw = file.read(ARGUMENT_BYTES_MAX)
    except OSError:
        raw = b""
    words = raw.rstrip(b"\0").split(b"\0") if raw else [process.name.encode()]
    # Names of a session's own making: shown, never parsed.
    return _told([_plain(word.decode("utf-8", "replace")) for word in words])


def _told(words: list[str]) -> list[str]:
    """The words that fit a header's share, the last one cut."""
    told: list[str] = []
    left = ARGUMENT_BYTES_MAX
    for word in words:
        left -= len(_QUOTES)
        if left < 0:
            break
        sizes = [len(char.encode()) + (char in _ESCAPED) for char in word]
        ends = list(itertools.accumulate(sizes))
        told.append(word[: bisect.bisect_right(ends, left)])
        left -= sum(sizes)
    return told


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


JOBS: Final = Jobs()
"""The guest's one table of jobs."""
