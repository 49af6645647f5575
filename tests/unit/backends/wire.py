"""A guest played by a test, frame by frame, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Collection
from typing import Any

from sandboxd.backends.guest_link import GuestLink
from sandboxd.guest import protocol


def frame(
    header: dict[str, Any] | bytes, body: bytes = b"", *, body_size: int | None = None
) -> bytes:
    """One frame as bytes; a header of bytes is sent as it is."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(body) if body_size is None else body_size
    return protocol.PREFIX.pack(len(raw), size) + raw + body


class PlayedGuest:
    """The far end of a link's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def next_request(self) -> tuple[dict[str, Any], bytes]:
        """The next whole request."""
        header: dict[str, Any] = {}
        body = b""
        while True:
            head_bytes, body_bytes = protocol.decode_prefix(await self.reader.readexactly(8))
            part = json.loads(await self.reader.readexactly(head_bytes))
            header = header or part
            body += await self.reader.readexactly(body_bytes)
            if not part.get("more"):
                return header, body

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    def answer(self, header: dict[str, Any], body: bytes = b"", **facts: Any) -> None:
        for buffer in protocol.encode_frames({"id": header["id"], "ok": facts}, body):
            self.writer.write(buffer)

    async def closed(self) -> bool:
        """Waits until the daemon has closed the connection."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass
        return True

    async def close(self) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def play(link: GuestLink, calls: Collection[str] = ()) -> PlayedGuest:
    """Gives the link a connection of a guest that reports `calls`, and returns its other end.

    Whoever asks closes it.
    """
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=near)
    played = PlayedGuest(*await asyncio.open_unix_connection(sock=far, limit=4 * 1024 * 1024))
    try:
        link.attach(reader, writer, calls)
    except BaseException:
        writer.transport.abort()
        await played.close()
        raise
    return played
