"""Sets of characters, and how a POSIX grep that knows only bytes is asked for one.

Searches run in the C locale, where every grep treats a byte as a character: that
is the one thing in which all of them agree, and GNU grep is fastest there. A set
of characters therefore becomes an expression over the bytes of their UTF-8 forms.
Which characters are letters, digits and white space is Unicode's, as in ripgrep;
the tables are this interpreter's.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable
from typing import Final, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Characters: inclusive, sorted, apart from each other."""

_LAST: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
_ASSIGNED: Final = ((0, 0x323FF), (0xE0000, 0xE01FF))
"""Where Unicode has assigned anything but private characters, with room to grow."""
_ALPHABETIC_SYMBOLS: Final = (
    *((0x24B6, 0x24E9), (0x1F130, 0x1F149)),
    *((0x1F150, 0x1F169), (0x1F170, 0x1F189)),
)
_JOINERS: Final = ((0x200C, 0x200D),)
_SPECIAL: Final = frozenset(b"\\.[]{}()*+?|^$")
_PUNCTUATION: Final = frozenset(chr(code) for code in range(0x21, 0x7F) if not chr(code).isalnum())
_WHOLE: Final = b"[\xc2-\xf4][\x80-\xbf]+"
"""Any character that is not ASCII. Shorter than its exact form, so that counted
repetitions stay cheap; what it takes besides is not UTF-8 in any case."""

SETS_KEPT: Final = 64
"""Results of each operation that are kept, of some 100 KB at most: the sets of one pattern
are few, and written many times."""

Sequence: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of bytes, one for each place."""


def normal(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters, sorted and joined; surrogates are none."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(
        part
        for low, high in joined
        for part in ((low, min(high, _SURROGATES[0] - 1)), (max(low, _SURROGATES[1] + 1), high))
        if part[0] <= part[1]
    )


def single(char: str) -> Ranges:
    return ((ord(char), ord(char)),)


def union(a: Ranges, b: Ranges) -> Ranges:
    return normal([*a, *b])


@functools.lru_cache(maxsize=SETS_KEPT)
def complement(ranges: Ranges) -> Ranges:
    outside = []
    at = 0
    for low, high in ranges:
        outside.append((at, low - 1))
        at = high + 1
    outside.append((at, _LAST))
    return normal(each for each in outside if each[0] <= each[1])


@functools.lru_cache(maxsize=SETS_KEPT)
def intersection(a: Ranges, b: Ranges) -> Ranges:
    both = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            both.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(both)


def difference(a: Ranges, b: Ranges) -> Ranges:
    return intersection(a, complement(b))


SPACE: Final = normal(
    [
        *((0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680)),
        *((0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F)),
        (0x3000, 0x3000),
    ]
)
OUT_OF_LINES: Final = normal([(0x00, 0x00), (0x0A, 0x0A), (0x0D, 0x0D)])
"""What no class of a pattern finds: lines end with some, and what holds NUL is binary."""

ASCII_CLASSES: Final[dict[str, Ranges]] = {
    "alnum": ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)),
    "alpha": ((0x41, 0x5A), (0x61, 0x7A)),
    "ascii": ((0x00, 0x7F),),
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "cntrl": ((0x00, 0x1F), (0x7F, 0x7F)),
    "digit": ((0x30, 0x39),),
    "graph": ((0x21, 0x7E),),
    "lower": ((0x61, 0x7A),),
    "print": ((0x20, 0x7E),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "upper": ((0x41, 0x5A),),
    "word": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "xdigit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
}


def _of_categories(wanted: frozenset[str]) -> list[tuple[int, int]]:
    category = unicodedata.category
    return [
        (code, code)
        for low, high in _ASSIGNED
        for code in range(low, high + 1)
        if category(chr(code)) in wanted
    ]


@functools.cache
def digits() -> Ranges:
    """What `\\d` stands for."""
    return normal(_of_categories(frozenset({"Nd"})))


@functools.cache
def word() -> Ranges:
    """What `\\w` stands for, by Unicode's rule for words in expressions (UTS 18, annex C)."""
    letters = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Mn", "Mc", "Me", "Nd", "Pc"})
    return normal([*_of_categories(letters), *_ALPHABETIC_SYMBOLS, *_JOINERS])


@functools.cache
def _cases() -> dict[int, tuple[int, ...]]:
    """For each character that has another case, all that are equal to it but for the case."""
    same: dict[str, set[int]] = {}
    for low, high in _ASSIGNED:
        for code in range(low, high + 1):
            char = chr(code)
            if char.lower() != char or char.upper() != char:
                same.setdefault(_folded(char), set()).add(code)
    return {
        code: tuple(sorted(codes)) for codes in same.values() if len(codes) > 1 for code in codes
    }


def _folded(char: str) -> str:
    """One character for all cases of one; what becomes several stays apart."""
    for folded in (char.casefold(), char.lower(), char.upper().lower()):
        if len(folded) == 1:
            return folded
    return char


@functools.lru_cache(maxsize=SETS_KEPT)
def any_case(ranges: Ranges) -> Ranges:
    """The characters in every case that they have."""
    cases = _cases()
    more: list[tuple[int, int]] = []
    for low, high in ranges:
        if high - low > len(cases):
            found: Iterable[int] = (code for code in cases if low <= code <= high)
        else:
            found = (code for code in range(low, high + 1) if code in cases)
        more += [(code, code) for each in found for code in cases[each]]
    return normal([*ranges, *more])


@functools.lru_cache(maxsize=256)
def expression(ranges: Ranges) -> bytes:
    """The extended regular expression over bytes of one character of a set.

    One item: a byte, a bracket or a group. The empty set matches nothing.
    """
    ascii_part = intersection(ranges, ((0x01, 0x7F),))
    wide = intersection(ranges, ((0x80, _LAST),))
    options = []
    if ascii_part:
        options.append(_bytes(list(ascii_part)))
    if wide == normal([(0x80, _LAST)]):
        options.append(_WHOLE)
    elif wide:
        options += _alternatives([each for low, high in wide for each in _sequences(low, high)])
    if not options:
        # Only NUL and line feeds are left, and no line that is searched has them.
        return b"[^\x01-\xff]"
    if len(options) == 1 and (ascii_part or len(options[0]) == 1):
        return options[0]
    return b"(" + b"|".join(options) + b")"


def _alternatives(sequences: list[Sequence]) -> list[bytes]:
    """One option for each way to go on; bytes after which the rest is the same share one."""
    rests: dict[tuple[int, int], list[Sequence]] = {}
    for each in sequences:
        rests.setdefault(each[0], []).append(each[1:])
    leads: dict[bytes, list[tuple[int, int]]] = {}
    for lead, rest in rests.items():
        options = _alternatives(rest) if rest[0] else [b""]
        tail = options[0] if len(options) == 1 else b"(" + b"|".join(options) + b")"
        leads.setdefault(tail, []).append(lead)
    return [_bytes(each) + tail for tail, each in leads.items()]


def _sequences(low: int, high: int) -> list[Sequence]:
    """Ranges of UTF-8 forms, whose product is exactly the characters from `low` to `high`."""
    for last in (0x7FF, 0xFFFF):
        if low <= last < high:
            return _sequences(low, last) + _sequences(last + 1, high)
    length = 2 if high < 0x800 else 3 if high < 0x10000 else 4
    for place in range(1, length):
        mask = (1 << 6 * place) - 1
        if low & ~mask != high & ~mask:
            if low & mask:
                return _sequences(low, low | mask) + _sequences((low | mask) + 1, high)
            if high & mask != mask:
                return _sequences(low, (high & ~mask) - 1) + _sequences(high & ~mask, high)
    return [tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))]


def _bytes(ranges: list[tuple[int, int]]) -> bytes:
    """A bracket, or one byte with a backslash where it needs one."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        code = ranges[0][0]
        # Not a closing bracket or brace: alone they are nothing special.
        return (b"\\" if code in _SPECIAL and code not in b"]}" else b"") + bytes([code])
    alone: set[int] = set()
    spans = b""
    for first, last in ranges:
        low, high = first, last
        # Punctuation never ends a range: in a bracket some of it means something.
        while low <= high and chr(low) in _PUNCTUATION:
            alone.add(low)
            low += 1
        while low <= high and chr(high) in _PUNCTUATION:
            alone.add(high)
            high -= 1
        if low == high:
            spans += bytes([low])
        elif low < high:
            spans += bytes([low]) + b"-" + bytes([high])
    middle = b"".join(bytes([code]) for code in sorted(alone) if code not in b"[]^-")
    start = b"]" if ord("]") in alone else b""
    inside = start + spans + middle
    # In front a circumflex would negate; between two others a hyphen would be a range.
    order = b"[^-" if inside else b"-[^"
    return b"[" + inside + b"".join(bytes([code]) for code in order if code in alone) + b"]"
