"""A hostile guest can end its own session and do nothing else (security S8).

Real sockets, the real listener and the real link; the guest is played by bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandboxd.backends.base import Reply
from sandboxd.backends.guest_link import GuestLink
from sandboxd.backends.hello import Expected, digest_of, new_secret
from sandboxd.backends.listener import SOCKET_NAME, Listener
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.guest import protocol
from tests.unit.backends.wire import PlayedGuest, frame, play
from tests.unit.strategies import CUTS, JSON, TEXTS, cut, mutated

# A failure must show itself, however large its example is.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

SECRET = new_secret()
WAIT_S = 30.0
REPLY_BYTES_MAX = (0, 10, 2 * protocol.BODY_BYTES_MAX)
"""Of the requests that are under way: ids 1, 2 and 3."""

IDS = st.integers(1, 4) | JSON
ERRORS = mutated({"reason": "FILE_NOT_FOUND", "text": "no", "facts": {}})
HEADERS = (
    st.fixed_dictionaries({"id": IDS, "ok": st.dictionaries(TEXTS, JSON, max_size=3)})
    | st.fixed_dictionaries({"id": IDS, "error": ERRORS})
    | mutated({"id": 3, "ok": {}, "more": True})
    | mutated({"id": 2, "more": True})
    | JSON
)
RAW_HEADERS = st.sampled_from(
    [
        b'{"id":1,"id":2,"ok":{}}',
        b'{"id":2,"ok":{"a":NaN}}',
        b'{"id":2,"ok":{"a":-1e999}}',
        b'{"id":2,"ok":{"a":"\xff"}}',
        b'{"id":2,"ok":{"\\ud800":1}}',
        b'{"id":2,"ok":' + b"[" * 9 + b"]" * 9 + b"}",
        b'{"id":2,"ok":{"a":' + b"9" * 4_400 + b"}}",
        b'{"id":2,"ok":{"a":' + b"9" * 4_200 + b"}}",
        b'{"id":2.0,"ok":{}}',
        b'\xef\xbb\xbf{"id":2,"ok":{}}',
        b'{"a":"' + b'\\"' * 20_000 + b"[]" * 9,
        b'{"id":2,"ok":{}}' + b" " * 60_000,
        b"",
    ]
)
BODIES = st.binary(max_size=12) | st.sampled_from(
    [b"x" * protocol.BODY_BYTES_MAX, b"\0" * (protocol.BODY_BYTES_MAX - 1)]
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Something that a guest sends: a frame of any shape, a lie about sizes, or noise."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=40))
    if kind == 1:
        sizes = st.integers(0, 2**32 - 1) | st.integers(0, 70_000)
        return protocol.PREFIX.pack(draw(sizes), draw(sizes)) + draw(st.binary(max_size=20))
    body = draw(BODIES)
    size = draw(st.integers(0, protocol.BODY_BYTES_MAX + 1)) if kind == 2 else None
    header = draw(RAW_HEADERS) if kind <= 4 else json.dumps(draw(HEADERS)).encode()
    times = draw(st.sampled_from([1, 1, 1, 2, 300])) if len(header) + len(body) < 1_000 else 1
    return frame(header, body, body_size=size) * times


@asynccontextmanager
async def nothing_escapes() -> AsyncIterator[None]:
    """Fails on an exception that reached the loop, and on a task that is left."""
    faults: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    before = asyncio.all_tasks()
    yield
    # Transports tell of their end in the next rounds.
    for _ in range(3):
        await asyncio.sleep(0)
    assert not faults
    assert asyncio.all_tasks() == before


async def answered(link: GuestLink, guest: PlayedGuest) -> None:
    """A request passes through the link as if nothing had happened elsewhere."""
    asked = asyncio.create_task(link.request("ping", {}, reply_bytes_max=0, timeout_s=WAIT_S))
    header, _ = await guest.next_request()
    guest.answer(header, calm=True)
    assert (await asked).facts == {"calm": True}


async def outcome_of(sent: list[bytes]) -> tuple[list[Any], SandboxLost | None]:
    """What the requests of a session come to whose guest sends this and hangs up."""
    async with nothing_escapes(), asyncio.timeout(WAIT_S):
        other, link = GuestLink("b1"), GuestLink("b1")
        neighbour, guest = await play(other), await play(link)
        gone = asyncio.Event()
        link.on_disconnect = gone.set
        asked = [
            asyncio.create_task(link.request("op", {}, reply_bytes_max=most, timeout_s=WAIT_S))
            for most in REPLY_BYTES_MAX
        ]
        for _ in asked:
            await guest.next_request()
        with contextlib.suppress(OSError):
            for piece in sent:
                guest.send(piece)
                await guest.writer.drain()
        await guest.close()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        ended = asyncio.create_task(gone.wait())
        either: set[asyncio.Future[Any]] = {link.lost, ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        lost = link.lost.result() if link.lost.done() else None
        assert lost is None or isinstance(lost, SandboxLost)
        await answered(other, neighbour)
        await neighbour.close()
        await other.close("SHUTDOWN", "the example is over")
        await link.close("SHUTDOWN", "the example is over")
    return outcomes, lost


@given(st.lists(frames(), max_size=4), CUTS)
@example([frame(b'{"id":2,"ok":{"a":' + b"9" * 4_200 + b"}}")], [9])
@example([frame({"id": 3, "ok": {}, "more": True}, b"x" * (1 << 20))] * 3, [70_000])
def test_s8_any_frames_end_in_replies_or_in_the_loss_of_that_sandbox(
    sent: list[bytes], sizes: list[int]
) -> None:
    pieces = cut(b"".join(sent), [max(size, 5) for size in sizes])
    outcomes, lost = asyncio.run(outcome_of(pieces))
    for outcome, most in zip(outcomes, REPLY_BYTES_MAX, strict=True):
        assert isinstance(outcome, Reply | GuestFault | SandboxLost), outcome
        if isinstance(outcome, Reply):
            assert len(outcome.body) <= most
        elif isinstance(outcome, SandboxLost):
            assert outcome.cause == ("PROTOCOL" if lost is not None else "ENDED")
    assert lost is None or lost.cause == "PROTOCOL"


@given(st.lists(frames(), min_size=1, max_size=3))
def test_s8_whoever_breaks_no_rule_is_not_lost_for_it(noise: list[bytes]) -> None:
    good = frame({"id": 1, "ok": {"a": 1}}) + frame({"id": 2, "ok": {}}, b"x" * 10)
    outcomes, lost = asyncio.run(outcome_of([good, *noise]))
    assert outcomes[0] == Reply({"a": 1}, b"")
    assert outcomes[1] == Reply({}, b"x" * 10)
    if isinstance(outcomes[2], Reply):
        return
    assert isinstance(outcomes[2], GuestFault | SandboxLost)
    if isinstance(outcomes[2], SandboxLost):
        assert (lost is None) == (outcomes[2].cause == "ENDED")


HELLO: dict[str, Any] = {
    "protocol": protocol.PROTOCOL_VERSION,
    "version": "0.1.0",
    "secret": SECRET,
    "pid": 1,
    "mode": "container",
    "workdir": "/workspace",
    "home": "/home/sandbox",
    "shell": "/bin/bash",
    "search": None,
    "maps_closed": True,
    "report": {"calls": [], "sequence": 0},
}
CHECKED = ("protocol", "secret", "pid", "mode", "workdir", "home", "maps_closed")
GREETINGS = mutated(HELLO).map(lambda hello: frame(json.dumps({"hello": hello}).encode()))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


async def dial(folder: Path, said: list[bytes]) -> None:
    """Connects, says this and no more, and stays until the other end has closed."""
    reader, writer = await asyncio.open_unix_connection(str(folder / SOCKET_NAME))
    with contextlib.suppress(OSError):
        for piece in said:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
        while await reader.read(65_536):
            pass
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def greeted_as(folder: Path, said: list[bytes]) -> list[str]:
    """Shells of the guests that are taken: this one, where it is, and always a good one."""
    shells = []
    async with nothing_escapes(), asyncio.timeout(WAIT_S):
        listener = Listener(folder, os.geteuid(), os.getegid(), "b1")
        expected = Expected(
            digest_of(SECRET), os.getpid(), "container", "/workspace", "/home/sandbox"
        )
        good = frame({"hello": {**HELLO, "shell": "/good"}})
        # In this order: a connection is made at once, and accepted later.
        dialled = [asyncio.create_task(dial(folder, what)) for what in (said, [good])]
        while "/good" not in shells:
            greeted = await listener.accept_guest(expected)
            shells.append(greeted.hello.shell)
            greeted.writer.transport.abort()
            with contextlib.suppress(OSError):
                await greeted.writer.wait_closed()
        await asyncio.gather(*dialled)
        listener.close()
    return shells


@given(GREETINGS | frames(), CUTS)
@example(frame({"hello": HELLO}), [3])
def test_s8_only_a_true_hello_is_taken_and_no_other_keeps_the_guest_out(
    folder: Path, said: bytes, sizes: list[int]
) -> None:
    shells = asyncio.run(greeted_as(folder, cut(said, [max(size, 5) for size in sizes])))
    assert shells[-1] == "/good"
    if len(shells) == 2:
        head = protocol.PREFIX.unpack(said[: protocol.PREFIX.size])[0]
        hello = json.loads(said[protocol.PREFIX.size :][:head])["hello"]
        assert {name: hello[name] for name in CHECKED} == {name: HELLO[name] for name in CHECKED}
        assert all(type(hello[name]) is type(HELLO[name]) for name in CHECKED)
        assert shells[0].isprintable()


async def test_s8_flood_costs_no_more_memory_than_was_reserved() -> None:
    reserved = 4 * protocol.BODY_BYTES_MAX
    link = GuestLink("b1")
    guest = await play(link)
    asked = asyncio.create_task(link.request("op", {}, reply_bytes_max=reserved, timeout_s=WAIT_S))
    header, _ = await guest.next_request()
    near = guest.writer.get_extra_info("socket")
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    full = frame({"id": header["id"], "more": True}, b"x" * protocol.BODY_BYTES_MAX)
    first = frame({"id": header["id"], "ok": {}, "more": True}, b"x" * protocol.BODY_BYTES_MAX)
    tracemalloc.start()
    try:
        with contextlib.suppress(OSError):
            for piece in [first, *[full] * 40]:
                guest.send(piece)
                await guest.writer.drain()
        with pytest.raises(SandboxLost):
            await asked
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # What was asked for, a frame on its way at either end, and buffers.
    assert peak < reserved + 4 * protocol.BODY_BYTES_MAX
    await guest.close()
    await link.close("SHUTDOWN", "the test is over")
