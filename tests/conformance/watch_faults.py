"""Faults planted in `WatchCall`: each is a way in which live output is known to go wrong."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

from sandbox_adapter.v1 import tool_pb2
from tests.conformance.faults import Sound

Request: TypeAlias = tool_pb2.WatchCallRequest
Event: TypeAlias = tool_pb2.WatchCallResponse
Open: TypeAlias = Callable[[Request], AsyncIterator[Event]]


class ForgetsPlaces(Sound):
    """Gives the whole output again to everybody who resumes."""

    async def watch(self, request: Request, open_: Open) -> AsyncIterator[Event]:
        request.after_sequence = min(request.after_sequence, 1)
        async for event in open_(request):
            yield event


class HoldsBack(Sound):
    """Has nothing to say until the call has ended."""

    async def watch(self, request: Request, open_: Open) -> AsyncIterator[Event]:
        for event in [event async for event in open_(request)]:
            yield event


class Counts(Sound):
    """Numbers the events of each stream one by one."""

    async def watch(self, request: Request, open_: Open) -> AsyncIterator[Event]:
        number = 0
        async for event in open_(request):
            if event.sequence:
                number += 1
                event.sequence = number
            yield event


class Changes(Sound):
    """Changes each event in one way."""

    def __init__(self, change: Callable[[Event], None]) -> None:
        self._change = change

    async def watch(self, request: Request, open_: Open) -> AsyncIterator[Event]:
        async for event in open_(request):
            self._change(event)
            yield event


def clean(event: Event) -> None:
    """Shows output as a terminal would, and not as it is."""
    if event.output.data:
        event.output.data = re.sub(rb"\x1b\[[0-9;]*m|[\x00\x07]", b"", event.output.data)


def drop_in_silence(event: Event) -> None:
    """Does not say what it can no longer replay."""
    if event.output.bytes_dropped:
        event.output.bytes_dropped = 0


def word_anew(event: Event) -> None:
    """Words the result once more, and forgets a fact of it."""
    if event.WhichOneof("event") == "result":
        event.result.ClearField("bytes_total")
