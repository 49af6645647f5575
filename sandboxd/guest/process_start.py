"""Starting a process: what it is, where it runs, what its three streams are."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import secrets
import stat
from dataclasses import dataclass
from typing import Any, Final

from . import environment, paths, process_terminal, tree
from .calls import CALLS
from .children import CHILDREN, Child, OnExit
from .ops import Machine, OpError, Request

TIMEOUT_MAX_S: Final = 1e12
SHOWN_CHARS_MAX: Final = 200
"""Of a program's name, in a refusal."""
TERM: Final = "xterm-256color"
"""What a terminal is unless the session, the image or the request says otherwise."""
_NOT_FOUND: Final = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True)
class Wanted:
    """What to start."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    size: tuple[int, int] | None
    """Rows and columns of its terminal. None: pipes."""
    timeout_s: float | None


@dataclass(frozen=True)
class Streams:
    """The guest's ends of a process's streams; none of them blocks."""

    stdin: int
    outputs: dict[str, int]
    terminal: int | None = None
    device: str | None = None
    """The terminal's name, for the process to open."""


def wanted(request: Request) -> Wanted:
    """What a request asks for. Raises `OpError`."""
    try:
        body = json.loads(request.body)
        argv, env = body["argv"], environment.environment_of(body["env"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise OpError("INVALID_INPUT", "a start needs `argv` and `env`") from None
    if not isinstance(argv, list) or not argv or not all(_is_word(word) for word in argv):
        raise OpError("INVALID_INPUT", "`argv` must be texts without NUL, at least one")
    machine = request.machine
    cwd = paths.resolve(machine, request.text("cwd") or machine.workdir)
    rows = request.optional_integer("rows", 1, process_terminal.CELLS_MAX)
    size = None
    if rows is not None:
        size = rows, request.integer("columns", 1, process_terminal.CELLS_MAX)
    timeout_s = None
    if request.args.get("timeout_s") is not None:
        timeout_s = request.seconds("timeout_s", TIMEOUT_MAX_S)
    return Wanted(argv, cwd, _environment(machine, env, cwd, size is not None), size, timeout_s)


def spawn(want: Wanted, on_exit: OnExit) -> tuple[Child, str, Streams]:
    """The process, held unreaped, its marker, and its streams. Raises `OpError`."""
    program = _program(want)
    marker = secrets.token_hex(16)
    env = {tree.MARKER: marker, **want.env}
    theirs: list[int] = []
    ours: list[int] = []

    def start(device: str | None) -> Child:
        stdin, stdout, stderr = theirs if device is None else (-1, -1, -1)
        return CHILDREN.spawn(
            want.argv,
            env,
            program=program,
            cwd=want.cwd,
            terminal=device,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            hold=True,
            on_exit=on_exit,
            fault=lambda error: _fault(error, want.argv[0]),
        )

    try:
        streams = _open_streams(want.size, theirs, ours)
        CALLS.make_room(exhausted=False)
        try:
            return start(streams.device), marker, streams
        except OpError as error:
            if not error.facts.get("exhausted") or not CALLS.make_room(exhausted=True):
                raise
            return start(streams.device), marker, streams
    except BaseException:
        for fd in ours:
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)


def _is_word(word: Any) -> bool:
    return isinstance(word, str) and "\0" not in word


def _environment(machine: Machine, env: dict[str, str], cwd: str, terminal: bool) -> dict[str, str]:
    """As commands get it, with the request's own over the session's."""
    own = dataclasses.replace(machine, env={**machine.env, **env})
    merged = environment.command_environment(own)
    if terminal and not any("TERM" in each for each in (machine.base_env, own.env)):
        merged["TERM"] = TERM
    merged["PWD"] = cwd
    return merged


def _open_streams(size: tuple[int, int] | None, theirs: list[int], ours: list[int]) -> Streams:
    """Opens both ends; whoever calls closes what the lists hold where the start fails."""
    try:
        if size is not None:
            fd, slave, device = process_terminal.open_pair(*size)
            ours.append(fd)
            theirs.append(slave)
            # Input has a descriptor of its own, so that either can be closed first.
            ours.append(os.dup(fd))
            return Streams(ours[1], {"stdout": fd}, fd, device)
        for ours_first in (False, True, True):
            reading, writing = os.pipe2(os.O_CLOEXEC)
            ours.append(reading if ours_first else writing)
            theirs.append(writing if ours_first else reading)
            os.set_blocking(ours[-1], False)
    except OSError as error:
        raise OpError("SPAWN_FAILED", f"no pipe or terminal: {error.strerror}") from None
    return Streams(ours[0], {"stdout": ours[1], "stderr": ours[2]})


def _program(want: Wanted) -> str:
    """What is executed: a path as it stands, or the first of its name in its own PATH."""
    name = want.argv[0]
    if not name:
        raise _fault(OSError(errno.ENOENT, ""), name)
    if "/" in name:
        return os.path.join(want.cwd, name)
    refused = False
    for folder in want.env.get("PATH", "").split(":"):
        candidate = os.path.join(want.cwd, folder, name)
        try:
            found = os.stat(candidate)
        except OSError as error:
            refused = refused or error.errno == errno.EACCES
            continue
        if stat.S_ISREG(found.st_mode) and os.access(candidate, os.X_OK):
            return candidate
        refused = True
    raise _fault(OSError(errno.EACCES if refused else errno.ENOENT, ""), name)


def _fault(error: OSError, name: str) -> OpError:
    shown = paths.shown(name[:SHOWN_CHARS_MAX])
    if error.errno in _NOT_FOUND:
        return OpError("FILE_NOT_FOUND", f"Cannot start {shown}: there is no such program.")
    if error.errno in (errno.EACCES, errno.EPERM):
        return OpError("PERMISSION_DENIED", f"Cannot start {shown}: it may not be executed.")
    words = (error.strerror or "unknown error").lower()
    return OpError("SPAWN_FAILED", f"Cannot start {shown}: {words}.")
