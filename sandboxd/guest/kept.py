"""Answers of calls that the daemon has not confirmed yet (security S7, S18).

A call's answer may be lost on its way, with the connection or with the daemon. So it is
kept until the daemon says that the result is recorded (`recorded` in a request's header),
and the guest reports it when it dials again. Beyond KEPT_BYTES_MAX the oldest lose their
answer and keep their id: the daemon must learn that the call ran. Beyond KEPT_MAX the oldest
go with their id, as if they had never started.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any, Final

from .ops import Answer, OpError

KEPT_MAX: Final = 512
"""Answers; a report of as many ids fits a hello."""
KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Memory of all answers that are kept: bodies, and what their facts take."""
_DROPPED: Final = "the answer was dropped: too many bytes waited to be recorded"


class Kept:
    """By call id, oldest first. Used under the lock of `lanes`."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer | OpError] = {}
        self._ended: dict[str, float] = {}
        """When each call ended, on the monotonic clock."""
        self._sizes: dict[str, int] = {}
        self._bytes = 0

    def keep(self, call_id: str, answer: Answer | OpError) -> None:
        """Takes the answer of a call that has just ended."""
        self._answers[call_id] = answer
        self._ended[call_id] = time.monotonic()
        self._sizes[call_id] = _size(answer)
        self._bytes += self._sizes[call_id]
        while len(self._answers) > KEPT_MAX:
            self.forget([next(iter(self._answers))])
        if self._bytes > KEPT_BYTES_MAX:
            self._drop_oldest()

    def find(self, call_id: str) -> Answer | OpError | None:
        """The answer, with the fact `ended_ago_s`: who attaches was not there to see it."""
        answer = self._answers.get(call_id)
        if answer is None or isinstance(answer, OpError):
            return answer
        facts, body = answer
        return {**facts, "ended_ago_s": time.monotonic() - self._ended[call_id]}, body

    def forget(self, call_ids: Iterable[str]) -> None:
        """Lets go of what is recorded."""
        for call_id in call_ids:
            self._answers.pop(call_id, None)
            self._ended.pop(call_id, None)
            self._bytes -= self._sizes.pop(call_id, 0)

    def ids(self) -> list[str]:
        return list(self._answers)

    def _drop_oldest(self) -> None:
        for call_id, size in list(self._sizes.items()):
            if self._bytes <= KEPT_BYTES_MAX:
                return
            if size:
                self._bytes -= size
                self._sizes[call_id] = 0
                self._answers[call_id] = OpError("RESULT_DROPPED", _DROPPED)


def _size(answer: Answer | OpError) -> int:
    """Bytes of memory that an answer takes, about."""
    if isinstance(answer, OpError):
        return len(answer.text) + _memory(answer.facts)
    return len(answer[1]) + _memory(answer[0])


def _memory(value: Any) -> int:
    """Bytes of plain values: what a header can hold, nested as deep as a header may be."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        size += sum(_memory(key) + _memory(item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        size += sum(_memory(item) for item in value)
    return size
