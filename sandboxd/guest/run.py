"""Commands: a fresh shell each, bounded in time and output (contract.md 6, bash).

One pipe for stdout and stderr, in the order written. The call returns when its
shell has exited and the pipe is at its end, or was quiet, or the longest wait is
over; who still holds the pipe keeps running, and the drain thread reads on. A
timeout or a cancel ends the whole tree, escapees included.
"""

from __future__ import annotations

import os
import secrets
import select
import threading
import time
from typing import Any, Final

from . import environment, shells, tree
from .calls import CALLS, Call
from .children import CHILDREN, SCRIPT_FD, Child
from .drain import DRAIN
from .feeds import FEEDS
from .ops import Answer, Facts, Machine, Op, OpError, Request
from .output import Output
from .spill import Spill, SpillFolder
from .storage import full
from .tree import Process

ARGUMENT_BYTES_MAX: Final = 128 * 1024 - 1
"""Longest argument that Linux passes to a program, without the closing NUL."""
PIECE_BYTES: Final = 64 * 1024
DRAIN_QUIET_S: Final = 0.25
DRAIN_MAX_S: Final = 2.0
KILL_GRACE_S: Final = 2.0
TREE_CHECK_S: Final = 0.05
"""Between two looks at a tree that was asked to end."""
END_NOTED_S: Final = 1.0
"""Longest wait for the exit code, or the signal, of a shell that was ended."""
SURVIVORS_MAX: Final = 64
SETTLE_S: Final = (0.01, 0.03)
"""Looks at what seems to outlive a shell, before it is called a survivor."""
TIMEOUT_MAX_S: Final = 7 * 86_400.0


class Wake:
    """Wakes the thread that waits for a command; safe to call for as long as anybody may."""

    def __init__(self) -> None:
        # A cancel, or the end of a process that could not be killed, may come after
        # `close`: the descriptor's number then belongs to something else.
        self._lock = threading.Lock()
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __call__(self) -> None:
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        with self._lock:
            os.close(self.fd)
            self.fd = -1


class Command:
    """One running command; used by one thread."""

    def __init__(
        self, child: Child, call: Call, pipe: int, wake: Wake, spill: Spill, timeout_s: float
    ) -> None:
        self.child = child
        self.call = call
        self.output = Output()
        self.feed = FEEDS.begin(call.call_id, self.output, timeout_s)
        self.spill = spill
        self.open = True
        """Whether somebody may still write into the pipe."""
        self._pipe = pipe
        self._wake = wake.fd
        self._poller = select.poll()
        self._poller.register(pipe, select.POLLIN)
        self._poller.register(wake.fd, select.POLLIN)

    def until_exit(self, request: Request, timeout_s: float) -> str:
        """Reads until the shell has exited, the time is over, or the call is cancelled."""
        deadline = time.monotonic() + timeout_s
        while not self.child.exited:
            if request.cancelled:
                return "cancelled"
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return "timed_out"
            self._pump(left_s)
        return "exited"

    def drain(self, request: Request) -> str:
        """Reads what the shell's children still write, for a bounded time."""
        latest = time.monotonic() + DRAIN_MAX_S
        quiet_until = time.monotonic() + DRAIN_QUIET_S
        while self.open:
            if request.cancelled:
                return "cancelled"
            now = time.monotonic()
            left_s = min(latest, quiet_until) - now
            if left_s <= 0:
                break
            if self._pump(left_s):
                quiet_until = time.monotonic() + DRAIN_QUIET_S
        return "exited"

    def end_tree(self) -> list[Process]:
        """TERM, a time of grace, KILL; reads on meanwhile. Returns what could not be ended."""
        CALLS.terminate(self.call)
        deadline = time.monotonic() + KILL_GRACE_S
        check_s = 0.005
        while time.monotonic() < deadline:
            self._pump_for(check_s)
            check_s = min(check_s * 2, TREE_CHECK_S)
            own, untraceable = CALLS.remaining(self.call)
            if not own and not untraceable:
                # What the last of them wrote may have come after the look at the pipe.
                self._pump_for(0.0)
                return []
            if not own:
                break
        left = CALLS.kill(self.call)
        # What the killed had written is still in the pipe.
        self._pump_for(0.0)
        return left

    def close(self) -> None:
        """Gives the pipe away while somebody holds it, else closes it."""
        if self.open:
            DRAIN.take(self._pipe)
        else:
            os.close(self._pipe)

    def _pump_for(self, seconds: float) -> None:
        """Reads for a time, and at least what is there now, up to one pipe full."""
        deadline = time.monotonic() + seconds
        while self._pump(max(0.0, deadline - time.monotonic())) or time.monotonic() < deadline:
            if time.monotonic() >= deadline + TREE_CHECK_S:
                return

    def _pump(self, timeout_s: float) -> bool:
        """Waits for bytes or a wake-up; whether there were bytes."""
        got = False
        # Rounded up: a wait of less than a millisecond must not become none.
        for fd, _ in self._poller.poll(int(timeout_s * 1000) + 1 if timeout_s > 0 else 0):
            if fd == self._wake:
                os.eventfd_read(fd)
                continue
            data = os.read(fd, PIECE_BYTES)
            if data:
                self.feed.take(data)
                self.spill.feed(data)
                got = True
            else:
                self._poller.unregister(fd)
                self.open = False
        return got


_spill_folder = SpillFolder("/tmp")


def start(machine: Machine) -> None:
    """Starts the thread behind this module and settles where spill files go."""
    global _spill_folder
    if machine.root is not None:
        folder = f"{machine.root}/tmp"
        os.makedirs(folder, exist_ok=True)
        _spill_folder = SpillFolder(folder)
    CALLS.alone = machine.mode == "container" and os.getpid() == 1
    DRAIN.start()


def _run(request: Request) -> Answer:
    timeout_s = request.seconds("timeout_s", TIMEOUT_MAX_S)
    call_id = request.text("call_id")
    if request.machine.shell is None:
        raise OpError("SHELL_MISSING", shells.missing_text())
    _enter_workdir(request.machine)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    wake = Wake()
    try:
        child, marker, freed = _start_shell(request, writing, wake)
    except BaseException:
        os.close(reading)
        wake.close()
        raise
    finally:
        os.close(writing)
    call = CALLS.begin(call_id, marker, child.pid)
    command = Command(child, call, reading, wake, Spill(_spill_folder), timeout_s)
    request.on_cancel(wake)
    survivors: list[Process] = []
    try:
        ended = command.until_exit(request, timeout_s)
        if ended == "exited":
            ended = command.drain(request)
        if ended != "exited":
            survivors = command.end_tree()
            # The waiter takes note of an end a moment after it.
            child.wait(END_NOTED_S)
        elif command.open or tree.has_orphans():
            _settle(call)
        # Background jobs after an exit; what could not be killed after the rest.
        left = CALLS.finish(call)
        survivors = left if ended == "exited" else survivors
    finally:
        CHILDREN.release(child)
        command.close()
        FEEDS.finish(call_id)
        wake.close()
    facts, body = _facts(command, ended, survivors)
    # Nothing tells afterwards why a write failed: where one may have, it is looked at.
    filled = full(request.machine) if facts["exit_code"] else []
    return {**facts, "timeout_s": timeout_s, "freed": freed, "full": filled}, body


def _enter_workdir(machine: Machine) -> None:
    """Makes sure that the guest, and so its children, stand in the working directory."""
    try:
        # The start of a process may stand somewhere else for a moment, under this lock.
        with CHILDREN.lock:
            wanted, here = os.stat(machine.workdir), os.stat(".")
            if (wanted.st_dev, wanted.st_ino) != (here.st_dev, here.st_ino):
                # It was removed and made anew.
                os.chdir(machine.workdir)
    except OSError as error:
        raise OpError(
            "WORKING_DIRECTORY_MISSING",
            f"The working directory {machine.workdir} cannot be entered: {error.strerror}. "
            "Where it is gone, write a file into it: that makes it anew.",
        ) from None


def _start_shell(request: Request, pipe: int, wake: Wake) -> tuple[Child, str, int]:
    """The shell, its marker, and how many processes were ended to make room for it."""
    machine = request.machine
    marker = secrets.token_hex(16)
    env = {tree.MARKER: marker, **environment.command_environment(machine)}
    script = request.body
    if b"\0" in script:
        raise OpError("INVALID_INPUT", "a script contains no NUL")
    shell = machine.shell or ""
    script_fd: int | None = None
    if len(script) <= ARGUMENT_BYTES_MAX:
        argv = shells.argv(shell, script)
    else:
        script_fd = _script_file(script)
        argv = [shell, f"/dev/fd/{SCRIPT_FD}"]

    def spawn() -> Child:
        return CHILDREN.spawn(
            argv, env, stdout=pipe, stderr=pipe, script_fd=script_fd, hold=True, on_exit=wake
        )

    freed = CALLS.make_room(exhausted=False)
    try:
        try:
            return spawn(), marker, freed
        except OpError as error:
            more = CALLS.make_room(exhausted=True) if error.facts.get("exhausted") else 0
            if not more:
                raise
            return spawn(), marker, freed + more
    finally:
        if script_fd is not None:
            os.close(script_fd)


def _script_file(script: bytes) -> int:
    """The script in memory: not on stdin, which its commands would read (tool-cases B17)."""
    fd = os.memfd_create("script", os.MFD_CLOEXEC)
    try:
        view = memoryview(script)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError as error:
        os.close(fd)
        raise OpError("SPAWN_FAILED", f"the script does not fit: {error.strerror}") from None
    return fd


def _settle(call: Call) -> None:
    """Gives processes that are about to end the moment that they need."""
    for pause_s in SETTLE_S:
        if not CALLS.alive(call):
            return
        time.sleep(pause_s)


def _facts(command: Command, ended: str, survivors: list[Process]) -> Answer:
    child, output = command.child, command.output
    tail = output.tail()
    spilled = command.spill.finish(wanted=tail.cut)
    spill: dict[str, Any] | None = None
    if spilled is not None:
        spill = {"path": spilled.path, "bytes": spilled.bytes, "complete": spilled.complete}
    code = child.exit_code
    if child.signal is not None:
        code = 128 + child.signal
    facts: Facts = {
        "ended": ended,
        "exit_code": code,
        "signal": child.signal,
        "bytes_total": output.bytes_total,
        "lines_total": output.lines_total,
        "lines_shown": tail.lines,
        "cut": tail.cut,
        "binary": tail.binary,
        "spill": spill,
        "survivors": [[process.pid, process.name] for process in survivors[:SURVIVORS_MAX]],
        "survivors_total": len(survivors),
        "output_open": command.open,
        "swept": command.call.swept,
    }
    return facts, tail.text


OPS: Final = {"run": Op(_run, "call")}
