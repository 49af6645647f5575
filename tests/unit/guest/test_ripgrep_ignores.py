"""Ignore files that never end do not hold a search up, and it says that it did without."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from sandboxd.guest.ripgrep_output import Errors
from tests.unit.guest.search_place import SearchPlace, engines, search_place

RIPGREPS = sorted(name for name, setup in engines().items() if setup.is_ripgrep)
WORDS = "not a regular file of usual size, so ignore rules were not applied"


@pytest.fixture(scope="module", params=RIPGREPS)
def shared_place(request: pytest.FixtureRequest) -> Iterator[SearchPlace]:
    with search_place(engines()[request.param]) as place:
        yield place


@pytest.fixture
def place(shared_place: SearchPlace) -> SearchPlace:
    shared_place.empty()
    return shared_place


@pytest.mark.tool_case("G32")
@pytest.mark.parametrize(
    ("path", "below"),
    [
        (".gitignore", ""),
        (".gitignore", "sub"),
        (".git/info/exclude", ""),
        ("sub/.gitignore", ""),
        ("sub/.git/info/exclude", ""),
    ],
)
def test_ignore_file_that_is_a_fifo_costs_its_rules_and_no_rows(
    place: SearchPlace, path: str, below: str
) -> None:
    place.write(".git/HEAD")
    place.write("sub/.git/HEAD")
    place.write("sub/a.txt", "hit\n")
    os.makedirs((place.workdir / path).parent, exist_ok=True)
    os.mkfifo(place.workdir / path)
    started = time.monotonic()
    facts, rows = place.grep("hit", **({"path": below} if below else {}))
    assert time.monotonic() - started < 8
    assert rows == [("sub/a.txt", 1, "hit")]
    assert (facts["unsearched"], facts["timed_out"]) == (1, False)
    assert facts["first_error"].endswith(f"{path}: {WORDS}")
    assert place.grep("absent")[0]["timed_out"] is False


def test_ignore_file_that_is_a_device_is_not_read(place: SearchPlace) -> None:
    # Above the start only: that ripgrep reads one without an end is not tried out here.
    place.write(".git/HEAD")
    place.write("a.txt", "hit\n")
    os.symlink("/dev/zero", place.workdir / ".gitignore")
    facts, rows = place.grep("hit")
    assert rows == [("a.txt", 1, "hit")]
    assert facts["first_error"].endswith(f".gitignore: {WORDS}")


def test_error_of_a_path_with_line_feeds_is_one_error() -> None:
    for mark in (b"rg: ", b""):
        errors = Errors()
        said = (
            mark + b"./a\nb\nc: Permission denied (os error 13)\n" + mark + b"./d: No (os error 2)"
        )
        for at in range(0, len(said), 7):
            errors.feed(said[at : at + 7])
        errors.end()
        assert (errors.unsearched, errors.other) == (2, b"")
        assert errors.first == (b"./a\nb\nc", b"Permission denied")


def test_words_that_are_no_error_of_a_path_are_kept() -> None:
    errors = Errors()
    errors.feed(b"rg: regex parse error:\n    a(\nrg: x: Permission denied (os error 13)\n")
    errors.end()
    assert errors.other == b"rg: regex parse error:\n    a(\n"
    assert errors.first == (b"x", b"Permission denied")
