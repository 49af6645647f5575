"""The operator's log: one line an event on stderr, `key=value`, never contents or secrets."""

from __future__ import annotations

import logging
import sys
import time

from orchestrator.escape import printable


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = (
            f"{at}.{int(record.msecs):03d}Z level={record.levelname.lower()} "
            f"at={record.name} {printable(record.getMessage())}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure(level: str) -> None:
    """Sends the project's own records to stderr; libraries speak from `warning` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("orchestrator").setLevel(level.upper())
