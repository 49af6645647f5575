"""Frames: what comes from a guest is checked before it is parsed (security S8)."""

from __future__ import annotations

import time

import pytest

from sandboxd.guest import protocol

NESTED = protocol.HEADER_DEPTH_MAX


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"7",
        b"[]",
        b'{"a":NaN}',
        b'{"a":[1e999]}',
        b'{"a":-Infinity}',
        b'{"a":"\\ud800"}',
        b'{"\\udfff":1}',
        b'{"a":"\xff"}',
        b'{"a":1} {}',
        b'{"a":' + b"9" * 5_000 + b"}",
        b'{"a":' + b"[" * NESTED + b"]" * NESTED + b"}",
        # What looks like the end of a string is none, and the other way round.
        b'{"\\"":' + b"[" * NESTED + b"]" * NESTED + b"}",
        b'{"\\\\":' + b"[" * NESTED + b"]" * NESTED + b"}",
    ],
)
def test_header_that_breaks_a_rule_is_refused(raw: bytes) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.decode_header(raw)


def test_header_is_as_deep_as_allowed_and_brackets_in_texts_do_not_count() -> None:
    deep = b'{"a":' + b"[" * (NESTED - 1) + b"]" * (NESTED - 1) + b"}"
    assert list(protocol.decode_header(deep)) == ["a"]
    text = "[" * 100 + '"' + "{" * 100 + "\\"
    [buffer] = protocol.encode_frames({"a": text})
    assert protocol.decode_header(bytes(buffer[protocol.PREFIX.size :])) == {"a": text}


def test_header_of_any_bytes_is_refused_at_once() -> None:
    # It was 27 seconds of the daemon's event loop: each quote of a text without an
    # end was tried as the beginning of another.
    quotes = (protocol.HEADER_BYTES_MAX - 50) // 2
    started = time.monotonic()
    for unit in (b'\\"', b'"\\', b'""', b"\\\n"):
        with pytest.raises(protocol.ProtocolError):
            protocol.decode_header(b'{"a":"' + unit * quotes + b"[]" * 10)
    assert time.monotonic() - started < 5.0
