"""The log: one event a line, whatever a session put into a field (security S20)."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from sandboxd import log


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    out = io.StringIO()
    yield out
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in before:
        root.addHandler(handler)
    root.setLevel(level)


def test_field_with_control_characters_stays_one_escaped_line(stream: io.StringIO) -> None:
    log.configure("info", "text", stream)
    log.EventLog("room").info("event", name='a\nb\x1b[31m"q" \u202e', ok=True, took_s=1.5)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"a\nb\x1b[31m" in text
    assert "took_s=1.500" in text


def test_field_is_cut_to_its_bound(stream: io.StringIO) -> None:
    log.configure("info", "text", stream)
    log.EventLog("room").warning("event", name="x" * 10_000)
    assert len(stream.getvalue()) < 1_300
    assert "(10000 chars)" in stream.getvalue()


def test_fault_keeps_its_traceback_in_its_line(stream: io.StringIO) -> None:
    log.configure("info", "text", stream)
    try:
        raise ValueError("line one\nline two\x07")
    except ValueError as error:
        log.EventLog("room").error("fault", cause=error)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "ValueError" in text
    assert "\x07" not in text


def test_json_lines_are_objects(stream: io.StringIO) -> None:
    log.configure("debug", "json", stream)
    log.EventLog("room").debug("event", name="a\nb", count=3)
    line = json.loads(stream.getvalue())
    assert line["event"] == "event"
    assert line["count"] == 3
    assert line["name"] == r"a\nb"
    assert line["room"] == "room"


def test_events_below_the_level_are_dropped(stream: io.StringIO) -> None:
    log.configure("warning", "text", stream)
    log.EventLog("room").info("event")
    assert stream.getvalue() == ""
