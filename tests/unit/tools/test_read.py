"""The read tool: its words to the letter, its facts, its rules for input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.tools.read import ReadTool
from tests.unit.tools.direct_channel import DirectChannel, FixedChannel, reason_of, run_unworded

READ = ReadTool()
INSPECT = "Use bash with file, xxd or strings to inspect it."


@pytest.fixture
def sandbox(tmp_path: Path) -> DirectChannel:
    return DirectChannel(tmp_path)


async def test_read_shows_the_raw_text(sandbox: DirectChannel) -> None:
    (sandbox.work / "f").write_bytes(b"a\r\n\tb\n")
    result = await sandbox.call(READ, path="f")
    assert result.text == "a\n\tb\n"
    assert not result.is_error
    assert result.ending == tool_pb2.ENDING_COMPLETED
    assert not result.truncated
    assert (result.bytes_total, result.lines_total) == (6, 2)
    assert 0 < len(result.read.version) <= limits.VERSION_BYTES_MAX
    result.read.version = ""
    assert result.read == tool_pb2.ReadDetails(first_line=1, last_line=2, total_exact=True)


async def test_read_that_is_cut_says_how_to_go_on(sandbox: DirectChannel) -> None:
    (sandbox.work / "f").write_text("".join(f"{n}\n" for n in range(1, 501)))
    result = await sandbox.call(READ, path="f", offset=10, limit=10)
    assert result.text.splitlines() == [
        *[str(n) for n in range(10, 20)],
        "[Showing lines 10-19 of 500. Use offset=20 to continue.]",
    ]
    assert result.truncated
    assert result.read.next_offset == 20
    last = await sandbox.call(READ, path="f", offset=500.0)
    assert last.text == "500\n"


async def test_read_pages_through_ten_thousand_lines(sandbox: DirectChannel) -> None:
    lines = [f"line {n}" for n in range(1, 10_001)]
    (sandbox.work / "f").write_text("\n".join(lines))
    offset, seen, pages = 1, [], 0
    while True:
        result = await sandbox.call(READ, path="f", offset=offset, limit=9_999)
        shown = result.text.splitlines()
        pages += 1
        if not result.read.HasField("next_offset"):
            seen += shown
            break
        assert shown[-1] == (
            f"[Showing lines {offset}-{offset + 1_999} of 10000. Use offset={offset + 2_000} "
            "to continue.]"
        )
        seen += shown[:-1]
        offset = result.read.next_offset
    assert seen == lines
    assert pages == 5


async def test_read_of_a_long_line_names_the_next_one(sandbox: DirectChannel) -> None:
    (sandbox.work / "f").write_text("first\n" + "x" * 60_000 + "\nlast")
    result = await sandbox.call(READ, path="f")
    assert result.text == "first\n[Showing lines 1-1 of 3. Use offset=2 to continue.]"
    result = await sandbox.call(READ, path="f", offset=2)
    assert result.text == (
        "x" * 51_200 + "\n[Line 2 is longer than 50 KB: its first 50 KB are shown. "
        "The rest of the line is not reachable with offset/limit.]\n[Use offset=3 to continue.]"
    )
    assert result.truncated
    (sandbox.work / "g").write_text("x" * 60_000)
    result = await sandbox.call(READ, path="g")
    assert result.text.endswith("not reachable with offset/limit.]")
    assert result.truncated


async def test_read_where_the_total_is_not_known_says_at_least() -> None:
    facts = {
        "first": 1,
        "last": 2,
        "total": 7,
        "total_exact": False,
        "next": 3,
        "size": 99,
        "long_line": False,
        "replaced": False,
        "nul": False,
        "encoding": "utf-8",
        "version": "",
    }
    result = await run_unworded(READ, FixedChannel(Reply(facts, b"a\nb\n")), {"path": "f"})
    assert result.text.endswith("[Showing lines 1-2 of at least 7. Use offset=3 to continue.]")
    assert not result.read.total_exact


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "[File is empty]"),
        (b"\xef\xbb\xbf", "[File is empty]"),
        (
            b"caf\xe9",
            "caf\ufffd\n[File is not valid UTF-8: undecodable bytes are shown as U+FFFD.]",
        ),
        (b"\n", "\n"),
        (
            b"\xff\xfea\0\0\xdc",
            (
                "a\ufffd\n[File is not valid UTF-16: undecodable bytes are shown as U+FFFD.]\n"
                "[File is UTF-16: it is shown decoded, and edit cannot change it.]"
            ),
        ),
    ],
)
async def test_read_text_of_special_content(sandbox: DirectChannel, data: bytes, text: str) -> None:
    (sandbox.work / "f").write_bytes(data)
    result = await sandbox.call(READ, path="f")
    assert result.text == text
    assert not result.is_error


@pytest.mark.parametrize(
    ("raw", "text", "reason"),
    [
        (
            {"path": "f", "offset": 4},
            "Offset 4 is beyond the end of the file (3 lines).",
            "OFFSET_BEYOND_END",
        ),
        (
            {"path": "one", "offset": 2},
            "Offset 2 is beyond the end of the file (1 line).",
            "OFFSET_BEYOND_END",
        ),
        (
            {"path": "bin"},
            f"bin is a binary file (8 bytes, PNG image). {INSPECT}",
            "BINARY_FILE",
        ),
        (
            {"path": "nul"},
            f"nul is a binary file (1 byte). {INSPECT}",
            "BINARY_FILE",
        ),
        ({"path": "d"}, "d is a directory. Use glob or bash ls to list it.", "IS_DIRECTORY"),
        ({"path": "F"}, "File not found: F\nDid you mean: f?", "FILE_NOT_FOUND"),
        ({"path": "zzzz"}, "File not found: zzzz", "FILE_NOT_FOUND"),
        (
            {"path": r"z\xff.txt"},
            (
                "File not found: z\\xff.txt\n"
                "A name that is not UTF-8 is shown with \\xNN; only bash reaches it."
            ),
            "FILE_NOT_FOUND",
        ),
    ],
)
async def test_read_error_has_the_contract_text(
    sandbox: DirectChannel, raw: dict[str, Any], text: str, reason: str
) -> None:
    (sandbox.work / "f").write_text("a\nb\nc\n")
    (sandbox.work / "one").write_text("a")
    (sandbox.work / "bin").write_bytes(b"\x89PNG\r\n\x1a\n")
    (sandbox.work / "nul").write_bytes(b"\0")
    (sandbox.work / "d").mkdir()
    result = await sandbox.call(READ, **raw)
    assert result.text == text
    assert result.is_error
    assert reason_of(result) == reason
    assert result.ending == tool_pb2.ENDING_COMPLETED


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"path": ""},
        {"path": 5},
        {"path": "a\0b"},
        {"path": "\ud800"},
        {"path": "f", "offset": 0},
        {"path": "f", "offset": -1},
        {"path": "f", "limit": 0},
        {"path": "f", "offset": "10"},
        {"path": "f", "offset": 1.5},
        {"path": "f", "offset": float("nan")},
        {"path": "f", "offset": float("inf")},
        {"path": "f", "offset": True},
        {"path": "f", "offset": 2**63},
        {"path": "f", "line": 3},
    ],
)
async def test_read_refuses_bad_input_with_words(
    sandbox: DirectChannel, raw: dict[str, Any]
) -> None:
    (sandbox.work / "f").write_text("a\n")
    result = await sandbox.call(READ, **raw)
    assert result.is_error
    assert reason_of(result) == "INVALID_INPUT"
    assert "`" in result.text
    assert "\0" not in result.text
    result.SerializeToString()


async def test_read_path_that_is_too_long_is_refused_before_the_guest() -> None:
    channel = FixedChannel(GuestFault("IO_ERROR", "was asked", {}))
    with pytest.raises(Exception, match="4095 are the most") as caught:
        await run_unworded(READ, channel, {"path": "é" * 2_048})
    assert caught.value.reason == "PATH_TOO_LONG"  # type: ignore[attr-defined]


async def test_read_of_a_huge_offset_is_beyond_the_end(sandbox: DirectChannel) -> None:
    (sandbox.work / "f").write_text("a\n")
    result = await sandbox.call(READ, path="f", offset=1e12, limit=1e12)
    assert result.text == "Offset 1000000000000 is beyond the end of the file (1 line)."


async def test_read_names_undecodable_neighbours_in_no_hint(sandbox: DirectChannel) -> None:
    os.close(os.open(os.fsencode(sandbox.work) + b"/caf\xe9", os.O_CREAT))
    result = await sandbox.call(READ, path="cafe")
    assert result.text == "File not found: cafe"


@pytest.mark.parametrize(
    ("facts", "body"),
    [
        ({"first": -1}, b""),
        ({"total": True}, b""),
        ({"next": "3"}, b""),
        ({"encoding": None}, b""),
        ({"size": 2**70}, b""),
        ({}, b"\xff"),
        ({}, b"\0"),
    ],
)
async def test_read_of_malformed_facts_ends_the_sandbox(facts: dict[str, Any], body: bytes) -> None:
    good: dict[str, Any] = {
        "first": 1,
        "last": 1,
        "total": 1,
        "total_exact": True,
        "next": None,
        "size": 1,
        "long_line": False,
        "replaced": False,
        "nul": False,
        "encoding": "utf-8",
        "version": "",
    }
    await run_unworded(READ, FixedChannel(Reply(good, b"a")), {"path": "f"})
    with pytest.raises(SandboxLost):
        await run_unworded(READ, FixedChannel(Reply({**good, **facts}, body)), {"path": "f"})


async def test_read_of_a_hostile_fault_is_plain_text(sandbox: DirectChannel) -> None:
    fault = GuestFault("IO_ERROR", "\x1b[31m\0" + "x" * 100_000, {})
    with pytest.raises(Exception, match="x1b") as caught:
        await run_unworded(READ, FixedChannel(fault), {"path": "f"})
    assert len(str(caught.value)) < 7_000
    assert "\0" not in str(caught.value)
