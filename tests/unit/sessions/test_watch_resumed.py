"""Watching a call that an earlier daemon left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sandboxd.backends.fake import FakeBackend
from sandboxd.tools.bash import BashTool
from tests.unit.sessions.scripted_command import Command
from tests.unit.worker import Worker, until


async def test_watch_of_a_resumed_call_goes_on_as_soon_as_its_guest_is_back(tmp_path: Path) -> None:
    """Long before the next heartbeat, also where the watcher came before the guest."""
    command = Command()
    first = Worker(tmp_path, FakeBackend(tmp_path))
    first.offered.append(BashTool())
    first.guest.files = command.answer
    await first.start()
    await first.create()
    cut = asyncio.ensure_future(first.call("c", "bash", '{"command": "x"}'))
    await until(lambda: first.sandbox().requests[-1].op == "run")
    await first.stop()
    await asyncio.wait({cut})
    backend = FakeBackend(tmp_path, first.backend.containers)
    backend.calls_alive, backend.sequence = {"c"}, 1
    gate = backend.hold("adopt")
    worker = Worker(tmp_path, backend)
    worker.offered.append(BashTool())
    worker.guest.files = command.answer
    worker.guest.gate.clear()
    starting = asyncio.create_task(worker.start())
    await until(lambda: any(step == "adopt" for step, _ in backend.calls))
    (live,) = worker.parts.directory.all()
    events = worker.parts.watches.watch(live.record.key, "c", 0, 60.0)
    assert (await anext(events)).WhichOneof("event") == "started"
    # In the loop's next turn it waits, with nothing to wait for but the call.
    reading = asyncio.ensure_future(anext(events))
    command.write(b"abc")
    gate.set()
    await starting
    try:
        async with asyncio.timeout(10):
            assert (await reading).output.data == b"abc"
    finally:
        reading.cancel()
        await asyncio.wait({reading})
        await events.aclose()
        worker.guest.gate.set()
        await worker.stop()
