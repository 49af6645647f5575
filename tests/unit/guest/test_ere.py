"""Patterns for a POSIX grep: what they become, and what is refused."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import tracemalloc
from pathlib import Path

import pytest

from sandboxd.guest import ere, ere_sets
from sandboxd.guest.ops import OpError
from tests.unit.guest.search_place import a_ripgrep

GREPS = [
    pytest.param([path, *words], id=name)
    for name, path, words in (
        ("gnu", shutil.which("grep"), []),
        ("busybox", shutil.which("busybox"), ["grep"]),
    )
    if path is not None
]


def expression(pattern: str, *, literal: bool = False, ignore_case: bool = False) -> str:
    return ere.translate(pattern, literal=literal, ignore_case=ignore_case).text


def lines(argv: list[str], pattern: str, path: Path) -> list[str]:
    said = subprocess.run(
        [*argv, "-a", "-E", "-e", expression(pattern), str(path)],
        env={"LC_ALL": "C"},
        capture_output=True,
        check=False,
    )
    assert said.stderr == b""
    return said.stdout.decode().splitlines()


def ripgrep_lines(pattern: str, path: Path) -> list[str]:
    rg = a_ripgrep().rg
    assert rg is not None
    argv = [rg, "--no-config", "--no-line-number", "--text", "-e", pattern, str(path)]
    return subprocess.run(argv, capture_output=True, check=False).stdout.decode().splitlines()


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("foo", "foo"),
        ("a.b", None),
        (r"x\.y\[\]\{\}", r"x\.y\[]\{}"),
        ("a||b", "(a|b)?"),
        ("(a|)", "(a)?"),
        ("a*?", "a*"),
        ("(?:ab)+", "(ab)+"),
        ("(?P<n>a)", "a"),
        ("a{3}", "a{3}"),
        ("a{0}b", "b"),
        ("a**", "(a*)*"),
        ("^*a", "a"),
        ("x$", "x\r*$"),
        ("[a-c]", "[a-c]"),
        ("[]^-]", "[]^-]"),
        (r"[\^]", r"\^"),
        (r"[\^\-]", "[-^]"),
        (r"[\[:]", "[:[]"),
        ("(?i)a1", "[Aa]1"),
        ("é+", os.fsdecode("(é)+".encode())),
    ],
)
def test_pattern_is_written_as_every_grep_reads_it(pattern: str, written: str | None) -> None:
    found = expression(pattern)
    if written is None:
        assert os.fsencode(found).startswith(b"a(")
        return
    assert found == written


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)", "look-around"),
        ("a(?<!b)", "look-around"),
        (r"(a)\1", "backreferences are not supported"),
        (r"\p{L}", r"Unicode classes such as \p{L} need ripgrep; use \w, \d, \s or a bracket"),
        (r"[\pN]", "need ripgrep"),
        ("(?x) a", "the flag x needs ripgrep"),
        ("(?-u)a", "the flag u needs ripgrep"),
        (r"\Aa", r"use ^ or $"),
        (r"a\z", r"use ^ or $"),
        (r"(\ba)+", "a word boundary in this place needs ripgrep"),
        ("a{1001}", "more than 1000 times needs ripgrep"),
        (r"\w{500}", "too large for this sandbox's grep"),
        ("a{", "repetition quantifier expects a valid decimal"),
        ("a{1", "unclosed counted repetition"),
        ("{a", "repetition operator missing expression"),
        ("(a", "unclosed group"),
        ("a)", "unopened group"),
        ("[a", "unclosed character class"),
        ("[z-a]", "the start must be <= the end"),
        (r"\y", "unrecognized escape sequence"),
        ("a\\", "incomplete escape sequence"),
        (r"a\nb", 'the literal "\\n" is not allowed'),
        ("(" * 300 + ")" * 300, "groups nested more than 200 deep"),
        ("[" * 300, "brackets nested more than 200 deep"),
        ("a" + "*" * 1_500, "more than 200 repetitions of repetitions"),
        (r"\w" * 1_000, "too large for this sandbox's grep"),
    ],
)
def test_what_a_grep_cannot_do_is_refused_and_never_means_something_else(
    pattern: str, words: str
) -> None:
    with pytest.raises(OpError) as said:
        expression(pattern)
    assert said.value.reason == "INVALID_PATTERN"
    assert words in said.value.text


@pytest.fixture(scope="module")
def every_character(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ere") / "characters"
    codes = ere_sets.complement(ere_sets.normal([(0x00, 0x1F), (0x85, 0x85)]))
    with path.open("w", encoding="utf-8") as file:
        for low, high in codes:
            file.writelines(f"x{chr(code)}\n" for code in range(low, high + 1))
    return path


@pytest.mark.parametrize("argv", GREPS)
@pytest.mark.parametrize("pattern", [r"\w", r"\d", r"\s", r"[^\w]", r"[ß-ŝ]", r"[^é]"])
def test_classes_hold_exactly_their_characters(
    every_character: Path, argv: list[str], pattern: str
) -> None:
    got = {line[1:] for line in lines(argv, f"^x{pattern}$", every_character)}
    wanted = {line[1:] for line in ripgrep_lines(f"^x{pattern}$", every_character)}
    # A newer table knows more characters: what both have must be the same.
    known = {chr(code) for low, high in ere_sets.word() for code in range(low, high + 1)}
    assert {char for char in got ^ wanted if char in known} == set()
    assert len(got ^ wanted) < 10_000


@pytest.mark.parametrize("argv", GREPS)
def test_case_is_ignored_as_ripgrep_ignores_it(every_character: Path, argv: list[str]) -> None:
    for char in "kſSåΩςǅßẞıİµᾼÉя":
        pattern = f"(?i)^x{char}$"
        assert lines(argv, pattern, every_character) == ripgrep_lines(pattern, every_character)


def test_boundaries_are_written_without_asking_grep_for_them() -> None:
    for pattern in (r"\bfoo\b", r"\Bfoo", r"foo\b.*\bbar", r"(\bfoo)?bar", r"\b(a|b)\b"):
        found = ere.translate(pattern, literal=False, ignore_case=False)
        assert found.padded
        assert "\\b" not in found.text
        assert "\\B" not in found.text


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a|b)" * 5_000, r"\b(a|b)?" * 500, "[a-z]?" * 5_000, "(?i)" + "é" * 5_000),
        *(
            "a" * 65_000,
            "(?i)" + r"\w" * 1_000,
            r"(?i)[\w--a]" * 9_000,
            r"[" + r"\w" * 30_000 + "]",
        ),
        "(?i)" + "".join(f"[\\w--{chr(code)}]" for code in range(0x4E00, 0x6E00)),
        (r"(\b" + "|a" * 1_600 + ")") * 2,
        *(
            "a" + "*" * 1_500,
            "(" * 190 + "a" + "|b)*" * 190,
            r"\b" + "(" * 190 + "a" + "|b)?" * 190,
        ),
    ],
)
def test_large_pattern_is_written_or_refused_soon(pattern: str) -> None:
    ere_sets.word(), ere_sets.any_case(ere_sets.single("a"))
    started = time.process_time()
    with contextlib.suppress(OpError):
        assert len(expression(pattern)) <= ere.WEIGHT_BYTES_MAX
    assert time.process_time() - started < 1


def test_options_are_counted_before_they_are_multiplied() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(OpError):
            expression((r"(\b" + "|a" * 1_600 + ")") * 2)
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024**2
    finally:
        tracemalloc.stop()


def test_groups_nest_as_deep_as_is_allowed() -> None:
    deep = r"\b" + "(a" * 199 + ")" * 199 + r"\b"
    assert expression(deep).count("a") >= 199
