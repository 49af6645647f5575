"""grep and glob in a real guest, with every engine that is here."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.guest.real_guest import GuestSaidNo
from tests.unit.guest.search_place import SearchPlace, Setup, engines, search_place


@pytest.fixture(scope="module", params=sorted(engines()))
def shared_place(request: pytest.FixtureRequest) -> Iterator[SearchPlace]:
    with search_place(engines()[request.param]) as place:
        yield place


@pytest.fixture
def place(shared_place: SearchPlace) -> SearchPlace:
    shared_place.empty()
    return shared_place


def _shown(name: bytes) -> str:
    text = name.decode("utf-8", "backslashreplace")
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found.group()):02x}", text)


def _reference(files: dict[bytes, bytes], pattern: bytes) -> list[tuple[str, int, str]]:
    """Rows by reading every file and sorting everything."""
    rows = [
        (_shown(path), number, line.decode("utf-8", "replace"))
        for path, content in files.items()
        for number, line in enumerate(content.split(b"\n"), 1)
        if re.search(pattern, line)
    ]
    return sorted(rows, key=lambda row: (row[0].encode(), row[1]))


_NAME = st.one_of(
    st.sampled_from([b"a", b"a-b", b"a.txt", b"a b", b"A", b"b", b"~", b".hid", b"-x", b"a:1:b"]),
    st.sampled_from([b"new\nline", b"bad\xff", "ünï".encode(), b"\x01", b"q\\x0a", b"e\x7f"]),
)
_PATH = st.lists(_NAME, min_size=1, max_size=4).map(b"/".join)
_CONTENT = st.lists(
    st.sampled_from([b"hit", b"miss", b"a hit, and a hit", b"", b"hit \xff"]), max_size=6
).map(b"\n".join)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tree=st.dictionaries(_PATH, _CONTENT, max_size=25), rows_max=st.integers(1, 12))
def test_grep_rows_equal_a_naive_reference(
    place: SearchPlace, tree: dict[bytes, bytes], rows_max: int
) -> None:
    place.empty()
    files: dict[bytes, bytes] = {}
    for path, content in tree.items():
        try:
            place.write(path, content)
        except (NotADirectoryError, IsADirectoryError, FileExistsError):
            continue
        files[path] = content
    wanted = _reference(
        {(b"./" + p if (p + b"/").startswith(b"~/") else p): c for p, c in files.items()}, rb"hit"
    )
    facts, rows = place.grep("hit", rows_max=rows_max)
    assert rows == wanted[:rows_max]
    assert facts["capped"] == (len(wanted) > rows_max)


def test_grep_of_a_pattern_that_is_everywhere_gives_the_first_rows(place: SearchPlace) -> None:
    choose = random.Random(7)
    files: dict[bytes, bytes] = {}
    for number in range(3_000):
        name = choose.choice(["m", "m-x", "m.d", "Z", "é"]) + str(choose.randrange(30))
        path = f"{name}/{choose.choice('abc')}{number}.txt".encode()
        files[path] = b"\n".join(b"hit" if choose.random() < 0.4 else b"no" for _ in range(9))
        place.write(path, files[path])
    wanted = _reference(files, b"hit")
    assert len(wanted) > 5_000
    facts, rows = place.grep("hit")
    assert facts["capped"]
    assert rows == wanted[:100]
    assert {str(place.grep("hit")) for _ in range(20)} == {str((facts, rows))}


def test_grep_finds_the_first_rows_where_early_files_hold_none(place: SearchPlace) -> None:
    for number in range(600):
        place.write(f"a/{number:04}.txt", "nothing\n")
    for number in range(600):
        place.write(f"z/{number:04}.txt", "hit\n" * 10)
    facts, rows = place.grep("hit")
    assert facts["capped"]
    assert rows[0] == ("z/0000.txt", 1, "hit")
    assert rows[-1] == ("z/0009.txt", 10, "hit")


def test_grep_lists_on_where_the_first_listed_files_hold_too_few(place: SearchPlace) -> None:
    for number in range(4_100):
        place.write(f"a{number % 7}/{number:04}.txt")
    place.write("a9/one.txt", "hit\n")
    for number in range(100):
        place.write(f"z/{number:04}.txt", "hit\n" * 101)
    facts, rows = place.grep("hit")
    assert facts["capped"]
    assert rows == [("a9/one.txt", 1, "hit")] + [("z/0000.txt", n, "hit") for n in range(1, 100)]


def test_grep_with_exactly_the_most_rows_is_not_capped(place: SearchPlace) -> None:
    place.write("f.txt", "hit\n" * 100)
    facts, rows = place.grep("hit")
    assert (len(rows), facts["capped"]) == (100, False)
    place.write("f.txt", "hit\n" * 101)
    facts, rows = place.grep("hit")
    assert (len(rows), facts["capped"]) == (100, True)


def test_grep_prints_paths_as_the_searched_one_was_given(place: SearchPlace) -> None:
    place.write("src/a.py", "hit\n")
    (place.guest.home / "h.txt").write_text("hit\n")
    for path, printed in [
        (None, "src/a.py"),
        (".", "src/a.py"),
        ("src", "src/a.py"),
        ("src/", "src/a.py"),
        ("./src", "./src/a.py"),
        ("src/../src", "src/../src/a.py"),
        (str(place.workdir), f"{place.workdir}/src/a.py"),
        ("src/a.py", "src/a.py"),
        ("~", "~/h.txt"),
    ]:
        assert [row[0] for row in place.grep("hit", path=path)[1]] == [printed], path


def test_grep_of_a_folder_called_tilde_prints_what_read_understands(place: SearchPlace) -> None:
    place.write("~/x", "hit\n")
    assert place.grep("hit")[1] == [("./~/x", 1, "hit")]
    assert place.glob("x")[1] == ["./~/x"]


@pytest.mark.parametrize("pattern", ["-v", "--files", "-e"])
def test_grep_pattern_that_looks_like_an_option_is_a_pattern(
    place: SearchPlace, pattern: str
) -> None:
    place.write("f.txt", f"x\nuse {pattern} here\n")
    assert place.grep(pattern)[1] == [("f.txt", 2, f"use {pattern} here")]


def test_grep_pattern_keeps_its_spaces(place: SearchPlace) -> None:
    place.write("f.txt", "ab\n a \n")
    assert [row[1] for row in place.grep(" a ")[1]] == [2]


def test_grep_literal_takes_the_pattern_as_it_stands(place: SearchPlace) -> None:
    place.write("f.c", "if (x) {\nfoo(a[0])\n")
    assert place.grep("foo(a[0", literal=True)[1] == [("f.c", 2, "foo(a[0])")]
    with pytest.raises(GuestSaidNo) as said:
        place.grep("foo(a[0")
    assert said.value.reason == "INVALID_PATTERN"
    assert "unclosed" in said.value.text


def test_grep_crlf_lines_match_at_their_end_and_hide_it(place: SearchPlace) -> None:
    place.write("f.txt", b"one foo\r\ntwo foo\r\nfoo bar\r\n")
    assert place.grep("foo$")[1] == [("f.txt", 1, "one foo"), ("f.txt", 2, "two foo")]


def test_grep_searches_hidden_files_but_not_git(place: SearchPlace) -> None:
    place.write(".env", "hit\n")
    place.write(".git/config", "hit\n")
    place.write("sub/.git/config", "hit\n")
    place.write(".github/w.yml", "hit\n")
    assert [row[0] for row in place.grep("hit")[1]] == [".env", ".github/w.yml"]
    assert [row[0] for row in place.grep("hit", path=".git")[1]] == [".git/config"]
    assert [row[0] for row in place.grep("hit", path=".git/config")[1]] == [".git/config"]


def test_grep_ignore_files_count_only_inside_a_work_tree(place: SearchPlace) -> None:
    place.write(".gitignore", "build/\n")
    place.write(".ignore", "src\n")
    place.write("build/x.js", "hit\n")
    place.write("src/y.js", "hit\n")
    assert [row[0] for row in place.grep("hit")[1]] == ["build/x.js", "src/y.js"]
    os.mkdir(place.workdir / ".git")
    assert [row[0] for row in place.grep("hit")[1]] == ["src/y.js"]


def test_grep_says_where_ignored_files_would_match_and_finds_them_there(
    place: SearchPlace,
) -> None:
    os.mkdir(place.workdir / ".git")
    place.write(".gitignore", "build/\n*.log\nout/*\n!out/keep\n/pkg/gen\n")
    place.write("build/deep/x.js", "hit\nhit\nhit\n")
    place.write("logs/a.log", "hit\n")
    place.write("out/keep", "no\n")
    place.write("out/o.txt", "hit\nhit\n")
    place.write("pkg/gen/g.log", "hit\n")
    place.write("pkg/venv/.gitignore", "*\n")
    place.write("pkg/venv/v.txt", "hit\n")
    facts, rows = place.grep("hit")
    assert rows == []
    assert facts["ignored"] == {
        "matches": 8,
        "exact": True,
        "under": ["build", "out", "logs/a.log"],
    }
    assert len(place.grep("hit", path="build")[1]) == 3
    assert len(place.grep("hit", path="build/deep")[1]) == 3
    assert len(place.grep("hit", path="out")[1]) == 2
    assert len(place.grep("hit", path="logs/a.log")[1]) == 1
    assert place.grep("hit", path="pkg")[0]["ignored"]["under"] == ["pkg/gen", "pkg/venv"]
    assert len(place.grep("hit", path="pkg/gen")[1]) == 1
    assert len(place.grep("hit", path="pkg/venv")[1]) == 1
    assert place.grep("hit", path="logs")[0]["ignored"]["under"] == ["logs/a.log"]


def test_grep_include_filters_and_brings_nothing_ignored_back(place: SearchPlace) -> None:
    os.mkdir(place.workdir / ".git")
    place.write(".git/x.ts", "hit\n")
    place.write(".gitignore", "dist\n")
    for name in ("dist/a.ts", "a.ts", "b.tsx", "c.js", ".h.ts"):
        place.write(name, "hit\n")
    assert [row[0] for row in place.grep("hit", include="*.{ts,tsx}")[1]] == [
        ".h.ts",
        "a.ts",
        "b.tsx",
    ]
    with pytest.raises(GuestSaidNo) as said:
        place.grep("hit", include="*.{ts")
    assert said.value.reason == "INVALID_PATTERN"
    assert "glob" in said.value.text


def test_grep_names_a_case_that_would_match(place: SearchPlace) -> None:
    place.write("f.txt", "Hello\n")
    facts, rows = place.grep("hello")
    assert (rows, facts["other_case"], facts["ignored"]) == ([], True, None)
    assert place.grep("(?i)hello")[1] == [("f.txt", 1, "Hello")]
    assert not place.grep("absent")[0]["other_case"]


def test_grep_skips_binary_files_and_says_so_of_a_named_one(place: SearchPlace) -> None:
    place.write("b.bin", b"hit\n\0\nhit\n")
    place.write("late.bin", b"x\n" * 100_000 + b"hit\n\0\n")
    place.write("t.txt", "hit\n")
    facts, rows = place.grep("hit")
    assert (rows, facts["binary"]) == ([("t.txt", 1, "hit")], False)
    for name in ("b.bin", "late.bin"):
        facts, rows = place.grep("hit", path=name)
        assert (rows, facts["binary"]) == ([], True)
    assert not place.grep("absent", path="b.bin")[0]["binary"]


def test_grep_searches_utf16_and_shows_undecodable_and_control_bytes(place: SearchPlace) -> None:
    place.write("u.txt", "eins\nzwölf hit\n".encode("utf-16"))
    place.write("bom.txt", b"\xef\xbb\xbfhit one\n")
    place.write("l1.txt", b"caf\xe9 hit \x1b[31m\ttab\n")
    assert place.grep("hit")[1] == [
        ("bom.txt", 1, "hit one"),
        ("l1.txt", 1, "caf\ufffd hit \\x1b[31m\ttab"),
        ("u.txt", 2, "zwölf hit"),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("where", ["start", "middle", "end"])
def test_grep_cuts_a_long_line_around_the_match(
    place: SearchPlace, where: str, encoding: str
) -> None:
    left = 0 if where == "start" else 700_000
    right = 0 if where == "end" else 700_000
    line = "ä" * left + "NEEDLE" + "é" * right
    place.write("f.txt", f"first\r\n{line}\r\nlast\r\n".encode(encoding))
    ((path, number, text),) = place.grep("NEEDLE")[1]
    assert (path, number) == ("f.txt", 2)
    assert "NEEDLE" in text
    assert "\ufffd" not in text
    assert text.startswith("…") == (left > 0)
    assert text.endswith("…") == (right > 0)
    assert len(text.strip("…")) == 500


def test_grep_lines_of_the_greatest_length_are_whole(place: SearchPlace) -> None:
    place.write("f.txt", "x" * 497 + "hit\n" + "hit" + "y" * 498 + "\n")
    facts, rows = place.grep("hit")
    assert [row[2] for row in rows] == ["x" * 497 + "hit", "hit" + "y" * 497 + "…"]
    assert facts["cut"] == 1


def test_grep_cuts_lines_between_preview_and_bound_like_longer_ones(place: SearchPlace) -> None:
    for size in (3_800, 3_899, 3_900, 3_901, 3_999, 4_000, 4_001, 4_100):
        place.write("f.txt", "x" * size + "hit" + "y" * 1_000)
        text = place.grep("hit")[1][0][2]
        assert text == "…" + "x" * 200 + "hit" + "y" * 297 + "…", size


def test_grep_of_a_path_that_cannot_be_searched_is_an_error(place: SearchPlace) -> None:
    os.mkfifo(place.workdir / "fifo")
    place.write("near.txt", "")
    place.write("f", "")
    for path, reason in [
        ("nera.txt", "FILE_NOT_FOUND"),
        ("fifo", "NOT_REGULAR"),
        ("f/x", "NOT_DIRECTORY"),
        ("x" * 300, "PATH_TOO_LONG"),
        ("/etc/passwd", "PATH_OUTSIDE"),
        ("a\0b", "INVALID_INPUT"),
    ]:
        with pytest.raises(GuestSaidNo) as said:
            place.grep("x", path=path)
        assert said.value.reason == reason, path


def test_search_skips_fifos_and_loops_in_a_tree(place: SearchPlace) -> None:
    place.write("d/f.txt", "hit\n")
    os.mkfifo(place.workdir / "d/fifo")
    os.symlink("..", place.workdir / "d/loop")
    os.symlink("gone", place.workdir / "d/dangling")
    os.symlink("f.txt", place.workdir / "d/link.txt")
    facts, rows = place.grep("hit")
    assert (rows, facts["unsearched"]) == ([("d/f.txt", 1, "hit")], 0)
    assert place.glob("*")[1] == ["d/f.txt", "d/link.txt"]


def _too_deep(root: Path) -> None:
    """A directory whose path is longer than the kernel takes."""
    fd = os.open(root, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("n" * 250, dir_fd=fd)
        inner = os.open("n" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def test_search_tells_what_it_could_not_search(place: SearchPlace) -> None:
    place.write("a.txt", "hit\n")
    _too_deep(place.workdir)
    facts, rows = place.grep("hit")
    assert rows == [("a.txt", 1, "hit")]
    assert facts["unsearched"] == 1
    assert facts["first_error"].startswith("nnn")
    found, paths = place.glob("*.txt")
    assert (paths, found["unsearched"]) == (["a.txt"], 1)
    assert "File name too long" in found["first_error"]
    facts, rows = place.grep("absent")
    assert (rows, facts["unsearched"]) == ([], 1)


@pytest.mark.tool_case("G36")
def test_grep_out_of_time_gives_the_rows_that_it_has(place: SearchPlace) -> None:
    place.write("f.txt", "hit\n")
    facts, rows = place.grep("hit", timeout_s=0.0)
    assert (rows, facts["timed_out"], facts["cancelled"]) == ([], True, False)
    assert place.glob("*", timeout_s=0.0)[0]["timed_out"]


def test_grep_cancel_ends_the_engine(place: SearchPlace) -> None:
    with open(place.workdir / "big.txt", "wb") as file:
        file.truncate(200 * 1024**3)
    args = {"pattern": "a.*b", "literal": False, "path": "big.txt", "call_id": "slow"}
    pending = place.guest.begin(
        "grep", {**args, "rows_max": 100, "line_chars_max": 500, "timeout_s": 60.0}
    )
    deadline = time.monotonic() + 10
    while not _programs(place.guest.process.pid) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert _programs(place.guest.process.pid)
    place.guest.request("cancel", {"call_id": "slow"})
    facts, _ = pending.result(10)
    assert (facts["cancelled"], facts["timed_out"]) == (True, False)
    assert not _programs(place.guest.process.pid)


def test_grep_whose_engine_is_killed_is_an_error(place: SearchPlace) -> None:
    with open(place.workdir / "big.txt", "wb") as file:
        file.truncate(200 * 1024**3)
    args = {"pattern": "a.*b", "literal": False, "path": "big.txt", "call_id": "killed"}
    pending = place.guest.begin(
        "grep", {**args, "rows_max": 100, "line_chars_max": 500, "timeout_s": 60.0}
    )
    deadline = time.monotonic() + 10
    while not (programs := _programs(place.guest.process.pid)) and time.monotonic() < deadline:
        time.sleep(0.005)
    (program,) = programs
    os.kill(int(program), signal.SIGKILL)
    with pytest.raises(GuestSaidNo) as said:
        pending.result(10)
    assert said.value.reason == "IO_ERROR"
    assert said.value.text.removeprefix("rip") == "grep was killed."


def _programs(pid: int) -> list[str]:
    """Children of all threads of a process."""
    return [
        child
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def test_search_without_an_engine_says_what_to_do() -> None:
    with search_place(Setup(search="ripgrep")) as bare:
        assert bare.guest.hello["search"] is None
        with pytest.raises(GuestSaidNo) as said:
            bare.grep("x")
        assert said.value.reason == "SEARCH_UNAVAILABLE"
        bare.write("f")
        assert bare.glob("f")[1] == ["f"]
