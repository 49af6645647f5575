"""Name patterns against `find -name`, ignore rules against git."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from sandboxd.guest.gitignore import IgnoreRules, parse_rule
from sandboxd.guest.include_patterns import compiled
from sandboxd.guest.name_patterns import (
    ALTERNATIVES_MAX,
    compile_name,
    expand_braces,
    translate,
)
from sandboxd.guest.ops import Machine, OpError, Request
from sandboxd.guest.ripgrep import top_entries
from sandboxd.guest.ripgrep_output import Roots, RowReader
from sandboxd.guest.search_child import Budget
from sandboxd.guest.search_files import Files, Hidden
from sandboxd.guest.search_paths import Start
from sandboxd.guest.search_rows import FirstRows

_NAMES = ["a", "b", "ab", "a.b", ".a", "[", "]", "^", "!", "-", "*", "?", "\\", "1", "A"]
_NAMES += ["[a]", "a]", "a-b", "ba", "abc", "{a,b}", " ", "a\nb", ","]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet="ab*?[]!^-.\\:1", min_size=1, max_size=7))
@example("[a]")
@example("[!a]*")
@example("[^a]")
@example("\\[a]")
@example("[]a]")
@example("[[:alpha:]]")
@example("[![:digit:]]*")
@example("[a")
@example("*a*b*")
@example("[b-a]")
@example("[\\]]")
@example("[a-]")
def test_pattern_matches_the_names_that_find_matches(
    tmp_path_factory: pytest.TempPathFactory, pattern: str
) -> None:
    # Only ASCII: find lets ? stand for a byte as well as for a character. An escape
    # without a character matches nothing in find, and itself here; what find's library
    # does with half a class inside a bracket is its own.
    assume(not (len(pattern) - len(pattern.rstrip("\\"))) % 2)
    known_class = pattern in ("[[:alpha:]]", "[![:digit:]]*")
    assume(known_class or not any(half in pattern for half in ("[:", "[.", "[=")))
    folder = tmp_path_factory.getbasetemp() / "names"
    if not folder.exists():
        folder.mkdir()
        for name in _NAMES:
            (folder / name).touch()
    said = subprocess.run(
        ["find", str(folder), "-type", "f", "-name", pattern, "-printf", "%f\\0"],
        env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
    )
    wanted = sorted(said.stdout.decode().split("\0")[:-1])
    expression = compile_name(pattern)
    assert sorted(name for name in _NAMES if expression.match(name)) == wanted


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.{ts,tsx}", ["*.ts", "*.tsx"]),
        ("{a,b}{c,d}", ["ac", "ad", "bc", "bd"]),
        ("a{b,c{d,e}}", ["ab", "acd", "ace"]),
        ("{a,}x", ["ax", "x"]),
        ("{a}", ["{a}"]),
        ("{}", ["{}"]),
        ("a{b,c", ["a{b,c"]),
        ("{x{a,b}", ["{xa", "{xb"]),
        ("a}b,c", ["a}b,c"]),
        ("\\{a,b}", ["\\{a,b}"]),
        ("[{]a,b}", ["[{]a,b}"]),
        ("{a,b}}", ["a}", "b}"]),
        ("{{a,b},c}", ["a", "b", "c"]),
    ],
)
def test_braces_expand_as_a_shell_expands_them(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


def test_braces_are_bounded() -> None:
    assert len(expand_braces("{a,b}" * 9)) == 512
    started = time.monotonic()
    with pytest.raises(OpError) as said:
        expand_braces("{a,b}" * 200)
    assert said.value.reason == "INVALID_PATTERN"
    assert str(ALTERNATIVES_MAX) in said.value.text
    expand_braces("{" * 1_000)
    expand_braces("{a," * 300)
    assert time.monotonic() - started < 5


def test_pattern_of_many_stars_does_not_keep_the_interpreter_busy() -> None:
    expression = compile_name("*a" * 100 + "b")
    started = time.monotonic()
    for _ in range(100):
        assert expression.match("a" * 255) is None
    assert time.monotonic() - started < 2


def test_pattern_with_an_unknown_class_is_refused() -> None:
    with pytest.raises(OpError) as said:
        translate("[[:letter:]]*")
    assert said.value.reason == "INVALID_PATTERN"
    assert "[:letter:]" in said.value.text


def test_pattern_counts_characters_and_undecodable_bytes_alike() -> None:
    assert compile_name("?").match("é")
    assert not compile_name("??").match("é")
    assert compile_name("[!a]b").match("éb")
    assert compile_name("[é-ü]").match("ö")
    name = os.fsdecode(b"a\xffb")
    assert compile_name("a?b").match(name)
    assert compile_name("*b").match(name)


_RULE = st.builds(
    lambda negated, body, ending: negated + body + ending,
    st.sampled_from(["", "", "", "!"]),
    st.lists(st.sampled_from(["a", "b", "*", "**", "a*", "?", "[ab]"]), min_size=1, max_size=3).map(
        "/".join
    ),
    st.sampled_from(["", "/"]),
)
_RULES = st.lists(
    st.one_of(_RULE, _RULE.map(lambda rule: rule if rule.startswith("!") else "/" + rule)),
    max_size=4,
)
_DIRECTORIES = ["a", "b", "a/b", "a/a", "b/a", "a/b/a", "b/b/ab", "a/ab/b"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is what the rules are compared with")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(top=_RULES, inner=_RULES, exclude=_RULES)
@example(["build/*", "!build/keep"], [], [])
@example(["**/b", "a/**"], ["!b"], ["*"])
@example(["/a/"], [], [])
@example(["a/**/b"], [], [])
def test_directories_are_ignored_where_git_ignores_them(
    tmp_path_factory: pytest.TempPathFactory, top: list[str], inner: list[str], exclude: list[str]
) -> None:
    root = tmp_path_factory.getbasetemp() / "tree"
    if not root.exists():
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        for directory in _DIRECTORIES:
            (root / directory).mkdir(parents=True, exist_ok=True)
    (root / ".gitignore").write_text("\n".join(top))
    (root / "a/.gitignore").write_text("\n".join(inner))
    (root / ".git/info/exclude").write_text("\n".join(exclude))
    said = subprocess.run(
        ["git", "-C", str(root), "check-ignore", "--stdin"],
        input="\n".join(_DIRECTORIES),
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode in (0, 1), said.stderr
    rules = IgnoreRules()
    ours = {each for each in _DIRECTORIES if rules.directory_ignored(str(root / each))}
    assert ours == set(said.stdout.splitlines())


@pytest.mark.skipif(shutil.which("git") is None, reason="git is what the rules are compared with")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(top=_RULES, inner=_RULES, exclude=_RULES)
@example(["*", "!*/", "!b"], [], [])
@example(["a/*", "!a/b"], ["b/"], ["ab"])
@example(["**/a/b"], ["/a"], ["!a"])
def test_files_to_search_are_those_that_git_would_list(
    tmp_path_factory: pytest.TempPathFactory, top: list[str], inner: list[str], exclude: list[str]
) -> None:
    root = tmp_path_factory.getbasetemp() / "files"
    if not root.exists():
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        for path in ("a/x", "b/a", "a/b/a", "a/a/b", "b/b/ab/a", "a/ab/b/b", "ab", "x"):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()
    (root / ".gitignore").write_text("\n".join(top))
    (root / "a/.gitignore").write_text("\n".join(inner))
    (root / ".git/info/exclude").write_text("\n".join(exclude))
    said = subprocess.run(
        ["git", "-C", str(root), "ls-files", "--others", "--exclude-standard"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    start = Start(str(root), str(root), False, b"")
    budget = Budget(Request(Machine("local", str(root), str(root)), "grep", {}), 30.0)

    def found(hidden: Hidden) -> list[str]:
        return [below for _, below in Files(start, None, hidden, budget)]

    assert found(Hidden.LEFT_OUT) == sorted(said.stdout.splitlines(), key=str.encode)
    assert sorted(found(Hidden.LEFT_OUT) + found(Hidden.ONLY)) == sorted(found(Hidden.TAKEN))


def test_rules_of_a_linked_work_tree_are_those_of_its_repository(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for folder in (repository / ".git/info", repository / ".git/worktrees/w", tmp_path / "w/d"):
        folder.mkdir(parents=True)
    (repository / ".git/info/exclude").write_text("d\n")
    (repository / ".git/worktrees/w/commondir").write_text("../..\n")
    (tmp_path / "w/.git").write_text(f"gitdir: {repository}/.git/worktrees/w\n")
    assert IgnoreRules().directory_ignored(str(tmp_path / "w/d"))
    (tmp_path / "w/.git").write_text("gitdir: /nowhere\n")
    assert not IgnoreRules().directory_ignored(str(tmp_path / "w/d"))


def test_everything_in_a_directory_is_ignored_by_a_rule_for_all_of_it(tmp_path: Path) -> None:
    for name in (".git", "out", "src", "venv"):
        (tmp_path / name).mkdir()
    (tmp_path / ".gitignore").write_text("out/*\n!out/keep\n*.log\n# src/*\n")
    (tmp_path / "venv/.gitignore").write_text("*\n")
    rules = IgnoreRules()
    assert rules.everything_ignored(str(tmp_path / "out"))
    assert rules.everything_ignored(str(tmp_path / "venv"))
    assert not rules.everything_ignored(str(tmp_path / "src"))
    assert not rules.everything_ignored(str(tmp_path))


def test_a_nested_work_tree_knows_nothing_of_the_outer_one(tmp_path: Path) -> None:
    for name in (".git", "inner/.git", "inner/d", "plain/d"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("d\n")
    rules = IgnoreRules()
    assert rules.directory_ignored(str(tmp_path / "plain/d"))
    assert not rules.directory_ignored(str(tmp_path / "inner/d"))


def test_ignore_file_that_is_a_fifo_does_not_block(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / ".gitignore")
    assert not IgnoreRules().directory_ignored(str(tmp_path / "d"))


def test_top_entries_are_what_a_walk_would_search(tmp_path: Path) -> None:
    # ripgrep is given them by name, and reads what it is given: files that `include`
    # leaves out were searched, and a FIFO held a search up until its time was over.
    for name in ("src", ".hidden", ".git", "x.py"):
        (tmp_path / name).mkdir()
    for name in ("a.py", "b.txt", "-c.js"):
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "fifo.py")
    os.symlink("a.py", tmp_path / "link.py")
    os.symlink("src", tmp_path / "link")

    def names(include: str | None) -> list[str]:
        names = None if include is None else compiled(include)
        return [os.path.relpath(path, tmp_path) for path in top_entries(str(tmp_path), names)]

    assert names(None) == ["-c.js", ".hidden", "a.py", "b.txt", "src", "x.py"]
    assert names("*.{py,js}") == ["-c.js", ".hidden", "a.py", "src", "x.py"]
    assert not {"/proc", "/sys", "/dev"} & set(top_entries("/", None))


def test_rule_with_a_row_of_stars_costs_no_more_than_one() -> None:
    # Five hundred of them took seconds for one path, and a file may hold far more.
    deep = ["a"] * 1_000
    rule, plain = parse_rule("**/" * 50_000 + "x"), parse_rule("**/x")
    assert rule is not None
    assert plain is not None
    started = time.monotonic()
    for names in (deep, [*deep, "x"], ["x"], ["x", "a"]):
        assert rule.fits(names, False) == plain.fits(names, False)
    assert time.monotonic() - started < 5.0


def test_rows_of_long_paths_are_read_in_pieces_at_once() -> None:
    # What there was of a row was looked for anew from each of its bytes.
    start = Start("/w", "/w", False, b"")
    rows = FirstRows(100)
    reader = RowReader(rows, Roots(start, b".", ["."]), limit=None)
    path = b"./" + b"1:" * 2_000
    data = b"".join(
        path + b"\0%d\0003\0000\0" % line + b"1:" * 1_900 + b"\n" for line in range(1, 500)
    )
    started = time.monotonic()
    for at in range(0, len(data), 20_000):
        assert reader.feed(data[at : at + 20_000])
    assert time.monotonic() - started < 5.0
    assert rows.seen == 499
    assert [(row.line, row.column) for row in rows.first] == [(n, 2) for n in range(1, 101)]
    assert {row.raw for row in rows.first} == {path}
