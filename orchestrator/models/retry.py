"""The one retry layer around model calls.

An attempt is void until it is complete: nothing of it is executed or remembered,
so asking again repeats no effect. Those who watch are told that its fragments are
void before the next attempt begins; the next one is not streamed, so that nobody sees
a reply begin twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.config import ModelSettings
from orchestrator.errors import ModelError
from orchestrator.messages import ModelRequest, Reply
from orchestrator.models.base import Fragment, Model, OnFragment


@dataclass(frozen=True)
class Asked:
    """A model call that ended well."""

    reply: Reply
    attempts: int
    first_fragment_s: float | None
    """From the start of the last attempt. None: the reply had nothing to show."""


OnDiscard = Callable[[int, ModelError, float], None]
"""Told of a failed attempt: its number, its error, seconds until the next one."""


async def ask(
    model: Model,
    request: ModelRequest,
    settings: ModelSettings,
    on_fragment: OnFragment,
    on_discard: OnDiscard,
) -> Asked:
    """Asks up to `attempts_max` times. Raises the last attempt's `ModelError`."""
    attempt = 0
    while True:
        attempt += 1
        begun = time.monotonic()
        first: list[float] = []

        def show(fragment: Fragment, first: list[float] = first, begun: float = begun) -> None:
            if not first:
                first.append(time.monotonic() - begun)
            on_fragment(fragment)

        try:
            reply = await model.complete(request, show, streamed=attempt == 1)
        except ModelError as error:
            wait_s = _wait(error, attempt, settings)
            if wait_s is None:
                raise
            on_discard(attempt, error, wait_s)
            await asyncio.sleep(wait_s)
        else:
            return Asked(reply, attempt, first[0] if first else None)


def _wait(error: ModelError, attempt: int, settings: ModelSettings) -> float | None:
    """Seconds until the next attempt; None where there is none."""
    if not error.retryable or attempt >= settings.attempts_max:
        return None
    if error.retry_after_s is not None:
        # Hours of silent waiting help nobody: the error says what the server asked for.
        return error.retry_after_s if error.retry_after_s <= settings.retry_after_s_max else None
    return settings.backoff_s * 2.0 ** (attempt - 1) * random.uniform(0.75, 1.0)
