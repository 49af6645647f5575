"""The list of known differences: rules that an adapter is known to break, and why.

A TOML file:

    [[difference]]
    rule = "grep.utf16"
    reason = "this adapter's engine does not decode UTF-16"

A rule that is listed and fails does not fail the run. One that is listed and passes
does: the list must stay true.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any


class BadList(ValueError):
    """The list cannot be used. The text is one line for the person who wrote it."""


def load(path: Path, rule_ids: Collection[str]) -> Mapping[str, str]:
    """Reasons by rule id. Raises `BadList`."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadList(f"cannot read `{path}`: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadList(f"`{path}` is not TOML: {error}") from None
    if unknown := set(content) - {"difference"}:
        raise BadList(f"`{path}`: unknown key `{sorted(unknown)[0]}`; use [[difference]]")
    entries = content.get("difference", [])
    if not isinstance(entries, list):
        raise BadList(f"`{path}`: `difference` must be a list; write [[difference]]")
    reasons: dict[str, str] = {}
    for number, entry in enumerate(entries, 1):
        rule_id, reason = _entry(entry, f"`{path}`, difference {number}")
        if rule_id not in rule_ids:
            raise BadList(f"`{path}`: no rule has the id `{rule_id}`; see --list")
        if rule_id in reasons:
            raise BadList(f"`{path}`: `{rule_id}` is listed twice")
        reasons[rule_id] = reason
    return reasons


def _entry(entry: Any, where: str) -> tuple[str, str]:
    if not isinstance(entry, dict) or set(entry) != {"rule", "reason"}:
        raise BadList(f"{where}: give `rule` and `reason`, and nothing else")
    rule_id, reason = entry["rule"], entry["reason"]
    if not isinstance(rule_id, str) or not isinstance(reason, str) or not reason.strip():
        raise BadList(f"{where}: `rule` and `reason` must be text, and the reason not empty")
    return rule_id, reason.strip()
