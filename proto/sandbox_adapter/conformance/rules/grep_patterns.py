"""Rules on what grep makes of patterns that engines treat differently (tool-cases 1.E)."""

from __future__ import annotations

import json
from typing import Final

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.conformance.rules import trees

LINES: Final = ("foo bar", "foobar", "FOO", "a\tb", "aa", "ab", "x{2}", "été", "12")


async def _right_or_refused(place: Place, lines: tuple[str, ...], table: dict[str, str]) -> None:
    """For each pattern: a refusal of the pattern, or just the lines with these numbers."""
    await place.put("f", "".join(f"{line}\n" for line in lines))
    for pattern, numbers in table.items():
        result = await place.grep(pattern, "f")
        if result.is_error and expect.reason_of(result) == "INVALID_PATTERN":
            expect.holds(bool(result.text.strip()), f"pattern {pattern!r}: refused without a text")
            continue
        try:
            found = [line for _, line, _ in trees.rows(result)]
            expect.equal(found, [int(number) for number in numbers.split()], "lines")
        except Broken as broken:
            raise Broken(f"pattern {pattern!r}: {broken}") from None


@rule("grep.syntax-of-words-and-groups", cases=["G6"])
async def words_and_groups(place: Place) -> None:
    """Word ends, groups without number, flags and escapes are right, or refused"""
    table = {
        r"\bfoo\b": "1",
        r"\Bbar": "2",
        r"\<foo\>": "1",
        r"(?:a|b){2}": "1 2 5 6",
        r"(?i:foo)": "1 2 3",
        r"(?-i)foo": "1 2",
        r"(?x) f o o": "1 2",
        r"(?P<n>a)b": "6",
        r"a\tb": "4",
        r"\x61\x62": "6",
        r"x\{2\}": "7",
        r"\Qx{2}\E": "7",
    }
    await _right_or_refused(place, LINES, table)


@rule("grep.syntax-of-repetition", cases=["G6", "G7"])
async def repetition(place: Place) -> None:
    """Lazy quantifiers, empty alternatives and properties are right, or refused"""
    table = {
        r"a+?b": "6",
        r"fo{2}?b": "2",
        r"fo??o": "1 2",
        r"^fo*?$": "",
        r"foo|": "1 2 3 4 5 6 7 8 9",
        r"(|a)b$": "4 6",
        r"^a(b|)$": "6",
        r"\p{Lu}": "3",
        r"\P{L}{2}": "7 9",
        r"\u00e9t": "8",
    }
    # Line 7 holds `{2}`: three characters that are no letters.
    await _right_or_refused(place, LINES, table)


@rule("grep.back-references", cases=["G7"])
async def back_references(place: Place) -> None:
    """A back-reference is right, or refused"""
    await _right_or_refused(place, LINES, {r"^(a)\1$": "5", r"(o)\1": "1 2", r"(.)\1$": "3 5"})


@rule("grep.look-around", cases=["G7", "G4"])
async def look_around(place: Place) -> None:
    """Look-around is right, or refused"""
    table = {r"foo(?=bar)": "2", r"foo(?! )": "2", r"(?<!o)b": "1 4 6", r"(?<=a)b": "6"}
    await _right_or_refused(place, LINES, table)


@rule("grep.bad-pattern", cases=["G4", "G8"])
async def bad_pattern(place: Place) -> None:
    """A pattern that is no expression is an error; of an open bracket it names literal"""
    await place.put("f", "foo( [a {\n")
    for pattern in ("(", "foo(", "(a|b", "[", "[a", "[^", "[]", "x[", "(?", "((a)"):
        trees.refused(await place.grep(pattern), "literal", reasons={"INVALID_PATTERN"})
    for pattern in ("[z-a]", "a{3,2}", "a\\"):
        trees.refused(await place.grep(pattern), reasons={"INVALID_PATTERN"})


@rule("grep.unbalanced-pattern", cases=["G4", "G8"])
async def unbalanced_pattern(place: Place) -> None:
    """Brackets that balance only in number are an error: a pattern cannot leave its place"""
    await place.put("f", "a\nb\nab\n)(\n")
    for pattern in ("a)(b", "a)|(b", "a)(?:b", "x)|(?i)(B"):
        trees.refused(await place.grep(pattern), "literal", reasons={"INVALID_PATTERN"})


@rule("grep.unescaped-code", cases=["G8"])
async def unescaped_code(place: Place) -> None:
    """Code as a pattern is found as it stands, or refused with the advice literal"""
    lines = ("foo() {", "a{", "{ x }", "*ptr", "+1", "a)", "if (x) {", "}", "x[i] = {0};")
    await place.put("f", "".join(f"{line}\n" for line in lines))
    for pattern in ("foo() {", "a{", "{ x", "*ptr", "+1", "a)", "if (x) {", "= {0}"):
        result = await place.grep(pattern)
        if result.is_error:
            trees.refused(result, "literal", reasons={"INVALID_PATTERN"})
            continue
        found = [text for _, _, text in trees.rows(result)]
        for line in lines:
            if pattern in line:
                expect.holds(line in found, f"{pattern!r} neither refused nor found in {line!r}")
    for pattern in lines:
        result = await place.grep(pattern, literal=True)
        expect.holds(
            pattern in [text for _, _, text in trees.rows(result)],
            f"{pattern!r} was not found with literal",
        )


@rule("grep.empty-pattern", cases=["G10"])
async def empty_pattern(place: Place) -> None:
    """An empty pattern is refused, with literal too"""
    await place.put("f", "a\n\n")
    for literal in (False, True):
        trees.refused(
            await place.grep("", literal=literal),
            "pattern",
            reasons={*trees.REFUSED, "EMPTY_TEXT"},
        )
    # A pattern that matches the empty text is not empty.
    expect.equal(len(trees.rows(await place.grep("^"))), 2, "rows of `^`")
    expect.equal([row[1] for row in trees.rows(await place.grep("^$"))], [2], "lines of `^$`")


@rule("grep.line-break-in-pattern", cases=["G7", "contract 6"])
async def line_break(place: Place) -> None:
    """A pattern over two lines is refused or finds nothing; it is not two patterns"""
    await place.put("f", "one\ntwo\n")
    for literal in (False, True):
        for pattern in ("one\ntwo", "two\n", "zero\none"):
            result = await place.grep(pattern, literal=literal)
            if result.is_error:
                trees.refused(result)
            else:
                expect.equal(trees.rows(result), [], f"rows of {pattern!r}")


@rule("grep.nul-in-pattern", cases=["contract 4"])
async def nul_in_pattern(place: Place) -> None:
    """NUL in the pattern or in include is refused"""
    await place.put("f", "ab\n")
    trees.refused(await place.grep("a\0b"), "pattern")
    trees.refused(await place.grep("a\0b", literal=True), "pattern")
    trees.refused(await place.grep("ab", include="f\0"), "include")


@rule("grep.include-with-slash", cases=["G17"])
async def include_with_slash(place: Place) -> None:
    """A slash in include is an error that spells the call to make"""
    await place.put("src/a.py", "hit\n")
    for include in ("src/*.py", "src/**/*.py", "src/*.{py,js}"):
        name = include.rpartition("/")[2]
        path = json.dumps(place.at("src"), ensure_ascii=False)
        trees.refused(await place.grep("hit", include=include), path, f'"{name}"')
    found = trees.rows(await place.grep("hit", "src", include="*.py"))
    expect.equal(found, [(place.at("src/a.py"), 1, "hit")], "rows of the call that is spelt")


@rule("grep.bad-include", cases=["G4", "G17"])
async def bad_include(place: Place) -> None:
    """An empty include is refused; one that cannot be understood is not an empty answer"""
    await place.put("a[b", "hit\n")
    trees.refused(await place.grep("hit", include=""), "include")
    result = await place.grep("hit", include="a[b")
    if result.is_error:
        trees.refused(result)
    else:
        expect.equal(trees.rows(result), [(place.at("a[b"), 1, "hit")], "rows")


@rule("grep.long-pattern", cases=["contract 6"])
async def long_pattern(place: Place) -> None:
    """A pattern of many alternatives is right, or refused; it is not cut"""
    words = [f"word{number:04}" for number in range(1_000)]
    await place.put("f", "nothing\nword0999 is last\n")
    result = await place.grep("|".join(words))
    if result.is_error:
        trees.refused(result)
    else:
        found = [line for _, line, _ in trees.rows(result)]
        expect.equal(found, [2], "lines of the last alternative")
