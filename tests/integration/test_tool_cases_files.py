"""Unusual inputs to read, write and edit, on both backends: texts and facts to the letter."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from sandbox_adapter.client import TypedInput
from sandbox_adapter.v1 import error_pb2, tool_pb2
from tests.integration.conftest import OpenSession

LONG = (
    "[Line {} is longer than 50 KB: its first 50 KB are shown. The rest of the line is not "
    "reachable with offset/limit.]"
)
NOT_UTF8 = "[File is not valid UTF-8: undecodable bytes are shown as U+FFFD.]"


async def put(session: OpenSession, path: str, data: bytes) -> None:
    """Makes a file of any bytes, which the write tool cannot."""
    done = await session.bash(f"base64 -d > {path} <<'E'\n{base64.b64encode(data).decode()}\nE")
    assert done.exit_code == 0, done.text


async def content(session: OpenSession, path: str) -> bytes:
    return base64.b64decode((await session.bash(f"base64 -w0 {path}; echo")).text)


def refused(result: tool_pb2.ToolResult, reason: str, text: str | None = None) -> None:
    assert result.is_error
    assert error_pb2.Reason.Name(result.reason) == f"REASON_{reason}"
    assert result.ending == tool_pb2.ENDING_COMPLETED
    if text is not None:
        assert result.text == text


async def test_read_splits_at_line_feeds_and_nowhere_else(session: OpenSession) -> None:
    await put(session, "f", "\ufeffa\fb\vc\u2028d\u0085e\x1cf\rg\r\n\ufeffh\r\r\n".encode())
    result = await session.tool("read", path="f")
    assert result.text == "a\fb\vc\u2028d\u0085e\x1cf\rg\n\ufeffh\r\n"
    assert (result.lines_total, result.read.first_line, result.read.last_line) == (2, 1, 2)


@pytest.mark.parametrize(
    ("text", "shown", "next_offset"),
    [
        ("x" * 51_200, "x" * 51_200, None),
        ("x" * 51_201 + "\n", "x" * 51_200 + "\n" + LONG.format(1), None),
        ("x" + "é" * 30_000 + "\ny", "x" + "é" * 25_599 + "\n" + LONG.format(1), 2),
        ("abc" + "😀" * 20_000, "abc" + "😀" * 12_799 + "\n" + LONG.format(1), None),
    ],
    ids=["exact", "one_more", "two_bytes", "four_bytes"],
)
async def test_read_of_a_long_line_is_cut_at_fifty_kilobytes(
    session: OpenSession, text: str, shown: str, next_offset: int | None
) -> None:
    await session.tool("write", path="f", content=text)
    result = await session.tool("read", path="f")
    more = f"\n[Use offset={next_offset} to continue.]" if next_offset else ""
    assert result.text == shown + more
    assert result.truncated == (len(text.encode()) > 51_200)
    assert (result.read.next_offset if result.read.HasField("next_offset") else None) == next_offset


@pytest.mark.parametrize("field", ["offset", "limit"])
@pytest.mark.parametrize("value", [0, -1, 2**63, 10**300, 1.5, True, "10", [1], {}])
async def test_read_refuses_what_is_no_line_number(
    session: OpenSession, field: str, value: Any
) -> None:
    await session.tool("write", path="f", content="a\nb\n")
    result = await session.tool("read", path="f", **{field: value})
    refused(result, "INVALID_INPUT")
    assert f"`{field}`" in result.text


async def test_read_takes_the_greatest_line_number(session: OpenSession) -> None:
    await session.tool("write", path="f", content="a\n")
    most = 2**63 - 1
    past = await session.tool("read", path="f", offset=most, limit=most)
    text = f"Offset {most} is beyond the end of the file (1 line)."
    refused(past, "OFFSET_BEYOND_END", text)
    assert (await session.tool("read", path="f", offset=1.0, limit=None)).text == "a\n"


@pytest.mark.parametrize(
    "path", ["👩\u200d💻.txt", "a\u00a0b", "x\u2028y", "e\u0301", "q/" * 2_000 + "end"]
)
async def test_path_stands_in_the_text_as_it_was_given(session: OpenSession, path: str) -> None:
    refused(await session.tool("read", path=path), "FILE_NOT_FOUND", f"File not found: {path}")
    if len(path) < 100:
        assert (await session.tool("write", path=path, content="1")).text == (
            f"Wrote 1 byte to {path}."
        )
        missed = await session.tool("edit", path=path, oldText="2", newText="3")
        assert missed.text.startswith(f"Could not find oldText in {path}. Check whitespace")


async def test_read_names_binary_files_by_their_first_bytes(session: OpenSession) -> None:
    advice = "Use bash with file, xxd or strings to inspect it."
    await put(session, "one.txt", b"\0")
    text = f"one.txt is a binary file (1 byte). {advice}"
    refused(await session.tool("read", path="one.txt"), "BINARY_FILE", text)
    await put(session, "p.txt", b"\x89PNG\r\n\x1a\nabc")
    text = f"p.txt is a binary file (11 bytes, PNG image). {advice}"
    refused(await session.tool("read", path="p.txt"), "BINARY_FILE", text)
    await put(session, "late", b"a" * 8_192 + b"\0caf\xe9\n")
    late = await session.tool("read", path="late")
    assert not late.is_error
    assert "\0" not in late.text
    assert NOT_UTF8 in late.text
    assert late.read.replaced_bytes


async def test_write_keeps_every_byte_of_any_text(session: OpenSession) -> None:
    for text in ("", "a", "a\r\nb\r", "\ufeffx\0\x01\x7f", "😀\u2028é", "\ufffd \n "):
        size = len(text.encode())
        result = await session.tool("write", path="f", content=text)
        assert result.text == f"Wrote {size} byte{'' if size == 1 else 's'} to f."
        assert result.write.bytes_written == size
        assert await content(session, "f") == text.encode()


async def test_write_goes_through_links_that_lead_nowhere_yet(session: OpenSession) -> None:
    await session.bash("ln -s deep/er/gone dangling; ln -s dangling second")
    result = await session.tool("write", path="second", content="D")
    assert result.write.created
    assert (await session.bash("cat deep/er/gone; readlink dangling")).text == "Ddeep/er/gone\n"


async def test_full_disk_leaves_the_old_content(docker_session: OpenSession) -> None:
    await docker_session.bash(
        "echo old > /tmp/a; echo old > /tmp/b; ln /tmp/b /tmp/c; "
        "dd if=/dev/zero of=/tmp/fill bs=1M 2>/dev/null"
    )
    for path in ("/tmp/a", "/tmp/b", "/tmp/new"):
        result = await docker_session.tool("write", path=path, content="z" * 3_000_000)
        assert result.is_error
        assert result.ending == tool_pb2.ENDING_DISK_FULL
    left = await docker_session.bash("cat /tmp/a /tmp/b; ls -A /tmp | grep -c -e new -e '[.]tmp'")
    assert left.text == "old\nold\n0\n[Command exited with code 1]"


@pytest.mark.parametrize(
    ("data", "old", "new", "want"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\nc\r\nd\n", "b\nc", "B\nC", b"a\r\nB\nC\r\nd\n"),
        (b"a\nb\n", "a\r\nb", "x\r\ny", b"x\ny\n"),
        (b"a\rb\nfoo\r\nbar\r\r\n", "foo", "F", b"a\rb\nF\r\nbar\r\r\n"),
        (b"\xef\xbb\xbfhi\n", "\ufeffhi", "HI", b"\xef\xbb\xbfHI\n"),
        (b"caf\xe9 \xff old \x80\0", "old", "é", b"caf\xe9 \xff \xc3\xa9 \x80\0"),
        (b"x OLD\n", "OLD", r"$& $1 \1 \g<0>", rb"x $& $1 \1 \g<0>" + b"\n"),
        (b"  pad  \n", "  pad  ", " pad ", b" pad \n"),
        (b"a\nlast", "last", "last\n", b"a\nlast\n"),
        (b'\\n \\"', "\\n", "\\t", b'\\t \\"'),
    ],
)
async def test_edit_changes_the_match_and_no_other_byte(
    session: OpenSession, data: bytes, old: str, new: str, want: bytes
) -> None:
    await put(session, "f", data)
    result = await session.tool("edit", path="f", oldText=old, newText=new)
    assert not result.is_error, result.text
    assert await content(session, "f") == want


@pytest.mark.parametrize("count", [1, 10, 11, 12])
async def test_edit_names_ten_lines_and_counts_the_rest(session: OpenSession, count: int) -> None:
    await session.tool("write", path="f", content="hit\n" * count)
    named = ", ".join(str(line) for line in range(1, min(count, 10) + 1))
    more = f" and {count - 10} more" if count > 10 else ""
    if count > 1:
        several = await session.tool("edit", path="f", oldText="hit", newText="x")
        text = f"oldText matches {count} places in f (lines {named}{more}). Add more surrounding "
        refused(several, "SEVERAL_MATCHES", text + "context to make it unique, or set replaceAll.")
        assert (several.edit.replacements, len(several.edit.lines)) == (count, count)
    done = await session.tool("edit", path="f", oldText="hit", newText="x", replaceAll=True)
    noun, at = ("replacement", "line") if count == 1 else ("replacements", "lines")
    assert done.text == f"Edited f: {count} {noun} at {at} {named}{more}."


async def test_edit_tells_of_pasted_line_numbers(session: OpenSession) -> None:
    await session.tool("write", path="f", content="a\n\thello\n")
    result = await session.tool("edit", path="f", oldText="     2\t\thello", newText="x")
    refused(result, "NO_MATCH")
    assert "line-number prefixes" in result.text
    assert await content(session, "f") == b"a\n\thello\n"


@pytest.mark.parametrize(
    ("typed", "name", "arguments"),
    [
        (tool_pb2.ReadInput(path="f", offset=2**53 + 1), "read", {"offset": 2**53 + 1}),
        (tool_pb2.ReadInput(path="f", offset=10**18), "read", {"offset": 1e18}),
        (tool_pb2.ReadInput(path="f", limit=-(2**63)), "read", {"limit": -(2**63)}),
        (tool_pb2.WriteInput(path="f"), "write", {"content": ""}),
        (
            tool_pb2.EditInput(path="f", new_text="é", replace_all=False),
            "edit",
            {"oldText": "", "newText": "é", "replaceAll": False},
        ),
    ],
)
async def test_typed_and_custom_input_are_the_same_call(
    session: OpenSession, typed: TypedInput, name: str, arguments: dict[str, Any]
) -> None:
    first = (await session.client.call_typed(session.id, typed, call_id="same")).result
    again = await session.tool(name, path="f", call_id="same", **arguments)
    assert again.replayed
    again.replayed = False
    assert again == first


async def test_edit_and_write_at_once_leave_one_whole_state(session: OpenSession) -> None:
    sizes = {"A": 300_000, "B": 500_000, "C": 10}
    await asyncio.gather(
        *(
            session.tool("write", path="f", content=char * size)
            for char, size in list(sizes.items()) * 4
        )
    )
    shown = await session.bash("head -c1 f; stat -c ' %s' f; tr -d 'ABC' < f | wc -c; ls -A")
    first, size, other, *names = shown.text.split()
    assert (int(size), int(other), names) == (sizes[first], 0, ["f"])
