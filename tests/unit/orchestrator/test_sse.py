"""Server-sent events, cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ModelError
from orchestrator.models.sse import ServerEvent, SseParser

STREAM = (
    "\ufeff: a comment\r\n"
    'data: {"a": "größer 🙂"}\n\n'
    "event: error\rdata: one\rdata:two\r\r"
    "id: 7\ndata\n\n"
    "\n\n"
    "data: [DONE]\r\n\r\n"
    "data: without an end"
).encode()
EVENTS = [
    ServerEvent("", '{"a": "größer 🙂"}'),
    ServerEvent("error", "one\ntwo"),
    ServerEvent("", ""),
    ServerEvent("", "[DONE]"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_sse_events_do_not_depend_on_where_the_stream_is_cut(cuts: list[int]) -> None:
    parser = SseParser()
    bounds = [0, *sorted(cuts), len(STREAM)]
    events = [event for start, end in pairwise(bounds) for event in parser.feed(STREAM[start:end])]
    assert events == EVENTS


def test_sse_invalid_utf8_is_an_error() -> None:
    with pytest.raises(ModelError, match="UTF-8"):
        list(SseParser().feed(b"data: \xff\n\n"))


@pytest.mark.parametrize("piece", [b"data: xxxxxxxxxxxxxxxx\n", b"data: " + b"x" * 200])
def test_sse_endless_event_is_refused(piece: bytes) -> None:
    parser = SseParser(event_bytes_max=100)

    def feed() -> None:
        for _ in range(20):
            list(parser.feed(piece))

    with pytest.raises(ModelError, match="100 bytes"):
        feed()
