"""What a POSIX grep cannot search costs its own rows and no other's."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.guest.search_place import SearchPlace, Setup, search_place

KINDS = {
    name: path
    for name, path in (("gnu", shutil.which("grep")), ("busybox", shutil.which("busybox")))
    if path is not None
}
WRAPPER = """#!/bin/sh
for each; do case $each in */stop*) echo "grep: memory exhausted" >&2; exit 2;; esac; done
exec {grep} "$@"
"""


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def stopping(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchPlace]:
    """A grep that gives up as soon as it is given a file whose name begins with `stop`."""
    program = tmp_path_factory.mktemp("wrapper") / "grep"
    path = KINDS[kind]
    program.write_text(WRAPPER.format(grep=f"{path} grep" if kind == "busybox" else path))
    program.chmod(0o755)
    with search_place(Setup(grep=str(program), search="grep")) as place:
        yield place


@pytest.fixture(scope="module")
def shared_place(kind: str) -> Iterator[SearchPlace]:
    with search_place(Setup(grep=KINDS[kind], search="grep")) as place:
        yield place


@pytest.fixture
def place(shared_place: SearchPlace) -> SearchPlace:
    shared_place.empty()
    return shared_place


def test_files_that_grep_gives_up_on_are_counted_and_the_others_searched(
    stopping: SearchPlace,
) -> None:
    stopping.empty()
    names = [f"{letter}{n:02}" for letter in "az" for n in range(20)]
    for name in [*names, "stop1", "stop2"]:
        stopping.write(name, "hit\n")
    facts, rows = stopping.grep("hit")
    assert [row[0] for row in rows] == names
    assert facts["unsearched"] == 2
    assert facts["first_error"] == "stop1: grep ended with code 2 (grep: memory exhausted)"


# A guest on `local` is confined to its folders, and such a file cannot be made there.
OUTSIDE = """
import os, sys, threading
from sandboxd.guest import harden, search_probe
from sandboxd.guest.children import CHILDREN
from sandboxd.guest.ops import Machine, Request
from sandboxd.guest.search_child import Budget
from sandboxd.guest.search_engine import Query
from sandboxd.guest.search_paths import Start

def in_thread():
    folder, path, pattern = sys.argv[1:]
    machine = Machine("local", folder, folder, base_env={"PATH": path}, search="grep")
    request = Request(machine, "grep", {})
    engine = search_probe.engine_of(request, Budget(request, 10.0))
    query = Query(pattern, False, None, Start(folder, folder, False, b""), 100)
    found = engine.first_rows(query, Budget(request, 20.0))
    rows = [row.printed.decode() for row in found.rows.first]
    print(found.unsearched, found.first_error, *rows, sep="\\n", flush=True)
    os._exit(0)

if __name__ == "__main__":
    threading.excepthook = lambda args: os._exit(1)
    harden.default_signals(keep_ignored=True)
    CHILDREN.open()
    threading.Thread(target=in_thread).start()
    CHILDREN.wait_for_ever()
"""


def test_file_that_opens_and_cannot_be_read_is_counted_and_the_others_searched(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "grep").symlink_to(KINDS[kind])
    (tmp_path / "search.py").write_text(OUTSIDE)
    argv = [sys.executable, str(tmp_path / "search.py")]
    said = subprocess.run(
        [*argv, "/sys/class/net/lo", str(tmp_path), "^00:00:00:"],
        capture_output=True,
        text=True,
        check=True,
    )
    unsearched, first_error, *rows = said.stdout.splitlines()
    assert "address" in rows
    assert int(unsearched) > 0
    assert first_error != "None"


def test_sparse_file_of_nul_is_not_given_to_grep_as_one_line(place: SearchPlace) -> None:
    with open(place.workdir / "a", "wb") as file:
        file.truncate(1024**3)
    place.write("b", "hit\n")
    pid = place.guest.process.pid
    # Less than that line, for the guest and what it starts.
    before = resource.prlimit(pid, resource.RLIMIT_DATA, (700 * 1024**2, resource.RLIM_INFINITY))
    try:
        facts, rows = place.grep("hit")
    finally:
        resource.prlimit(pid, resource.RLIMIT_DATA, before)
    assert rows == [("b", 1, "hit")]
    assert (facts["unsearched"], facts["timed_out"]) == (0, False)


def test_rows_before_a_far_nul_are_shown_and_those_at_it_are_not(place: SearchPlace) -> None:
    # Behind it, in its own line, and far before it.
    for name, tail in (("a", b"\0\nhit\n"), ("b", b"x hit \0\n"), ("c", b"x\n" * 300_000 + b"\0")):
        place.write(name, b"hit\n" + b"x\n" * 200_000 + b"hit\n" + tail)
    rows = place.grep("hit")[1]
    assert rows == [("a", 1, "hit"), ("b", 1, "hit"), ("c", 1, "hit"), ("c", 200_002, "hit")]
    assert place.grep("hit", path="a")[0]["binary"]
