"""Pieces of text that several tools put in front of a model (contract.md 9)."""

from __future__ import annotations

from collections.abc import Sequence

LINES_NAMED_MAX = 10
"""Line numbers that a text spells out; the others are counted."""


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 line`, `2 lines`: a count of one takes the singular in every text."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def line_list(lines: Sequence[int], count: int | None = None) -> str:
    """`line 3`, `lines 3, 8, 12`, and beyond ten `lines 1, …, 10 and N more`.

    `count` is the number of all, where `lines` holds only the first of them.
    """
    total = len(lines) if count is None else count
    named = ", ".join(str(line) for line in lines[:LINES_NAMED_MAX])
    rest = total - min(len(lines), LINES_NAMED_MAX)
    more = f" and {rest} more" if rest > 0 else ""
    return f"{'line' if total == 1 else 'lines'} {named}{more}"


def plain(text: str, chars_max: int = 1_000) -> str:
    """Text of the guest or of the operating system, made fit for a result.

    Cut to `chars_max`; NUL and other control characters, except tab and newline,
    become visible escapes, and so do surrogates.
    """
    if len(text) > chars_max:
        text = text[:chars_max] + "…"
    return "".join(
        f"\\x{ord(char):02x}"
        if (ord(char) < 0x20 and char not in "\t\n") or 0x7F <= ord(char) < 0xA0
        else f"\\u{ord(char):04x}"
        if 0xD800 <= ord(char) <= 0xDFFF
        else char
        for char in text
    )


def own_line(body: str, *lines: str) -> str:
    """`body` followed by `lines`, each on a line of its own; no newline at the end."""
    if not lines:
        return body
    gap = "" if not body or body.endswith("\n") else "\n"
    return body + gap + "\n".join(lines)
