"""The scripted backend keeps the interface's promises."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandboxd.backends.base import Backend, Reply, SandboxSpec
from sandboxd.backends.fake import FakeBackend, FakeRequest, FakeSandbox
from sandboxd.config import ProfileSettings
from sandboxd.errors import EngineDown, SandboxLost

SPEC = SandboxSpec("0123456789abcdef", 1, ProfileSettings())


async def ask(sandbox: FakeSandbox, timeout_s: float = 5.0) -> Reply:
    return await sandbox.request("ping", {}, reply_bytes_max=0, timeout_s=timeout_s)


async def test_fake_answers_as_scripted_and_fails_as_told(tmp_path: Path) -> None:
    backend = FakeBackend(tmp_path)
    checked: Backend = backend
    backend.fail_next("create", EngineDown("as told"))
    with pytest.raises(EngineDown):
        await checked.create(SPEC, lambda _: None)
    assert await checked.owned() == set()
    sandbox = await backend.create(SPEC, lambda _: None)

    async def answer(request: FakeRequest) -> Reply:
        return Reply({"op": request.op})

    backend.on_request = answer
    assert (await ask(sandbox)).facts == {"op": "ping"}
    await backend.release(SPEC.resource_id)
    assert await backend.owned() == {SPEC.resource_id}
    await backend.remove(SPEC.resource_id)
    await backend.remove(SPEC.resource_id)
    assert await backend.owned() == set()


async def test_fake_sandbox_that_is_lost_fails_what_is_on_its_way(tmp_path: Path) -> None:
    backend = FakeBackend(tmp_path)

    async def never(request: FakeRequest) -> Reply:
        await asyncio.Event().wait()
        return Reply({})

    backend.on_request = never
    sandbox = await backend.create(SPEC, lambda _: None)
    waiting = asyncio.create_task(ask(sandbox))
    await asyncio.sleep(0)
    sandbox.lose("PROTOCOL")
    with pytest.raises(SandboxLost) as lost:
        await waiting
    assert lost.value.cause == "PROTOCOL"
    silent = await backend.create(SPEC, lambda _: None)
    with pytest.raises(SandboxLost) as overdue:
        await ask(silent, 0.05)
    assert overdue.value.cause == "SILENT"


async def test_fake_next_daemon_adopts_what_the_first_left(tmp_path: Path) -> None:
    first = FakeBackend(tmp_path)
    made = await first.create(SPEC, lambda _: None)
    await first.stop()
    assert made.lost.done()
    second = FakeBackend(tmp_path, first.containers)
    assert await second.adopt(SPEC, made.facts, "wrong") is None
    assert await second.adopt(SPEC, made.facts, made.secret_digest) is not None
