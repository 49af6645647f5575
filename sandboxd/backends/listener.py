"""The Unix socket on which one session's guest is awaited (security S5, S8).

Everything inside the sandbox can connect to it. So it is read only while a guest
is awaited; a connection that is not from the guest's process is closed unread,
and after each of those the listener rests. What piles up meanwhile fills the
kernel's queue of that one socket and costs the daemon nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxd.backends.hello import Expected, Hello, check_hello
from sandboxd.guest import protocol
from sandboxd.limits import KIB
from sandboxd.log import EventLog

SOCKET_NAME: Final = "guest.sock"
BACKLOG: Final = 8
REFUSED_REST_S: Final = 0.005
"""Rest after a refused connection: at most 200 of them a second."""
HELLO_PROVED_S: Final = 2.0
"""Time for the hello of a connection whose peer is the guest's process."""
HELLO_UNPROVED_S: Final = 0.5
"""The same where only the secret will tell: others could hold up the queue."""
READ_BUFFER_BYTES: Final = 256 * KIB
_UCRED: Final = struct.Struct("3i")

_log = EventLog("backends")


@dataclass(frozen=True)
class Greeted:
    """A connection whose guest has proved itself and was welcomed."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    hello: Hello


class Listener:
    """One listening socket in a session's folder. Nobody else may write to the folder."""

    def __init__(self, folder: Path, uid: int, gid: int, boot_id: str) -> None:
        """Binds anew, in place of what an earlier daemon left there.

        `boot_id` is this daemon's: the guest takes no request without it.
        """
        self.boot_id = boot_id
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            # Through the descriptor, the path is short wherever the state folder is.
            handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(SOCKET_NAME, dir_fd=handle)
                self._socket.bind(f"/proc/self/fd/{handle}/{SOCKET_NAME}")
                os.chmod(SOCKET_NAME, 0o600, dir_fd=handle)
                if os.geteuid() == 0:
                    os.chown(SOCKET_NAME, uid, gid, dir_fd=handle, follow_symlinks=False)
            finally:
                os.close(handle)
            self._socket.listen(BACKLOG)
        except BaseException:
            self._socket.close()
            raise

    async def accept_guest(self, expected: Expected) -> Greeted:
        """Waits for the guest, refuses everything else, and welcomes it.

        Has no deadline of its own. Once it returns, the socket is not read until
        the next call.
        """
        loop = asyncio.get_running_loop()
        refused = 0
        while True:
            connection, _ = await loop.sock_accept(self._socket)
            if expected.pid is None or expected.pid == peer_pid_of(connection):
                greeted = await self._greet(connection, expected)
                if greeted is not None:
                    return greeted
            else:
                connection.close()
            refused += 1
            if refused == 1:
                _log.warning("a connection that is not the guest's was refused")
            await asyncio.sleep(REFUSED_REST_S)

    def close(self) -> None:
        """Stops listening. The path stays, for whoever binds it next. Idempotent."""
        self._socket.close()

    async def _greet(self, connection: socket.socket, expected: Expected) -> Greeted | None:
        reader, writer = await asyncio.open_unix_connection(
            sock=connection, limit=READ_BUFFER_BYTES
        )
        hello_s = HELLO_UNPROVED_S if expected.pid is None else HELLO_PROVED_S
        try:
            async with asyncio.timeout(hello_s):
                header_bytes, body_bytes = protocol.decode_prefix(
                    await reader.readexactly(protocol.PREFIX.size)
                )
                if body_bytes:
                    raise protocol.ProtocolError("a hello with a body")
                header = protocol.decode_header(await reader.readexactly(header_bytes))
                hello = check_hello(header, expected)
                welcome = {"welcome": {"protocol": protocol.PROTOCOL_VERSION, "boot": self.boot_id}}
                writer.writelines(protocol.encode_frames(welcome))
                await writer.drain()
                return Greeted(reader, writer, hello)
        except (protocol.ProtocolError, TimeoutError, EOFError, OSError) as error:
            _log.warning("a guest's hello was refused", why=str(error) or type(error).__name__)
            writer.transport.abort()
            return None
        except BaseException:
            writer.transport.abort()
            raise


def peer_pid_of(connection: socket.socket) -> int:
    """Pid of the process that connected, as this process numbers it; 0 where it has no number."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid: int = _UCRED.unpack(raw)[0]
    return pid
