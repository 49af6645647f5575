"""Unusual trees and patterns for grep and glob, on both backends."""

from __future__ import annotations

import json
import random

import pytest

from sandbox_adapter.v1 import error_pb2
from tests.integration.conftest import OpenSession

GREP_CAP = "[Showing the first 100 matches; more exist. Narrow the pattern, path or include.]"
NAMES = ["a", "b", "a-b", "a.b", "A", "é", "a b", "~", "n\nl", ".h", "-d", "na:me:3:x"]


def printed(path: str) -> str:
    shown = path.replace("\n", "\\x0a")
    return "./" + shown if shown.startswith("~/") or shown == "~" else shown


async def tree(session: OpenSession) -> dict[str, str]:
    """Makes 500 files under names that are hard to print and to sort."""
    chance = random.Random(11)
    files: dict[str, str] = {}
    for number in range(500):
        folders = [chance.choice(NAMES) for _ in range(chance.randint(0, 3))]
        path = "/".join([*(f"{name}D" for name in folders), f"{chance.choice(NAMES)}{number}"])
        lines = ["hit here\n", "no\n", "x hit\r\n", "\n"]
        files[path] = "".join(chance.choice(lines) for _ in range(chance.randint(0, 12)))
    script = (
        "python3 - <<'E'\nimport json, os\n"
        f"for path, text in json.loads({json.dumps(files)!r}).items():\n"
        "    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n"
        "    open(path, 'w', newline='').write(text)\nE"
    )
    assert (await session.bash(script)).text == "(no output)"
    return files


async def test_grep_and_glob_agree_with_a_plain_search(session: OpenSession) -> None:
    files = await tree(session)
    rows = sorted(
        (printed(path).encode(), number, line.removesuffix("\r"))
        for path, text in files.items()
        for number, line in enumerate(text.split("\n")[:-1], 1)
        if "hit" in line
    )
    result = await session.tool("grep", pattern="hit")
    got = [(row.path.encode(), row.line, row.text) for row in result.grep.matches]
    assert got == rows[:100]
    assert result.text == "\n".join(
        [*(f"{path.decode()}:{line}:{text}" for path, line, text in got), GREP_CAP]
    )
    ends = [row for row in rows if row[2].endswith("x hit") and b"a-b" in row[0].split(b"/")[-1]]
    result = await session.tool("grep", pattern="x hit$", include="a-b*")
    assert [(row.path.encode(), row.line, row.text) for row in result.grep.matches] == ends[:100]
    found = await session.tool("glob", pattern="*")
    assert list(found.glob.paths) == sorted(map(printed, files), key=str.encode)


async def test_grep_caps_at_exactly_a_hundred(session: OpenSession) -> None:
    for count, capped in ((100, False), (101, True)):
        await session.tool("write", path="f", content="hit hit\n" * count)
        result = await session.tool("grep", pattern="hit")
        assert len(result.grep.matches) == 100
        assert (result.grep.capped, result.truncated) == (capped, capped)
        assert (GREP_CAP in result.text) == capped


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("n" * 500, "n" * 500),
        ("n" * 501, "n" * 500 + "…"),
        ("a" * 600 + "n", "…" + "a" * 499 + "n"),
        ("n" + "😀" * 600, "n" + "😀" * 499 + "…"),
    ],
)
async def test_grep_cuts_at_five_hundred_characters(
    session: OpenSession, line: str, shown: str
) -> None:
    await session.tool("write", path="f", content=line + "\r\n")
    result = await session.tool("grep", pattern="n+")
    assert result.text == f"f:1:{shown}"
    assert result.truncated == (line != shown)


async def test_grep_finds_the_match_in_a_line_of_megabytes(session: OpenSession) -> None:
    line = "z" * 2_500_000 + "é needle" + "y" * 2_500_000
    await session.tool("write", path="f", content=f"first\n{line}\nneedle\n")
    result = await session.tool("grep", pattern="needle")
    assert [row.line for row in result.grep.matches] == [2, 3]
    shown = result.grep.matches[0].text
    assert "zé needley" in shown
    assert len(shown) == 502


@pytest.mark.parametrize("pattern", ["--flag", "-v d", "-e", " trail ", "x[1]", "(a || b) {"])
async def test_grep_takes_a_literal_pattern_as_it_stands(
    session: OpenSession, pattern: str
) -> None:
    await session.tool("write", path="f", content=f"other\nsome{pattern}thing\n")
    result = await session.tool("grep", pattern=pattern, literal=True)
    assert result.text == f"f:2:some{pattern}thing"


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?=a)", r"(a)\1", "x{2,1}"])
async def test_grep_tells_of_a_bad_pattern(session: OpenSession, pattern: str) -> None:
    result = await session.tool("grep", pattern=pattern)
    assert result.is_error
    assert result.reason == error_pb2.REASON_INVALID_PATTERN
    assert "No matches" not in result.text


async def test_grep_counts_paths_that_it_may_not_read(docker_session: OpenSession) -> None:
    await docker_session.bash(
        "echo hit > a; echo hit > closed; chmod 0 closed; mkdir shut; chmod 0 shut; ln -s gone b"
    )
    for pattern, body in (("hit", "a:1:hit"), ("none", "No matches found.")):
        result = await docker_session.tool("grep", pattern=pattern)
        head, _, note = result.text.rpartition("\n")
        assert head == body
        assert note.startswith("[2 paths could not be searched: ")
        assert result.grep.unsearched == 2
        assert not result.is_error


async def test_grep_names_where_ignored_matches_are(session: OpenSession) -> None:
    await session.bash(
        "git init -q; printf 'd?/\\n*.log\\ns/*\\n' > .gitignore; mkdir d1 d2 d3 s v; "
        "echo D > d1/f; printf 'D\\nD\\n' > d2/f; echo D > d3/f; echo S > s/x; echo L > v/y.log; "
        "echo in-git > .git/z"
    )
    for pattern, count, under in (
        ("^D$", "4 matches are", "d2, d1, d3"),
        ("^S$", "1 match is", "s"),
        ("^L$", "1 match is", "v/y.log"),
    ):
        result = await session.tool("grep", pattern=pattern)
        assert result.text == (
            f"No matches found. {count} in git-ignored files under {under}: "
            "pass one of these paths to search them."
        )
        for path in under.split(", "):
            assert (await session.tool("grep", pattern=pattern, path=path)).grep.matches
    for arguments in ({}, {"include": "*"}, {"path": ".git/.."}):
        result = await session.tool("grep", pattern="in-git", **arguments)
        assert result.text == "No matches found."
    inside = await session.tool("grep", pattern="in-git", path=".git")
    assert inside.text == ".git/z:1:in-git"


@pytest.mark.parametrize(
    ("pattern", "path", "name"),
    [
        ("src/*.py", "src", "*.py"),
        ("src/**/*.py", "src", "*.py"),
        ("/etc/*.conf", "/etc", "*.conf"),
        ("src/deep/b.py", "src/deep", "b.py"),
    ],
)
async def test_slash_in_a_name_pattern_spells_the_nearest_call(
    session: OpenSession, pattern: str, path: str, name: str
) -> None:
    result = await session.tool("glob", pattern=pattern)
    assert result.is_error
    assert result.text == (
        f'glob matches file names, not paths. Use path="{path}" and pattern="{name}".'
    )


async def test_glob_finds_files_and_links_to_files_as_find_does(session: OpenSession) -> None:
    await session.bash(
        "mkdir -p s/d .git m.py; touch s/a.py s/d/b.py .h.py .git/g.py '[x].py' 'a*b.py' F.PY "
        "y.tsx; ln -s s/a.py l.py; ln -s s k.py; ln -s gone r.py; mkfifo p.py"
    )
    for pattern, text in (
        ("*.py", ".h.py\n[x].py\na*b.py\nl.py\ns/a.py\ns/d/b.py"),
        ("**/b.py", "s/d/b.py"),
        ("[^a-z.]*.py", "[x].py"),
        ("a\\*b.*", "a*b.py"),
        ("*.{tsx,PY}", "F.PY\ny.tsx"),
        ("g.py", "No files found."),
        ("m.py", "No files found."),
        ("r.py", "No files found."),
    ):
        assert (await session.tool("glob", pattern=pattern)).text == text
    assert (await session.tool("glob", pattern="a.py", path="k.py")).text == "k.py/a.py"


async def test_glob_caps_at_exactly_a_thousand(session: OpenSession) -> None:
    await session.bash("for i in $(seq 1000); do mkdir d$i; : > d$i/f; done")
    assert not (await session.tool("glob", pattern="f")).truncated
    await session.bash(": > f")
    result = await session.tool("glob", pattern="f")
    assert (len(result.glob.paths), result.glob.capped) == (1000, True)
    assert result.text.split("\n")[1000:] == [
        "[Showing the first 1000 paths; more exist. Narrow the pattern or path.]",
        "[1 of them is under d1.]",
    ]
