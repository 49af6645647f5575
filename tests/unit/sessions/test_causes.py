"""Limits that a call met, compared over its time, and the end of a whole sandbox by one."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
from pydantic import ByteSize

from sandbox_adapter.v1 import error_pb2, tool_pb2
from sandboxd.backends.base import Counted, SandboxSpec
from sandboxd.backends.fake import FakeBackend, FakeSandbox
from sandboxd.config import ProfileSettings
from sandboxd.sessions import causes, outcomes
from sandboxd.tools.base import Ask

MIB = 1024 * 1024


def _size(mib: int) -> ByteSize:
    return ByteSize(mib * MIB)


RUN = Ask("run", {}, {})
NOTHING = Counted(
    oom_kills=2, own_oom_kills=0, forks_refused=5, memory_peak_bytes=100 * MIB, pids_peak=9
)


@pytest.fixture
async def sandbox(tmp_path: Path) -> FakeSandbox:
    profile = ProfileSettings(name="p", memory=_size(256), pids=64, tmp=_size(64), shm=_size(8))
    made = await FakeBackend(tmp_path).create(SandboxSpec("r", 1, profile), lambda _: None)
    made.counts = NOTHING
    made.victim = "python3"
    return made


async def test_counters_that_stay_tell_nothing(sandbox: FakeSandbox) -> None:
    assert await causes.met(sandbox, causes.seen_before(sandbox, RUN)) == {}


async def test_counters_that_rose_are_told_with_the_sessions_limits(sandbox: FakeSandbox) -> None:
    seen = causes.seen_before(sandbox, RUN)
    sandbox.counts = dataclasses.replace(
        NOTHING, oom_kills=3, forks_refused=9, memory_peak_bytes=240 * MIB, pids_peak=60
    )
    assert await causes.met(sandbox, seen) == {
        "met": {
            "memory": {"limit": 256 * MIB, "peak": 240 * MIB, "victim": "python3"},
            "pids": {"limit": 64, "peak": 60, "victim": ""},
        }
    }


async def test_first_reading_survives_as_json(sandbox: FakeSandbox) -> None:
    seen = json.loads(json.dumps(causes.seen_before(sandbox, RUN)))
    assert await causes.met(sandbox, seen) == {}
    sandbox.counts = dataclasses.replace(NOTHING, oom_kills=3)
    assert (await causes.met(sandbox, seen))["met"].keys() == {"memory"}


async def test_other_ops_are_not_counted(sandbox: FakeSandbox) -> None:
    assert causes.seen_before(sandbox, Ask("grep", {}, {})) is None
    assert await causes.met(sandbox, None) == {}


async def test_host_that_cannot_tell_tells_nothing(sandbox: FakeSandbox) -> None:
    seen = causes.seen_before(sandbox, RUN)
    sandbox.counts = None
    assert causes.seen_before(sandbox, RUN) is None
    assert await causes.met(sandbox, seen) == {}


async def test_sandbox_that_was_out_of_memory_says_so(sandbox: FakeSandbox) -> None:
    sandbox.oom_end = True
    result = outcomes.sandbox_lost()
    result.text = f"some output\n{result.text}"
    await causes.explain_loss(result, sandbox)
    assert result.ending == tool_pb2.ENDING_OOM_KILLED
    assert result.is_error
    assert result.reason == error_pb2.REASON_SANDBOX_LOST
    assert (result.limit.kind, result.limit.limit, result.limit.peak) == (
        "memory",
        256 * MIB,
        100 * MIB,
    )
    assert result.text.startswith(
        "some output\nThe sandbox was out of memory (limit 256 MB, peak 100 MB) and ended. Its"
    )


async def test_sandbox_that_ended_otherwise_stays_lost(sandbox: FakeSandbox) -> None:
    result = outcomes.sandbox_lost()
    before = result.SerializeToString(deterministic=True)
    await causes.explain_loss(result, sandbox)
    assert result.SerializeToString(deterministic=True) == before


async def test_other_results_do_not_ask_why_the_sandbox_ended(sandbox: FakeSandbox) -> None:
    sandbox.oom_end = True
    result = outcomes.unknown(outcomes.WORKER_STOPPED)
    async with asyncio.timeout(1):
        await causes.explain_loss(result, sandbox)
    assert result.ending == tool_pb2.ENDING_UNKNOWN
