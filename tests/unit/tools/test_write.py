"""The write tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.tools.write import WriteTool
from tests.unit.tools.direct_channel import (
    DirectChannel,
    FixedChannel,
    reason_of,
    run_tool,
    run_unworded,
)

WRITE = WriteTool()


@pytest.fixture
def sandbox(tmp_path: Path) -> DirectChannel:
    return DirectChannel(tmp_path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "Wrote 0 bytes to a/f."),
        ("x", "Wrote 1 byte to a/f."),
        ("é\r\n\0", "Wrote 5 bytes to a/f."),
    ],
)
async def test_write_is_byte_for_byte_and_says_how_many(
    sandbox: DirectChannel, content: str, text: str
) -> None:
    result = await sandbox.call(WRITE, path="a/f", content=content)
    assert result.text == text
    assert (sandbox.work / "a/f").read_bytes() == content.encode()
    assert result.ending == tool_pb2.ENDING_COMPLETED
    assert result.write.created
    assert result.write.bytes_written == len(content.encode())
    again = await sandbox.call(WRITE, path="a/f", content=content)
    assert not again.write.created


async def test_write_at_the_bound_passes_and_over_it_is_refused(sandbox: DirectChannel) -> None:
    most = "x" * limits.WRITE_BYTES_MAX
    result = await sandbox.call(WRITE, path="f", content=most)
    assert result.text == "Wrote 16777216 bytes to f."
    result = await sandbox.call(WRITE, path="f", content=most + "y")
    assert reason_of(result) == "FILE_TOO_LARGE"
    assert (sandbox.work / "f").stat().st_size == len(most)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"path": "f"}, "INVALID_INPUT"),
        ({"content": "x"}, "INVALID_INPUT"),
        ({"path": "f", "content": None}, "INVALID_INPUT"),
        ({"path": "f", "content": "a\udc80"}, "INVALID_INPUT"),
        ({"path": "f", "content": "x", "expectedVersion": ""}, "INVALID_INPUT"),
        ({"path": "f", "content": "x", "expectedVersion": "é"}, "INVALID_INPUT"),
        ({"path": "f", "content": "x", "expectedVersion": ["v"]}, "INVALID_INPUT"),
        ({"path": "new/f", "content": "x", "expectedVersion": "v"}, "VERSION_CONFLICT"),
        ({"path": "file", "content": "x", "expectedVersion": "absent"}, "VERSION_CONFLICT"),
        ({"path": "f", "content": "x", "mode": 1}, "INVALID_INPUT"),
        ({"path": "d", "content": "x"}, "IS_DIRECTORY"),
        ({"path": "file/f", "content": "x"}, "NOT_DIRECTORY"),
        ({"path": "/proc/self/new/f", "content": "x"}, "FILE_NOT_FOUND"),
    ],
)
async def test_write_error_is_a_result_and_writes_nothing(
    sandbox: DirectChannel, raw: dict[str, Any], reason: str
) -> None:
    (sandbox.work / "d").mkdir()
    (sandbox.work / "file").write_text("kept")
    result = await sandbox.call(WRITE, **raw)
    assert result.is_error
    assert reason_of(result) == reason
    assert result.text
    assert sorted(path.name for path in sandbox.work.iterdir()) == ["d", "file"]
    assert (sandbox.work / "file").read_text() == "kept"


async def test_write_names_the_place_of_a_lone_surrogate(sandbox: DirectChannel) -> None:
    result = await sandbox.call(WRITE, path="f", content="ab\ud83d")
    assert "U+D83D" in result.text
    assert "character 3" in result.text


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("DISK_FULL", tool_pb2.ENDING_DISK_FULL),
        ("READ_ONLY", tool_pb2.ENDING_COMPLETED),
        ("CANCELLED_BY_CALLER", tool_pb2.ENDING_CANCELLED),
    ],
)
async def test_write_ending_follows_the_reason(reason: str, ending: tool_pb2.Ending) -> None:
    channel = FixedChannel(GuestFault(reason, "said so", {}))
    result = await run_tool(WRITE, channel, {"path": "f", "content": "x"})
    assert result.ending == ending
    assert result.is_error
    assert reason_of(result) == reason


async def test_write_of_a_version_conflict_has_the_contract_text() -> None:
    channel = FixedChannel(GuestFault("VERSION_CONFLICT", "other words", {}))
    result = await run_tool(WRITE, channel, {"path": "f", "content": "x"})
    assert result.text == ("f is not at the expected version. Read it again before you change it.")


async def test_write_gives_the_version_that_the_next_one_expects(sandbox: DirectChannel) -> None:
    version = "absent"
    for content in ("1", "2", "3"):
        result = await sandbox.call(WRITE, path="f", content=content, expectedVersion=version)
        assert not result.is_error, result.text
        version = result.write.version
    assert (await sandbox.call(WRITE, path="f", content="4", expectedVersion=None)).text
    stale = await sandbox.call(WRITE, path="f", content="5", expectedVersion=version)
    assert reason_of(stale) == "VERSION_CONFLICT"
    assert (sandbox.work / "f").read_text() == "4"


async def test_write_of_malformed_facts_ends_the_sandbox() -> None:
    reply = Reply({"bytes": -1, "created": True, "version": ""})
    with pytest.raises(SandboxLost):
        await run_unworded(WRITE, FixedChannel(reply), {"path": "f", "content": "x"})
