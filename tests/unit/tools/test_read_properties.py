"""Read against a naive reader of the whole file, page by page (contract.md 6, 9)."""

from __future__ import annotations

import asyncio
import codecs
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandbox_adapter.v1 import tool_pb2
from sandboxd.guest import files
from sandboxd.guest.sniff import binary_type
from sandboxd.tools.read import ReadTool
from tests.unit.strategies import FILES, SHOWN_BYTES_MAX, text_files
from tests.unit.tools.direct_channel import DirectChannel, reason_of

# A failure must show itself, however large its example is.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

READ = ReadTool()
LINES_MAX = 2_000
WIDE = {
    codecs.BOM_UTF32_LE: ("utf-32-le", "UTF-32"),
    codecs.BOM_UTF32_BE: ("utf-32-be", "UTF-32"),
    codecs.BOM_UTF16_LE: ("utf-16-le", "UTF-16"),
    codecs.BOM_UTF16_BE: ("utf-16-be", "UTF-16"),
}
NOT_UTF8 = "[File is not valid UTF-8: undecodable bytes are shown as U+FFFD.]"
NUL_NOTE = "[NUL bytes are shown as ␀.]"


@dataclass
class Naive:
    """A file read whole."""

    lines: list[str]
    """Without their endings."""
    ended: bool
    """Whether the last line has its newline."""
    wide: str
    valid: bool


def naive(data: bytes) -> Naive | None:
    """None for what is binary."""
    for mark, (codec, kind) in WIDE.items():
        if data.startswith(mark):
            name, text = kind, data[len(mark) :].decode(codec, "replace")
            valid = text.encode(codec) == data[len(mark) :]
            break
    else:
        # Which bytes are a sure sign of something is a list of the code's own.
        if b"\0" in data[: 8 * 1024] or binary_type(data[: 8 * 1024]) is not None:
            return None
        name, data = "", data.removeprefix(codecs.BOM_UTF8)
        text = data.decode("utf-8", "replace")
        valid = text.encode() == data
    lines = text.split("\n")
    ended = lines[-1] == ""
    if ended:
        lines.pop()
    shown = [line.removesuffix("\r").replace("\0", "␀") for line in lines]
    return Naive(shown, ended, name, valid)


def expected_page(file: Naive, offset: int, limit: int) -> tuple[str, int, bool]:
    """Body, last line in it, and whether that line is cut."""
    body, size, last = "", 0, offset - 1
    for number in range(offset, min(offset + limit, len(file.lines) + 1)):
        line = file.lines[number - 1]
        ending = "\n" if number < len(file.lines) or file.ended else ""
        line_bytes = len(line.encode())
        if not body and last < offset and line_bytes > SHOWN_BYTES_MAX:
            return line.encode()[:SHOWN_BYTES_MAX].decode("utf-8", "ignore"), number, True
        if not body and last < offset and line_bytes == SHOWN_BYTES_MAX:
            return line, number, False
        if size + line_bytes + len(ending) > SHOWN_BYTES_MAX:
            break
        body, size, last = body + line + ending, size + line_bytes + len(ending), number
    return body, last, False


def expected_markers(file: Naive, offset: int, last: int, cut: bool) -> list[str]:
    total = len(file.lines)
    if cut:
        said = (
            f"[Line {last} is longer than 50 KB: its first 50 KB are shown. "
            "The rest of the line is not reachable with offset/limit.]"
        )
        return [said] + ([f"[Use offset={last + 1} to continue.]"] if last < total else [])
    if last < total:
        return [f"[Showing lines {offset}-{last} of {total}. Use offset={last + 1} to continue.]"]
    return []


@pytest.fixture(scope="module")
def place() -> Iterator[DirectChannel]:
    with tempfile.TemporaryDirectory() as folder:
        yield DirectChannel(Path(folder))


def ask(place: DirectChannel, **raw: object) -> tool_pb2.ToolResult:
    return asyncio.run(place.call(READ, path="f", **raw))


def check_page(result: tool_pb2.ToolResult, file: Naive, data: bytes, limit: int) -> None:
    offset, facts = result.read.first_line, result.read
    body, last, cut = expected_page(file, offset, limit)
    notes = ["[File is empty]"] if not file.lines else []
    # What broke may lie just behind the part of a long line that is shown.
    assert not (file.valid and facts.replaced_bytes)
    if "\ufffd" in body and not file.valid and "\ufffd".encode() not in data:
        assert facts.replaced_bytes
    if facts.replaced_bytes:
        notes.append(NOT_UTF8.replace("UTF-8", file.wide or "UTF-8"))
    if file.wide:
        notes.append(f"[File is {file.wide}: it is shown decoded, and edit cannot change it.]")
    if NUL_NOTE in result.text:
        assert b"\0" in data
        notes.append(NUL_NOTE)
    else:
        assert "␀" not in body or "␀".encode() in data
    notes += expected_markers(file, offset, last, cut)
    gap = "" if not notes or not body or body.endswith("\n") else "\n"
    assert result.text == body + gap + "\n".join(notes)
    assert facts.last_line == last
    assert facts.HasField("next_offset") == (last < len(file.lines))
    assert result.truncated == (cut or last < len(file.lines))
    assert (result.lines_total, result.bytes_total) == (len(file.lines), len(data))
    assert facts.total_exact
    result.SerializeToString()


@given(
    FILES,
    st.sampled_from([1, 2, 3, 700, 1_999, 2_000, 2_001, None]),
    st.sampled_from([8_192, 8_193, 30_000, 1 << 20]),
)
@example(b"x" * SHOWN_BYTES_MAX + b"\n\nz", 5, 8_192)
@example(b"x" * SHOWN_BYTES_MAX + b"\r\n", None, 8_192)
@example(b"\xff" * 17_067 + b"\xe2\x82\r\n", None, 8_192)
def test_following_the_offsets_shows_every_line_once(
    place: DirectChannel, data: bytes, limit: int | None, chunk: int
) -> None:
    (place.work / "f").write_bytes(data)
    file = naive(data)
    with mock.patch.object(files, "read_chunk", lambda fd: os.read(fd, chunk)):
        if file is None:
            refused = ask(place)
            assert (refused.is_error, reason_of(refused)) == (True, "BINARY_FILE")
            return
        # Single lines of thousands would be as many calls: the middle is skipped.
        offset, pages = 1, 0
        while True:
            result = ask(place, offset=offset, **({"limit": limit} if limit else {}))
            assert not result.is_error, result.text
            if file.lines:
                assert result.read.first_line == offset
                check_page(result, file, data, min(limit or LINES_MAX, LINES_MAX))
            else:
                assert (result.read.first_line, result.read.last_line) == (0, 0)
                assert result.text.startswith("[File is empty]")
            if not result.read.HasField("next_offset"):
                break
            assert result.read.next_offset == result.read.last_line + 1
            offset, pages = result.read.next_offset, pages + 1
            if pages == 6 and limit is not None and limit <= 3:
                offset = max(offset, len(file.lines) - 4)
        assert result.read.last_line == len(file.lines)


@given(text_files(long=False), st.integers(1, 10_000))
def test_offset_past_the_end_is_an_error_with_the_number_of_lines(
    place: DirectChannel, data: bytes, past: int
) -> None:
    (place.work / "f").write_bytes(data)
    file = naive(data)
    if file is None:
        return
    total = len(file.lines)
    offset = max(total, 1) + past
    result = ask(place, offset=offset)
    assert (result.is_error, reason_of(result)) == (True, "OFFSET_BEYOND_END")
    lines = "1 line" if total == 1 else f"{total} lines"
    assert result.text == f"Offset {offset} is beyond the end of the file ({lines})."
