"""Answers of calls that the daemon has not confirmed yet (security S7, S18).

A call's answer may be lost on its way, with the connection or with the daemon. So it is
kept until the daemon says that the result is recorded (`recorded` in a request's header),
and the guest reports it when it dials again. What does not fit the bound loses its answer
and keeps its id: the daemon must learn that the call ran.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from .ops import Answer, OpError

KEPT_MAX: Final = 512
"""Answers; a report of as many ids fits a hello."""
KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bodies of all answers that are kept."""
_DROPPED: Final = "the answer was dropped: too many bytes waited to be recorded"


class Kept:
    """By call id, oldest first. Used under the lock of `lanes`."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer | OpError] = {}
        self._ended: dict[str, float] = {}
        """When each call ended, on the monotonic clock."""
        self._bytes = 0

    def keep(self, call_id: str, answer: Answer | OpError) -> None:
        """Takes the answer of a call that has just ended."""
        self._answers[call_id] = answer
        self._ended[call_id] = time.monotonic()
        self._bytes += _size(answer)
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
            answer = self._answers.pop(call_id, None)
            self._ended.pop(call_id, None)
            if answer is not None:
                self._bytes -= _size(answer)

    def ids(self) -> list[str]:
        return list(self._answers)

    def _drop_oldest(self) -> None:
        for call_id, answer in list(self._answers.items()):
            if self._bytes <= KEPT_BYTES_MAX:
                return
            if _size(answer):
                self._bytes -= _size(answer)
                self._answers[call_id] = OpError("RESULT_DROPPED", _DROPPED)


def _size(answer: Answer | OpError) -> int:
    return 0 if isinstance(answer, OpError) else len(answer[1])
