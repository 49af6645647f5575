"""What grep and glob have in common: the facts of a search, and how one that ended early is said.

Texts: contract.md 9; endings: contract.md 4.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandbox_adapter.v1 import error_pb2, tool_pb2
from sandboxd.tools.facts import Count, Facts
from sandboxd.tools.wording import counted, plain


class SearchFacts(Facts):
    """What the guest answers to either search; see `guest/search.py`."""

    capped: bool
    timed_out: bool
    cancelled: bool
    unsearched: Count
    first_error: Annotated[str, Field(max_length=1_000)] | None


def set_ending(result: tool_pb2.ToolResult, facts: SearchFacts, timeout_s: float) -> None:
    """How the search ended; partial rows of a search out of time are a result."""
    if facts.cancelled:
        result.ending = tool_pb2.ENDING_CANCELLED
        result.reason = error_pb2.REASON_CANCELLED_BY_CALLER
    elif facts.timed_out:
        result.ending = tool_pb2.ENDING_TIMED_OUT
        result.limit.CopyFrom(tool_pb2.Limit(kind="time", limit=round(timeout_s * 1000)))
    else:
        result.ending = tool_pb2.ENDING_COMPLETED


def stopping_notes(facts: SearchFacts, timeout_s: float) -> list[str]:
    """What a search could not do: paths that could not be searched, then an early end."""
    notes = []
    if facts.unsearched:
        notes.append(
            f"[{counted(facts.unsearched, 'path')} could not be searched: "
            f"{plain(facts.first_error or 'unknown error').replace(chr(10), ' ')}]"
        )
    if facts.cancelled:
        notes.append("[The search was cancelled: results are incomplete.]")
    elif facts.timed_out:
        seconds = counted(round(timeout_s), "second")
        notes.append(
            f"[Stopped after {seconds}: results are incomplete. Narrow the path or pattern.]"
        )
    return notes
