"""The threads that a guest names in its hello: numbers within bounds, or no guest of ours."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.backends.hello import SPAWNING_MAX, Expected, check_hello, digest_of
from sandboxd.guest import protocol

SECRET = "s" * 64
EXPECTED = Expected(digest_of(SECRET), None, "local", "/w", "/h")


def header(**facts: Any) -> protocol.Header:
    hello = {
        "protocol": protocol.PROTOCOL_VERSION,
        "secret": SECRET,
        "mode": "local",
        "workdir": "/w",
        "home": "/h",
        "shell": None,
        "search": None,
        "report": {"calls": [], "sequence": 0},
    }
    return {"hello": {**hello, **facts}}


def test_named_threads_are_taken() -> None:
    assert check_hello(header(spawning=[3, 4, 3]), EXPECTED).spawning == {3, 4}


def test_older_guest_names_none() -> None:
    assert check_hello(header(), EXPECTED).spawning == frozenset()


@pytest.mark.parametrize(
    "threads",
    [
        None,
        {},
        "3",
        3,
        ["3"],
        [3.0],
        [True],
        [None],
        [[3]],
        [0],
        [-1],
        [2**31],
        list(range(1, SPAWNING_MAX + 2)),
    ],
)
def test_what_is_no_list_of_threads_is_no_hello(threads: object) -> None:
    with pytest.raises(protocol.ProtocolError, match="spawning"):
        check_hello(header(spawning=threads), EXPECTED)
