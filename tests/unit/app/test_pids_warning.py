"""The daemon warns at its start of gVisor profiles whose process limit gVisor itself fills."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from pathlib import Path

import pytest

from sandboxd import app, log
from sandboxd.backends.fake import FakeBackend
from sandboxd.config import GVISOR_PIDS_MIN, ProfileSettings, Settings, short_of_pids


@pytest.mark.parametrize(
    ("runtime", "pids", "short"),
    [
        ("runsc", 512, True),
        ("io.containerd.runsc.v1", GVISOR_PIDS_MIN - 1, True),
        ("my-gVisor", 2048, True),
        ("runsc", GVISOR_PIDS_MIN, False),
        ("runc", 512, False),
        ("kata", 512, False),
    ],
)
def test_gvisor_profile_with_few_pids_is_short_of_them(
    runtime: str, pids: int, short: bool
) -> None:
    profile = ProfileSettings(name="p", runtime=runtime, pids=pids)
    settings = Settings(profiles={"default": ProfileSettings(), "p": profile})
    assert [found.name for found in short_of_pids(settings)] == (["p"] if short else [])


@pytest.mark.parametrize("pids", [512, GVISOR_PIDS_MIN])
async def test_daemon_warns_at_its_start_and_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pids: int
) -> None:
    backend = FakeBackend(tmp_path)
    monkeypatch.setattr(app, "build_backend", lambda settings, metrics, boot_id: backend)
    written = io.StringIO()
    log.configure("info", "text", written)
    profile = ProfileSettings(name="default", runtime="runsc", pids=pids)
    settings = Settings(
        listen="127.0.0.1:0",
        metrics="off",
        state_dir=tmp_path / "state",
        profiles={"default": profile},
    )
    ready = asyncio.Event()
    task = asyncio.create_task(app.serve(settings, lambda line: ready.set(), lambda line: None))
    try:
        await asyncio.wait_for(ready.wait(), 10)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 20)
    warnings = [line for line in written.getvalue().splitlines() if " warning " in line]
    assert len(warnings) == (1 if pids == 512 else 0)
    for line in warnings:
        for fact in ("profile=default", "runtime=runsc", "pids=512", f"={GVISOR_PIDS_MIN}"):
            assert fact in line
