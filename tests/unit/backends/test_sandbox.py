"""A sandbox between two connections of its guest."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends import sandbox as sandbox_module
from sandboxd.backends.base import SandboxSpec
from sandboxd.backends.fake import facts_of
from sandboxd.backends.hello import Expected, digest_of
from sandboxd.backends.listener import SOCKET_NAME, Listener
from sandboxd.backends.sandbox import GuestSandbox
from sandboxd.config import ProfileSettings
from sandboxd.errors import SandboxLost
from sandboxd.guest import protocol
from tests.unit.backends.wire import PlayedGuest, frame


async def test_guest_that_cannot_be_taken_again_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: without a free descriptor no accept, and every request waited for ever."""
    listener = Listener(tmp_path, 0, 0, "b1")
    expected = Expected(digest_of("s"), None, "local", "/w", "/h")
    facts = facts_of(SandboxSpec("r", 1, ProfileSettings()))
    box = GuestSandbox("r", 1, facts, expected, listener, None)
    connecting = asyncio.ensure_future(box.connect(5.0))
    guest = PlayedGuest(*await asyncio.open_unix_connection(tmp_path / SOCKET_NAME))
    hello: dict[str, Any] = {"secret": "s", "mode": "local", "workdir": "/w", "home": "/h"}
    hello["report"] = {"calls": [], "sequence": 0}
    guest.send(frame({"hello": {"protocol": protocol.PROTOCOL_VERSION, **hello}}))
    await connecting

    async def refuse(expected: Expected) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(listener, "accept_guest", refuse)
    monkeypatch.setattr(sandbox_module, "RECONNECT_S", 0.5)
    await guest.close()
    async with asyncio.timeout(5.0):
        lost = await box.lost
    assert isinstance(lost, SandboxLost)
    assert "too many open files" in lost.operator_text
    with pytest.raises(SandboxLost):
        await box.request("ping", {}, reply_bytes_max=0, timeout_s=60.0)
    await box.close("SHUTDOWN", "the test ends")


async def test_s7_guest_that_dials_again_and_again_is_given_up(tmp_path: Path) -> None:
    listener = Listener(tmp_path, 0, 0, "b1")
    facts = facts_of(SandboxSpec("r", 1, ProfileSettings()))
    expected = Expected(digest_of("s"), None, "local", "/w", "/h")
    box = GuestSandbox("r", 1, facts, expected, listener, None)
    now = 100.0
    assert not any(box._dials_too_often(now + number * 0.1) for number in range(120))
    assert box._dials_too_often(now + 12.0)
    # Spread over more than a minute as many are none too many.
    assert not box._dials_too_often(now + 300.0)
    await box.close("SHUTDOWN", "the test ends")
