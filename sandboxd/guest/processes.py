"""Long-lived processes for programs: the ops behind `ProcessService`.

All of them may be asked again after a lost connection (`protocol.REPEATABLE`): a start
by its id, input by its offset, output by its offset. Those that wait are on the thread
of `polls`.
"""

from __future__ import annotations

import os
import signal
import termios
from typing import Any, Final

from . import process_jobs, process_start, process_terminal
from .calls import CALLS
from .children import CHILDREN
from .ops import Answer, Facts, Op, OpError, PollOp, Request
from .polls import POLLS
from .process_ends import ENDS
from .process_jobs import JOBS
from .process_outputs import OUTPUTS
from .process_table import TABLE, Input, Process

READ_BYTES_MAX: Final = 1024 * 1024
LIST_MAX: Final = 64
"""Processes in one answer of `process_list`: so many fit a header."""
LISTED_MAX: Final = 1_000_000_000_000
_LOCAL: Final = 3
_CHARACTERS: Final = 6
"""Where `tcgetattr` has the local modes and the control characters."""


def start() -> None:
    """Starts the threads behind this module."""
    CHILDREN.on_orphan = POLLS.notify
    ENDS.start()
    OUTPUTS.start(ENDS.ended)


def _start(request: Request) -> Answer:
    process_id = request.text("process_id")
    want = process_start.wanted(request)
    process = TABLE.begin(process_id)
    if process is not None:
        return {"created": False, **process.facts()}, b""
    try:
        child, marker, streams = process_start.spawn(want, OUTPUTS.wake)
        process = Process(
            process_id,
            child,
            CALLS.begin("", marker, child.pid),
            Input(streams.stdin, terminal=want.size is not None),
            terminal=streams.terminal,
            timeout_s=want.timeout_s,
        )
        TABLE.add(process)
        # Before the thread of outputs can see its end.
        ENDS.watch(process)
        OUTPUTS.add(process, streams.outputs)
    finally:
        TABLE.give_up(process_id)
    return {"created": True, **process.facts()}, b""


def _read(request: Request, over: bool) -> Answer | None:
    process = TABLE.find(request.text("process_id"))
    offset = request.integer("offset")
    bytes_max = request.integer("bytes_max", 1, READ_BYTES_MAX)
    ring = process.rings.get(request.text("stream"))
    if ring is None:
        raise OpError("INVALID_INPUT", "`stream` must be stdout or stderr")
    with TABLE.lock:
        at = max(offset, ring.start)
        data = ring.read(at, bytes_max) if at < ring.end else b""
        end, closed = ring.end, ring.closed
    closed = closed and at + len(data) >= end
    if not data and not closed and at == offset and not over:
        return None
    return {"offset": at, "dropped": at - offset, "end": end, "closed": closed}, data


def _write(request: Request, over: bool) -> Answer | None:
    process = TABLE.find(request.text("process_id"))
    offset, given = request.integer("offset"), process.input
    close = request.flag("close")
    with given.lock:
        if offset > given.written:
            raise OpError(
                "INVALID_INPUT",
                f"offset {offset} leaves a gap: {given.written} bytes were written so far",
            )
        rest = memoryview(request.body)[given.written - offset :]
        if rest and not given.closed:
            rest = rest[_put(given, rest) :]
        if rest and given.closed:
            raise OpError("INVALID_INPUT", "the process's input is closed")
        if close and not rest and not given.closed:
            _close(given)
        facts: Facts = {"written": given.written, "closed": given.closed}
    if rest and not over:
        OUTPUTS.await_room(process)
        return None
    return facts, b""


def _put(given: Input, data: memoryview) -> int:
    """Writes what fits now; closes an input that nobody reads. Under the input's lock."""
    # Where the kernel does not keep it from process 1 (gVisor), it would end the guest.
    # Blocked, it stays with this thread, which never unblocks it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    done = 0
    while done < len(data):
        try:
            count = os.write(given.fd, data[done:])
        except BlockingIOError:
            break
        except OSError:
            given.close_locked()
            break
        if count == 0:
            break
        done += count
        given.last = bytes(data[done - 1 : done])
    given.written += done
    return done


def _close(given: Input) -> None:
    """Ends the input. A terminal's has no end: its end-of-file character is typed."""
    if given.terminal:
        try:
            modes = termios.tcgetattr(given.fd)
            end = modes[_CHARACTERS][termios.VEOF]
            # Where lines are edited by the kernel, the first only ends one that was begun.
            begun = modes[_LOCAL] & termios.ICANON and given.last not in (b"", b"\n", b"\r")
            os.write(given.fd, end * 2 if begun else end)
        except (OSError, termios.error):
            pass
    given.close_locked()


def _signal(request: Request) -> Answer:
    process_id = request.text("process_id")
    number = request.integer("signal", 1, 64)
    process = _started(process_id)
    if process is None:
        return {"delivered": process_jobs.send(JOBS.find(process_id), number)}, b""
    if process.child.exited:
        return {"delivered": False}, b""
    CHILDREN.kill_group(process.child, number)
    return {"delivered": True}, b""


def _wait(request: Request, over: bool) -> Answer | None:
    process_id = request.text("process_id")
    process = _started(process_id)
    facts = process.facts() if process is not None else JOBS.find(process_id).facts()
    return None if facts["running"] and not over else (facts, b"")


def _list(request: Request) -> Answer:
    after = request.integer("after", 0, LISTED_MAX)
    known: list[tuple[int, dict[str, Any]]] = [
        (each.number, {"process_id": each.process_id, **each.facts()}) for each in TABLE.listed()
    ]
    known += [(job.number, {"process_id": job.process_id, **job.facts()}) for job in JOBS.all()]
    rest = sorted((each for each in known if each[0] > after), key=lambda each: each[0])
    shown = rest[:LIST_MAX]
    more = len(rest) > len(shown)
    facts = {"processes": [facts for _, facts in shown], "next": shown[-1][0] if more else None}
    return facts, b""


def _resize(request: Request) -> Answer:
    process = TABLE.find(request.text("process_id"))
    rows = request.integer("rows", 1, process_terminal.CELLS_MAX)
    columns = request.integer("columns", 1, process_terminal.CELLS_MAX)
    if not process.has_terminal:
        raise OpError("INVALID_INPUT", "the process has no terminal")
    # Its descriptor is taken out of the table under this lock before it is closed.
    with TABLE.lock:
        if process.terminal is not None:
            process_terminal.resize(process.terminal, rows, columns)
    if not process_terminal.are_whole() and not process.child.exited:
        CHILDREN.kill_group(process.child, signal.SIGWINCH)
    return {}, b""


def _started(process_id: str) -> Process | None:
    """The process that was started under this id; None where there is none."""
    try:
        return TABLE.find(process_id)
    except OpError:
        return None


OPS: Final[dict[str, Op | PollOp]] = {
    "process_start": Op(_start, "verb"),
    "process_read": PollOp(_read),
    "process_write": PollOp(_write),
    "process_signal": Op(_signal, "control"),
    "process_wait": PollOp(_wait),
    "process_list": Op(_list, "verb"),
    "process_resize": Op(_resize, "control"),
}
