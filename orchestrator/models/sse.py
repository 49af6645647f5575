"""Server-sent events from bytes, cut anywhere.

Only what the streaming APIs use: `event` and `data` fields, comments, and the
three line endings. A stream that is not UTF-8, or an event that grows past its
bound, is an error: it never becomes text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orchestrator.errors import ModelError

EVENT_BYTES_MAX: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class ServerEvent:
    """One event. `name` is empty where the server gave none."""

    name: str
    data: str


class SseParser:
    """Feed it bytes, get events. Keeps at most one unfinished event."""

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._rest = b""
        self._name = ""
        self._data: list[str] = []
        self._size = 0
        self._at_start = True

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """The events that `chunk` completes."""
        rest = self._rest + chunk
        while True:
            cut = _line_end(rest)
            if cut is None:
                break
            line, rest = rest[: cut[0]], rest[cut[1] :]
            event = self._line(line)
            if event is not None:
                yield event
        self._rest = rest
        if len(rest) + self._size > self._event_bytes_max:
            raise _too_large(self._event_bytes_max)

    def _line(self, raw: bytes) -> ServerEvent | None:
        if self._at_start:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
            self._at_start = False
        if not raw:
            return self._dispatch()
        self._size += len(raw)
        if self._size > self._event_bytes_max:
            raise _too_large(self._event_bytes_max)
        try:
            line = raw.decode()
        except UnicodeDecodeError:
            raise ModelError("garbled", "the stream is not UTF-8", retryable=True) from None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, name = self._data, self._name
        self._data, self._name, self._size = [], "", 0
        return ServerEvent(name, "\n".join(data)) if data else None


def _line_end(data: bytes) -> tuple[int, int] | None:
    """Where the first line ends and the next begins."""
    newline, carriage = data.find(b"\n"), data.find(b"\r")
    if carriage >= 0 and (newline < 0 or carriage < newline):
        if carriage + 1 == len(data):
            return None  # whether a newline belongs to it shows with the next bytes
        return carriage, carriage + (2 if data[carriage + 1 : carriage + 2] == b"\n" else 1)
    return None if newline < 0 else (newline, newline + 1)


def _too_large(bytes_max: int) -> ModelError:
    return ModelError("garbled", f"the stream holds an event of more than {bytes_max} bytes")
