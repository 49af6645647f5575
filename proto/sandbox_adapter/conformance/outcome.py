"""What judging a rule can come to."""

from __future__ import annotations

from enum import Enum


class Broken(Exception):
    """The adapter breaks the rule. The text says what was expected and what came."""


class Uncheckable(Exception):
    """The rule cannot be judged here, and the text says why. It counts as not passed."""


class Outcome(Enum):
    """What judging a rule came to."""

    PASS = "pass"
    FAIL = "fail"
    NOT_CLAIMED = "not claimed"
    """The adapter does not claim a capability that the rule is about."""
    UNCHECKABLE = "uncheckable"
    """What the rule needs cannot be had in this sandbox, such as a shell or a FIFO."""
    KNOWN = "known difference"
    """It fails, and the list of known differences says so."""
    FIXED = "no longer different"
    """It is listed as a known difference and passes: the list is wrong, the run fails."""

    @property
    def ends_well(self) -> bool:
        """Whether a run with this outcome can still succeed."""
        return self not in (Outcome.FAIL, Outcome.FIXED)
