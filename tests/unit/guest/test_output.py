"""Cleaning and the tail: against a simple reference, and the cases one by one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.guest.output import BYTES_MAX, LINES_MAX, Output, Tail


def shown(*pieces: bytes) -> Tail:
    output = Output()
    for piece in pieces:
        output.feed(piece)
    return output.tail()


CASES = {
    "plain": (b"a\nb\n", "a\nb\n"),
    "no_newline": (b"a\nb", "a\nb"),
    "csi": (b"\x1b[1;31mred\x1b[0m \x1b[2K\x1b[?25lx\n", "red x\n"),
    "osc_bel": (b"\x1b]0;title\x07x\n", "x\n"),
    "osc_st": (b"\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\\n", "link\n"),
    "dcs": (b"\x1bP1$r0m\x1b\\x\n", "x\n"),
    "charset": (b"\x1b(Bx\x1b=\n", "x\n"),
    "lone_escape": (b"a\x1b\nb\n", "a\nb\n"),
    "osc_without_end": (b"\x1b]0;title\nkept\n", "]0;title\nkept\n"),
    "csi_cut_off": (b"a\x1b[31", "a[31"),
    "osc_cut_off": (b"a\n\x1b]0;50% of it\x1b", "a\n]0;50% of it"),
    "charset_cut_off": (b"a\x1b(", "a("),
    "escape_at_the_end": (b"a\x1b", "a"),
    "progress_in_a_cut_off_osc": (b"a\x1b]1\r2\bc", "c"),
    "progress": (b"10%\r50%\r100%\nend\n", "100%\nend\n"),
    "progress_at_the_end": (b"10%\r100%\r", "100%"),
    "crlf": (b"a\r\nb\r\r\nc\r\n", "a\nb\nc\n"),
    "backspace": (b"ab\b\bcd\xc3\xa9\b|\n", "cd|\n"),
    "backspace_stays_in_line": (b"a\n\b\bb\n", "a\nb\n"),
    "bell": (b"a\x07b\n", "ab\n"),
    "nul": (b"a\x00b\tc and some more text\n", "a\\x00b\tc and some more text\n"),
    "c1": ("a\u009b31m and some text\n".encode(), "a\\x9b31m and some text\n"),
    "not_utf8": (b"caf\xe9 with milk\n", "caf\ufffd with milk\n"),
    "form_feed": (b"page one\x0cpage two\n", "page one\\x0cpage two\n"),
}


@pytest.mark.parametrize("case", CASES)
def test_output_is_cleaned_whole_and_byte_by_byte(case: str) -> None:
    raw, expected = CASES[case]

    assert shown(raw).text.decode() == expected
    assert shown(*(raw[i : i + 1] for i in range(len(raw)))).text.decode() == expected
    assert not shown(raw).cut


def test_output_counts_before_cleaning() -> None:
    output = Output()
    output.feed(b"\x1b[31mone\r\n")
    output.feed(b"two\rthree")

    assert (output.bytes_total, output.lines_total) == (19, 2)
    assert (output.tail().text, output.tail().lines) == (b"one\nthree", 2)


def test_tail_keeps_exactly_the_last_lines() -> None:
    full = b"".join(b"%d\n" % n for n in range(LINES_MAX))
    assert shown(full) == Tail(full, LINES_MAX, False, False)

    tail = shown(b"first\n" + full)
    assert tail == Tail(full, LINES_MAX, True, False)


def test_tail_counts_a_last_line_without_newline() -> None:
    text = b"x\n" * (LINES_MAX - 1) + b"last"

    assert shown(text) == Tail(text, LINES_MAX, False, False)
    assert shown(b"x\n" + text) == Tail(text, LINES_MAX, True, False)


def test_tail_keeps_exactly_the_last_bytes_in_whole_lines() -> None:
    line = b"x" * 1023 + b"\n"
    full = line * 50
    assert len(full) == BYTES_MAX
    assert shown(full) == Tail(full, 50, False, False)
    # One byte more, and the first line no longer fits as a whole.
    assert shown(b"\n" + full) == Tail(full, 50, True, False)
    assert shown(b"y" + full) == Tail(line * 49, 49, True, False)


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("before", [b"", b"earlier\n"])
def test_tail_of_a_line_that_is_too_long_is_its_end(before: bytes, end: bytes) -> None:
    tail = shown(before + b"a" * 100_000 + b"z" + end)

    assert tail.text == (b"a" * 100_000 + b"z" + end)[-BYTES_MAX:]
    assert (tail.lines, tail.cut) == (1, True)


def test_tail_of_a_long_line_before_blank_ones_still_shows_it() -> None:
    tail = shown(b"a" * 100_000 + b"z\n\n \n")

    assert tail.text == (b"a" * 100_000 + b"z\n\n \n")[-BYTES_MAX:]
    assert (tail.lines, tail.cut) == (3, True)


def test_tail_is_cut_at_a_whole_character() -> None:
    tail = shown("€".encode() * 40_000)

    assert BYTES_MAX - 3 < len(tail.text) <= BYTES_MAX
    assert set(tail.text.decode()) == {"€"}


def test_tail_survives_an_overwritten_flood() -> None:
    # The line that pushed everything else out was itself overwritten.
    tail = shown(b"kept\n", *([b"x" * 65_536] * 10), b"\rshort\n")

    assert tail == Tail(b"kept\nshort\n", 2, False, False)


def test_tail_grows_with_replaced_bytes_and_stays_bounded() -> None:
    tail = shown((b"abcdefgh\xe9" * 8 + b"\n") * 700)

    assert len(tail.text) <= BYTES_MAX
    assert tail.cut
    assert tail.text.startswith(b"abcdefgh\xef\xbf\xbd")


def test_output_is_binary_by_what_is_shown() -> None:
    assert shown(bytes(range(256)) * 100).binary
    assert shown(b"text\0" * 100).binary is False
    assert shown(b"te\0\0" * 100).binary
    assert shown("ünïcödé\n".encode() * 100).binary is False
    assert shown("\ufffd\n".encode() * 100).binary is False
    assert shown(b"\0" * 200_000 + b"and then text\n" * 5_000).binary is False
    assert not shown().binary


def reference(raw: bytes) -> str:
    """The same rules, slowly: the whole text at once, character by character."""
    # Whole sequences; an escape that is none.
    clean = re.sub(
        rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"
        rb"|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\`-~]"
        rb"|\x1b",
        b"",
        raw,
    )
    lines, line, returned = [], "", False
    for char in clean.replace(b"\x07", b"").decode("utf-8"):
        if char == "\n":
            lines.append(line + "\n")
            line, returned = "", False
        elif char == "\r":
            returned = True
        elif char == "\b":
            line = line[:-1]
        else:
            line = char if returned else line + char
            returned = False
    return "".join([*lines, line])


ESCAPES = (b"\x1b[31m", b"\x1b]0;t\x07", b"\x1b]8;;x\x1b\\", b"\x1b(B", b"\x1b", b"\x1bc")
PARTS = (b"a", b"bc", b"\n", b"\r", b"\r\n", b"[", b"]", b"\\", b"\xc3\xa9", b"\b", b"\x07", b"0;")
TOKENS = st.sampled_from(ESCAPES + PARTS)


@given(st.lists(TOKENS, max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=20))
def test_output_equals_the_reference_however_it_is_cut(parts: list[bytes], cuts: list[int]) -> None:
    raw = b"".join(parts)
    output = Output()
    position = turn = 0
    while position < len(raw):
        size = cuts[turn % len(cuts)]
        output.feed(raw[position : position + size])
        position, turn = position + size, turn + 1

    assert output.tail().text.decode() == reference(raw)
    assert output.bytes_total == len(raw)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=120), st.booleans())
def test_tail_equals_the_reference_for_any_line_lengths(lengths: list[int], newline: bool) -> None:
    lines = ["".join(chr(97 + (n + i) % 26) for i in range(n)) + "\n" for n in lengths]
    if not newline:
        lines[-1] = lines[-1][:-1]
    whole = "".join(lines)
    kept: list[str] = []
    while lines and sum(map(len, kept)) + len(lines[-1]) <= BYTES_MAX and len(kept) < LINES_MAX:
        kept.insert(0, lines.pop())

    tail = shown(whole.encode()) if whole else shown()

    assert tail.text.decode() == "".join(kept)
    assert tail.cut == ("".join(kept) != whole)
