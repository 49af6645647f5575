"""Every engine gives the same answers; what differs is listed in `guest/SEARCH.md`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxd.guest.ere import translate
from sandboxd.guest.ops import OpError
from tests.unit.guest.search_parity import (
    LINES,
    PATTERNS,
    all_places,
    answers,
    differing,
    write_everywhere,
)
from tests.unit.guest.search_place import SearchPlace, engines

Places = dict[str, SearchPlace]


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with all_places() as found:
        assert len(found) > 1
        yield found


@pytest.mark.skipif(
    os.environ.get("CI") != "true", reason="a machine of one's own compares the engines it has"
)
def test_every_engine_is_compared_on_ci() -> None:
    kinds = {name.partition("-1")[0] for name in engines()}
    assert kinds == {"ripgrep", "gnu-grep", "busybox"}
    assert len(engines()) >= 4, "the ripgrep of the system is an older one than the pinned"


@pytest.mark.tool_case("G39")
def test_engines_agree_on_what_a_pattern_means(places: Places) -> None:
    write_everywhere(places, {"f.txt": b"\n".join(LINES) + b"\n"})
    found = {pattern: differing(places, pattern) for pattern in PATTERNS}
    assert {pattern: each for pattern, each in found.items() if each} == {}


def test_engines_agree_on_literal_text(places: Places) -> None:
    write_everywhere(places, {"f.txt": b"\n".join(LINES) + b"\n"})
    assert differing(places, "foo\r", literal=True) == {}
    for text in ["foo(bar)", "a{b", "x.y", "é", "\\n", "[x]", "a^b$c", "a|b", "-", '"q"', "^", "$"]:
        found = answers(places, text, literal=True)
        assert differing(places, text, literal=True) == {}, text
        assert next(iter(found.values()))[1], text


TREE: dict[str | bytes, bytes] = {
    ".git/config": b"hit in git\n",
    ".gitignore": b"build/\n*.log\n!keep.log\n/anchored\ndeep/**/gone\n# hit\n\\#odd\nspace\\ \n",
    ".git/info/exclude": b"excluded\n",
    ".env": b"hit hidden\n",
    "a.txt": b"hit\r\nno hit$\r\n",
    "a/x.txt": b"hit\n",
    "a-b/x.txt": b"hit\n",
    "anchored": b"ONLY hit\n",
    "sub/anchored": b"hit\n",
    "build/out.js": b"hit ONLY\nhit ONLY\n",
    "sub/build/out.js": b"ONLY\n",
    "sub/x.log": b"ONLY\n",
    "sub/keep.log": b"hit\n",
    "sub/.gitignore": b"*.tmp\n!x.log\n",
    "sub/y.tmp": b"ONLY\n",
    "deep/a/b/gone": b"ONLY\n",
    "deep/gone/f": b"ONLY\n",
    "excluded/f": b"ONLY\n",
    "#odd": b"ONLY\n",
    "space ": b"ONLY\n",
    "nested/.git/HEAD": b"hit\n",
    "submodule/.git": b"gitdir: /hit/.git/modules/submodule\n",
    "submodule/x.log": b"hit in a submodule\n",
    "nested/x.log": b"hit in nested\n",
    "na:me:3:x.txt": b"hit\n",
    "new\nline.txt": b"hit\n",
    "~": b"hit\n",
    "-v": b"hit\n",
    b"bad\xff.txt": b"hit\n",
    "ünï.txt": b"hit \xe4\n",
    "bin.dat": b"\0hit BINARY\n",
    "bom.txt": b"\xef\xbb\xbfhit bom\nhit two\n",
    "u16.txt": "hit sechzehn\nzwölf hit\n".encode("utf-16"),
    "u16be.txt": b"\xfe\xff" + "hit be\n".encode("utf-16-be"),
    "no-end.txt": b"x\nhit",
    "empty": b"",
    "b{c,d}.py": b"hit\n",
    "x.py": b"hit\n",
    "x.ts": b"hit\n",
    "é.ts": b"hit\n",
}

SEARCHES: list[tuple[str, dict[str, Any]]] = [
    ("hit", {}),
    ("hit", {"rows_max": 5}),
    ("hit", {"path": "."}),
    ("hit", {"path": "sub"}),
    ("hit", {"path": "sub/"}),
    ("hit", {"path": "./sub/../sub"}),
    ("hit", {"path": "a.txt"}),
    ("hit", {"path": ".git"}),
    ("hit", {"path": ".git/config"}),
    ("hit", {"path": "nested"}),
    ("hit", {"path": "missing"}),
    ("hit", {"path": "bin.dat"}),
    ("absent", {"path": "bin.dat"}),
    ("hit", {"path": "u16.txt"}),
    ("zwölf", {}),
    ("^hit bom$", {}),
    ("^hit", {"path": "bom.txt"}),
    ("hit$", {}),
    ("ONLY", {}),
    ("ONLY", {"path": "build"}),
    ("ONLY", {"path": "sub"}),
    ("ONLY", {"path": "sub/build"}),
    ("ONLY", {"path": "sub/x.log"}),
    ("ONLY", {"include": "*.js"}),
    ("BINARY", {}),
    ("in git", {}),
    ("hit", {"include": "*.txt"}),
    ("hit", {"include": "*.{py,ts}"}),
    ("hit", {"include": "{x}.py"}),
    ("hit", {"include": "?.ts"}),
    ("hit", {"include": "[!a-z].ts"}),
    ("hit", {"include": "[é].ts"}),
    ("hit", {"include": "[[:alpha:]].py"}),
    ("hit", {"include": "b\\{c,d\\}.py"}),
    ("hit", {"include": ".*"}),
    ("hit", {"include": "na:*"}),
    ("hit", {"include": "*.log"}),
    ("hit", {"include": "*.{py"}),
    ("hit", {"include": "*.py}"}),
    ("hit", {"include": "[[:nope:]]"}),
    ("hit", {"include": "x.py", "path": "a.txt"}),
    ("absent", {}),
    ("HIT", {}),
]


def test_engines_agree_on_which_files_are_searched(places: Places) -> None:
    write_everywhere(places, TREE)
    for place in places.values():
        os.symlink("a.txt", place.workdir / "link.txt")
        os.symlink("sub", place.workdir / "linked")
        os.symlink("gone", place.workdir / "broken")
        os.symlink("..", place.workdir / "sub/loop")
        os.mkfifo(place.workdir / "fifo.txt")
    found = {f"{pattern} {args}": differing(places, pattern, **args) for pattern, args in SEARCHES}
    assert {search: each for search, each in found.items() if each} == {}


@pytest.mark.parametrize("where", [0, 300, 3_000, 400_000])
@pytest.mark.parametrize("char", ["x", "é", "😀"])
def test_engines_cut_a_long_line_at_the_same_places(places: Places, where: int, char: str) -> None:
    line = f"{char * where} NEEDLE 12{char * 4_500}"
    text = f"first\n{line}\r\n{line}\n"
    files: dict[str | bytes, bytes] = {
        "a": text.encode(),
        "b": text.encode("utf-8-sig"),
        "u": text.encode("utf-16"),
    }
    write_everywhere(places, files)
    for pattern in ("NEEDLE", r"\bNEEDLE\b", r"NEEDLE \d+", "(?i)needle", r"\d\d" + char):
        assert differing(places, pattern) == {}, pattern
    rows = next(iter(answers(places, "NEEDLE").values()))[1]
    assert len(rows) == 6
    assert all("NEEDLE" in row[2] for row in rows)


_PIECE = st.sampled_from(
    [
        " ",
        *r"""a b é _ 1 . \. \w \W \d \s \b \B [ab] [^a] [\wé] ^ $ (a|b) (?:ab) (|a) a* b+ é? .*
        \w+? [^\w] a{2} (?i) \bb [[:alpha:]] \( | ( { *""".split(),
    ]
)
_PATTERN = st.lists(_PIECE, min_size=1, max_size=5).map("".join)
_LINE = st.text(alphabet="abAé_1 .(\u212a—\t", max_size=8)
_NAME = st.sampled_from(["a", "b.py", "c.log", ".h", "é", "a b", "build", "~", "x:1:y", "n\nl"])
_PATH = st.lists(_NAME, min_size=1, max_size=3).map("/".join)
_RULES = st.lists(
    st.sampled_from(["*.log", "build/", "/a", "!c.log", "a/**", "**/b.py", "é", "*", "!.h"]),
    max_size=3,
)
_ENCODING = st.sampled_from(["utf-8", "utf-8", "utf-8", "latin-1", "utf-8-sig", "utf-16"])


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    tree=st.dictionaries(
        _PATH, st.tuples(st.lists(_LINE, max_size=4), _ENCODING), min_size=1, max_size=6
    ),
    patterns=st.lists(_PATTERN, min_size=1, max_size=4),
    rules=_RULES,
    include=st.sampled_from([None, None, "*.py", "?", "*.{py,log}"]),
    rows_max=st.integers(1, 8),
)
def test_engines_agree_on_any_small_tree(
    places: Places,
    tree: dict[str, tuple[list[str], str]],
    patterns: list[str],
    rules: list[str],
    include: str | None,
    rows_max: int,
) -> None:
    files: dict[str | bytes, bytes] = {
        ".git/HEAD": b"",
        ".gitignore": "\n".join(rules).encode(),
    }
    for path, (lines, encoding) in tree.items():
        files[path] = "\n".join(lines).encode(encoding, "replace")
    write_everywhere(places, files)
    for pattern in patterns:
        found = differing(places, pattern, include=include, rows_max=rows_max)
        try:
            translate(pattern, literal=False, ignore_case=False)
        except OpError as refused:
            # What only ripgrep can do is a listed difference, and says so; all else is none.
            if re.search(r"needs? ripgrep|this sandbox's grep", refused.text):
                continue
        assert found == {}, pattern
