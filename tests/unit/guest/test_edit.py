"""The op edit (tool-cases 1.C, choices D1 to D3)."""

from __future__ import annotations

import os
import threading
import time
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.guest import edit, locks
from sandboxd.guest.diagnose import DIAGNOSED_BYTES_MAX, DIAGNOSED_S, NEAREST_S, diagnose
from sandboxd.guest.locks import FILE_LOCKS, LARGE
from sandboxd.guest.matching import (
    TooLarge,
    ambiguous_starts,
    folded,
    match_lines,
    needle,
    replaced,
)
from sandboxd.guest.ops import Facts, Machine, OpError, Request
from tests.unit.guest.direct import EDIT_BYTES_MAX, edit_file, machine_in
from tests.unit.guest.real_guest import Guest, GuestSaidNo


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return machine_in(tmp_path)


@pytest.fixture
def file(machine: Machine) -> Path:
    return Path(machine.workdir) / "f"


def refused(machine: Machine, old: str | bytes, new: str, **options: Any) -> OpError:
    with pytest.raises(OpError) as caught:
        edit_file(machine, "f", old, new, **options)
    return caught.value


def apply(data: bytes, old: bytes, new: bytes, bytes_max: int = 1 << 30) -> tuple[bytes, int]:
    sought = needle(old, new)
    content = folded(data)
    count = content.count(sought.old)
    return replaced(data, content, count, sought, bytes_max, lambda: None), count


def naive(data: bytes, old: bytes, new: bytes) -> tuple[bytes, list[int]]:
    """The same by walking over units: a CRLF, or any other byte."""
    units = [
        data[at : at + 2] if data[at : at + 2] == b"\r\n" else data[at : at + 1]
        for at in range(len(data))
        if not (at and data[at - 1 : at + 1] == b"\r\n")
    ]
    plain = [b"\n" if unit == b"\r\n" else unit for unit in units]
    crlf, every = units.count(b"\r\n"), plain.count(b"\n")
    wanted = folded(old)
    out, lines, at, line = b"", [], 0, 1
    while at < len(units):
        if b"".join(plain[at : at + len(wanted)]) == wanted:
            region = units[at : at + len(wanted)]
            endings = [unit for unit in region if unit in (b"\n", b"\r\n")]
            own = endings.count(b"\r\n")
            if not endings:
                style = crlf * 2 > every
            elif own * 2 == len(endings):
                style = endings[0] == b"\r\n"
            else:
                style = own * 2 > len(endings)
            text = folded(new) if every else new
            out += text.replace(b"\n", b"\r\n") if style else text
            lines.append(line)
            line += len(endings)
            at += len(wanted)
        else:
            line += plain[at] == b"\n"
            out += units[at]
            at += 1
    return out, lines


PIECES = st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r\n", b"\r", b"\xe9"])).map(b"".join)


@given(PIECES, PIECES.filter(bool), PIECES)
def test_replacing_changes_no_byte_outside_the_matches(data: bytes, old: bytes, new: bytes) -> None:
    expected, lines = naive(data, old, new)
    assert apply(data, old, new) == (expected, len(lines))
    assert match_lines(folded(data), folded(old)) == lines[:100]


REPEATING = st.tuples(st.text("ab", min_size=1, max_size=5), st.integers(1, 8)).map(
    lambda part: part[0].encode() * part[1]
)


@given(st.lists(REPEATING).map(b"".join), REPEATING)
def test_every_place_is_found_where_a_text_overlaps_itself(content: bytes, old: bytes) -> None:
    places = [at for at in range(len(content)) if content.startswith(old, at)]
    assert list(chain.from_iterable(ambiguous_starts(content, old))) == places


def test_text_that_begins_at_millions_of_places_is_counted_at_once() -> None:
    started = time.process_time()
    (run,) = ambiguous_starts(b"ab" * 20_000_000, b"ab" * 10_000_001)
    assert len(run) == 10_000_000
    assert time.process_time() - started < 5


@given(PIECES, PIECES.filter(bool), PIECES, st.integers(0, 30))
def test_replacing_never_builds_more_than_its_bound(
    data: bytes, old: bytes, new: bytes, bytes_max: int
) -> None:
    size = len(naive(data, old, new)[0])
    if size > bytes_max:
        with pytest.raises(TooLarge):
            apply(data, old, new, bytes_max)
    else:
        assert len(apply(data, old, new, bytes_max)[0]) == size


@pytest.mark.parametrize("text", ["$&", "$1", "\\1", "\\g<0>", "\\\\n", "%s", "{0}"])
def test_edit_puts_the_new_text_in_literally(machine: Machine, file: Path, text: str) -> None:
    file.write_text("a OLD b")
    edit_file(machine, "f", "OLD", text)
    assert file.read_text() == f"a {text} b"


@pytest.mark.parametrize(
    ("data", "old", "new", "expected"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\nb\n", "a\r\nb", "x\r\ny", b"x\ny\n"),
        (b"a\nb\r\nc\r\n", "b", "x\ny", b"a\nx\r\ny\r\nc\r\n"),
        (b"a\nk\r\nb\nc\n", "b\nc", "x\ny\nz", b"a\nk\r\nx\ny\nz\n"),
        (b"\xef\xbb\xbfa\n", "a", "b", b"\xef\xbb\xbfb\n"),
        (b"\xef\xbb\xbfa\n", "\ufeffa", "\ufeffb", b"\xef\xbb\xbfb\n"),
        (b"\xef\xbb\xbfa\r\n", "\ufeffa\n", "", b"\xef\xbb\xbf"),
        (b"a\n", "\ufeffa", "b", b"b\n"),
        (b"x\n\xef\xbb\xbfa\n", "\ufeffa", "a", b"x\na\n"),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfa\n", "\ufeff", "", b"\xef\xbb\xbfa\na\n"),
        (b"\xef\xbb\xbf\xef\xbb\xbfa", "\ufeffa", "b", b"\xef\xbb\xbfb"),
        (b"caf\xe9 old\n", "old", "new", b"caf\xe9 new\n"),
        (b"one line", "line", "two\nlines", b"one two\nlines"),
        (b"one line", "line", "two\r\nlines\n", b"one two\r\nlines\n"),
        (b"a\nlast", "last", "end", b"a\nend"),
        (b"a\tb\rc\x0c\n", "b\rc", "x", b"a\tx\x0c\n"),
    ],
)
def test_edit_keeps_line_endings_marks_and_broken_bytes(
    machine: Machine, file: Path, data: bytes, old: str, new: str, expected: bytes
) -> None:
    file.write_bytes(data)
    edit_file(machine, "f", old, new)
    assert file.read_bytes() == expected


def test_edit_of_several_matches_names_count_and_lines(machine: Machine, file: Path) -> None:
    data = b"x = 1\nx = 1\r\n" * 60
    file.write_bytes(data)
    error = refused(machine, "x = 1\n", "y")
    assert error.reason == "SEVERAL_MATCHES"
    assert error.facts == {"count": 120, "lines": list(range(1, 101))}
    assert file.read_bytes() == data


def test_edit_with_replace_all_reports_every_replacement(machine: Machine, file: Path) -> None:
    file.write_text("foo\nbar foo\n\nfoo foo\n")
    facts = edit_file(machine, "f", "foo", "x", replace_all=True)
    assert (facts["replacements"], facts["lines"]) == (4, [1, 2, 4, 4])
    assert file.read_text() == "x\nbar x\n\nx x\n"
    assert refused(machine, "foo", "x", replace_all=True).reason == "NO_MATCH"


def test_edit_that_only_changes_line_endings_is_refused(machine: Machine, file: Path) -> None:
    file.write_bytes(b"a\r\nb")
    assert refused(machine, "a\nb", "a\r\nb").reason == "IDENTICAL_TEXT"


@pytest.mark.parametrize(
    ("data", "old", "facts"),
    [
        (b"a\n\tif x:\n", "    if x:", {"kind": "indentation", "line": 2}),
        (b"a  \nb\n", "a\nb", {"kind": "trailing_whitespace", "line": 1}),
        (b"z\na\nb\n", "a \nb", {"kind": "trailing_whitespace", "line": 2}),
        (b"x =  1\n", "x = 1", {"kind": "spacing", "line": 1}),
        (b"say \xe2\x80\x9chi\xe2\x80\x9d\n", 'say "hi"', {"kind": "typography", "line": 1}),
        (b"a\nFoo\n", "foo", {"kind": "case", "line": 2}),
        (b"a\ncafe\xcc\x81\n", "caf\u00e9", {"kind": "unicode_form", "line": 2}),
        (b"a\ncaf\xe9 x\n", "caf\ufffd x", {"kind": "replacement_character", "line": 2}),
        (b"a\nb\nc\n", "2→b\n3→c", {"kind": "line_numbers", "line": 2}),
        (b"a\nb\nc\n", "  2|b\n  3|c", {"kind": "line_numbers", "line": 2}),
        (b"a\nb\nc\n", "2: b\n3: c", {"kind": "line_numbers", "line": 2}),
        (b"a\n\tb\nc\n", "  2\t\tb\n  3\tc", {"kind": "line_numbers", "line": 2}),
        (b"a\nb\nc\n", "b\\nc", {"kind": "escaped", "line": 2}),
        (b"a\nsomething new\n", "something old", {"kind": "already_applied", "line": 2}),
        (b"a\nlast", "last\n", {"kind": "outer_newlines", "line": 2}),
        (b"first\nb", "\n\nfirst", {"kind": "outer_newlines", "line": 1}),
        (b"a \n\nb", "a\n\n", {"kind": "trailing_whitespace", "line": 1}),
        (b"a\nx\0y", "x\u2400y", {"kind": "nul_character", "line": 2}),
        (b"\xef\xbb\xbfa", "\ufeff", {"kind": "unknown"}),
        (b"a\nb\n", "quite different", {"kind": "unknown"}),
    ],
)
def test_edit_without_a_match_gives_the_cheapest_true_reason(
    machine: Machine, file: Path, data: bytes, old: str, facts: Facts
) -> None:
    file.write_bytes(data)
    error = refused(machine, old, "something new")
    assert error.reason == "NO_MATCH"
    assert facts.items() <= error.facts.items()
    assert file.read_bytes() == data


def test_edit_without_a_match_quotes_the_nearest_line_with_tabs_visible(
    machine: Machine, file: Path
) -> None:
    file.write_text("import os\n\n\treturn compute(value, 2)\n")
    error = refused(machine, "    return compute(values, 3)", "x")
    assert error.facts["nearest_line"] == 3
    assert error.facts["nearest_text"] == "\\treturn compute(value, 2)"


@pytest.mark.parametrize(
    "content",
    [
        b" " * 8_000_000 + b"x",
        b"\t \n" * 2_600_000,
        b"ab" * 4_000_000,
        b"a\n" * 4_000_000,
        # Two marks whose order normalising has to change, again and again.
        b"a" + "\u0301\u0327".encode() * 2_000_000,
        "a\u0301".encode() * 2_600_000,
    ],
    ids=["blanks", "blank_lines", "one_line", "short_lines", "marks", "letters_with_marks"],
)
def test_diagnosis_of_a_hostile_file_is_bounded(content: bytes) -> None:
    # The first is looked into, the second is over the bound.
    for hostile in (content[:DIAGNOSED_BYTES_MAX], content):
        looks = [time.thread_time()]
        found = diagnose(hostile, b"a  b c", b"", lambda: looks.append(time.thread_time()))  # noqa: B023
        assert found["kind"] == "unknown"
        assert time.thread_time() - looks[0] < DIAGNOSED_S + NEAREST_S + 0.7
        # A step is not broken off, and no other thread runs meanwhile: of 8 MiB, 1.7 s.
        assert max(after - before for before, after in pairwise(looks)) < 0.7


def test_diagnosis_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Differs in case only, which is asked for late.
    assert diagnose(b"x = Value", b"x = value", b"")["kind"] == "case"
    monkeypatch.setattr("sandboxd.guest.diagnose.DIAGNOSED_S", 0.0)
    assert diagnose(b"x = Value", b"x = value", b"")["kind"] == "unknown"


def test_cancel_ends_the_diagnosis(machine: Machine, file: Path) -> None:
    file.write_bytes(b"x = Value\n")
    looks: list[int] = []

    class Cancelled(Request):
        def stop_if_cancelled(self, text: str = "") -> None:
            looks.append(1)
            if len(looks) == 3:
                self.cancel()
            super().stop_if_cancelled(text)

    args = {"path": "f", "old_bytes": 9, "replace_all": False, "file_bytes_max": EDIT_BYTES_MAX}
    with pytest.raises(OpError) as caught:
        edit.edit(Cancelled(machine, "edit", args, b"x = valuenew"))
    assert caught.value.reason == "CANCELLED_BY_CALLER"
    assert len(looks) == 3


def test_edit_that_grows_large_waits_for_its_turn(
    machine: Machine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edit, "LARGE_BYTES", 1_000)
    monkeypatch.setattr(locks, "WAIT_S", 0.05)
    other = Request(machine, "edit", {})
    with FILE_LOCKS.hold(lambda: (LARGE,), other):
        for content, new in ((b"a" * 100, "b" * 11), (b"a\r\n" * 100, "\n" * 7)):
            file.write_bytes(content)
            assert refused(machine, "a", new, replace_all=True).reason == "FILE_BUSY"
            assert file.read_bytes() == content
            assert edit_file(machine, "f", "a", "b", replace_all=True)["replacements"] == 100
    file.write_bytes(b"a" * 100)
    assert edit_file(machine, "f", "a", "b" * 11, replace_all=True)["replacements"] == 100
    assert len(FILE_LOCKS) == 0


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_edit_refuses_wide_encodings(machine: Machine, file: Path, encoding: str) -> None:
    file.write_bytes("text".encode(encoding))
    assert refused(machine, "text", "x").reason == "UNSUPPORTED_ENCODING"


def test_edit_refuses_files_over_its_bound(machine: Machine, file: Path) -> None:
    with open(file, "wb") as sparse:
        sparse.truncate(EDIT_BYTES_MAX + 1)
    assert refused(machine, "text", "x").reason == "FILE_TOO_LARGE"
    file.write_bytes(b"a" * 1_000_000)
    assert refused(machine, "a", "b" * 100, replace_all=True).reason == "FILE_TOO_LARGE"
    assert file.stat().st_size == 1_000_000


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing", "FILE_NOT_FOUND"),
        ("no/such/folder/f", "FILE_NOT_FOUND"),
        ("folder", "IS_DIRECTORY"),
        ("fifo", "NOT_REGULAR"),
        ("/dev/zero", "NOT_REGULAR"),
    ],
)
def test_edit_never_creates_and_never_hangs(
    machine: Machine, file: Path, path: str, reason: str
) -> None:
    (file.parent / "folder").mkdir()
    os.mkfifo(file.parent / "fifo")
    with pytest.raises(OpError) as caught:
        edit_file(machine, path, "a", "b")
    assert caught.value.reason == reason
    assert sorted(os.listdir(file.parent)) == ["fifo", "folder"]


def test_edit_of_the_largest_file_takes_seconds(machine: Machine, file: Path) -> None:
    line = b"some words of a line\r\n"
    file.write_bytes(line * (60 * 1024 * 1024 // len(line)) + b"lone\nUNIQUE\r\n")
    started = time.process_time()
    facts = edit_file(machine, "f", "lone\nUNIQUE\n", "x\n")
    assert time.process_time() - started < 10
    assert facts["replacements"] == 1
    assert file.read_bytes()[-len(line) - 2 :] == line + b"x\n"


def test_parallel_edits_through_four_names_lose_none(guest: Guest) -> None:
    file = guest.workdir / "d" / "file.txt"
    file.parent.mkdir()
    file.write_text("".join(f"<{number}>\n" for number in range(100)))
    os.symlink("d/file.txt", guest.workdir / "soft")
    names = ["d/file.txt", str(file), "soft", "d/../d/./file.txt"]
    _edit_all(guest, names)
    assert file.read_text() == "".join(f"[{number}]\n" for number in range(100))
    assert os.listdir(file.parent) == ["file.txt"]


def test_parallel_edits_through_hard_links_lose_none(guest: Guest) -> None:
    file = guest.workdir / "file.txt"
    file.write_text("".join(f"<{number}>\n" for number in range(100)))
    os.link(file, guest.workdir / "hard")
    os.symlink("hard", guest.workdir / "soft")
    _edit_all(guest, ["file.txt", "hard", "soft", str(file)])
    assert file.read_text() == "".join(f"[{number}]\n" for number in range(100))
    assert (guest.workdir / "hard").stat().st_ino == file.stat().st_ino


def _edit_all(guest: Guest, names: list[str]) -> None:
    pending = []
    for number in range(100):
        old, new = f"<{number}>".encode(), f"[{number}]".encode()
        args = {
            "call_id": f"edit-{number}",
            "path": names[number % len(names)],
            "old_bytes": len(old),
            "replace_all": False,
            "file_bytes_max": EDIT_BYTES_MAX,
        }
        pending.append(guest.begin("edit", args, old + new))
    for number, answer in enumerate(pending):
        assert answer.result()[0]["lines"] == [number + 1]


def test_failed_edits_of_large_files_leave_no_memory_behind(guest: Guest) -> None:
    (guest.workdir / "f").write_bytes(b"some words of a line\n" * 1_500_000)
    before = guest.rss_bytes()
    args = {"path": "f", "old_bytes": 9, "replace_all": False, "file_bytes_max": EDIT_BYTES_MAX}
    pending = [
        guest.begin("edit", {"call_id": f"edit-{number}", **args}, b"not there")
        for number in range(8)
    ]
    peak = 0
    while not all(answer.done for answer in pending):
        peak = max(peak, guest.rss_bytes())
        time.sleep(0.005)
    for answer in pending:
        with pytest.raises(GuestSaidNo):
            answer.result()
    # One file of 32 MB at a time, and none afterwards.
    assert peak - before < 100_000_000
    assert guest.rss_bytes() - before < 20_000_000


def test_edits_and_writes_of_one_file_follow_one_another(machine: Machine, file: Path) -> None:
    file.write_text("0")
    failures: list[BaseException] = []

    def count_up() -> None:
        try:
            for _ in range(25):
                while True:
                    now = file.read_text()
                    try:
                        edit_file(machine, "f", now, str(int(now) + 1))
                        break
                    except OpError as error:
                        if error.reason != "NO_MATCH":
                            raise
        except BaseException as error:  # noqa: BLE001  shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=count_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert file.read_text() == "100"
    assert len(FILE_LOCKS) == 0


def test_guest_killed_in_a_write_leaves_old_or_new_content(guest: Guest) -> None:
    old, new = b"o" * 8_000_000, b"n" * 8_000_000
    file = guest.workdir / "f"
    file.write_bytes(old)
    inode = file.stat().st_ino
    guest.begin("write", {"call_id": "w", "path": "f"}, new)
    deadline = time.monotonic() + 10
    # Until the temporary file shows that the write is under way, or it is done.
    while len(os.listdir(guest.workdir)) < 2 and file.stat().st_ino == inode:
        assert time.monotonic() < deadline
    guest.process.kill()
    guest.process.wait()
    assert file.read_bytes() in (old, new)
