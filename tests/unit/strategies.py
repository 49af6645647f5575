"""What the property tests generate: files, output of commands, JSON of any shape, cuts."""

from __future__ import annotations

import codecs
import itertools
import json
from typing import Any

from hypothesis import strategies as st

SHOWN_BYTES_MAX = 50 * 1024
"""Where read and bash cut: what is generated crowds around it."""

# Characters of every size, what some readers take for a line's end, and bytes that are no UTF-8.
PIECES = [b"a", b"bc", b" ", b"\t", b"\r", b"$1", b"\\1", b"\\n", "é".encode(), "€".encode()]
PIECES += ["😀".encode(), "e\u0301".encode(), b"\x0b\x0c\x1c", "\u2028\u0085".encode()]
BROKEN = [b"\xe9", b"\xff", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\xe2\x82"]
ENDINGS = [b"\n", b"\n", b"\r\n", b"\r\r\n"]


def pieces(alphabet: list[bytes], max_size: int = 12) -> st.SearchStrategy[bytes]:
    """A few of them, joined."""
    return st.lists(st.sampled_from(alphabet), max_size=max_size).map(b"".join)


def _filled(unit: bytes, size: int, tail: bytes) -> bytes:
    return (unit * (size // len(unit) + 1))[:size] + tail


def long_lines(around: int = SHOWN_BYTES_MAX) -> st.SearchStrategy[bytes]:
    """Bytes without a newline, of about the size at which a tool cuts."""
    return st.builds(
        _filled,
        st.sampled_from([b"x", "é".encode(), "€".encode(), "😀".encode(), b"y\xff"]),
        st.integers(around - 6, around + 6) | st.integers(around // 3, around * 2),
        pieces([*PIECES, *BROKEN], 3),
    )


@st.composite
def text_files(draw: st.DrawFn, *, long: bool = True, repeats_max: int = 2_500) -> bytes:
    """A file in an encoding that is UTF-8 or nearly so: marks, endings, broken bytes, NUL."""
    alphabet = PIECES + (BROKEN if draw(st.booleans()) else [])
    if draw(st.integers(0, 7)) == 0:
        alphabet = [*alphabet, b"\0"]
    lines = pieces(alphabet) | (long_lines() if long else pieces(alphabet, 40))
    ended = st.builds(bytes.__add__, lines, st.sampled_from(ENDINGS))
    content = b"".join(draw(st.lists(ended, max_size=12)))
    if draw(st.booleans()):
        # Many lines cost a generator too much: they are one, repeated.
        content += draw(ended.filter(lambda line: len(line) < 100)) * draw(
            st.integers(0, repeats_max)
        )
    mark = codecs.BOM_UTF8 if draw(st.integers(0, 3)) == 0 else b""
    return mark + content + draw(pieces(alphabet))


@st.composite
def wide_files(draw: st.DrawFn) -> bytes:
    """UTF-16 or UTF-32 with its mark, sometimes cut off in the middle or with broken units."""
    codec, mark = draw(
        st.sampled_from(
            [
                ("utf-16-le", codecs.BOM_UTF16_LE),
                ("utf-16-be", codecs.BOM_UTF16_BE),
                ("utf-32-le", codecs.BOM_UTF32_LE),
                ("utf-32-be", codecs.BOM_UTF32_BE),
            ]
        )
    )
    text = draw(st.text(alphabet="ab \r\n\0é€😀\u2028\ufeff", max_size=30))
    text += "line\r\n" * draw(st.sampled_from([0, 0, 3, 9_000]))
    raw = mark + text.encode(codec)
    broken = draw(st.sampled_from([b"", b"", b"\x00\xd8", b"\xd8\x00", b"\xff", b"\x00\xdc\x00"]))
    return raw + broken


FILES = text_files() | wide_files() | st.binary(max_size=300)
"""What a file may hold."""


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """`data` in pieces of these sizes, which repeat; none of them is empty."""
    out, position = [], 0
    for size in itertools.cycle(sizes):
        if position >= len(data):
            break
        out.append(data[position : position + size])
        position += size
    return out


CUTS = st.lists(st.integers(1, 9) | st.integers(1, 70_000), min_size=1, max_size=8)

ODD_TEXTS = st.sampled_from(
    ["", "\0", "\ud800", "a\udfff", "\ufeff", "\x1b[31m", "a\nb", "\u202e", "\x85", "\uffff"]
)
TEXTS = st.text(max_size=20) | ODD_TEXTS | st.text(st.characters(exclude_categories=()), max_size=9)
"""Any text that Python can hold: with NUL, control characters and lone surrogates."""
NUMBERS = (
    st.integers()
    | st.integers(-3, 3)
    | st.sampled_from([2**31, 2**32, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63), 10**400])
    | st.floats()
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
"""Any value that a JSON parser of Python may give, and lone surrogates, NaN and infinities."""


def mutated(valid: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object of the right shape in which a few fields are missing or hold anything."""
    some = st.dictionaries(st.sampled_from(sorted(valid)), JSON, max_size=3)
    gone = st.lists(st.sampled_from(sorted(valid)), max_size=1)
    return st.builds(
        lambda changes, drop, more: {
            **{key: value for key, value in {**valid, **changes}.items() if key not in drop},
            **more,
        },
        some,
        gone,
        st.dictionaries(TEXTS, JSON, max_size=1),
    )


@st.composite
def json_texts(draw: st.DrawFn) -> str:
    """Text that is JSON, or was before something was cut out of it or put into it."""
    value = draw(JSON | st.dictionaries(TEXTS, JSON, max_size=4))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        odd = ["", "{", "]", '"', "\\", "\\ud800", "NaN", "1e400", "-", ",", "9" * 500, "[" * 40]
        odd += ["[" * 3_000, '"a":1,"a":2,', "\0", "\ufeff", " ", '{"a":' * 40, "Infinity"]
        text = text[:at] + draw(st.sampled_from(odd)) + text[at + draw(st.integers(0, 2)) :]
    return text
