"""Which engine a guest uses: what is there, what works, and what was asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.guest.real_guest import Guest, GuestSaidNo
from tests.unit.guest.search_place import SearchPlace, Setup, a_ripgrep, search_place

GREP = shutil.which("grep")
BUSYBOX = shutil.which("busybox")


def script(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@contextmanager
def guest_with(
    zipapp: Path, path: str, rg: list[str] | None = None, search: str = "auto"
) -> Iterator[Guest]:
    running = Guest(zipapp, rg_argv=rg or [], path=path, search=search)
    try:
        yield running
    finally:
        running.close()


@pytest.mark.parametrize(
    ("setup", "name"),
    [
        (a_ripgrep(), "ripgrep "),
        (Setup(rg=a_ripgrep().rg, search="ripgrep"), "ripgrep "),
        (Setup(rg=a_ripgrep().rg, grep=GREP, search="grep"), "grep (GNU grep) "),
        (Setup(grep=GREP), "grep (GNU grep) "),
        (Setup(grep=BUSYBOX), "grep (BusyBox v"),
    ],
)
def test_engine_is_the_one_that_is_there_and_asked_for(setup: Setup, name: str) -> None:
    with search_place(setup) as place:
        assert place.guest.hello["search"].startswith(name)
        place.write("f", "hit\n")
        assert place.grep("hit")[1] == [("f", 1, "hit")]


@pytest.mark.parametrize(
    "text",
    [
        "exit 0",
        "exit 1",
        "echo 1:a1{x; echo 3:plain text",
        "echo usage: grep PATTERN; exit 2",
        'exec /bin/grep -i "$@"',
        'exec /bin/grep --color=always "$@"',
        'echo warning; exec /bin/grep "$@"',
        "yes",
        "kill -9 $$",
    ],
)
def test_what_does_not_behave_like_grep_is_passed_over(
    guest_zipapp: Path, tmp_path: Path, text: str
) -> None:
    script(tmp_path / "bin", "grep", text)
    with guest_with(guest_zipapp, f"{tmp_path}/bin:relative:{tmp_path}/none") as guest:
        # The next one on the list is this machine's own.
        assert guest.hello["search"].startswith("grep (GNU grep)")
        (guest.workdir / "f").write_text("hit\n")
        args = {"rows_max": 9, "line_chars_max": 99, "timeout_s": 9.0, "call_id": "c"}
        assert guest.request("grep", {"pattern": "hit", **args})[1] == b"f\x001\x00hit\n"


def test_what_is_called_ripgrep_and_is_not_gives_way_to_grep(
    guest_zipapp: Path, tmp_path: Path
) -> None:
    for text in (
        *("echo ripgrep", "echo grep 3.8", "echo ripgrep 14.0.0; exit 1", "sleep 60"),
        # By its name and number it is one, and it can do nothing, or not all.
        "echo ripgrep 14.0.0",
        f'case $* in *--crlf*) exit 2;; esac; exec {a_ripgrep().rg} "$@"',
        f'echo warning; exec {a_ripgrep().rg} "$@"',
    ):
        rg = script(tmp_path / "bin", "rg", text)
        with guest_with(guest_zipapp, os.environ["PATH"], [rg]) as guest:
            assert guest.hello["search"].startswith("grep (GNU grep)"), text


def test_probe_that_was_cut_off_is_made_again_by_the_next_search(
    guest_zipapp: Path, tmp_path: Path
) -> None:
    # It hangs until the file is there: at the start, and not any more at the search.
    rg = script(
        tmp_path / "bin", "rg", f'[ -e {tmp_path}/go ] || exec sleep 60\nexec {a_ripgrep().rg} "$@"'
    )
    with guest_with(guest_zipapp, os.environ["PATH"], [rg], "ripgrep") as guest:
        assert guest.hello["search"] is None
        (tmp_path / "go").touch()
        (guest.workdir / "f").write_text("hit\n")
        args = {"rows_max": 9, "line_chars_max": 99, "timeout_s": 9.0, "call_id": "c"}
        assert guest.request("grep", {"pattern": "hit", **args})[1] == b"f\x001\x00hit\n"


@pytest.mark.tool_case("G38")
def test_ripgrep_that_was_cut_off_once_is_used_later_although_there_is_grep(
    guest_zipapp: Path, tmp_path: Path
) -> None:
    rg = script(
        tmp_path / "bin", "rg", f'[ -e {tmp_path}/go ] || exec sleep 60\nexec {a_ripgrep().rg} "$@"'
    )
    with guest_with(guest_zipapp, os.environ["PATH"], [rg]) as guest:
        assert guest.hello["search"].startswith("grep (GNU grep)")
        (tmp_path / "go").touch()
        (guest.workdir / "f").write_text("foo\n")
        args = {"rows_max": 9, "line_chars_max": 99, "timeout_s": 9.0, "call_id": "c"}
        # No grep has this class.
        assert guest.request("grep", {"pattern": r"\p{L}oo", **args})[1] == b"f\x001\x00foo\n"


def test_ripgrep_that_always_hangs_is_not_asked_for_ever(
    guest_zipapp: Path, tmp_path: Path
) -> None:
    rg = script(tmp_path / "bin", "rg", f"echo >> {tmp_path}/tries\nexec sleep 60")
    with guest_with(guest_zipapp, os.environ["PATH"], [rg]) as guest:
        (guest.workdir / "f").write_text("hit\n")
        args = {"rows_max": 9, "line_chars_max": 99, "timeout_s": 9.0, "call_id": "c"}
        for _ in range(4):
            assert guest.request("grep", {"pattern": "hit", **args})[1] == b"f\x001\x00hit\n"
    assert (tmp_path / "tries").read_text() == "\n" * 3


def test_search_that_ends_like_one_without_rows_and_complains_is_an_error(
    guest_zipapp: Path, tmp_path: Path
) -> None:
    rg = script(
        tmp_path / "bin",
        "rg",
        f'case $* in *no-such*) echo "wrapper: out of licences" >&2; exit 1;; esac\n'
        f'exec {a_ripgrep().rg} "$@"',
    )
    with guest_with(guest_zipapp, os.environ["PATH"], [rg]) as guest:
        (guest.workdir / "f").write_text("hit\n")
        args = {"rows_max": 9, "line_chars_max": 99, "timeout_s": 9.0, "call_id": "c"}
        with pytest.raises(GuestSaidNo) as said:
            guest.request("grep", {"pattern": "no-such", **args})
        assert said.value.reason == "IO_ERROR"
        assert "out of licences" in said.value.text


@pytest.mark.parametrize("search", ["ripgrep"])
def test_search_without_an_engine_says_what_to_do(search: str) -> None:
    with search_place(Setup(search=search)) as bare:
        assert bare.guest.hello["search"] is None
        _refused(bare)
        bare.write("f")
        assert bare.glob("f")[1] == ["f"]


def _refused(place: SearchPlace) -> None:
    with pytest.raises(GuestSaidNo) as said:
        place.grep("x")
    assert said.value.reason == "SEARCH_UNAVAILABLE"
    assert "Use glob" in said.value.text
