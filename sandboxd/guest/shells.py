"""Which shell commands get: the first that works (tool-cases B21).

bash comes before sh, and the usual place before the image's PATH. A file that is there is not
enough: an image may hold a shell for another machine, or one whose loader or library is missing.
So each is asked for a sum once, before the hello.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from typing import Final

from . import environment
from .children import CHILDREN
from .ops import Machine, OpError

PROBE_S: Final = 5.0
PROBE_ALL_S: Final = 10.0
"""Together less than the daemon waits for a hello."""
PROBES_MAX: Final = 16
"""Programs that are started."""
_OUTPUT_BYTES_MAX: Final = 64 * 1024
_FAULT_CHARS_MAX: Final = 500
_QUESTION: Final = b"echo $((6 * 7))"
_ANSWER: Final = b"42\n"
_LATE: Final = "no answer in time"

_faults: list[str] = []


def find(machine: Machine) -> str | None:
    """The path of the shell, or None where there is none that works.

    Needs the waiter and blocks for PROBE_ALL_S at most. One that gave no answer in time is
    taken where no other works: the machine may only be busy.
    """
    _faults.clear()
    deadline = time.monotonic() + PROBE_ALL_S
    late: str | None = None
    tries_left = PROBES_MAX
    for shell, unfit in _candidates(machine):
        left_s = deadline - time.monotonic()
        if not tries_left or left_s <= 0:
            break
        # Those that cannot be started use up no tries.
        tries_left -= not unfit
        fault = unfit or _fault_of(shell, machine, min(PROBE_S, left_s))
        if not fault:
            return shell
        if fault == _LATE:
            late = late or shell
        _faults.append(f"{shell}: {fault}")
    return late


def argv(shell: str, script: bytes) -> list[str]:
    """How a shell is given a script that fits an argument.

    A script that begins as an option would be one. Only then `--` comes before it: toybox
    takes that for the script.
    """
    ends_options = ["--"] if script.startswith((b"-", b"+")) else []
    return [shell, "-c", *ends_options, os.fsdecode(script)]


def missing_text() -> str:
    """Why there is no shell, for the model."""
    if not _faults:
        return "The sandbox's image has no bash and no sh. The other tools work without one."
    why = "; ".join(_faults)[:_FAULT_CHARS_MAX]
    return f"The sandbox's image has no shell that works ({why}). The other tools work without one."


def _candidates(machine: Machine) -> Iterator[tuple[str, str]]:
    """What has a shell's name, in the order of preference, and why it can be none.

    One file is looked at once under a name: one program may be several shells, by its name.
    """
    # A relative folder of PATH would lie in the workspace and move with the working directory.
    path = machine.base_env.get("PATH", "")
    named = [folder.rstrip("/") for folder in path.split(":") if folder.startswith("/")]
    folders = dict.fromkeys(["/bin", *named, *environment.PATH_DEFAULT.split(":")])
    seen: set[tuple[int, int, str]] = set()
    for name in ("bash", "sh"):
        for folder in folders:
            shell = f"{folder}/{name}"
            try:
                found = os.stat(shell)
            except ValueError:
                continue
            except OSError as error:
                if os.path.lexists(shell):
                    yield shell, (error.strerror or "unknown error")
                continue
            if (identity := (found.st_dev, found.st_ino, name)) not in seen:
                seen.add(identity)
                runs = stat.S_ISREG(found.st_mode) and os.access(shell, os.X_OK)
                yield shell, "" if runs else "no executable file"


def _fault_of(shell: str, machine: Machine, timeout_s: float) -> str:
    """What is wrong with a shell; an empty text where it answers."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    # Something that outlives the program may hold the other end.
    os.set_blocking(reading, False)
    try:
        try:
            child = CHILDREN.spawn(
                argv(shell, _QUESTION),
                environment.command_environment(machine),
                stdout=writing,
                stderr=writing,
            )
        except OpError as error:
            return error.text.removeprefix("could not start: ")
        finally:
            os.close(writing)
        if not child.wait(timeout_s):
            CHILDREN.kill_group(child, signal.SIGKILL)
            return _LATE
        # Its loader may have complained of the image's environment before.
        if child.exit_code == 0 and _read_all(reading).endswith(_ANSWER):
            return ""
        if child.signal is not None:
            return f"killed by signal {child.signal}"
        return f"exit code {child.exit_code}" if child.exit_code else "a wrong answer"
    finally:
        os.close(reading)


def _read_all(reading: int) -> bytes:
    """What is in the pipe now; a program that has ended left no more than fits it."""
    try:
        return os.read(reading, _OUTPUT_BYTES_MAX)
    except BlockingIOError:
        return b""
