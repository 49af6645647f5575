"""glob in a real guest: names, order and bounds. It needs no engine."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.unit.guest.real_guest import GuestSaidNo
from tests.unit.guest.search_place import SearchPlace, Setup, search_place


@pytest.fixture(scope="module")
def shared_place() -> Iterator[SearchPlace]:
    with search_place(Setup(search="ripgrep")) as place:
        yield place


@pytest.fixture
def place(shared_place: SearchPlace) -> SearchPlace:
    shared_place.empty()
    return shared_place


def test_glob_order_is_that_of_the_whole_path_and_capped_at_the_first(place: SearchPlace) -> None:
    choose = random.Random(3)
    wanted = set()
    for number in range(2_500):
        parts = [choose.choice(["a", "a-b", "a.d", "a b", "B", "é"]) for _ in range(3)]
        wanted.add("/".join([*parts[: choose.randrange(4)], f"f{number}.txt"]))
    for path in wanted:
        place.write(path)
    ordered = sorted(wanted, key=str.encode)
    facts, paths = place.glob("*.txt")
    assert paths == ordered[:1_000]
    assert facts["capped"]
    facts, paths = place.glob("*.txt", paths_max=len(ordered))
    assert paths == ordered
    assert not facts["capped"]


def test_glob_keeps_the_first_of_a_large_directory(place: SearchPlace) -> None:
    names = [f"{number:05}" for number in range(17_500)]
    random.Random(1).shuffle(names)
    for name in names:
        os.close(os.open(place.workdir / name, os.O_CREAT | os.O_WRONLY))
    facts, paths = place.glob("*")
    assert paths == [f"{number:05}" for number in range(1_000)]
    assert facts["capped"]


def test_glob_finds_hidden_and_ignored_files_but_not_git(place: SearchPlace) -> None:
    place.write(".gitignore", "*\n")
    place.write("node_modules/.x/p.js")
    place.write(".git/hooks/p.js")
    place.write("s/.git/p.js")
    assert place.glob("*")[1] == [".gitignore", "node_modules/.x/p.js"]
    assert place.glob("*.js", path=".git")[1] == [".git/hooks/p.js"]
    assert place.glob("*.js", path=".git/hooks")[1] == [".git/hooks/p.js"]


def test_glob_of_a_wrong_start_is_an_error(place: SearchPlace) -> None:
    place.write("f.txt")
    for path, reason in [("nope", "FILE_NOT_FOUND"), ("f.txt", "NOT_DIRECTORY")]:
        with pytest.raises(GuestSaidNo) as said:
            place.glob("*", path=path)
        assert said.value.reason == reason


def test_glob_names_a_file_that_differs_in_case(place: SearchPlace) -> None:
    place.write("d/README.MD")
    facts, paths = place.glob("readme.md")
    assert (paths, facts["other_case"]) == ([], "d/README.MD")
    place.write("d/readme.md")
    assert place.glob("readme.md") == (
        {**facts, "other_case": None},
        ["d/readme.md"],
    )


def test_glob_ends_at_its_bound_of_entries(place: SearchPlace) -> None:
    for number in range(50):
        place.write(f"{number:02}/f")
    facts, paths = place.glob("f", entries_max=60)
    assert facts["entries_over"]
    assert not facts["timed_out"]
    assert paths == [f"{number:02}/f" for number in range(len(paths))]


def test_glob_sorts_a_folder_called_tilde_as_it_is_printed(place: SearchPlace) -> None:
    for name in ("a", "~", "-x", "~x"):
        place.write(name)
    assert place.glob("*")[1] == ["-x", "./~", "a", "~x"]
    place.empty()
    place.write("~/b")
    place.write("a")
    assert place.glob("*")[1] == ["./~/b", "a"]
    assert place.glob("*", paths_max=1)[1] == ["./~/b"]
