"""Makes text that a model or a sandbox wrote safe to print on one's own terminal."""

from __future__ import annotations

import unicodedata
from typing import Final

# Control characters steer terminals; bidirectional overrides make a line read
# other than it is.
_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_HARMLESS_FORMAT: Final = frozenset("\u200d\u00ad")


def printable(text: str, *, keep: str = "") -> str:
    r"""`text` with control and format characters as `\xNN` or `\uNNNN`.

    `keep` names characters that stay, such as the newline.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in keep or not _is_control(char) else _escaped(char) for char in text
    )


def _is_control(char: str) -> bool:
    return unicodedata.category(char) in _CATEGORIES and char not in _HARMLESS_FORMAT


def _escaped(char: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    if named is not None:
        return named
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def clipped(text: str, chars_max: int) -> str:
    """`text`, or its beginning with an ellipsis, at most `chars_max` characters."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"
