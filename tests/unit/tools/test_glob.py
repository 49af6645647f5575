"""glob: its rules, its words, and what a real guest finds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox_adapter.v1 import error_pb2, tool_pb2
from sandboxd.tools.glob import GlobTool
from tests.unit.guest.search_place import SearchPlace, Setup, search_place

GLOB = GlobTool()


@pytest.fixture(scope="module")
def shared_place() -> Iterator[SearchPlace]:
    with search_place(Setup()) as place:
        yield place


@pytest.fixture
def place(shared_place: SearchPlace) -> SearchPlace:
    shared_place.empty()
    return shared_place


async def test_glob_shows_paths_in_order_with_details(place: SearchPlace) -> None:
    for name in ("a/x.py", "a-b/x.py", "a.py", ".h.py", "x.js"):
        place.write(name)
    result = await place.use(GLOB, pattern="*.py")
    assert result.text == ".h.py\na-b/x.py\na.py\na/x.py"
    assert list(result.glob.paths) == result.text.split("\n")
    assert (result.is_error, result.ending) == (False, tool_pb2.ENDING_COMPLETED)
    assert not result.truncated


async def test_glob_without_a_file_says_so_and_is_no_error(place: SearchPlace) -> None:
    os.mkdir(place.workdir / "d.py")
    result = await place.use(GLOB, pattern="*.py")
    assert (result.text, result.is_error) == ("No files found.", False)


async def test_glob_hints_at_another_case(place: SearchPlace) -> None:
    place.write("d/Makefile")
    result = await place.use(GLOB, pattern="makefile")
    assert result.text == ("No files found. A name that differs only in case exists: d/Makefile")


async def test_glob_says_that_more_paths_exist_and_where_most_are(place: SearchPlace) -> None:
    for number in range(1_001):
        place.write(f"node_modules/{number:04}.js")
    place.write("a.js")
    result = await place.use(GLOB, pattern="*.js")
    lines = result.text.split("\n")
    assert lines[0] == "a.js"
    assert lines[999] == "node_modules/0998.js"
    assert lines[1_000:] == [
        "[Showing the first 1000 paths; more exist. Narrow the pattern or path.]",
        "[999 of them are under node_modules.]",
    ]
    assert result.truncated
    assert result.glob.capped
    os.unlink(place.workdir / "node_modules/1000.js")
    os.unlink(place.workdir / "node_modules/0999.js")
    result = await place.use(GLOB, pattern="*.js")
    assert len(result.text.split("\n")) == 1_000
    assert not result.truncated


@pytest.mark.parametrize("pattern", ["**/*.py", "**/**/*.py", "*.{py,pyi}", "[!a].p[xy]", "?.py"])
async def test_glob_patterns_have_the_meaning_of_find(place: SearchPlace, pattern: str) -> None:
    place.write("d/f.py")
    place.write("d/f.pyc")
    result = await place.use(GLOB, pattern=pattern)
    assert result.text == "d/f.py"


@pytest.mark.parametrize(
    ("pattern", "path", "call"),
    [
        ("src/*.py", None, 'path="src" and pattern="*.py"'),
        ("src/**/*.py", None, 'path="src" and pattern="*.py"'),
        ("**/src/*.py", None, 'path="src" and pattern="*.py"'),
        ("src/**", None, 'path="src" and pattern="*"'),
        ("src/", None, 'path="src" and pattern="*"'),
        ("./*.py", None, 'path="." and pattern="*.py"'),
        ("*/*.py", None, 'path="." and pattern="*.py"'),
        ("src/*/a/*.py", "lib/", 'path="lib/src" and pattern="*.py"'),
        ("*/*.py", "lib", 'path="lib" and pattern="*.py"'),
        ("/etc/*.conf", None, 'path="/etc" and pattern="*.conf"'),
        ("/*.conf", None, 'path="/" and pattern="*.conf"'),
        ("{a/b,c}.py", None, 'path="." and pattern="b"'),
        ('a"b/*.py', None, 'path="a\\"b" and pattern="*.py"'),
    ],
)
async def test_glob_pattern_with_a_slash_spells_the_nearest_call(
    place: SearchPlace, pattern: str, path: str | None, call: str
) -> None:
    result = await place.use(GLOB, pattern=pattern, path=path)
    assert result.text == f"glob matches file names, not paths. Use {call}."
    assert result.is_error


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({}, "`pattern` is missing"),
        ({"pattern": ""}, "`pattern` is empty"),
        ({"pattern": "a\0b"}, "NUL"),
        ({"pattern": "x" * 2_000}, "longer than 1024"),
        ({"pattern": "[[:nope:]]"}, "unknown class"),
        ({"pattern": "{a,b}" * 20}, "more than 1000 names"),
        ({"pattern": "x", "path": ""}, "`path` is empty"),
        ({"pattern": "x", "include": "*"}, "Unknown field `include`"),
        ({"pattern": "\udfff"}, "surrogate"),
    ],
)
async def test_glob_refuses_input_that_breaks_a_rule(
    place: SearchPlace, raw: dict[str, Any], words: str
) -> None:
    result = await place.use(GLOB, **raw)
    assert result.is_error
    assert words in result.text


async def test_glob_of_a_missing_start_is_an_error_that_names_it(place: SearchPlace) -> None:
    os.mkdir(place.workdir / "source")
    result = await place.use(GLOB, pattern="*", path="sourc")
    assert result.text == "File not found: sourc\nDid you mean: source?"
    assert (result.is_error, result.reason) == (True, error_pb2.REASON_FILE_NOT_FOUND)
    place.write("f")
    result = await place.use(GLOB, pattern="*", path="f")
    assert result.reason == error_pb2.REASON_NOT_DIRECTORY


async def test_glob_names_that_are_no_text_are_shown_escaped(place: SearchPlace) -> None:
    place.write(b"bad\xff.py")
    place.write("new\nline.py")
    result = await place.use(GLOB, pattern="*.py")
    assert result.text == "bad\\xff.py\nnew\\x0aline.py"


async def test_glob_out_of_time_never_looks_like_no_file(place: SearchPlace) -> None:
    place.write("f")
    result = await place.use(GlobTool(timeout_s=0.0), pattern="*")
    assert "No files" not in result.text
    assert result.ending == tool_pb2.ENDING_TIMED_OUT
    assert result.text == (
        "[Stopped after 0 seconds: results are incomplete. Narrow the path or pattern.]"
    )
