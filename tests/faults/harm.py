"""Doing harm: the signals, and the cut of a connection that two other processes have."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import struct
from pathlib import Path
from typing import Final

STOPPED_S: Final = 0.3
_PIDFD_GETFD: Final = 438
"""The system call's number, the same on every architecture. Linux 5.6."""
_UCRED: Final = struct.Struct("3i")


async def stop_for_a_while(pid: int, seconds: float = STOPPED_S) -> None:
    """SIGSTOP, and SIGCONT after the time; a process that is gone is left alone."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return
    try:
        await asyncio.sleep(seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def cut(holder: int, peer: int) -> int:
    """Shuts down the Unix sockets of process `holder` whose other end `peer` connected.

    Both ends see the connection end, as if the other had closed it. Returns how many were cut.
    """
    count = 0
    handle = os.pidfd_open(holder)
    try:
        for entry in Path(f"/proc/{holder}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(entry).startswith("socket:"):
                    count += _cut_one(handle, int(entry.name), peer)
    finally:
        os.close(handle)
    return count


def _cut_one(handle: int, number: int, peer: int) -> bool:
    got = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, handle, number, 0)
    if got < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    with socket.socket(fileno=got) as end:
        if end.family != socket.AF_UNIX or not end.type & socket.SOCK_STREAM:
            return False
        pid, _, _ = _UCRED.unpack(
            end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        )
        if pid != peer:
            return False
        end.shutdown(socket.SHUT_RDWR)
        return True
