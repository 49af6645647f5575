"""Name patterns against the `find -name` of this machine, in C.UTF-8 (contract.md 6)."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sandboxd.guest.name_patterns import compile_name
from sandboxd.guest.ops import OpError

NAMES = [b"a", b"b", b"ab", b"ba", b"abc", b"A", b"aB", b"1", b"a1", b"a.b", b".a", b"..a", b" "]
NAMES += [b"[", b"]", b"^", b"!", b"-", b"*", b"?", b"\\", b"[a]", b"a]", b"a-b", b"\\a", b"a\\"]
NAMES += [b"{a,b}", b",", b"a\nb", b"\t", b"\x7f", b"~", b"_", b":", b"=", b"[:alpha:]", b"a b"]
NAMES += [b"a*b", b"!a", b"^a", b"]a", b"--", b"+", b"@", b"`", b"Z", b"z", b"(a)", b"a|b", b"$"]
NAMES += [
    name.encode() for name in ("é", "É", "aé", "ß", "Σ", "σ", "ж", "中", "😀", "٣", "a\u0301")
]
NAMES += [b"caf\xe9", b"\xff", b"a\xffb"]
WIDE_NAMES = [name for name in NAMES if not name.isascii()]

WHOLE_CLASS = re.compile(r"\[(?::[a-z]+:|\.a\.|=a=)\]")
HALF_CLASS = re.compile(r"\[[:.=]")
CLASSES = ["alpha", "alnum", "digit", "xdigit", "upper", "lower", "space", "blank", "punct"]
CLASSES += ["cntrl", "print", "graph"]
CHARS = st.sampled_from(list("ab.*?[]!^-\\:1A=,é_ "))
ITEMS = (
    CHARS
    | st.sampled_from([f"[:{name}:]" for name in CLASSES])
    | st.sampled_from(
        ["a-c", "A-Z", "0-9", "!-~", "b-a", "a-", "-a", "\\]", "\\a", "[.a.]", "[=a=]"]
    )
)


@st.composite
def brackets(draw: st.DrawFn) -> str:
    start = draw(st.sampled_from(["[", "[", "[!", "[^", "[]"]))
    return (
        start + "".join(draw(st.lists(ITEMS, max_size=3))) + draw(st.sampled_from(["]", "]", ""]))
    )


PATTERNS = st.lists(
    CHARS | brackets() | st.sampled_from(["*", "\\*", "\\[", "**"]), max_size=5
).map("".join)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        for name in NAMES:
            open(os.path.join(os.fsencode(made), name), "wb").close()
        yield Path(made)


def compiled(pattern: str, ignore_case: bool = False) -> re.Pattern[str] | None:
    """None for a pattern that is refused, which must be for itself."""
    try:
        return compile_name(pattern, ignore_case=ignore_case)
    except OpError as error:
        reason = error.reason
    assert reason == "INVALID_PATTERN"
    return None


def found(folder: Path, pattern: str) -> set[bytes]:
    said = subprocess.run(
        ["find", str(folder), "-type", "f", "-name", pattern, "-printf", "%f\\0"],
        env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
        timeout=10,
    )
    return set(said.stdout.split(b"\0")[:-1])


@settings(max_examples=300)
@given(PATTERNS.filter(bool))
@example("[[:upper:]]")
@example("[[:lower:]]*")
@example("[![:punct:]]")
@example("[[:alpha:]a-]")
@example("[]-a]")
@example("[a\\]b]")
@example("[\\!a]")
def test_pattern_matches_what_find_matches(folder: Path, pattern: str) -> None:
    # An escape without a character matches nothing in find, and itself here. What find's
    # library does with half a class, or with one as the end of a range, is its own.
    assume(not (len(pattern) - len(pattern.rstrip("\\"))) % 2)
    assume(not HALF_CLASS.search(WHOLE_CLASS.sub("a", pattern)) and "-[" not in pattern)
    assume(not any(end in pattern for end in (":]-", ".]-", "=]-")))
    expression = compiled(pattern)
    if expression is None:
        return
    mine = {name for name in NAMES if expression.match(os.fsdecode(name))}
    theirs = found(folder, pattern)
    if "?" in pattern or "[!" in pattern or "[^" in pattern or not pattern.isascii():
        # There find also lets a byte of a character stand for a character.
        mine, theirs = (names - set(WIDE_NAMES) for names in (mine, theirs))
    assert mine == theirs, (sorted(mine - theirs), sorted(theirs - mine))


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30) | PATTERNS)
def test_any_pattern_is_compiled_or_refused(pattern: str) -> None:
    for ignore_case in (False, True):
        expression = compiled(pattern, ignore_case)
        if expression is not None:
            expression.match("name")
