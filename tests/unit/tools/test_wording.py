"""Pieces of text that tools share."""

from __future__ import annotations

import pytest

from sandboxd.tools.wording import counted, line_list, own_line, plain


def test_count_of_one_takes_the_singular() -> None:
    assert [counted(n, "line") for n in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]
    assert counted(2, "match", "matches") == "2 matches"


def test_line_list_names_ten_and_counts_the_rest() -> None:
    assert line_list([3]) == "line 3"
    assert line_list([3, 8, 12]) == "lines 3, 8, 12"
    ten = ", ".join(str(n) for n in range(1, 11))
    assert line_list(list(range(1, 11))) == f"lines {ten}"
    assert line_list(list(range(1, 101)), 250) == f"lines {ten} and 240 more"


@pytest.mark.parametrize(
    ("body", "expected"), [("", "[a]\n[b]"), ("x", "x\n[a]\n[b]"), ("x\n", "x\n[a]\n[b]")]
)
def test_own_line_puts_each_text_on_a_line(body: str, expected: str) -> None:
    assert own_line(body, "[a]", "[b]") == expected
    assert own_line(body) == body


def test_plain_text_holds_no_control_character() -> None:
    assert plain("a\0\x1b\t\n\x85\ud800é") == "a\\x00\\x1b\t\n\\x85\\ud800é"
    assert len(plain("x" * 5_000)) == 1_001
