"""The frames between the daemon and a guest.

A frame is a header and raw bytes:

    u32 big-endian: header size in bytes, at most HEADER_BYTES_MAX
    u32 big-endian: body size in bytes, at most BODY_BYTES_MAX
    header: one JSON object, UTF-8
    body

A message is one or more frames with the same `id`; every frame but the last has
`"more": true` in its header, only the first has anything else besides `id`. The
bodies are concatenated. Requests go to the guest:

    {"id": 7, "boot": "b1f...", "op": "read_lines", "args": {...}}

and each gets exactly one reply message:

    {"id": 7, "ok": {...}}
    {"id": 7, "error": {"reason": "FILE_NOT_FOUND", "text": "...", "facts": {...}}}

The first frame of a connection is the guest's hello (no `id`), the second the
daemon's welcome; see `README.md` of this room for both and for every op.

Both sides use this module, so both keep the same bounds. What comes from a guest
is hostile input (security S7, S8): nothing is parsed before its size was checked.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, Final

PROTOCOL_VERSION: Final = 2
HEADER_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX: Final = 1024 * 1024
MESSAGE_BYTES_MAX: Final = 24 * 1024 * 1024
"""Largest body of a message, all frames together."""
HEADER_DEPTH_MAX: Final = 8
PREFIX: Final = struct.Struct("!II")
# A string that never ends is a token up to the end: tried anew from each of its
# quotes it would take the square of the header's size.
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)

Header = dict[str, Any]

REPEATABLE: Final = frozenset(
    {
        "ping",
        "configure",
        "cancel",
        "attach",
        "feed",
        "peek",
        "process_start",
        "process_read",
        "process_write",
        "process_wait",
        "process_list",
        "process_resize",
    }
)
"""Ops that a lost connection may have brought or not: asked again, they do no harm. A signal
is none of them: whether to send it twice is its sender's to say."""


class ProtocolError(Exception):
    """The peer sent something that is no frame of this protocol."""


def encode_frames(header: Header, body: bytes | memoryview = b"") -> list[bytes | memoryview]:
    """Buffers of a whole message, cut into frames, to be sent in order.

    Raises `ProtocolError` where the header or the body is over its bound: a fault
    of the sender's own code.
    """
    view = memoryview(body)
    if len(view) > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"body of {len(view)} bytes is over {MESSAGE_BYTES_MAX}")
    out: list[bytes | memoryview] = []
    sent = 0
    while True:
        chunk = view[sent : sent + BODY_BYTES_MAX]
        sent += len(chunk)
        last = sent >= len(view)
        head = header if last else {**header, "more": True}
        raw = json.dumps(head, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
            "utf-8"
        )
        if len(raw) > HEADER_BYTES_MAX:
            raise ProtocolError(f"header of {len(raw)} bytes is over {HEADER_BYTES_MAX}")
        out.append(PREFIX.pack(len(raw), len(chunk)) + raw)
        if len(chunk):
            out.append(chunk)
        if last:
            return out
        header = {"id": header["id"]}


def decode_prefix(raw: bytes) -> tuple[int, int]:
    """Sizes of header and body. Raises `ProtocolError` where one is over its bound."""
    header_bytes, body_bytes = PREFIX.unpack(raw)
    if not 0 < header_bytes <= HEADER_BYTES_MAX:
        raise ProtocolError(f"header of {header_bytes} bytes")
    if body_bytes > BODY_BYTES_MAX:
        raise ProtocolError(f"body of {body_bytes} bytes")
    return header_bytes, body_bytes


def decode_header(raw: bytes) -> Header:
    """Parses a header whose size was checked.

    Raises `ProtocolError` unless it is one JSON object in valid UTF-8, without
    NaN or infinities, without surrogates, and nested at most HEADER_DEPTH_MAX
    deep. Depth is counted on the raw bytes first: the parser recurses.
    """
    _check_depth(raw)
    try:
        text = raw.decode("utf-8", "strict")
        header = json.loads(text, parse_constant=_refuse_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ProtocolError("header is not an object")
    _check_values(header)
    return header


def _check_depth(raw: bytes) -> None:
    if raw.count(b"{") + raw.count(b"[") <= HEADER_DEPTH_MAX:
        return
    depth = 0
    for token in _TOKENS.finditer(raw):
        mark = token.group()
        if mark in (b"{", b"["):
            depth += 1
            if depth > HEADER_DEPTH_MAX:
                raise ProtocolError("header is nested too deeply")
        elif mark in (b"}", b"]"):
            depth -= 1


def _check_values(value: Any) -> None:
    if isinstance(value, str):
        # json.loads turns "\ud800" into a lone surrogate, which no encoder
        # further on accepts.
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise ProtocolError("header holds a surrogate")
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ProtocolError("header holds a number that is not finite")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_values(key)
            _check_values(item)
    elif isinstance(value, list):
        for item in value:
            _check_values(item)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")
