"""The differences between the engines, one by one, as `guest/SEARCH.md` lists them.

A difference that is gone fails here, so that the list stays true.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.unit.guest.real_guest import GuestSaidNo
from tests.unit.guest.search_parity import all_places, answers, write_everywhere
from tests.unit.guest.search_place import SearchPlace

Places = dict[str, SearchPlace]
REFUSED = ("INVALID_PATTERN",)


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with all_places() as found:
        yield found


def rows(places: Places, pattern: str, **args: object) -> dict[str, list[int] | str]:
    """By engine: the lines that match, or what was refused."""
    found = answers(places, pattern, **args)
    return {
        name: answer[0] if answer == REFUSED else [row[1] for row in answer[1]]
        for name, answer in found.items()
    }


def greps(found: dict[str, list[int] | str]) -> set[str]:
    return {str(each) for name, each in found.items() if not name.startswith("ripgrep")}


def ripgreps(found: dict[str, list[int] | str]) -> set[str]:
    return {str(each) for name, each in found.items() if name.startswith("ripgrep")}


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\p{L}oo", "(?x) f o o", "(?-u)foo", r"\Afoo", r"(\bfoo ?)+", r"\b^foo"),
        *("f{0,1001}oo", r"\w{1,100}"),
        *("(" * 220 + "foo" + ")" * 220, "foo" + "*" * 220),
    ],
)
def test_what_only_ripgrep_can_do_is_refused_by_grep(places: Places, pattern: str) -> None:
    write_everywhere(places, {"f": b"foo\n"})
    found = rows(places, pattern)
    assert greps(found) == {"INVALID_PATTERN"}
    assert ripgreps(found) == {"[1]"}
    for name, place in places.items():
        if not name.startswith("ripgrep"):
            with pytest.raises(GuestSaidNo) as said:
                place.grep(pattern)
            assert "ripgrep" in said.value.text or "this sandbox's grep" in said.value.text


def test_grep_knows_the_newest_boundaries(places: Places) -> None:
    write_everywhere(places, {"f": b"foo\nfoobar\nbarfoo\n"})
    for pattern, lines in ((r"\<foo\>", [1]), (r"foo\b{end}", [1, 3]), (r"\b{start}foo", [1, 2])):
        found = rows(places, pattern)
        assert greps(found) == {str(lines)}
        assert ripgreps(found) <= {str(lines), "INVALID_PATTERN"}


def test_lone_carriage_return_ends_no_line_for_grep(places: Places) -> None:
    write_everywhere(places, {"f": b"foo\rbar\n"})
    for pattern in ("foo$", "^bar"):
        found = rows(places, pattern)
        assert greps(found) == {"[]"}
        assert ripgreps(found) <= {"[]", "[1]"}


def test_bytes_that_are_no_character_are_no_word_for_grep(places: Places) -> None:
    write_everywhere(places, {"f": b"foo\xb0bar\n"})
    found = rows(places, r"\bbar")
    assert greps(found) == {"[1]"}
    assert ripgreps(found) <= {"[]", "[1]"}


def test_ignore_file_that_is_no_file_costs_all_rules_for_ripgrep_alone(places: Places) -> None:
    files: dict[str | bytes, bytes] = {".git/info/exclude": b"b\n", "a": b"hit\n", "b": b"hit\n"}
    write_everywhere(places, files)
    for place in places.values():
        os.mkfifo(place.workdir / ".gitignore")
    for name, answer in answers(places, "hit").items():
        is_ripgrep = name.startswith("ripgrep")
        assert [row[0] for row in answer[1]] == (["a", "b"] if is_ripgrep else ["a"]), name
        assert answer[0]["unsearched"] == int(is_ripgrep), name


def test_nul_behind_the_last_row_of_a_named_file_is_ripgreps_alone(places: Places) -> None:
    write_everywhere(places, {"f": b"hit\n" + b"x\n" * 200_000 + b"\0\n"})
    found = answers(places, "hit", path="f")
    assert {str(answer[1]) for answer in found.values()} == {"[('f', 1, 'hit')]"}
    for name, answer in found.items():
        assert answer[0]["binary"] == name.startswith("ripgrep"), name


def test_large_copies_are_searched_to_their_bound(places: Places) -> None:
    text = ("x" * 1023 + "\n") * (17 * 1024) + "hit\n"
    write_everywhere(places, {"u": text.encode("utf-16")})
    found = rows(places, "hit")
    assert greps(found) == {"[]"}
    assert ripgreps(found) == {f"[{17 * 1024 + 1}]"}


def test_refusals_differ_in_the_mark_under_the_place_only(places: Places) -> None:
    write_everywhere(places, {"f": b"foo\n"})
    for pattern, words in (("foo(", "unclosed group"), ("[z", "unclosed character class")):
        texts = {}
        for name, place in places.items():
            with pytest.raises(GuestSaidNo) as said:
                place.grep(pattern)
            texts[name] = said.value.text
        assert all(f"error: {words}" in text for text in texts.values())
        assert {name.startswith("ripgrep") for name, text in texts.items() if "^" in text} == {True}
