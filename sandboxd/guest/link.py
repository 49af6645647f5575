"""The guest's end of the connection to the daemon.

One thread dials, reads and hands requests to the lanes; whichever thread has
an answer sends it. Requests are read in frames that may be interleaved; a message
is assembled within STAGED_BYTES_MAX for all that is here, beyond which the
request is read to its end, dropped, and answered with CALLS_EXHAUSTED.

When the connection is lost, it is read to its end, what has not started is dropped, and
what runs goes on. The next hello reports the calls that run or have ended and are not
recorded (security S7); whoever is connected then attaches to them. Every request carries
the `boot` of the welcome: one of another daemon ends the connection.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from . import protocol
from .lanes import Lanes
from .ops import Answer, Machine, OpError, Request

STAGED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bodies of requests that are being read, wait or run, all together."""
PARTIAL_MESSAGES_MAX: Final = 64
"""Messages that are read in turns."""
SEND_S: Final = 10.0
"""Longest time without progress in sending; beyond it the connection is given up."""
WELCOME_S: Final = 10.0
DIAL_DELAY_MIN_S: Final = 0.05
DIAL_DELAY_MAX_S: Final = 2.0

_TIMEVAL: Final = struct.Struct("ll")


class ConnectionLost(Exception):
    """The peer is gone, sent what is no frame, or does not take what is sent."""


class Wire:
    """One connection: frames in by one thread, messages out by any."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Keeps the frames of one message together. Whoever waits for it waits at
        # most SEND_S longer than the peer takes.
        self._send_lock = threading.Lock()
        self._lost = False
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_S))

    def receive_within(self, seconds: float) -> None:
        """Bounds how long `read_frame` waits for bytes; 0 waits for ever."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))

    def read_frame(self) -> tuple[protocol.Header, bytes]:
        """The next frame. Raises `ConnectionLost`."""
        try:
            header_bytes, body_bytes = protocol.decode_prefix(self._read(protocol.PREFIX.size))
            header = protocol.decode_header(self._read(header_bytes))
            return header, self._read(body_bytes)
        except protocol.ProtocolError as error:
            raise ConnectionLost(str(error)) from None

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                piece = self._sock.recv(count - len(data), socket.MSG_WAITALL)
            except OSError as error:
                raise ConnectionLost(f"receive: {error.strerror}") from None
            if not piece:
                raise ConnectionLost("closed by the daemon")
            data = data + piece if data else piece
        return data

    def send(self, header: protocol.Header, body: bytes = b"") -> None:
        """Sends one message. Raises `ConnectionLost`, `protocol.ProtocolError`."""
        buffers = protocol.encode_frames(header, body)
        with self._send_lock:
            if self._lost:
                raise ConnectionLost("given up")
            try:
                self._send_all(buffers)
            except OSError as error:
                # A frame may have left in part: nothing sensible can follow it.
                self._lost = True
                self._shut()
                raise ConnectionLost(f"send: {error.strerror}") from None

    def _send_all(self, buffers: list[bytes | memoryview]) -> None:
        for start in range(0, len(buffers), 64):
            waiting = [memoryview(buffer) for buffer in buffers[start : start + 64]]
            while waiting:
                # Never SIGPIPE: process 1 leaves every signal at its default (security S1).
                sent = self._sock.sendmsg(waiting, [], socket.MSG_NOSIGNAL)
                while waiting and sent >= len(waiting[0]):
                    sent -= len(waiting.pop(0))
                if waiting:
                    waiting[0] = waiting[0][sent:]

    def _shut(self) -> None:
        try:
            # Wakes the reading thread, which alone closes the socket.
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        with self._send_lock:
            self._lost = True
        self._shut()
        self._sock.close()


@dataclass
class _Partial:
    """A message of which the last frame has not come."""

    header: protocol.Header
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    refused: bool = False


class Link:
    """Keeps the guest connected for as long as the process lives."""

    def __init__(
        self, machine: Machine, lanes: Lanes, socket_path: str, hello: dict[str, Any]
    ) -> None:
        self._machine = machine
        self._lanes = lanes
        self._socket_path = socket_path
        self._hello = hello
        self._staged = 0
        self._staged_lock = threading.Lock()
        self.on_disconnect: list[Callable[[], None]] = []
        """Called after a connection is lost: what was kept for it ends here."""

    def run(self, give_up: Callable[[], bool]) -> None:
        """Dials and serves, again and again, until `give_up` says so while unconnected."""
        delay_s = DIAL_DELAY_MIN_S
        while not give_up():
            wire = self._dial()
            if wire is not None:
                delay_s = DIAL_DELAY_MIN_S
                self._serve(*wire)
            time.sleep(delay_s)
            delay_s = min(delay_s * 2, DIAL_DELAY_MAX_S)

    def _dial(self) -> tuple[Wire, str] | None:
        """A connection and the `boot` of the daemon at its other end."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self._socket_path)
        except OSError:
            sock.close()
            return None
        wire = Wire(sock)
        try:
            wire.receive_within(WELCOME_S)
            wire.send({"hello": {**self._hello, "report": self._lanes.report()}})
            header, _ = wire.read_frame()
            boot = _boot_of(header.get("welcome"))
            wire.receive_within(0)
        except ConnectionLost:
            wire.close()
            return None
        return wire, boot

    def _serve(self, wire: Wire, boot: str) -> None:
        partials: dict[int, _Partial] = {}
        try:
            while True:
                header, body = wire.read_frame()
                self._take_frame(wire, boot, partials, header, body)
        except ConnectionLost as error:
            print(f"guest: connection lost: {error}", file=sys.stderr, flush=True)
        finally:
            wire.close()
            for partial in partials.values():
                self._release(partial.size)
            self._lanes.drop_waiting()
            for action in self.on_disconnect:
                action()

    def _take_frame(
        self,
        wire: Wire,
        boot: str,
        partials: dict[int, _Partial],
        header: protocol.Header,
        body: bytes,
    ) -> None:
        id_ = header.get("id")
        if not isinstance(id_, int) or isinstance(id_, bool) or not 0 <= id_ < 2**63:
            raise ConnectionLost("a frame without an id")
        partial = partials.get(id_)
        if partial is None:
            if header.get("boot") != boot:
                raise ConnectionLost("a request of another daemon")
            self._take_recorded(header.get("recorded"))
            if len(partials) >= PARTIAL_MESSAGES_MAX:
                raise ConnectionLost("too many messages at a time")
            partial = partials[id_] = _Partial(header)
        if (
            partial.refused
            or partial.size + len(body) > protocol.MESSAGE_BYTES_MAX
            or not self._reserve(len(body))
        ):
            partial.refused = True
            self._release(partial.size)
            partial.size = 0
            partial.pieces.clear()
        else:
            partial.pieces.append(body)
            partial.size += len(body)
        if header.get("more") is not True:
            del partials[id_]
            self._take_message(wire, id_, partial)

    def _take_message(self, wire: Wire, id_: int, partial: _Partial) -> None:
        size = partial.size

        def settle(answer: Answer | OpError) -> None:
            self._release(size)
            _send_answer(wire, id_, answer)

        if partial.refused:
            settle(OpError("CALLS_EXHAUSTED", "too many bytes of requests are here already"))
            return
        op, args = partial.header.get("op"), partial.header.get("args", {})
        if not isinstance(op, str) or not isinstance(args, dict):
            settle(OpError("INVALID_INPUT", "a request needs `op` and `args`"))
            return
        body = partial.pieces[0] if len(partial.pieces) == 1 else b"".join(partial.pieces)
        partial.pieces.clear()
        try:
            self._lanes.submit(Request(self._machine, op, args, body), settle)
        except OpError as error:
            settle(error)

    def _take_recorded(self, call_ids: object) -> None:
        if isinstance(call_ids, list):
            self._lanes.recorded(each for each in call_ids if isinstance(each, str))

    def _reserve(self, count: int) -> bool:
        with self._staged_lock:
            if self._staged + count > STAGED_BYTES_MAX:
                return False
            self._staged += count
            return True

    def _release(self, count: int) -> None:
        with self._staged_lock:
            self._staged -= count


def _boot_of(welcome: object) -> str:
    if not isinstance(welcome, dict) or welcome.get("protocol") != protocol.PROTOCOL_VERSION:
        raise ConnectionLost("not welcome")
    boot = welcome.get("boot")
    if not isinstance(boot, str):
        raise ConnectionLost("a welcome without a boot")
    return boot


def _send_answer(wire: Wire, id_: int, answer: Answer | OpError) -> None:
    """Sends an answer; where its connection is gone it goes nowhere."""
    try:
        try:
            if isinstance(answer, OpError):
                wire.send({"id": id_, "error": _error(answer)})
            else:
                wire.send({"id": id_, "ok": answer[0]}, answer[1])
        except (protocol.ProtocolError, ValueError, TypeError) as error:
            print(f"guest: answer cannot be sent: {error}", file=sys.stderr, flush=True)
            fault = OpError("INTERNAL_ERROR", "the guest's answer does not fit its protocol")
            wire.send({"id": id_, "error": _error(fault)})
    except ConnectionLost:
        return


def _error(error: OpError) -> dict[str, Any]:
    return {"reason": error.reason, "text": error.text, "facts": error.facts}


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))
