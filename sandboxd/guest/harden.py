"""What makes process 1 unassailable by its own children (security S1, S6, S11; tool-cases B41).

`container` only, in the order of `close`, before the first thread: the filter and
"no new privileges" are per thread and inherited by those that come later.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CHILD_OOM_SCORE: Final = 500
"""How much sooner than the guest the kernel kills a command for lack of memory."""

_PR_SET_DUMPABLE: Final = 4
_PR_GET_DUMPABLE: Final = 3
_PR_SET_SECCOMP: Final = 22
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2

INSTRUCTION: Final = struct.Struct("=HBBI")
"""One instruction of a filter: code, jump if true, jump if false, operand."""
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_SET: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_NUMBER: Final = 0  # offsets in struct seccomp_data
_ARCH: Final = 4
_ARGS: Final = 16
_X32_BIT: Final = 0x40000000

_PRIO_PROCESS: Final = 0
_IOPRIO_WHO_PROCESS: Final = 1
_FAMILIES: Final = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK
_IO_URING: Final = (425, 426, 427)  # the same on every architecture


@dataclass(frozen=True)
class Abi:
    """The numbers of one architecture's system calls."""

    audit: int
    pid_first: tuple[int, ...]
    """prlimit64, sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr."""
    setpriority: int
    ioprio_set: int
    sockets: tuple[int, ...]
    """socket, socketpair."""
    signals: tuple[int, ...]
    """kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo: `SIGNAL_ARGUMENTS`."""
    x32: bool = False


ABIS: Final = {
    "x86_64": Abi(
        *(0xC000003E, (302, 142, 144, 203, 314), 141, 251, (41, 53), (62, 200, 234, 129, 297)),
        x32=True,
    ),
    "aarch64": Abi(
        *(0xC00000B7, (261, 118, 119, 122, 274), 140, 30, (198, 199), (129, 130, 131, 138, 240))
    ),
}


SIGNAL_ARGUMENTS: Final = (1, 1, 2, 1, 2)
"""Which argument of each of `Abi.signals` is the signal."""


class NotHardened(Exception):
    """A step failed: the guest must not say hello."""


_oom_score_fd = -1
_oom_score_own = 0


def hold_oom_score() -> None:
    """Opens the guest's own OOM score, which an undumpable process cannot open any more."""
    global _oom_score_fd, _oom_score_own
    try:
        _oom_score_fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        _oom_score_own = int(os.pread(_oom_score_fd, 32, 0))
    except (OSError, ValueError):
        _oom_score_fd = -1


@contextlib.contextmanager
def expendable_children() -> Iterator[None]:
    """What is started inside inherits a higher OOM score; the caller holds the spawn lock.

    The score belongs to a process, so it is raised for the moment of the start.
    Best effort: without it the kernel chooses by size alone.
    """
    raised = min(_oom_score_own + CHILD_OOM_SCORE, 1000)
    if _oom_score_fd < 0 or not _write_score(raised):
        yield
        return
    try:
        yield
    finally:
        _write_score(_oom_score_own)


def _write_score(score: int) -> bool:
    try:
        os.pwrite(_oom_score_fd, str(score).encode(), 0)
    except OSError:
        return False
    return True


def default_signals(*, keep_ignored: bool) -> None:
    """Gives every signal its default disposition, those that Python changed included.

    The kernel keeps a signal from process 1 only as long as it has no handler. A
    guest that is not process 1 keeps ignoring the two that its own writes could
    cause (`keep_ignored`).
    """
    fixed = {signal.SIGKILL, signal.SIGSTOP}
    if keep_ignored:
        fixed |= {signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - fixed:
        signal.signal(number, signal.SIG_DFL)


def no_core_dumps() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def become_subreaper() -> None:
    """Has orphans of commands come to the guest although it is not process 1 (`local`)."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def keep_descriptors() -> None:
    """Keeps what the daemon's own starter left open from commands (`local`, tool-cases B42).

    Before the guest opens anything: its own descriptors never pass to a child.
    """
    for name in os.listdir("/proc/self/fd"):
        # The listing itself was open, and is closed by now.
        with contextlib.suppress(OSError):
            if int(name) > 2:
                os.set_inheritable(int(name), False)


def close() -> None:
    """Undumpable, no new privileges, the filter. Raises `NotHardened`."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)
    if _libc().prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise NotHardened("the guest stayed dumpable")
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)
    install_filter()


def install_filter() -> None:
    """Installs the filter on this thread and all that come from it. Raises `NotHardened`."""
    abi = ABIS.get(platform.machine())
    if abi is None:
        raise NotHardened(f"no filter for {platform.machine()}")
    program = filter_program(abi)
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a count of instructions, padding, a pointer to them.
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    holder = ctypes.create_string_buffer(header, len(header))
    _prctl("PR_SET_SECCOMP", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(holder))


def check_maps(toolbox: str) -> None:
    """Raises `NotHardened` where this process has a file mapped from outside `toolbox` (S11)."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            columns = line.rstrip("\n").split(maxsplit=5)
            path = columns[5] if len(columns) > 5 else ""
            if path.startswith("/") and not path.startswith(toolbox.rstrip("/") + "/"):
                raise NotHardened(f"mapped from outside the toolbox: {path}")


def filter_program(abi: Abi) -> bytes:
    """The filter as instructions for the kernel (security S1).

    Arguments are compared by their low 32 bits: the kernel takes all of them as
    `int` and ignores the rest.
    """
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    absent = (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
    family = (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT)
    allow = (_RETURN, 0, 0, _ALLOW)
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 1, 0, abi.audit),
        absent,
        (_LOAD, 0, 0, _NUMBER),
    ]
    if abi.x32:
        code += [(_JUMP_SET, 0, 1, _X32_BIT), absent]
    for number in _IO_URING:
        code += [(_JUMP_EQUAL, 0, 1, number), absent]
    for number in abi.pid_first:
        code += _when(number, [*_argument_is(0, (0,)), refuse, allow])
    for number, kind in ((abi.setpriority, _PRIO_PROCESS), (abi.ioprio_set, _IOPRIO_WHO_PROCESS)):
        checks = [
            (_LOAD, 0, 0, _ARGS),
            (_JUMP_EQUAL, 1, 0, kind),
            refuse,
            *_argument_is(1, (0,)),
            refuse,
            allow,
        ]
        code += _when(number, checks)
    for number in abi.sockets:
        code += _when(number, [*_argument_is(0, _FAMILIES), family, allow])
    # Linux keeps signals without a handler from process 1 by itself; gVisor does not, and
    # `pkill -f python` would end the session. Signal 0 only asks whether there is a process.
    for number, which in zip(abi.signals, SIGNAL_ARGUMENTS, strict=True):
        checks = [*_argument_is(0, (1,)), allow, *_argument_is(which, (0,)), refuse, allow]
        code += _when(number, checks)
    code.append(allow)
    return b"".join(INSTRUCTION.pack(*line) for line in code)


def _when(number: int, body: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """`body` for one system call; it ends in a return, so nothing has to be loaded again."""
    return [(_JUMP_EQUAL, 0, len(body), number), *body]


def _argument_is(index: int, values: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Skips one instruction, the refusal that follows, where the argument is one of `values`."""
    jumps = [
        (_JUMP_EQUAL, len(values) - position, 0, value) for position, value in enumerate(values)
    ]
    return [(_LOAD, 0, 0, _ARGS + 8 * index), *jumps]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(name: str, option: int, first: int, second: int = 0) -> None:
    arguments = [ctypes.c_ulong(value) for value in (first, second, 0, 0)]
    if _libc().prctl(option, *arguments) != 0:
        raise NotHardened(f"{name}: {os.strerror(ctypes.get_errno())}")
