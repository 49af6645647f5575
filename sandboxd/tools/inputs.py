"""Reading a tool's input: a JSON object from a model, checked field by field.

Every fault is an `InvalidInput` with the field, the rule, the value and what to
do. Nothing is repaired silently; only an integral float counts as an integer and
a null as absent, since JSON encoders and models produce both.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sandboxd.tools.base import InvalidInput, JsonObject

PATH_BYTES_MAX = 4_096
"""Longest path that Linux takes, the closing NUL included."""
INT64_MAX = 2**63 - 1


class Fields:
    """The fields of one input. Unknown ones are refused at once."""

    def __init__(self, raw: JsonObject, known: Collection[str]) -> None:
        self._raw = raw
        unknown = [key for key in raw if key not in known]
        if unknown:
            raise InvalidInput(
                f"Unknown field `{_cut(unknown[0])}`. The fields are: {', '.join(sorted(known))}."
            )

    def given(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._raw.get(name) is not None

    def text(self, name: str) -> str:
        """A required text that can be encoded."""
        if not self.given(name):
            raise InvalidInput(f"`{name}` is missing. Give it as text.")
        value = self._raw[name]
        if not isinstance(value, str):
            raise InvalidInput(f"`{name}` must be text (got {_shown(value)}).")
        encoded(value, name)
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.given(name) else None

    def path(self, name: str = "path") -> str:
        """A required path: not empty, no NUL, not longer than the kernel takes."""
        value = self.text(name)
        if not value:
            raise InvalidInput(f"`{name}` is empty. Give the path of a file.")
        if "\0" in value:
            raise InvalidInput(f"`{name}` contains a NUL character. Remove it.")
        size = len(value.encode("utf-8"))
        if size >= PATH_BYTES_MAX:
            raise InvalidInput(
                f"`{name}` is {size} bytes long, and {PATH_BYTES_MAX - 1} are the most. "
                "Use a shorter path.",
                "PATH_TOO_LONG",
            )
        return value

    def optional_path(self, name: str = "path") -> str | None:
        return self.path(name) if self.given(name) else None

    def optional_integer(self, name: str, minimum: int, rule: str) -> int | None:
        """An int64 of at least `minimum`; `rule` completes "must be"."""
        if not self.given(name):
            return None
        value = self._raw[name]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not minimum <= value <= INT64_MAX
        ):
            raise InvalidInput(f"`{name}` must be {rule} (got {_shown(value)}).")
        return value

    def flag(self, name: str) -> bool:
        """An optional truth value; absent is false."""
        value = self._raw.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise InvalidInput(f"`{name}` must be true or false (got {_shown(value)}).")
        return value


def encoded(value: str, name: str) -> bytes:
    """UTF-8 of a text. A lone surrogate, which JSON can spell, is refused with its place."""
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"`{name}` contains a lone surrogate (U+{ord(value[error.start]):04X}) at character "
            f"{error.start + 1}, which is not valid Unicode. Replace it."
        ) from None


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = type(value).__name__
    return _cut(text)


def _cut(text: str) -> str:
    # Through ASCII with escapes: the text becomes part of a result.
    safe = text.encode("ascii", "backslashreplace").decode("ascii").replace("\0", "\\x00")
    return safe if len(safe) <= 80 else safe[:80] + "…"
