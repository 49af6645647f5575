"""The daemon's log: one event a line, on standard error, as `key=value` or JSON.

An event is a fixed phrase with fields. Values that came from a client or a
session are escaped (security S20): a line holds no control character, no
terminal sequence and no second line, and is never longer than
`VALUE_CHARS_MAX` for each field. Contents of files, commands, environments and
secrets are never fields.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any, Final, Literal, TextIO

ROOT: Final = "sandboxd"
VALUE_CHARS_MAX: Final = 1_000
_TRACEBACK_CHARS_MAX: Final = 16_000
_FIELDS: Final = "sandboxd_fields"

Format = Literal["text", "json"]

TRACE: Final[ContextVar[str]] = ContextVar("sandboxd_trace", default="")
"""Trace id of the request that is being served: part of every line that it causes."""


class EventLog:
    """Writes the events of one room. Instances hold a name and nothing else."""

    def __init__(self, room: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{room}")

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, cause: BaseException | None = None, **fields: object) -> None:
        """Logs a fault; `cause` adds its traceback, escaped into the same line."""
        self._write(logging.ERROR, event, fields, cause)

    def _write(
        self,
        level: int,
        event: str,
        fields: dict[str, object],
        cause: BaseException | None = None,
    ) -> None:
        if self._logger.isEnabledFor(level):
            if trace := TRACE.get():
                fields = {**fields, "trace": trace}
            exc_info = None if cause is None else (type(cause), cause, cause.__traceback__)
            self._logger.log(level, "%s", event, extra={_FIELDS: fields}, exc_info=exc_info)


def configure(level: str, style: Format = "text", stream: TextIO | None = None) -> None:
    """Sends the daemon's events to `stream` (standard error), from `level` on.

    Called once, before anything is logged. Other libraries' loggers get the same
    handler from WARNING on, so that nothing of theirs bypasses the escaping.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_LineFormatter(style))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())


def escape(value: str, chars_max: int = VALUE_CHARS_MAX) -> str:
    """The text with everything unprintable as `\\x..` or `\\u....`, cut to `chars_max`."""
    cut = value[:chars_max]
    out = "".join(
        char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()
        for char in cut
    )
    return out if len(value) <= chars_max else f"{out}…({len(value)} chars)"


class _LineFormatter(logging.Formatter):
    def __init__(self, style: Format) -> None:
        super().__init__()
        self._line_style = style

    def format(self, record: logging.LogRecord) -> str:
        given: dict[str, object] = getattr(record, _FIELDS, {})
        fields = {key: _plain(value) for key, value in given.items()}
        if record.exc_info and record.exc_info[1] is not None:
            trace = self.formatException(record.exc_info)
            fields["traceback"] = escape(trace, _TRACEBACK_CHARS_MAX)
        millis = int(record.msecs)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{millis:03d}Z"
        room = record.name.removeprefix(f"{ROOT}.")
        if self._line_style == "json":
            line = {"at": at, "level": record.levelname.lower(), "room": room}
            line["event"] = escape(record.getMessage())
            return json.dumps(line | fields)
        tail = "".join(f" {key}={_quoted(value)}" for key, value in fields.items())
        return f"{at} {record.levelname.lower()} {room}: {escape(record.getMessage())}{tail}"


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return escape(str(value))


def _quoted(value: object) -> str:
    """A value that is escaped already, in quotes where a reader would need them."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if text and " " not in text and '"' not in text and "=" not in text:
        return text
    return '"' + text.replace('"', '\\"') + '"'
