"""The daemon's end of a guest's connection, against a guest that a test plays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from sandboxd import limits
from sandboxd.backends.guest_link import GuestLink
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.guest import protocol
from tests.unit.backends.wire import PlayedGuest, frame
from tests.unit.backends.wire import play as connect

MIB = limits.MIB


Play = Callable[[GuestLink], Awaitable[PlayedGuest]]


@pytest.fixture
async def play() -> AsyncIterator[Play]:
    """Connects played guests, and closes them at the end."""
    played: list[PlayedGuest] = []

    async def play_one(link: GuestLink) -> PlayedGuest:
        played.append(await connect(link))
        return played[-1]

    yield play_one
    for guest in played:
        await guest.close()


@pytest.fixture
async def link() -> AsyncIterator[GuestLink]:
    made = GuestLink("b1")
    yield made
    await made.close("SHUTDOWN", "the test is over")


async def disconnected(link: GuestLink) -> None:
    async with asyncio.timeout(5):
        while link.connected:  # noqa: ASYNC110 - the link tells its owner alone
            await asyncio.sleep(0.005)


def ask(
    link: GuestLink, op: str = "ping", *, body: bytes = b"", **bounds: Any
) -> asyncio.Task[Any]:
    settings = {"reply_bytes_max": 0, "timeout_s": 10.0, **bounds}
    return asyncio.create_task(link.request(op, {}, body, **settings))


async def test_request_is_answered_with_facts_and_bytes(link: GuestLink, play: Play) -> None:
    guest = await play(link)
    asked = ask(link, "read_lines", body=b"in", reply_bytes_max=100)
    header, body = await guest.next_request()
    assert (header["op"], body) == ("read_lines", b"in")
    guest.answer(header, b"out", lines=1)
    reply = await asked
    assert (reply.facts, reply.body) == ({"lines": 1}, b"out")


async def test_bodies_of_many_frames_arrive_whole_in_both_directions(
    link: GuestLink, play: Play
) -> None:
    guest = await play(link)
    sent = bytes(range(256)) * (3 * MIB // 256) + b"x"
    asked = ask(link, "echo", body=sent, reply_bytes_max=len(sent))
    header, body = await guest.next_request()
    assert body == sent
    guest.answer(header, body)
    assert (await asked).body == sent


async def test_replies_in_another_order_reach_their_own_requests(
    link: GuestLink, play: Play
) -> None:
    guest = await play(link)
    first, second = ask(link, "one"), ask(link, "two")
    headers = [(await guest.next_request())[0] for _ in range(2)]
    for header in reversed(headers):
        guest.answer(header, name=header["op"])
    assert (await first).facts == {"name": "one"}
    assert (await second).facts == {"name": "two"}


async def test_error_of_the_guest_becomes_a_fault_with_its_facts(
    link: GuestLink, play: Play
) -> None:
    guest = await play(link)
    asked = ask(link)
    header, _ = await guest.next_request()
    error = {"reason": "FILE_NOT_FOUND", "text": "no such file", "facts": {"near": ["a"]}}
    guest.send(frame({"id": header["id"], "error": error}))
    with pytest.raises(GuestFault) as fault:
        await asked
    assert (fault.value.reason, fault.value.facts) == ("FILE_NOT_FOUND", {"near": ["a"]})
    assert not link.lost.done()


Hostile = Callable[[int], bytes]
HOSTILE: dict[str, Hostile] = {
    "header over its bound": lambda id_: protocol.PREFIX.pack(64 * 1024 + 1, 0),
    "header of no bytes": lambda id_: protocol.PREFIX.pack(0, 0),
    "body over its bound": lambda id_: protocol.PREFIX.pack(10, MIB + 1),
    "not JSON": lambda id_: frame(b"\x00\x01garbage"),
    "not UTF-8": lambda id_: frame(b'{"id": 1, "ok": {"a": "\xff"}}'),
    "not an object": lambda id_: frame(b"[1]"),
    "NaN": lambda id_: frame(f'{{"id": {id_}, "ok": {{"s": NaN}}}}'.encode()),
    "infinity": lambda id_: frame(f'{{"id": {id_}, "ok": {{"s": 1e999}}}}'.encode()),
    "surrogate": lambda id_: frame(f'{{"id": {id_}, "ok": {{"s": "\\ud800"}}}}'.encode()),
    "deep nesting": lambda id_: frame(f'{{"id": {id_}, "ok": {"[" * 500}{"]" * 500}}}'.encode()),
    "huge integer": lambda id_: frame(f'{{"id": {"9" * 5000}, "ok": {{}}}}'.encode()),
    "no id": lambda id_: frame({"ok": {}}),
    "id that nobody asked for": lambda id_: frame({"id": id_ + 1, "ok": {}}),
    "id that is true": lambda id_: frame({"id": True, "ok": {}}),
    "second hello": lambda id_: frame({"hello": {}}),
    "neither ok nor error": lambda id_: frame({"id": id_}),
    "both": lambda id_: frame({"id": id_, "ok": {}, "error": {}}),
    "reason that is a sentence": lambda id_: frame(
        {"id": id_, "error": {"reason": "rm -rf\n", "text": "", "facts": {}}}
    ),
    "body over what was asked": lambda id_: frame({"id": id_, "ok": {}}, b"x" * 11),
    "body announced over what was asked": lambda id_: frame({"id": id_, "ok": {}}, body_size=11),
    "frames of single bytes": lambda id_: frame({"id": id_, "ok": {}, "more": True}, b"x"),
    "endless empty frames": lambda id_: frame({"id": id_, "ok": {}, "more": True}),
    "more that is no flag": lambda id_: frame({"id": id_, "ok": {}, "more": 1}),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_s8_what_breaks_the_protocol_loses_this_sandbox_alone(
    link: GuestLink, play: Play, name: str
) -> None:
    other = GuestLink("b1")
    neighbour = await play(other)
    guest = await play(link)
    asked = ask(link, reply_bytes_max=10)
    header, _ = await guest.next_request()
    guest.send(HOSTILE[name](header["id"]))
    with pytest.raises(SandboxLost) as lost:
        await asked
    assert lost.value.cause == "PROTOCOL"
    assert isinstance(link.lost.result(), SandboxLost)
    assert await guest.closed()
    with pytest.raises(SandboxLost):
        await ask(link)
    calm = ask(other)
    header, _ = await neighbour.next_request()
    neighbour.answer(header)
    assert (await calm).facts == {}
    await other.close("SHUTDOWN", "the test is over")


async def test_s8_frame_without_any_request_loses_the_sandbox(link: GuestLink, play: Play) -> None:
    guest = await play(link)
    guest.send(frame({"id": 1, "ok": {}}))
    found = await asyncio.wait_for(asyncio.shield(link.lost), 5)
    assert isinstance(found, SandboxLost)
    assert found.cause == "PROTOCOL"


async def test_s8_long_reply_is_taken_up_to_its_bound_and_no_further(
    link: GuestLink, play: Play
) -> None:
    guest = await play(link)
    asked = ask(link, reply_bytes_max=2 * MIB)
    header, _ = await guest.next_request()
    full = b"x" * MIB
    guest.send(frame({"id": header["id"], "ok": {}, "more": True}, full))
    guest.send(frame({"id": header["id"], "more": True}, full))
    guest.send(frame({"id": header["id"]}, b"x"))
    with pytest.raises(SandboxLost):
        await asked


async def test_cancelled_caller_leaves_the_request_to_its_reply(
    link: GuestLink, play: Play
) -> None:
    guest = await play(link)
    left = ask(link, "slow")
    header, _ = await guest.next_request()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    guest.answer(header)
    after = ask(link, "next")
    header, _ = await guest.next_request()
    guest.answer(header)
    await after
    assert not link.lost.done()


async def test_overdue_reply_means_a_silent_guest_even_if_nobody_waits(
    link: GuestLink, play: Play
) -> None:
    guest = await play(link)
    left = ask(link, "slow", timeout_s=0.2)
    await guest.next_request()
    left.cancel()
    found = await asyncio.wait_for(asyncio.shield(link.lost), 5)
    assert isinstance(found, SandboxLost)
    assert found.cause == "SILENT"


async def test_guest_that_answers_no_ping_is_silent(play: Play) -> None:
    link = GuestLink("b1", heartbeat_s=0.05, answer_s=0.1)
    guest = await play(link)
    assert (await guest.next_request())[0]["op"] == "ping"
    found = await asyncio.wait_for(asyncio.shield(link.lost), 5)
    assert isinstance(found, SandboxLost)
    assert found.cause == "SILENT"
    await link.close("SHUTDOWN", "")


async def test_answered_pings_keep_the_link_alive(play: Play) -> None:
    link = GuestLink("b1", heartbeat_s=0.02, answer_s=2)
    guest = await play(link)
    for _ in range(5):
        header, _ = await asyncio.wait_for(guest.next_request(), 5)
        assert header["op"] == "ping"
        guest.answer(header)
    assert not link.lost.done()
    await link.close("SHUTDOWN", "")


async def test_guest_that_does_not_read_is_silent(play: Play) -> None:
    link = GuestLink("b1", write_s=0.2)
    guest = await play(link)
    guest.reader._transport.pause_reading()  # type: ignore[attr-defined]
    asked = ask(link, "write", body=b"x" * (16 * MIB), timeout_s=60)
    with pytest.raises(SandboxLost) as lost:
        await asked
    assert lost.value.cause == "SILENT"
    await link.close("SHUTDOWN", "")


async def test_lost_connection_fails_a_verbs_step_and_waits_for_the_next(
    link: GuestLink,
    play: Play,
) -> None:
    ended = asyncio.Event()
    link.on_disconnect = ended.set
    guest = await play(link)
    asked = ask(link, "file_read")
    await guest.next_request()
    await guest.close()
    with pytest.raises(SandboxLost) as lost:
        await asked
    assert lost.value.cause == "ENDED"
    await asyncio.wait_for(ended.wait(), 5)
    assert not link.lost.done()
    held = ask(link)
    again = await play(link)
    header, _ = await again.next_request()
    again.answer(header)
    await held


async def test_s7_call_that_the_guest_reports_is_attached_to_and_never_sent_again(
    link: GuestLink,
) -> None:
    guest = await connect(link)
    asked = asyncio.create_task(
        link.request("run", {"call_id": "c1"}, b"echo", reply_bytes_max=9, timeout_s=10.0)
    )
    first, _ = await guest.next_request()
    assert first["boot"] == "b1"
    # Half an answer, and the connection is gone.
    guest.send(frame({"id": first["id"], "ok": {}}, b"ab", body_size=9))
    await guest.close()
    await disconnected(link)
    again = await connect(link, calls=["c1"])
    header, body = await again.next_request()
    assert (header["op"], header["args"], body) == ("attach", {"call_id": "c1"}, b"")
    again.answer(header, b"whole", end=1)
    reply = await asked
    assert (reply.facts, reply.body) == ({"end": 1}, b"whole")
    await again.close()


async def test_s7_call_that_the_guest_never_started_is_sent_again(link: GuestLink) -> None:
    guest = await connect(link)
    asked = asyncio.create_task(
        link.request("run", {"call_id": "c1"}, b"echo", reply_bytes_max=9, timeout_s=10.0)
    )
    await guest.next_request()
    await guest.close()
    await disconnected(link)
    again = await connect(link, calls=["another"])
    header, body = await again.next_request()
    assert (header["op"], body) == ("run", b"echo")
    again.answer(header)
    await asked
    await again.close()


async def test_op_that_is_harmless_to_repeat_is_asked_again(link: GuestLink, play: Play) -> None:
    guest = await play(link)
    asked = ask(link, "process_wait")
    await guest.next_request()
    await guest.close()
    await disconnected(link)
    again = await play(link)
    header, _ = await again.next_request()
    assert header["op"] == "process_wait"
    again.answer(header)
    await asked


async def test_call_that_nobody_waits_for_is_not_started_on_the_next_connection(
    link: GuestLink,
) -> None:
    guest = await connect(link)
    asked = asyncio.create_task(
        link.request("run", {"call_id": "c1"}, b"echo", reply_bytes_max=9, timeout_s=10.0)
    )
    await guest.next_request()
    asked.cancel()
    await asyncio.wait({asked})
    await guest.close()
    await disconnected(link)
    again = await connect(link)
    pinged = ask(link)
    header, _ = await again.next_request()
    assert header["op"] == "ping"
    again.answer(header)
    await pinged
    await again.close()


async def test_signal_is_never_sent_twice(link: GuestLink, play: Play) -> None:
    guest = await play(link)
    asked = ask(link, "process_signal")
    await guest.next_request()
    await guest.close()
    with pytest.raises(SandboxLost):
        await asked


async def test_answer_that_came_while_the_daemon_stood_still_is_in_time(
    link: GuestLink, play: Play
) -> None:
    guest = await play(link)
    asked = ask(link, timeout_s=0.2)
    header, _ = await guest.next_request()
    guest.answer(header, text="in time")
    # As a stop of the process does, or of its machine: clocks are looked at before sockets.
    time.sleep(0.5)  # noqa: ASYNC251 - the loop has to stand still
    assert (await asked).facts == {"text": "in time"}


async def test_what_waits_to_be_named_as_recorded_is_bounded(link: GuestLink, play: Play) -> None:
    guest = await play(link)
    for _ in range(3):
        for number in range(5_000):
            link.recorded(f"c{number}")
    asked = ask(link)
    header, _ = await guest.next_request()
    assert header["recorded"] == [f"c{number}" for number in range(904, 968)]
    guest.answer(header)
    await asked


async def test_next_request_names_what_is_recorded_once(link: GuestLink, play: Play) -> None:
    guest = await play(link)
    for number in range(70):
        link.recorded(f"c{number}")
    named = []
    for _ in range(3):
        asked = ask(link)
        header, _ = await guest.next_request()
        named.append(header.get("recorded", []))
        guest.answer(header)
        await asked
    assert named == [[f"c{n}" for n in range(64)], [f"c{n}" for n in range(64, 70)], []]


async def test_s5_second_connection_never_displaces_a_live_one(link: GuestLink, play: Play) -> None:
    guest = await play(link)
    with pytest.raises(RuntimeError):
        await play(link)
    asked = ask(link)
    header, _ = await guest.next_request()
    guest.answer(header)
    await asked


async def test_budget_holds_back_large_requests_but_not_a_ping(link: GuestLink, play: Play) -> None:
    guest = await play(link)
    large = [ask(link, "large", reply_bytes_max=20 * MIB) for _ in range(4)]
    seen = [(await guest.next_request())[0] for _ in range(3)]
    ping = ask(link, "ping")
    header, _ = await guest.next_request()
    assert header["op"] == "ping"
    guest.answer(header)
    await ping
    guest.answer(seen[0])
    header, _ = await guest.next_request()
    assert header["op"] == "large"
    for waiting in [*seen[1:], header]:
        guest.answer(waiting)
    await asyncio.gather(*large)


async def test_losing_the_sandbox_ends_those_who_wait_for_their_turn(
    link: GuestLink, play: Play
) -> None:
    guest = await play(link)
    large = [ask(link, "large", reply_bytes_max=20 * MIB) for _ in range(8)]
    await guest.next_request()
    link.lose("DELETED", "the test says so")
    for outcome in await asyncio.gather(*large, return_exceptions=True):
        assert isinstance(outcome, SandboxLost)
        assert outcome.cause == "DELETED"


@pytest.mark.parametrize("text", ["x" * 70_000, "\ud800"])
async def test_arguments_that_fit_no_frame_are_the_callers_fault(
    link: GuestLink, play: Play, text: str
) -> None:
    await play(link)
    with pytest.raises(GuestFault) as fault:
        await link.request("stat", {"path": text}, reply_bytes_max=0, timeout_s=1)
    assert fault.value.reason == "INVALID_INPUT"
    assert not link.lost.done()


async def test_close_leaves_no_task_behind(play: Play) -> None:
    link = GuestLink("b1")
    guest: PlayedGuest = await play(link)
    await link.close("SHUTDOWN", "the test is over")
    assert await guest.closed()
    assert asyncio.all_tasks() == {asyncio.current_task()}
