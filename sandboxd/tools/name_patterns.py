"""Patterns of file names in glob and in grep's `include`: names, not paths."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_WILD = re.compile(r"[*?\[{\\]")


@dataclass(frozen=True)
class NearestCall:
    """What probably was meant by a pattern with a slash."""

    path: str
    pattern: str

    def worded(self, field: str) -> str:
        """`path="src" and pattern="*.py"`, each as JSON spells it."""
        path = json.dumps(self.path, ensure_ascii=False)
        return f"path={path} and {field}={json.dumps(self.pattern, ensure_ascii=False)}"


def without_leading_stars(pattern: str) -> str:
    """`**/X` means the same as `X`: a name is looked for at every depth."""
    while pattern.startswith("**/") and len(pattern) > 3:
        pattern = pattern[3:].lstrip("/") or "*"
    return pattern


def nearest_call(pattern: str, path: str | None) -> NearestCall:
    """The call that comes closest to a pattern with a slash.

    The directories before the first wildcard become the path, below the given
    one; the last part is the name.
    """
    *folders, name = _parts(pattern)
    literal: list[str] = []
    for folder in folders:
        if _WILD.search(folder):
            break
        literal.append(folder)
    below = "/".join(literal)
    if pattern.startswith("/"):
        start = below or "/"
    elif path is not None and path.rstrip("/") not in ("", "."):
        start = f"{path.rstrip('/')}/{below}" if below else path
    else:
        start = below or "."
    return NearestCall(start, "*" if name in ("", "**") else name)


def _parts(pattern: str) -> list[str]:
    parts = pattern.split("/")
    for part in parts:
        if part.count("{") != part.count("}"):
            # A slash inside braces: the last name of the alternatives, unopened.
            name = parts[-1].split(",")[0].replace("}", "").replace("{", "")
            whole = pattern.partition("{")[0].split("/")[:-1]
            return [*whole, name]
    return parts
