"""Starting processes, and the one thread that waits for them (security S6).

Nobody else calls wait: `subprocess` would take children away from the waiter, so
every program of the guest is started here. A process is registered under the lock
that reaping takes, so it is known before it can be reaped.

A child that is started with `hold` stays a zombie until it is released: its pid,
which is also the id of its process group and of its session, cannot be used again
while somebody may still send signals to it. Waiting for "any child" would return
such a zombie again and again. While there is one, the waiter watches the other
children by pidfd, and takes orphans apart from them: the kernel gives those to the
process's first thread, which therefore is the waiter, and which can wait for its
own children alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

from . import harden, tree
from .ops import OpError

WATCH_S: Final = 0.005
"""How often orphans are taken while a zombie is held: faster than a pid limit fills."""
ORPHAN_SCAN_S: Final = 0.05
"""How often they are looked for in `/proc` as well, should the kernel do it otherwise."""
_WNOTHREAD: Final = 0x20000000
SPAWN_RETRY_S: Final = 1.0
"""How long a start is tried again while no process can be made."""
_SPAWN_PAUSE_S: Final = 0.05
SCRIPT_FD: Final = 3
"""Where a child finds the descriptor that it was given besides 0, 1 and 2."""
ORPHANS_NOTED_MAX: Final = 256
"""Ends of orphans that are remembered."""

OnExit = Callable[[], None]


def spawn_fault(error: OSError) -> OpError:
    """What a start that the system refused is answered with."""
    return OpError("SPAWN_FAILED", f"could not start: {error.strerror}")


class Child:
    """A started process, leader of its own session and process group."""

    def __init__(self, pid: int, pidfd: int, hold: bool, on_exit: OnExit | None) -> None:
        self.pid = pid
        self.exit_code: int | None = None
        """Set before `exited`, where it ended by itself."""
        self.signal: int | None = None
        """Set before `exited`, where a signal ended it."""
        self._pidfd = pidfd
        self._hold = hold
        self._on_exit = on_exit
        self._exited = threading.Event()
        self._reaped = False

    @property
    def exited(self) -> bool:
        return self._exited.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end; false where the time was over first."""
        return self._exited.wait(timeout_s)


class Children:
    """All processes that the guest started and has not reaped."""

    def __init__(self) -> None:
        # Closes the race between a start and the reaping of what was started, and
        # between a signal and the reuse of a pid: taken by spawn, reap and kill.
        self.lock = threading.Lock()
        self._children: dict[int, Child] = {}
        self._wake = -1
        self._next_scan = 0.0
        self._orphan_ends: dict[int, tuple[int | None, int | None]] = {}
        self.on_orphan: OnExit = lambda: None
        """Called on the waiter when an orphan has ended; must not block."""

    def open(self) -> None:
        """Has to come before the first `spawn`."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        stdout: int,
        stderr: int,
        stdin: int | None = None,
        script_fd: int | None = None,
        hold: bool = False,
        on_exit: OnExit | None = None,
        program: str | None = None,
        cwd: str | None = None,
        terminal: str | None = None,
        fault: Callable[[OSError], OpError] = spawn_fault,
    ) -> Child:
        """Starts a program; without `stdin` it gets `/dev/null`.

        It runs in `cwd`, or else in the guest's own folder. `program` is what is
        executed where that is not `argv[0]`. `terminal` names the device that becomes
        its controlling terminal and its three streams, instead of `stdin`, `stdout` and
        `stderr`. `script_fd` becomes the child's SCRIPT_FD. `on_exit` is called on the
        waiter when the child has ended, with its end filled in; must not block.

        Raises `OpError` SPAWN_FAILED where no process can be made, after SPAWN_RETRY_S
        and with the fact `exhausted`; WORKING_DIRECTORY_MISSING where `cwd` cannot be
        entered; what `fault` makes of every other refusal.
        """
        actions = _streams(stdin, stdout, stderr) if terminal is None else _terminal(terminal)
        if script_fd is not None:
            actions.append((os.POSIX_SPAWN_DUP2, script_fd, SCRIPT_FD))
        deadline = time.monotonic() + SPAWN_RETRY_S
        while True:
            try:
                return self._spawn_once(program or argv[0], argv, env, actions, hold, on_exit, cwd)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise OpError(
                        "SPAWN_FAILED",
                        "no process could be made: the process limit is reached",
                        exhausted=True,
                    ) from None
            except OSError as error:
                raise fault(error) from None
            time.sleep(_SPAWN_PAUSE_S)

    def _spawn_once(
        self,
        program: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        actions: list[tuple[Any, ...]],
        hold: bool,
        on_exit: OnExit | None,
        cwd: str | None,
    ) -> Child:
        with self.lock, _inside(cwd), harden.expendable_children():
            pid = os.posix_spawn(
                program,
                list(argv),
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=signal.valid_signals(),
            )
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                pidfd = -1
            child = self._children[pid] = Child(pid, pidfd, hold, on_exit)
        # The waiter may sleep for want of children, or watch a list without this one.
        os.eventfd_write(self._wake, 1)
        return child

    def release(self, child: Child) -> None:
        """Lets the waiter reap a child that was started with `hold`. Idempotent."""
        with self.lock:
            child._hold = False
        os.eventfd_write(self._wake, 1)

    def kill_group(self, child: Child, number: int) -> None:
        """Sends a signal to the child's process group, unless the child was reaped."""
        with self.lock:
            if child._reaped:
                return
            try:
                os.killpg(child.pid, number)
            except ProcessLookupError:
                return

    def leaders(self) -> set[int]:
        """Pids of everything that was started here and not reaped yet."""
        with self.lock:
            return self.leaders_locked()

    def leaders_locked(self) -> set[int]:
        """The same, for a caller that holds `lock`."""
        return set(self._children)

    def wait_for_ever(self) -> NoReturn:
        """The waiter. Belongs on the first thread of the process and never returns."""
        while True:
            if self._holds_zombie():
                self._watch_each()
                continue
            self._next_scan = time.monotonic() + ORPHAN_SCAN_S
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                self._sleep([], None)
                continue
            if found is not None:
                self._ended(found)

    def _holds_zombie(self) -> bool:
        """Reaps what was released; whether a held zombie is left.

        A command without background jobs is released a moment after its end: the
        scan for orphans, which costs more than that, waits its turn.
        """
        with self.lock:
            dead = [child for child in self._children.values() if child.exited]
            for child in dead:
                if not child._hold:
                    self._reap(child)
            return any(child._hold for child in dead)

    def _watch_each(self) -> None:
        with self.lock:
            running = [child for child in self._children.values() if not child.exited]
        self._sleep([child._pidfd for child in running if child._pidfd >= 0], WATCH_S)
        self._take_orphans()
        orphans: list[int] = []
        if time.monotonic() >= self._next_scan and tree.has_orphans():
            self._next_scan = time.monotonic() + ORPHAN_SCAN_S
            with self.lock:
                known = set(self._children)
            orphans = [p.pid for p in tree.zombies_of(os.getpid()) if p.pid not in known]
        for pid in [*(child.pid for child in running), *orphans]:
            try:
                found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:
                continue
            if found is not None:
                self._ended(found)

    def _take_orphans(self) -> None:
        """Reaps the dead among the children of this thread, which are the orphans."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG | _WNOTHREAD)
            except ChildProcessError:
                return
            if found is None or not self._ended(found):
                return

    def _sleep(self, pidfds: list[int], timeout_s: float | None) -> None:
        poller = select.poll()
        for fd in [self._wake, *pidfds]:
            poller.register(fd, select.POLLIN)
        poller.poll(None if timeout_s is None else timeout_s * 1000)
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass

    def _ended(self, found: os.waitid_result) -> bool:
        """Takes note of a dead child that was seen; whether it is no zombie any more."""
        with self.lock:
            child = self._children.get(found.si_pid)
            if child is None:
                # Gone already where it could not be executed: the C library took it
                # back itself, inside the spawn that held the lock.
                with contextlib.suppress(ChildProcessError):
                    os.waitid(os.P_PID, found.si_pid, os.WEXITED | os.WNOHANG)
                self._note_orphan(found)
                return True
            if not child.exited:
                if found.si_code == os.CLD_EXITED:
                    child.exit_code = found.si_status
                else:
                    child.signal = found.si_status
                child._exited.set()
                if child._on_exit is not None:
                    child._on_exit()
            if not child._hold:
                self._reap(child)
            return not child._hold

    def orphan_end(self, pid: int) -> tuple[int | None, int | None]:
        """Exit code and signal of an orphan that has ended, as far as they are remembered."""
        with self.lock:
            return self._orphan_ends.get(pid, (None, None))

    def _note_orphan(self, found: os.waitid_result) -> None:
        exited = found.si_code == os.CLD_EXITED
        self._orphan_ends.pop(found.si_pid, None)
        self._orphan_ends[found.si_pid] = (
            (found.si_status, None) if exited else (None, found.si_status)
        )
        if len(self._orphan_ends) > ORPHANS_NOTED_MAX:
            del self._orphan_ends[next(iter(self._orphan_ends))]
        self.on_orphan()

    def _reap(self, child: Child) -> None:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG)
        child._reaped = True
        del self._children[child.pid]
        if child._pidfd >= 0:
            os.close(child._pidfd)


def _streams(stdin: int | None, stdout: int, stderr: int) -> list[tuple[Any, ...]]:
    return [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
        if stdin is None
        else (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_DUP2, stderr, 2),
    ]


def _terminal(device: str) -> list[tuple[Any, ...]]:
    """Opened by the leader of a new session, a terminal becomes its controlling one."""
    return [
        (os.POSIX_SPAWN_OPEN, 0, device, os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
    ]


@contextlib.contextmanager
def _inside(folder: str | None) -> Iterator[None]:
    """Stands in another folder meanwhile; the caller holds the spawn lock.

    The C library offers no such action for a child, and all threads share one folder:
    whatever depends on it takes the same lock.
    """
    if folder is None:
        yield
        return
    here = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        try:
            os.chdir(folder)
        except OSError as error:
            raise OpError(
                "WORKING_DIRECTORY_MISSING",
                f"The working directory {folder} cannot be entered: {error.strerror}.",
            ) from None
        yield
    finally:
        os.fchdir(here)
        os.close(here)


CHILDREN: Final = Children()
"""The guest's one registry: a process has one table of children."""
