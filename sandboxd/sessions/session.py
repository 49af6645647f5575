"""Changes of a session's state: pure, so that every arrow can be tested."""

from __future__ import annotations

from sandboxd.sessions.records import ARROWS, SessionRecord, State

RESTARTS_MAX = 5
"""Restarts within `RESTART_WINDOW_S`; the next one fails the session (contract.md 3)."""
RESTART_WINDOW_S = 600.0


class ForbiddenArrow(Exception):
    """A fault of this program: the session cannot go from where it is to there."""


def move(record: SessionRecord, state: State, reason: str = "", message: str = "") -> None:
    """Sets the state, with its machine reason and the words for people.

    Raises `ForbiddenArrow` where `ARROWS` has no such arrow.
    """
    if state not in ARROWS[record.state]:
        raise ForbiddenArrow(f"{record.state.value} to {state.value}")
    record.state, record.reason, record.message = state, reason, message


def may_restart(record: SessionRecord, now: float) -> bool:
    """Whether the session has restarts left. `now` is the wall clock."""
    recent = [at for at in record.restarts if 0 <= now - at < RESTART_WINDOW_S]
    return len(recent) < RESTARTS_MAX


def count_restart(record: SessionRecord, now: float) -> None:
    """Notes a restart and moves on to the next generation, whose first result says so."""
    record.restarts = [*record.restarts, now][-RESTARTS_MAX:]
    record.generation += 1
    record.restart_untold = True
