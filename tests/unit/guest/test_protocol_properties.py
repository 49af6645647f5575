"""Frames: what is encoded comes back, and any bytes are frames or a broken protocol (S8)."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandboxd.guest import protocol
from sandboxd.guest.link import ConnectionLost, Wire
from tests.unit.strategies import CUTS, JSON, cut, json_texts

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
)
SHALLOW = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=6), SHALLOW, max_size=4)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def fit(value: Any) -> bool:
    """Whether a header may hold this: by looking at every value, after the parser."""
    if isinstance(value, str):
        return not any("\ud800" <= char <= "\udfff" for char in value)
    if isinstance(value, float):
        return abs(value) < float("inf")
    if isinstance(value, dict):
        return all(fit(key) and fit(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(fit, value))
    return True


def naive_frames(raw: bytes) -> list[tuple[Any, bytes]]:
    """The whole frames at the beginning, up to the first thing that is none."""
    out = []
    while len(raw) >= 8:
        head_bytes, body_bytes = int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:8], "big")
        end = 8 + head_bytes + body_bytes
        if not 0 < head_bytes <= 65_536 or body_bytes > 1_048_576 or len(raw) < end:
            break
        try:
            header = json.loads(raw[8 : 8 + head_bytes].decode("utf-8", "strict"))
        except (ValueError, RecursionError):
            break
        if not isinstance(header, dict) or not fit(header) or depth_of(header) > 8:
            break
        out.append((header, raw[8 + head_bytes : end]))
        raw = raw[end:]
    return out


def received(pieces: list[bytes]) -> list[tuple[Any, bytes]]:
    """What a wire makes of bytes that arrive like this and end."""
    near, far = socket.socketpair()
    wire = Wire(near)

    def send() -> None:
        try:
            for piece in pieces:
                far.sendall(piece)
        except OSError:
            pass  # The wire had enough.
        finally:
            far.close()

    sender = threading.Thread(target=send)
    sender.start()
    out = []
    try:
        while True:
            out.append(wire.read_frame())
    except ConnectionLost:
        return out
    finally:
        near.close()
        sender.join()


@given(OBJECTS, st.integers(0, 2**63 - 1), st.binary(max_size=50), st.integers(0, 3), CUTS)
@example({}, 1, b"", 1, [70_000])
def test_message_comes_back_whole(
    args: dict[str, Any], id_: int, end: bytes, frames: int, sizes: list[int]
) -> None:
    body = bytes(protocol.BODY_BYTES_MAX) * (frames if len(end) % 7 == 0 else 0) + end
    header = {"id": id_, "args": args}
    if depth_of(header) > protocol.HEADER_DEPTH_MAX:
        return
    sent = b"".join(protocol.encode_frames(header, body))
    got = received(cut(sent, [max(size, 40) for size in sizes]))
    assert b"".join(piece for _, piece in got) == body
    # Floats and integers come back as what they were, not as what they equal.
    assert repr({**got[0][0], "more": None}) == repr({**header, "more": None})
    assert [more.get("more", False) for more, _ in got] == [True] * (len(got) - 1) + [False]
    assert [head for head, _ in got[1:-1]] == [{"id": id_, "more": True}] * max(len(got) - 2, 0)
    assert len(got) == max(1, -(-len(body) // protocol.BODY_BYTES_MAX))


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Frames that are whole, frames of headers of any kind, lies about sizes, and noise."""
    out = []
    for _ in range(draw(st.integers(1, 4))):
        head = draw(
            OBJECTS.map(json.dumps).map(str.encode)
            | json_texts().map(lambda text: text.encode("utf-8", "surrogatepass"))
            | JSON.map(lambda value: json.dumps({"a": value}).encode())
            | st.binary(max_size=12)
        )
        body = draw(st.binary(max_size=20))
        sizes = [len(head), len(body)]
        if draw(st.integers(0, 4)) == 0:
            sizes[draw(st.integers(0, 1))] = draw(st.integers(0, 2**32 - 1) | st.integers(0, 70))
        out.append(protocol.PREFIX.pack(*sizes) + head + body)
    return b"".join(out) + draw(st.sampled_from([b"", b"\0\0\0", bytes(8)]))


@given(streams() | st.binary(max_size=60), CUTS)
def test_any_bytes_are_frames_up_to_where_the_protocol_breaks(raw: bytes, sizes: list[int]) -> None:
    assert repr(received(cut(raw, sizes))) == repr(naive_frames(raw))


@given(json_texts().map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary())
def test_header_of_any_bytes_is_an_object_or_a_protocol_error(raw: bytes) -> None:
    try:
        header = protocol.decode_header(raw)
    except protocol.ProtocolError:
        return
    assert fit(header)
    assert depth_of(header) <= protocol.HEADER_DEPTH_MAX
    # What was taken can be sent on.
    protocol.encode_frames({**header, "id": 1})


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=2), st.integers(0, 70_000))
def test_what_cannot_be_sent_is_said_to_the_sender(args: dict[str, Any], size: int) -> None:
    header = {"id": 1, "args": args, "text": "x" * size}
    try:
        (buffer,) = protocol.encode_frames(header)
    except (protocol.ProtocolError, ValueError):
        assert size > 60_000 or not fit(header)
        return
    assert len(buffer) <= protocol.PREFIX.size + protocol.HEADER_BYTES_MAX
    if depth_of(header) > protocol.HEADER_DEPTH_MAX:
        with pytest.raises(protocol.ProtocolError):
            protocol.decode_header(bytes(buffer[protocol.PREFIX.size :]))
    else:
        assert protocol.decode_header(bytes(buffer[protocol.PREFIX.size :])) == header
