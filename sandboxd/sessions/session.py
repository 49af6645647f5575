"""Changes of a session's state: pure, so that every arrow can be tested."""

from __future__ import annotations

from typing import Final

from sandboxd.sessions.records import ARROWS, SessionRecord, State

RESTARTS_MAX = 5
"""Restarts within `RESTART_WINDOW_S`; the next one fails the session (contract.md 3)."""
RESTART_WINDOW_S = 600.0


ENGINE_DOWN: Final = "ENGINE_DOWN"
"""Reason of a session whose sandbox is started, or looked for, when the engine answers again."""


class ForbiddenArrow(Exception):
    """A fault of this program: the session cannot go from where it is to there."""


def move(record: SessionRecord, state: State, reason: str = "", message: str = "") -> None:
    """Sets the state, with its machine reason and the words for people.

    Raises `ForbiddenArrow` where `ARROWS` has no such arrow.
    """
    if state not in ARROWS[record.state]:
        raise ForbiddenArrow(f"{record.state.value} to {state.value}")
    record.state, record.reason, record.message = state, reason, message


def sandbox_lost(record: SessionRecord) -> None:
    """Says of a session that is RESTARTING that its next sandbox is being made."""
    if record.state is State.RESTARTING:
        record.reason, record.message = "SANDBOX_LOST", "The sandbox ended."


def engine_down(record: SessionRecord) -> None:
    """Says of a session that is RESTARTING that it waits for the engine."""
    if record.state is State.RESTARTING:
        record.reason = ENGINE_DOWN
        record.message = "The container engine does not answer; it is asked again until it does."


def may_restart(record: SessionRecord, now: float) -> bool:
    """Whether the session has restarts left. `now` is the wall clock."""
    recent = [at for at in record.restarts if 0 <= now - at < RESTART_WINDOW_S]
    return len(recent) < RESTARTS_MAX


def count_restart(record: SessionRecord, now: float) -> None:
    """Notes a restart and moves on to the next generation, whose first result says so."""
    record.restarts = [*record.restarts, now][-RESTARTS_MAX:]
    record.generation += 1
    record.restart_untold = True
