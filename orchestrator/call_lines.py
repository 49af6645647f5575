"""How a call is told to a person: a title, facts, and some lines of what came of it. Pure.

What the six tools are called matters here only: a tool that is not known is shown by
its name and input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from orchestrator.escape import clipped, printable
from orchestrator.messages import JsonObject, Outcome, ToolCall

OUTPUT_LINES_MAX: Final = 12
EDIT_LINES_MAX: Final = 8
LINE_CHARS_MAX: Final = 160
TITLE_CHARS_MAX: Final = 120

Tone = Literal["plain", "old", "new", "error"]


@dataclass(frozen=True)
class Line:
    """A line under a call."""

    text: str
    tone: Tone = "plain"


def title(call: ToolCall) -> str:
    """What the call is about, on one line."""
    describe = _TITLES.get(call.name)
    arguments = call.arguments or {}
    text = describe(arguments) if describe else _as_json(arguments)
    if call.arguments is None:
        text = call.raw_arguments
    return clipped(printable(text), TITLE_CHARS_MAX)


def facts(call: ToolCall, outcome: Outcome) -> str:
    """What came of it, in a few words."""
    words: list[str] = []
    if outcome.exit_code is not None:
        words.append(f"exit {outcome.exit_code}")
    if outcome.ending not in ("COMPLETED", "EXITED"):
        words.append(outcome.ending.lower().replace("_", " "))
    count = _COUNTS.get(call.name)
    if count is not None and not outcome.is_error:
        words.append(count(outcome))
    if outcome.truncated:
        words.append("cut")
    if outcome.duration_s is not None:
        words.append(seconds(outcome.duration_s))
    return " · ".join(word for word in words if word)


def before(call: ToolCall) -> list[Line]:
    """What a person wants to see of an effect before it happens."""
    arguments = call.arguments or {}
    if call.name != "edit":
        return []
    old, new = arguments.get("oldText"), arguments.get("newText")
    if not isinstance(old, str) or not isinstance(new, str):
        return []
    return _cut(_marked("- ", old, "old"), EDIT_LINES_MAX) + _cut(
        _marked("+ ", new, "new"), EDIT_LINES_MAX
    )


def after(call: ToolCall, outcome: Outcome) -> list[Line]:
    """What a person wants to see of a result."""
    if outcome.is_error:
        return [Line(_line(text), "error") for text in outcome.text.splitlines()[:3]]
    if outcome.exit_code is None:
        return []
    lines = outcome.text.rstrip("\n").split("\n")
    # Said already, in the facts.
    said = f"[Command exited with code {outcome.exit_code}]"
    shown = [line for line in lines if line != said]
    while shown and not shown[-1].strip():
        shown.pop()
    hidden = len(shown) - OUTPUT_LINES_MAX
    if hidden > 1:
        shown = [f"… {hidden} lines", *shown[-OUTPUT_LINES_MAX:]]
    return [Line(_line(text)) for text in shown]


def seconds(value: float) -> str:
    """A duration as a person reads it."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def size(count: int) -> str:
    """A number of bytes as a person reads it."""
    if count < 1000:
        return f"{count} B"
    for unit in ("KB", "MB"):
        count_in = count / (1000 if unit == "KB" else 1_000_000)
        if count_in < 1000:
            return f"{count_in:.1f} {unit}"
    return f"{count / 1e9:.1f} GB"


def plural(count: int, one: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}{_ending(one)}"


def _ending(one: str) -> str:
    return "es" if one.endswith(("ch", "s")) else "s"


def _path(arguments: JsonObject) -> str:
    return str(arguments.get("path", ""))


def _read(arguments: JsonObject) -> str:
    offset, limit = arguments.get("offset"), arguments.get("limit")
    where = f" from line {offset}" if offset is not None else ""
    return f"{_path(arguments)}{where}" + (f", {limit} lines" if limit is not None else "")


def _write(arguments: JsonObject) -> str:
    return f"{_path(arguments)} ({size(len(str(arguments.get('content', '')).encode()))})"


def _edit(arguments: JsonObject) -> str:
    every = " (every occurrence)" if arguments.get("replaceAll") else ""
    return f"{_path(arguments)}{every}"


def _bash(arguments: JsonObject) -> str:
    return str(arguments.get("command", ""))


def _search(arguments: JsonObject) -> str:
    words = [str(arguments.get("pattern", ""))]
    if arguments.get("include"):
        words.append(f"in {arguments['include']}")
    if arguments.get("path"):
        words.append(f"under {arguments['path']}")
    return " ".join(words)


def _as_json(arguments: JsonObject) -> str:
    return json.dumps(arguments, ensure_ascii=False)


_TITLES: Final[Mapping[str, Callable[[JsonObject], str]]] = {
    "read": _read,
    "write": _write,
    "edit": _edit,
    "bash": _bash,
    "grep": _search,
    "glob": _search,
}


def _read_count(outcome: Outcome) -> str:
    first, last = _number(outcome.facts, "firstLine"), _number(outcome.facts, "lastLine")
    return f"lines {first}–{last}" if last else ""


def _edit_count(outcome: Outcome) -> str:
    return plural(_number(outcome.facts, "replacements"), "replacement")


def _grep_count(outcome: Outcome) -> str:
    return _rows(outcome, "matches", "match")


def _glob_count(outcome: Outcome) -> str:
    return _rows(outcome, "paths", "path")


def _rows(outcome: Outcome, key: str, one: str) -> str:
    rows = outcome.facts.get(key)
    # Too many rows to keep are kept as their number.
    count = len(rows) if isinstance(rows, list) else _number(outcome.facts, key)
    return plural(count, one)


_COUNTS: Final[Mapping[str, Callable[[Outcome], str]]] = {
    "read": _read_count,
    "edit": _edit_count,
    "grep": _grep_count,
    "glob": _glob_count,
}


def _number(facts: JsonObject, key: str) -> int:
    value: Any = facts.get(key, 0)
    # 64-bit numbers are text in the contract's JSON form.
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else 0


def _marked(mark: str, text: str, tone: Tone) -> list[Line]:
    return [Line(mark + _line(line), tone) for line in text.rstrip("\n").split("\n")]


def _cut(lines: list[Line], lines_max: int) -> list[Line]:
    if len(lines) <= lines_max + 1:
        return lines
    return [*lines[:lines_max], Line(f"… {len(lines) - lines_max} lines more")]


def _line(text: str) -> str:
    return clipped(printable(text.expandtabs(4)), LINE_CHARS_MAX)
