"""Following a command's output while it runs: rings, offsets, what is dropped and told."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.guest import feeds
from sandboxd.guest.feeds import PIECE_BYTES, RING_BYTES, RINGS_BYTES_MAX, Feeds
from sandboxd.guest.output import Output
from tests.unit.guest.real_guest import Guest, GuestSaidNo, Pending

MIB = 1024 * 1024


def numbered(count: int, size: int = 1000) -> list[bytes]:
    return [f"{number:0{size - 1}d}\n".encode() for number in range(count)]


# --- one ring ----------------------------------------------------------------


def test_every_offset_gives_the_rest_of_the_output_exactly() -> None:
    feed = Feeds().begin("c", Output(), 1.0)
    whole = b"".join(numbered(300, 777))
    for start in range(0, len(whole), 5_000):
        feed.take(whole[start : start + 5_000])
    for after in (0, 1, 4_999, 5_000, 5_001, len(whole) - 1, len(whole)):
        assert feed.read(after, len(whole)) == (after, len(whole), whole[after:])
        assert feed.read(after, 10) == (after, len(whole), whole[after : after + 10])


def test_old_bytes_go_and_the_answer_says_where_it_starts() -> None:
    feed = Feeds().begin("c", Output(), 1.0)
    whole = b"".join(numbered(4_000))
    for start in range(0, len(whole), 30_000):
        feed.take(whole[start : start + 30_000])
    start, end, data = feed.read(0, len(whole))
    assert end == len(whole)
    assert RING_BYTES <= end - start <= RING_BYTES + PIECE_BYTES
    assert data == whole[start:]
    assert feed.size == end - start


def test_single_bytes_are_joined() -> None:
    feed = Feeds().begin("c", Output(), 1.0)
    for _ in range(5_000):
        feed.take(b"x")
    assert len(feed._pieces) == 1


def test_a_place_that_is_not_reached_yet_has_no_bytes() -> None:
    feed = Feeds().begin("c", Output(), 1.0)
    feed.take(b"abc")
    assert feed.read(10, 100) == (10, 3, b"")


def test_looking_at_the_tail_changes_nothing_of_the_result() -> None:
    table = Feeds()
    looked_at, left_alone = Output(), Output()
    feed = table.begin("c", looked_at, 1.0)
    raw = b"one\x1b[1mtwo\rthree\x1b[0m\nfour\b5\xe2\x82\xac\x1b]0;title\x07end" * 40
    for index in range(len(raw)):
        feed.take(raw[index : index + 1])
        left_alone.feed(raw[index : index + 1])
        if index % 7 == 0:
            feed.peek()
    assert looked_at.tail() == left_alone.tail()
    assert looked_at.bytes_total == len(raw)


# --- all rings ---------------------------------------------------------------


def fill(feed: feeds.Feed, count: int) -> None:
    for _ in range(count // PIECE_BYTES):
        feed.take(b"x" * PIECE_BYTES)


def held(table: Feeds) -> int:
    return sum(feed.size for feed in [*table._running.values(), *table._ended.values()])


def test_rings_of_ended_commands_go_oldest_first() -> None:
    table = Feeds()
    for number in range(12):
        fill(table.begin(f"c{number}", Output(), 1.0), 2 * MIB)
        table.finish(f"c{number}")
        assert held(table) <= RINGS_BYTES_MAX
        assert table._bytes == held(table)
    assert table.find("c0") is None
    assert table.find("c11") is not None


def test_rings_of_many_running_commands_shrink_and_keep_their_ends() -> None:
    table = Feeds()
    running = [table.begin(f"c{number}", Output(), 1.0) for number in range(16)]
    for feed in running:
        fill(feed, 2 * MIB)
    assert held(table) <= RINGS_BYTES_MAX
    assert table._bytes == held(table)
    for feed in running:
        assert feed.read(2 * MIB - 1000, 1000) == (2 * MIB - 1000, 2 * MIB, b"x" * 1000)


def test_few_rings_are_whole_while_earlier_ones_ran_beside_many() -> None:
    table = Feeds()
    first = table.begin("first", Output(), 1.0)
    fill(first, 2 * MIB)
    assert first.size >= RING_BYTES
    for number in range(15):
        fill(table.begin(f"c{number}", Output(), 1.0), 2 * MIB)
    assert held(table) <= RINGS_BYTES_MAX


def test_commands_that_ended_without_output_are_bounded_too() -> None:
    table = Feeds()
    for number in range(feeds.ENDED_MAX + 10):
        table.begin(f"c{number}", Output(), 1.0)
        table.finish(f"c{number}")
    assert len(table._ended) == feeds.ENDED_MAX
    assert table._bytes == 0


# --- the ops, in a real guest --------------------------------------------------


def run(guest: Guest, call_id: str, script: str) -> Pending:
    return guest.begin("run", {"call_id": call_id, "timeout_s": 60.0}, script.encode())


def feed(guest: Guest, call_id: str, after: int, wait_s: float, most: int = 262_144) -> Any:
    args = {"call_id": call_id, "after": after, "bytes_max": most, "wait_s": wait_s}
    return guest.request("feed", args)


def test_output_is_followed_from_the_first_byte_to_the_last(guest: Guest) -> None:
    pending = run(guest, "c", "for i in 1 2 3 4 5; do echo line $i; sleep 0.05; done")
    seen, ended = b"", False
    while not ended:
        facts, data = feed(guest, "c", len(seen), 30.0)
        assert facts["known"]
        seen, ended = seen + data, facts["ended"]
    assert seen == b"".join(b"line %d\n" % number for number in range(1, 6))
    facts, _ = pending.result()
    assert facts["bytes_total"] == len(seen)


def test_who_waits_is_told_within_moments(guest: Guest) -> None:
    pending = run(guest, "c", "sleep 0.3; echo now; sleep 20")
    facts, data = feed(guest, "c", 0, 15.0)
    assert (data, facts["end"], facts["ended"]) == (b"now\n", 4, False)
    guest.request("cancel", {"call_id": "c"})
    pending.result()


def test_a_wait_that_is_over_says_so_without_bytes(guest: Guest) -> None:
    pending = run(guest, "c", "sleep 20")
    facts, data = feed(guest, "c", 0, 0.2)
    assert (facts, data) == ({"known": True, "start": 0, "end": 0, "ended": False}, b"")
    guest.request("cancel", {"call_id": "c"})
    pending.result()


def test_a_call_that_has_not_begun_is_waited_for(guest: Guest) -> None:
    waiting = guest.begin("feed", {"call_id": "c", "after": 0, "bytes_max": 100, "wait_s": 20.0})
    run(guest, "c", "echo hello").result()
    facts, data = waiting.result()
    assert (facts["known"], data) == (True, b"hello\n")


def test_a_call_that_never_began_is_not_known(guest: Guest) -> None:
    assert feed(guest, "never", 0, 0.1) == ({"known": False}, b"")
    answer = guest.request("peek", {"call_id": "never", "after": 0, "wait_s": 0.1})
    assert answer == ({"known": False}, b"")


def test_output_of_an_ended_command_can_be_read_until_others_need_the_room(guest: Guest) -> None:
    run(guest, "old", "echo old").result()
    assert feed(guest, "old", 0, 0.0)[1] == b"old\n"
    for number in range(10):
        run(guest, f"c{number}", "head -c 2000000 /dev/zero").result()
    assert feed(guest, "old", 0, 0.0) == ({"known": False}, b"")


def test_output_goes_on_over_a_new_connection_at_the_same_byte(guest: Guest) -> None:
    run(guest, "c", "for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.1; done")
    seen = feed(guest, "c", 0, 10.0)[1]
    waits = guest.begin("feed", {"call_id": "c", "after": 10**6, "bytes_max": 1, "wait_s": 60.0})
    guest.disconnect()
    guest.accept()
    ended = False
    while not ended:
        facts, data = feed(guest, "c", len(seen), 10.0)
        assert facts["start"] == len(seen)
        seen, ended = seen + data, facts["ended"]
    assert seen == b"".join(b"line %d\n" % number for number in range(1, 9))
    assert not waits.done  # who asked on the old connection is not answered on the new one


def test_peek_gives_the_cleaned_tail_and_totals(guest: Guest) -> None:
    pending = run(guest, "c", r"printf 'a\rb\n\033[1mc\033[0m'; sleep 20")
    facts, body = guest.request("peek", {"call_id": "c", "after": 8, "wait_s": 10.0})
    assert body == b"b\nc"
    assert (facts["bytes_total"], facts["lines_total"], facts["lines_shown"]) == (13, 2, 2)
    assert (facts["cut"], facts["binary"], facts["timeout_s"]) == (False, False, 60.0)
    guest.request("cancel", {"call_id": "c"})
    assert pending.result()[1] == b"b\nc"


def test_readers_that_wait_do_not_hold_up_a_command(guest: Guest) -> None:
    waiting = [
        guest.begin("feed", {"call_id": "c", "after": 2**50, "bytes_max": 1, "wait_s": 60.0})
        for _ in range(40)
    ]
    facts, _ = run(guest, "c", "head -c 50000000 /dev/zero").result()
    assert facts["bytes_total"] == 50_000_000
    for each in waiting:
        assert each.result()[0]["ended"]


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"call_id": 1, "after": 0, "bytes_max": 1},
        {"call_id": "c", "after": -1, "bytes_max": 1},
        {"call_id": "c", "after": 0, "bytes_max": 10**9},
        {"call_id": "c", "after": 1.5, "bytes_max": 1},
        {"call_id": "c", "after": 0, "bytes_max": 1, "wait_s": -1},
        {"call_id": "c", "after": 0, "bytes_max": 1, "wait_s": "x"},
    ],
)
def test_arguments_that_are_none_are_refused(shared_guest: Guest, args: dict[str, Any]) -> None:
    with pytest.raises(GuestSaidNo, match="INVALID_INPUT"):
        shared_guest.request("feed", args)
