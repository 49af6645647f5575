"""What is told of background jobs: a page of the largest fits a header."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from sandboxd.guest import process_jobs, protocol, tree
from sandboxd.guest.processes import LIST_MAX

WORDS: dict[str, list[Any]] = {
    "unprintable": ["\x01" * 2_000],
    "not UTF-8": [b"\xff" * 2_000],
    "empty": [""] * 2_000,
    "escaped": ['"\\' * 1_000],
    "wide": ["\U0001f600" * 500],
    "short": ["\x02"] * 1_000,
    "many": ["word"] * 400,
}


@pytest.fixture(params=WORDS)
def sleeper(request: pytest.FixtureRequest) -> Iterator[tree.Process]:
    child = subprocess.Popen(
        ["sh", "-c", "echo; read line", *WORDS[request.param]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()  # it is what it was told to be
    found = tree.read(child.pid)
    assert found is not None
    yield found
    child.communicate(b"\n")


def test_page_of_the_largest_jobs_fits_a_header(sleeper: tree.Process) -> None:
    argv = process_jobs._argv(sleeper)
    assert argv[:3] == ["sh", "-c", "echo; read line"]
    job = {
        "process_id": f"job-{2**31}-{2**63}",
        "pid": 2**31,
        "running": False,
        "exit_code": 255,
        "signal": None,
        "ended_s": 123_456_789.012_345_67,
        "call_id": "c" * 64,
        "argv": argv,
        "age_s": 123_456_789.012_345_67,
    }
    header = {"id": 2**63, "ok": {"processes": [job] * LIST_MAX, "next": 10**12}}
    (frame,) = protocol.encode_frames(header)
    assert len(frame) <= protocol.HEADER_BYTES_MAX


@pytest.mark.parametrize("size", range(505, 515))
def test_words_are_cut_at_the_bound_exactly(size: int) -> None:
    told = process_jobs._told(["a" * 100, "b" * (size - 106), "c"])
    used = sum(len(word) + 3 for word in told)
    assert used <= process_jobs.ARGUMENT_BYTES_MAX
    assert "".join(told) == ("a" * 100 + "b" * (size - 106) + "c")[: len("".join(told))]
    assert used >= min(size, process_jobs.ARGUMENT_BYTES_MAX - 3)
