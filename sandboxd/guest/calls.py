"""Which process belongs to which call, and the end of all that belong to one.

What follows a process is its session id, its ancestry, and the marker in its
environment (contract.md 4). A session cannot be joined from outside, so it counts
most; the marker is a hint (security S6). What was once seen as a call's is
remembered until it is gone, because a process loses its ancestry when its parent
dies.

Only as process 1 of its own pid namespace may the guest conclude that what is
untraceable is a call's that is being ended; in `local` the table is the host's.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from . import tree
from .children import CHILDREN
from .pressure import Pressure
from .tree import Process

FINISHED_MAX: Final = 256
"""Finished calls with background jobs that are remembered."""
KILL_ROUNDS_MAX: Final = 40
"""Sweeps of a tree that keeps growing, before everything is killed or survivors are named."""
KILL_PAUSE_S: Final = 0.02
QUICK_ROUNDS_MAX: Final = 3
"""Rounds of making room in which the rest goes on; what outruns them is killed in a freeze."""
FROZEN_ROUNDS_MAX: Final = 3
JOBS_SPARED: Final = 16
"""Fewer background processes than these are never ended to make room for a command."""


@dataclass(eq=False)
class Call:
    """A command that runs, or has finished and left jobs behind.

    A process that `processes` started is one too, without a `call_id`: so no end of
    another call takes it for untraceable.
    """

    call_id: str
    marker: str
    leader: int
    """Pid of its shell: also the id of its session and of its process group."""
    finished: bool = False
    swept: bool = False
    """Whether its processes were killed together with everything else."""
    known: set[tuple[int, int]] = field(default_factory=set)
    """Pid and start of every process that was traced to it and still existed."""


@dataclass(frozen=True)
class _Traced:
    """Everything that lives below the guest at one moment."""

    owned: Mapping[Call, list[Process]]
    untraceable: list[Process]

    def of(self, call: Call) -> list[Process]:
        return self.owned.get(call, [])


class Calls:
    """The calls of the session, for tracing; `alone` says that the pid namespace is ours."""

    def __init__(self) -> None:
        self.alone = False
        # Guards the table of calls. Taken before CHILDREN.lock, never after it.
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        # One call at a time makes room. Taken before `_lock`.
        self._room_lock = threading.Lock()
        self._pressure = Pressure()

    def begin(self, call_id: str, marker: str, leader: int) -> Call:
        """Adds a call whose shell has just been started and is held unreaped."""
        call = Call(call_id, marker, leader)
        with self._lock:
            # A finished call with this session id has no process left, or the
            # kernel would not have given its number away.
            self._calls[leader] = call
        return call

    def finish(self, call: Call) -> list[Process]:
        """Ends the tracing of a call, unless it left processes behind, which it returns.

        Must come before its shell is released.
        """
        left = self.alive(call) if tree.has_orphans() else []
        if self.alone:
            with self._room_lock:
                self._pressure.note()
        with self._lock:
            call.finished = True
            if not left:
                self._calls.pop(call.leader, None)
            finished = [each for each in self._calls.values() if each.finished]
            for oldest in finished[: max(0, len(finished) - FINISHED_MAX)]:
                del self._calls[oldest.leader]
        return left

    def alive(self, call: Call) -> list[Process]:
        """The living processes of a call, in the order of their pids."""
        return self._trace().of(call)

    def jobs(self) -> list[tuple[str, Process]]:
        """What finished tool calls left running, each with the call's id."""
        return [
            (call.call_id, process)
            for call, processes in self._trace().owned.items()
            if call.finished and call.call_id
            for process in processes
        ]

    def terminate(self, call: Call) -> None:
        """Asks the call's processes to end."""
        # Looked for before the first of them dies and its children lose their parent.
        for process in self.alive(call):
            if process.group != call.leader:
                tree.send(process, signal.SIGTERM)
        _signal_group(call, signal.SIGTERM)

    def remaining(self, call: Call) -> tuple[list[Process], list[Process]]:
        """What the end of a call has to end: its own processes, and the untraceable."""
        traced = self._trace()
        return traced.of(call), traced.untraceable if self.alone else []

    def kill(self, call: Call) -> list[Process]:
        """Kills what `remaining` names until nothing is left of it; returns what is.

        Where nothing else runs, all at once: no process can fork its way out of
        that. The same is the last resort where sweeping does not keep up; then
        the other calls are marked as `swept`, and their results say so.
        """
        for _ in range(KILL_ROUNDS_MAX):
            if self.alone and self._kill_all_if_only(call):
                time.sleep(KILL_PAUSE_S)
            else:
                _signal_group(call, signal.SIGKILL)
            traced = self._trace()
            targets = [*traced.of(call), *(traced.untraceable if self.alone else [])]
            if not targets:
                return []
            self._kill_each(targets)
            time.sleep(KILL_PAUSE_S)
        if self.alone:
            self._sweep()
            time.sleep(KILL_PAUSE_S)
        return self.alive(call)

    def make_room(self, exhausted: bool) -> int:
        """Ends background jobs that have taken up the process limit; returns how many.

        A fork bomb that outlives its shell belongs to a call that has ended: no
        timeout and no cancel would ever end it, and no command could run beside
        it. Ended are the jobs of one finished call, or what is untraceable,
        where they are more than any running call has and, unless no process can
        be made at all (`exhausted`), at least JOBS_SPARED. Never in `local`.
        """
        if not self.alone:
            return 0
        with self._room_lock:
            if not exhausted and not self._pressure.felt():
                return 0
            return self._end_largest(1 if exhausted else JOBS_SPARED)

    def _end_largest(self, least: int) -> int:
        traced = self._trace()
        by_size = sorted(traced.owned, key=lambda call: len(traced.owned[call]))
        largest = by_size[-1] if by_size else None
        count = len(traced.owned[largest]) if largest is not None else 0
        if len(traced.untraceable) >= count:
            largest, count = None, len(traced.untraceable)
        if count < least or (largest is not None and not largest.finished):
            return 0

        def targets_of(traced: _Traced) -> list[Process]:
            return traced.untraceable if largest is None else traced.of(largest)

        for _ in range(QUICK_ROUNDS_MAX):
            targets = targets_of(traced)
            if not targets:
                return count
            self._kill_each(targets)
            time.sleep(KILL_PAUSE_S)
            traced = self._trace()
        for _ in range(FROZEN_ROUNDS_MAX):
            if not targets_of(traced):
                break
            self._kill_frozen(targets_of)
            time.sleep(KILL_PAUSE_S)
            traced = self._trace()
        # What is left was not ended, and the result must not say so.
        return max(0, count - len(targets_of(traced)))

    def _kill_frozen(self, targets_of: Callable[[_Traced], list[Process]]) -> None:
        """Kills while nothing can fork: everything stops, the targets end, the rest goes on.

        On a busy machine a bomb whose every process leads a session of its own
        forks faster than it can be looked at.
        """
        stopped_before = [process for process in tree.scan().values() if process.state == "T"]
        # Under the lock of starting: a child that is stopped between its fork and
        # its exec would hold up whoever starts it, and with it that lock.
        with CHILDREN.lock:
            if not _signal_everything(signal.SIGSTOP):
                return
        try:
            self._kill_each(targets_of(self._trace()))
        finally:
            _signal_everything(signal.SIGCONT)
            for process in stopped_before:
                tree.send(process, signal.SIGSTOP)

    def _kill_each(self, targets: Iterable[Process]) -> None:
        processes = list(targets)
        if self.alone:
            # A whole group at once: its members cannot fork in between. On a host
            # the number could belong to somebody else by now.
            for group in {process.group for process in processes} - {0, 1, os.getpgrp()}:
                try:
                    os.killpg(group, signal.SIGKILL)
                except OSError:
                    continue
        for process in processes:
            tree.send(process, signal.SIGKILL)

    def _kill_all_if_only(self, call: Call) -> bool:
        with self._lock, CHILDREN.lock:
            if any(each is not call for each in self._calls.values()):
                return False
            if CHILDREN.leaders_locked() - {call.leader}:
                return False
            return _signal_everything(signal.SIGKILL)

    def _sweep(self) -> None:
        with self._lock, CHILDREN.lock:
            for call in self._calls.values():
                call.swept = True
            _signal_everything(signal.SIGKILL)

    def _trace(self) -> _Traced:
        table = tree.scan()
        # After the scan: what was started meanwhile is registered by then.
        registered = CHILDREN.leaders()
        below = tree.descendants(table, [os.getpid()]) - {os.getpid()}
        processes = {pid: table[pid] for pid in below}
        with self._lock:
            calls = dict(self._calls)
        owners = _owners(processes, calls)
        owned: dict[Call, list[Process]] = {}
        untraceable = []
        for pid in sorted(processes):
            process = processes[pid]
            if not process.alive:
                continue
            owner = owners.get(pid)
            if owner is not None:
                owned.setdefault(owner, []).append(process)
            elif process.session not in registered:
                untraceable.append(process)
        self._remember(calls, owned)
        return _Traced(owned, untraceable)

    def _remember(self, calls: Mapping[int, Call], owned: Mapping[Call, list[Process]]) -> None:
        with self._lock:
            for leader, call in calls.items():
                call.known = {(p.pid, p.started) for p in owned.get(call, [])}
                if call.finished and not call.known and self._calls.get(leader) is call:
                    del self._calls[leader]


def _owners(processes: Mapping[int, Process], calls: Mapping[int, Call]) -> dict[int, Call]:
    """Call of each process that can be traced to one."""
    owners: dict[int, Call] = {}
    by_marker = {call.marker: call for call in calls.values()}
    by_known = {known: call for call in calls.values() for known in call.known}
    for process in processes.values():
        call = calls.get(process.session) or by_known.get((process.pid, process.started))
        if call is not None:
            owners[process.pid] = call
    _inherit(processes, owners)
    for process in processes.values():
        if process.pid not in owners and process.alive:
            marker = tree.marker_of(process.pid)
            if marker in by_marker:
                owners[process.pid] = by_marker[marker]
    _inherit(processes, owners)
    return owners


def _inherit(processes: Mapping[int, Process], owners: dict[int, Call]) -> None:
    """Gives each process without an owner that of its nearest ancestor that has one."""
    for process in processes.values():
        path: list[int] = []
        at: Process | None = process
        while at is not None and at.pid not in owners and len(path) < len(processes):
            path.append(at.pid)
            at = processes.get(at.parent)
        if at is not None and at.pid in owners:
            for pid in path:
                owners[pid] = owners[at.pid]


def _signal_group(call: Call, number: int) -> None:
    """Signals the call's own process group; its number is safe while its shell is held."""
    try:
        os.killpg(call.leader, number)
    except OSError:
        return


def _signal_everything(number: int) -> bool:
    """Signals all of the pid namespace but its process 1, which must be the caller."""
    if os.getpid() != 1:
        return False
    try:
        os.kill(-1, number)
    except OSError:
        return False
    return True


CALLS: Final = Calls()
