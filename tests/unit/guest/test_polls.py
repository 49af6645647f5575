"""Requests that wait in a real guest, and those that nobody waits for any more."""

from __future__ import annotations

import time

import pytest

from sandboxd.guest.polls import PENDING_MAX
from tests.unit.guest.process_ops import Processes
from tests.unit.guest.real_guest import Guest, GuestSaidNo, Pending


@pytest.fixture
def processes(guest: Guest) -> Processes:
    found = Processes(guest)
    found.script("p", "read line")
    return found


def wait(guest: Guest, number: int) -> Pending:
    return guest.begin("process_wait", {"process_id": "p", "wait_s": 20.0, "wait": number})


def end(guest: Guest, number: int) -> bool:
    found: bool = guest.request("wait_end", {"wait": number})[0]["found"]
    return found


def test_wait_that_is_ended_is_answered_at_once_and_no_other(processes: Processes) -> None:
    guest = processes.guest
    left, other = wait(guest, 1), wait(guest, 2)
    begun = time.monotonic()
    assert end(guest, 1)
    with pytest.raises(GuestSaidNo, match="CANCELLED_BY_CALLER"):
        left.result(1.0)
    assert time.monotonic() - begun < 2.0
    assert not end(guest, 1)
    processes.write("p", b"\n")
    assert not other.result()[0]["running"]
    assert not end(guest, 2)


def test_waits_that_are_ended_make_room_for_as_many_as_one_likes(processes: Processes) -> None:
    guest = processes.guest
    for number in range(4 * PENDING_MAX):
        left = wait(guest, number)
        assert end(guest, number)
        with pytest.raises(GuestSaidNo, match="CANCELLED_BY_CALLER"):
            left.result()


def test_one_wait_too_many_is_told_what_is_full(processes: Processes) -> None:
    guest = processes.guest
    waits = [wait(guest, number) for number in range(PENDING_MAX)]
    with pytest.raises(GuestSaidNo) as refused:
        wait(guest, PENDING_MAX).result()
    assert (refused.value.reason, refused.value.facts) == ("CALLS_EXHAUSTED", {"full": "waits"})
    assert "512 requests wait already for something to happen" in refused.value.text
    assert end(guest, 0)
    processes.write("p", b"\n")
    for each in waits[1:]:
        assert not each.result()[0]["running"]


def test_number_that_is_none_is_refused(processes: Processes) -> None:
    with pytest.raises(GuestSaidNo, match="INVALID_INPUT"):
        processes.guest.request("wait_end", {"wait": "1"})
