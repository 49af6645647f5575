"""grep: its rules, its words, and what a real guest finds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox_adapter.v1 import error_pb2, tool_pb2
from sandboxd.backends.base import Reply
from sandboxd.errors import SandboxLost
from sandboxd.tools.grep import GrepTool
from tests.unit.guest.search_place import SearchPlace, a_ripgrep, search_place
from tests.unit.tools.direct_channel import FixedChannel, run_unworded

GREP = GrepTool()


@pytest.fixture(scope="module")
def shared_place() -> Iterator[SearchPlace]:
    with search_place(a_ripgrep()) as place:
        yield place


@pytest.fixture
def place(shared_place: SearchPlace) -> SearchPlace:
    shared_place.empty()
    return shared_place


_FACTS = {
    "capped": False,
    "cut": 0,
    "timed_out": False,
    "cancelled": False,
    "unsearched": 0,
    "first_error": None,
    "binary": False,
    "ignored": None,
    "other_case": False,
}


async def _scripted(body: bytes, **facts: Any) -> tool_pb2.ToolResult:
    """The result of what only a hostile or a slow guest says."""
    channel = FixedChannel(Reply({**_FACTS, **facts}, body))
    return await run_unworded(GREP, channel, {"pattern": "x"})


async def test_grep_shows_rows_in_path_order_with_details(place: SearchPlace) -> None:
    for name in ("a/x", "a-b/x", "a.txt"):
        place.write(name, "no\nhit\thard\n")
    result = await place.use(GREP, pattern="hit")
    assert result.text == "a-b/x:2:hit\thard\na.txt:2:hit\thard\na/x:2:hit\thard"
    assert (result.is_error, result.ending) == (False, tool_pb2.ENDING_COMPLETED)
    first = result.grep.matches[0]
    assert (first.path, first.line, first.text) == ("a-b/x", 2, "hit\thard")
    assert not result.truncated


async def test_grep_without_a_match_says_so_and_is_no_error(place: SearchPlace) -> None:
    place.write("f", "x\n")
    result = await place.use(GREP, pattern="hit")
    assert (result.text, result.is_error) == ("No matches found.", False)
    assert result.WhichOneof("details") == "grep"


async def test_grep_says_that_more_matches_exist(place: SearchPlace) -> None:
    place.write("f", "hit\n" * 101)
    result = await place.use(GREP, pattern="hit")
    lines = result.text.split("\n")
    assert lines[99] == "f:100:hit"
    assert lines[100:] == [
        "[Showing the first 100 matches; more exist. Narrow the pattern, path or include.]"
    ]
    assert result.truncated
    assert result.grep.capped


async def test_grep_names_the_places_of_ignored_matches(place: SearchPlace) -> None:
    os.mkdir(place.workdir / ".git")
    place.write(".gitignore", "build\ndist\n")
    place.write("build/a", "hit\nhit\n")
    result = await place.use(GREP, pattern="hit")
    assert result.text == (
        "No matches found. 2 matches are in git-ignored files under build: "
        "pass one of these paths to search them."
    )
    place.write("dist/b", "hit\n")
    result = await place.use(GREP, pattern="hit")
    assert result.text == (
        "No matches found. 3 matches are in git-ignored files under build, dist: "
        "pass one of these paths to search them."
    )
    assert result.grep.ignored_matches == 3
    result = await place.use(GREP, pattern="hit", path="dist")
    assert result.text == "dist/b:1:hit"


async def test_grep_of_one_ignored_match_uses_the_singular() -> None:
    ignored = {"matches": 1, "exact": False, "under": ["a", "b"]}
    result = await _scripted(b"", ignored=ignored)
    assert result.text.startswith("No matches found. At least 1 match is in git-ignored files")


async def test_grep_says_that_there_was_no_time_for_ignored_files() -> None:
    result = await _scripted(b"", ignored={"matches": 0, "exact": False, "under": []})
    assert result.text.startswith(
        "No matches found. Git-ignored files were not looked through in time"
    )
    assert result.grep.ignored_matches == 0


@pytest.mark.parametrize("literal", [True, False])
async def test_grep_hints_at_another_case(place: SearchPlace, literal: bool) -> None:
    place.write("f", "Hit\n")
    result = await place.use(GREP, pattern="hit", literal=literal)
    assert result.text.startswith("No matches found. There are matches in another case: ")
    assert result.text.endswith("start the pattern with (?i).")
    assert ("escape" in result.text) == literal


async def test_grep_says_of_a_binary_file_that_it_is_one(place: SearchPlace) -> None:
    place.write("b", b"\0hit\n")
    result = await place.use(GREP, pattern="hit", path="b")
    assert result.text == (
        "[b is a binary file: matches in it are not shown. Use bash with grep -a or strings.]"
    )


async def test_grep_does_not_say_of_rows_that_are_shown_that_they_are_not(
    place: SearchPlace,
) -> None:
    place.write("b", b"hit\n" + b"x\n" * 200_000 + b"\0hit\n")
    result = await place.use(GREP, pattern="hit", path="b")
    assert result.text == (
        "b:1:hit\n[b is a binary file: only matches before its first NUL byte are shown. "
        "Use bash with grep -a or strings.]"
    )


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({}, "`pattern` is missing"),
        ({"pattern": ""}, "`pattern` is empty"),
        ({"pattern": "a\0b"}, "NUL"),
        ({"pattern": "a\nb"}, "line break"),
        ({"pattern": 3}, "must be text"),
        ({"pattern": "x" * 70_000}, "65536 are the most"),
        ({"pattern": "x", "include": ""}, "`include` is empty"),
        ({"pattern": "x", "include": "a\0b"}, "NUL"),
        ({"pattern": "x", "path": ""}, "`path` is empty"),
        ({"pattern": "x", "path": "a\0"}, "NUL"),
        ({"pattern": "x", "literal": "yes"}, "true or false"),
        ({"pattern": "x", "glob": "*"}, "Unknown field `glob`"),
        ({"pattern": "\ud800"}, "surrogate"),
    ],
)
async def test_grep_refuses_input_that_breaks_a_rule(
    place: SearchPlace, raw: dict[str, Any], words: str
) -> None:
    result = await place.use(GREP, **raw)
    assert result.is_error
    assert words in result.text
    assert result.ending == tool_pb2.ENDING_COMPLETED


@pytest.mark.parametrize(
    ("pattern", "literal_advice"), [("foo(", True), ("a{", True), ("[z-a]", True), ("(?=x)", False)]
)
async def test_grep_pattern_that_is_wrong_gives_the_engine_s_words_and_advice(
    place: SearchPlace, pattern: str, literal_advice: bool
) -> None:
    place.write("f", "x\n")
    result = await place.use(GREP, pattern=pattern)
    assert (result.is_error, result.reason) == (True, error_pb2.REASON_INVALID_PATTERN)
    assert "error: " in result.text
    assert ("literal=true" in result.text) == literal_advice
    assert "--pcre2" not in result.text
    assert ("grep -P" in result.text) != literal_advice


@pytest.mark.parametrize("pattern", ["a\\r", "a\r", r"[\r]"])
async def test_grep_carriage_return_is_explained(place: SearchPlace, pattern: str) -> None:
    result = await place.use(GREP, pattern=pattern)
    assert result.is_error
    assert "without their CR: leave \\r out and use $" in result.text
    assert "multiline" not in result.text


async def test_grep_escaped_line_break_is_explained(place: SearchPlace) -> None:
    result = await place.use(GREP, pattern="a\\nb")
    assert result.is_error
    assert "within single lines" in result.text
    assert "--multiline" not in result.text


@pytest.mark.parametrize(
    ("include", "path", "call"),
    [
        ("src/*.py", None, 'path="src" and include="*.py"'),
        ("src/**/*.py", "lib", 'path="lib/src" and include="*.py"'),
        ("*/x/*.c", None, 'path="." and include="*.c"'),
        ("/a/b/*.c", "lib", 'path="/a/b" and include="*.c"'),
    ],
)
async def test_grep_include_with_a_slash_spells_the_nearest_call(
    place: SearchPlace, include: str, path: str | None, call: str
) -> None:
    result = await place.use(GREP, pattern="x", include=include, path=path)
    assert result.text == f"include matches file names, not paths. Use {call}."
    assert result.is_error


async def test_grep_include_may_start_with_stars(place: SearchPlace) -> None:
    place.write("d/e/f.py", "hit\n")
    place.write("d/e/f.js", "hit\n")
    for include in ("**/*.py", "**/**/*.py", "*.{py,pyi}"):
        result = await place.use(GREP, pattern="hit", include=include)
        assert result.text == "d/e/f.py:1:hit", include


async def test_grep_include_of_several_patterns_is_explained_where_nothing_matches(
    place: SearchPlace,
) -> None:
    place.write("f.py", "hit\n")
    result = await place.use(GREP, pattern="hit", include="*.py,*.js")
    assert result.text == (
        "No matches found.\n[include is one pattern: for several write *.{py,js}]"
    )


async def test_grep_of_a_missing_path_is_an_error_that_names_it(place: SearchPlace) -> None:
    place.write("config.yaml", "")
    result = await place.use(GREP, pattern="x", path="confg.yaml")
    assert result.text == "File not found: confg.yaml\nDid you mean: config.yaml?"
    assert (result.is_error, result.reason) == (True, error_pb2.REASON_FILE_NOT_FOUND)


async def test_grep_out_of_time_never_looks_like_no_match(place: SearchPlace) -> None:
    place.write("f", "hit\n")
    result = await place.use(GrepTool(timeout_s=0.0), pattern="hit")
    assert "No matches" not in result.text
    assert result.ending == tool_pb2.ENDING_TIMED_OUT
    assert not result.is_error
    assert (result.grep.timed_out, result.limit.kind) == (True, "time")


async def test_grep_notes_stand_in_their_order() -> None:
    result = await _scripted(
        b"a\x001\x00x\n",
        capped=True,
        unsearched=2,
        first_error="d: Permission denied",
        timed_out=True,
    )
    assert result.text == (
        "a:1:x\n"
        "[Showing the first 100 matches; more exist. Narrow the pattern, path or include.]\n"
        "[2 paths could not be searched: d: Permission denied]\n"
        "[Stopped after 30 seconds: results are incomplete. Narrow the path or pattern.]"
    )
    assert result.limit.limit == 30_000
    result = await _scripted(b"", unsearched=1, first_error="d: Permission denied")
    assert result.text == (
        "No matches found.\n[1 path could not be searched: d: Permission denied]"
    )


async def test_grep_cancelled_says_so() -> None:
    result = await _scripted(b"a\x001\x00x\n", cancelled=True)
    assert result.text == "a:1:x\n[The search was cancelled: results are incomplete.]"
    assert result.ending == tool_pb2.ENDING_CANCELLED


@pytest.mark.parametrize(
    "body",
    [
        b"a\x001\x00x",
        b"a\x00one\x00x\n",
        b"a:1:x\n",
        b"a\x001\x00\xff\n",
        b"a\x001\x00x\x00\n",
        b"a\x001\x00x\n" * 101,
    ],
)
async def test_grep_body_that_holds_no_rows_is_a_breach_of_the_protocol(body: bytes) -> None:
    with pytest.raises(SandboxLost) as lost:
        await _scripted(body)
    assert lost.value.cause == "PROTOCOL"


async def test_grep_text_of_a_hostile_guest_holds_no_control_characters() -> None:
    result = await _scripted(b"a\x1b\x001\x00" + b"x\x07" * 600 + b"\n")
    assert "\x1b" not in result.text
    assert "\x07" not in result.text
    assert len(result.text) < 3_000


async def test_grep_facts_that_do_not_fit_are_a_breach_of_the_protocol() -> None:
    with pytest.raises(SandboxLost):
        await _scripted(b"", cut=101)
    with pytest.raises(SandboxLost):
        await _scripted(b"", unsearched=-1)
