"""What grep and glob say of a search that did not see everything (contract.md 9)."""

from __future__ import annotations

from sandboxd.tools.wording import counted, plain


def stopping_notes(
    unsearched: int, first_error: str | None, timed_out: bool, cancelled: bool, timeout_s: float
) -> list[str]:
    """What a search could not do: paths that could not be searched, then an early end."""
    notes = []
    if unsearched:
        notes.append(
            f"[{counted(unsearched, 'path')} could not be searched: "
            f"{plain(first_error or 'unknown error').replace(chr(10), ' ')}]"
        )
    if cancelled:
        notes.append("[The search was cancelled: results are incomplete.]")
    elif timed_out:
        seconds = counted(round(timeout_s), "second")
        notes.append(
            f"[Stopped after {seconds}: results are incomplete. Narrow the path or pattern.]"
        )
    return notes
