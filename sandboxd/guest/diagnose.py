"""Why a text was not found: the cheapest explanation that is true.

Nothing here changes a file. Tolerant matching that writes corrupts files
(tool-cases D1, E14), so it is only done to tell the model what differs. Every
explanation was checked: it names a line at which the text does match in that
sense. Costs are bounded by size and time.
"""

from __future__ import annotations

import difflib
import re
import time
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

DIAGNOSED_BYTES_MAX = 1024 * 1024
"""Beyond it only exact searches are made: no other thread of the guest runs while a pattern
goes through a text."""
DIAGNOSED_S = 1.0
"""After it no further explanation is tried."""
OLD_BYTES_MAX = 1024 * 1024
"""A longer text is no slip of the pen: nothing of it is tried in other forms."""
NEAREST_S = 0.5
NEAREST_LINES_MAX = 20_000
QUOTE_CHARS_MAX = 200

_NUMBERED = re.compile(rb"(?m)^[ \t]*\d+(?:(?:\xe2\x86\x92|\||:)[ \t]?|\t)")
# In short runs: normalising takes the square of a row of combining marks, and no
# other thread of the guest runs meanwhile.
_NOT_ASCII = re.compile(r"(?s).[^\x00-\x7f]{1,256}")
_TYPOGRAPHY = (
    (b"\xe2\x80\x98", b"'"),
    (b"\xe2\x80\x99", b"'"),
    (b"\xe2\x80\x9c", b'"'),
    (b"\xe2\x80\x9d", b'"'),
    (b"\xe2\x80\x93", b"-"),
    (b"\xe2\x80\x94", b"-"),
    (b"\xe2\x80\xa6", b"..."),
    (b"\xc2\xa0", b" "),
)
_REPLACEMENT = "\ufffd".encode()
_NUL_SHOWN = "\u2400".encode()
_ESCAPES = ((b"\\n", b"\n"), (b"\\t", b"\t"), (b'\\"', b'"'), (b"\\'", b"'"), (b"\\\\", b"\\"))

Diagnosis: TypeAlias = dict[str, Any]


def diagnose(
    content: bytes, old: bytes, new: bytes, check: Callable[[], None] = lambda: None
) -> Diagnosis:
    """Facts on why `old` is not in `content`; both have LF as line ending.

    `kind` is one of `already_applied`, `line_numbers`, `escaped`,
    `trailing_whitespace`, `indentation`, `spacing`, `typography`, `case`,
    `unicode_form`, `outer_newlines`, `replacement_character`, `nul_character`,
    `unknown`; `line` is where it matches in that sense. `nearest_line` and
    `nearest_text` are there where a line comes close. Calls `check` between its steps,
    which may raise.
    """
    if len(old) > OLD_BYTES_MAX:
        return {"kind": "unknown"}
    found: Diagnosis = {"kind": "unknown"}
    deadline = time.monotonic() + DIAGNOSED_S
    for kind, line in _explanations(content, old, new):
        check()
        if line:
            found = {"kind": kind, "line": line}
        if line or time.monotonic() >= deadline:
            break
    if found["kind"] not in ("already_applied", "line_numbers", "escaped"):
        found.update(_nearest(content, old, found.get("line")))
    return found


def _explanations(content: bytes, old: bytes, new: bytes) -> Iterator[tuple[str, int]]:
    """Kinds, each with the line at which it holds or 0; one step of work for each."""
    yield "line_numbers", _unnumbered_line(content, old)
    yield "escaped", _unescaped_line(content, old)
    if len(content) <= DIAGNOSED_BYTES_MAX:
        if _REPLACEMENT in old:
            yield "replacement_character", _line(_as_shown(content), old)
        if _NUL_SHOWN in old:
            yield "nul_character", _line(_as_shown(content), old)
        for kind, blind in _BLINDERS:
            yield kind, _line(blind(content), blind(old))
        inner = old.strip(b"\n")
        if inner != old:
            yield "outer_newlines", _line(content, inner)
    # Last of all: the new text may be there for reasons of its own.
    if len(new.strip()) >= 8 and new not in old:
        yield "already_applied", _line(content, new)


def _unnumbered_line(content: bytes, old: bytes) -> int:
    return _line(content, _NUMBERED.sub(b"", old)) if _all_numbered(old) else 0


def _unescaped_line(content: bytes, old: bytes) -> int:
    unescaped = old
    for escape, meant in _ESCAPES:
        unescaped = unescaped.replace(escape, meant)
    return _line(content, unescaped) if unescaped != old else 0


def _line(content: bytes, sought: bytes) -> int:
    """Line of the first match, from 1; 0 where there is none."""
    if not sought.strip():
        return 0
    start = content.find(sought)
    return content.count(b"\n", 0, start) + 1 if start >= 0 else 0


def _all_numbered(old: bytes) -> bool:
    lines = [line for line in old.split(b"\n") if line.strip()]
    return bool(lines) and all(_NUMBERED.match(line) for line in lines)


def _without_trailing(data: bytes) -> bytes:
    # Looking behind keeps a long run of blanks from being tried from each of them.
    return re.sub(rb"(?<![ \t])[ \t]++(?=\n|\Z)", b"", data)


def _without_indentation(data: bytes) -> bytes:
    return re.sub(rb"(?m)^[ \t]+", b"", _without_trailing(data))


def _with_single_spaces(data: bytes) -> bytes:
    return re.sub(rb"[ \t]+", b" ", _without_indentation(data))


def _with_plain_typography(data: bytes) -> bytes:
    for fancy, plain in _TYPOGRAPHY:
        data = data.replace(fancy, plain)
    return data


def _as_shown(data: bytes) -> bytes:
    """As read shows it: undecodable bytes as U+FFFD, NUL as its picture."""
    return data.decode("utf-8", "replace").encode("utf-8").replace(b"\0", _NUL_SHOWN)


def _folded_case(data: bytes) -> bytes:
    if data.isascii():
        return data.lower()
    text = data.decode("utf-8", "surrogateescape").casefold()
    return text.encode("utf-8", "surrogateescape")


def _composed(data: bytes) -> bytes:
    if data.isascii():
        return data
    text = data.decode("utf-8", "surrogateescape")
    text = _NOT_ASCII.sub(lambda run: unicodedata.normalize("NFC", run.group()), text)
    return text.encode("utf-8", "surrogateescape")


# In this order: each is blind to little, and what one explains the later ones,
# which are blind to more, need not. None adds or removes a newline, so that
# lines keep their numbers.
_BLINDERS: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("trailing_whitespace", _without_trailing),
    ("indentation", _without_indentation),
    ("spacing", _with_single_spaces),
    ("typography", _with_plain_typography),
    ("case", _folded_case),
    ("unicode_form", _composed),
)


def _nearest(content: bytes, old: bytes, line: int | None) -> Diagnosis:
    if line:
        return _quote(content, line)
    wanted = max((part.strip() for part in old.split(b"\n")), key=len, default=b"")
    if len(wanted) < 4:
        return {}
    start = content.find(wanted)
    if start >= 0:
        return _quote(content, content.count(b"\n", 0, start) + 1)
    best = _similar_line(content, wanted[: 2 * QUOTE_CHARS_MAX].decode("utf-8", "replace"))
    return _quote(content, best) if best else {}


def _similar_line(content: bytes, wanted: str) -> int:
    deadline = time.monotonic() + NEAREST_S
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    best, best_ratio = 0, 0.6
    position = 0
    for number in range(1, NEAREST_LINES_MAX + 1):
        end = content.find(b"\n", position)
        stop = end if end >= 0 else len(content)
        text = content[position : min(stop, position + 400)].strip().decode("utf-8", "replace")
        matcher.set_seq1(text)
        if (
            matcher.real_quick_ratio() > best_ratio
            and matcher.quick_ratio() > best_ratio
            and (ratio := matcher.ratio()) > best_ratio
        ):
            best, best_ratio = number, ratio
        if end < 0 or time.monotonic() >= deadline:
            break
        position = end + 1
    return best


def _quote(content: bytes, line: int) -> Diagnosis:
    position = 0
    for _ in range(line - 1):
        position = content.find(b"\n", position) + 1
    end = content.find(b"\n", position)
    raw = content[position : min(len(content) if end < 0 else end, position + 4 * QUOTE_CHARS_MAX)]
    text = raw.decode("utf-8", "replace").replace("\t", "\\t")
    if len(text) > QUOTE_CHARS_MAX:
        text = text[:QUOTE_CHARS_MAX] + "…"
    return {"nearest_line": line, "nearest_text": text.replace("\0", "␀")}
