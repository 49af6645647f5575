"""The edit tool: its words to the letter, its facts, its rules for input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.tools.edit import EditTool
from sandboxd.tools.read import ReadTool
from tests.unit.tools.direct_channel import DirectChannel, FixedChannel, reason_of, run_unworded

EDIT = EditTool()
NO_MATCH = "Could not find oldText in f. Check whitespace and indentation: it must match exactly."


@pytest.fixture
def sandbox(tmp_path: Path) -> DirectChannel:
    return DirectChannel(tmp_path)


async def test_edit_says_what_it_replaced(sandbox: DirectChannel) -> None:
    (sandbox.work / "f").write_text("a\nb\n")
    result = await sandbox.call(EDIT, path="f", oldText="b", newText="c")
    assert result.text == "Edited f: 1 replacement at line 2."
    assert result.edit.version
    result.edit.version = ""
    assert result.edit == tool_pb2.EditDetails(replacements=1, lines=[2])
    assert result.ending == tool_pb2.ENDING_COMPLETED
    assert (sandbox.work / "f").read_text() == "a\nc\n"


@pytest.mark.parametrize(
    ("count", "lines"),
    [
        (3, "lines 1, 2, 3"),
        (10, "lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
        (12, "lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more"),
        (300, "lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 290 more"),
    ],
)
async def test_edit_of_many_matches_counts_them(
    sandbox: DirectChannel, count: int, lines: str
) -> None:
    (sandbox.work / "f").write_text("foo\n" * count)
    refused = await sandbox.call(EDIT, path="f", oldText="foo", newText="x")
    assert refused.text == (
        f"oldText matches {count} places in f ({lines}). "
        "Add more surrounding context to make it unique, or set replaceAll."
    )
    assert reason_of(refused) == "SEVERAL_MATCHES"
    assert refused.edit.replacements == count
    done = await sandbox.call(EDIT, path="f", oldText="foo", newText="x", replaceAll=True)
    assert done.text == f"Edited f: {count} replacements at {lines}."
    assert len(done.edit.lines) == min(count, 100)
    assert (sandbox.work / "f").read_text() == "x\n" * count


@pytest.mark.parametrize(
    ("data", "old", "said"),
    [
        ("a\n\tif x:\n", "    if x:", "line 2 if indentation is ignored"),
        ("a  \nb\n", "a\nb", "white space at the ends of lines"),
        ("a\nb\n", "1→a\n2→b", "line-number prefixes"),
        ("a\nb\n", "a\\nb", "escape sequences"),
        ("say “hi”\n", 'say "hi"', "typographic quotes"),
        ("Foo\n", "foo", "upper and lower case"),
        ("a\nthe new text\n", "the old text", "in the file already, at line 2"),
        ("a\n", "something else", "Read the file again"),
    ],
)
async def test_edit_without_a_match_tells_why(
    sandbox: DirectChannel, data: str, old: str, said: str
) -> None:
    (sandbox.work / "f").write_text(data)
    result = await sandbox.call(EDIT, path="f", oldText=old, newText="the new text")
    assert result.text.startswith(NO_MATCH + " ")
    assert said in result.text
    assert reason_of(result) == "NO_MATCH"
    assert result.is_error
    assert (sandbox.work / "f").read_text() == data


async def test_edit_without_a_match_quotes_the_nearest_line(sandbox: DirectChannel) -> None:
    (sandbox.work / "f").write_text("a\n\tif value:\n")
    result = await sandbox.call(EDIT, path="f", oldText="  if value:", newText="x")
    assert result.text.endswith("\nNearest is line 2, tabs shown as \\t: \\tif value:")


@pytest.mark.parametrize(
    ("raw", "text", "reason"),
    [
        (
            {"oldText": "", "newText": "x"},
            "oldText is empty. Use write to create or replace a whole file.",
            "EMPTY_TEXT",
        ),
        (
            {"oldText": "x", "newText": "x"},
            "oldText and newText are identical: nothing to change.",
            "IDENTICAL_TEXT",
        ),
        ({"oldText": "a", "newText": "b", "path": "no"}, "File not found: no", "FILE_NOT_FOUND"),
    ],
)
async def test_edit_error_has_the_contract_text(
    sandbox: DirectChannel, raw: dict[str, Any], text: str, reason: str
) -> None:
    (sandbox.work / "other").write_text("x")
    result = await sandbox.call(EDIT, **{"path": "other", **raw})
    assert result.text == text
    assert reason_of(result) == reason


@pytest.mark.parametrize(
    "raw",
    [
        {"path": "f", "oldText": "a"},
        {"path": "f", "newText": "a"},
        {"path": "f", "oldText": "a", "newText": 5},
        {"path": "f", "oldText": "a", "newText": "b", "replaceAll": "yes"},
        {"path": "f", "oldText": "a", "newText": "\ud800"},
        {"path": "f", "oldText": "a", "newText": "b", "expectedVersion": ""},
        {"path": "f", "oldText": "a", "newText": "b", "expectedVersion": "v" * 65},
        {"path": "f", "oldText": "a", "newText": "b", "expectedVersion": 5},
        {"path": "f", "old_text": "a", "newText": "b"},
    ],
)
async def test_edit_refuses_bad_input_with_words(
    sandbox: DirectChannel, raw: dict[str, Any]
) -> None:
    (sandbox.work / "f").write_text("a")
    result = await sandbox.call(EDIT, **raw)
    assert reason_of(result) == "INVALID_INPUT"
    assert "`" in result.text
    assert (sandbox.work / "f").read_text() == "a"


async def test_edit_refuses_texts_that_no_message_carries(sandbox: DirectChannel) -> None:
    half = "x" * (limits.MESSAGE_BYTES_MAX // 2)
    result = await sandbox.call(EDIT, path="f", oldText=half, newText=half + "y")
    assert reason_of(result) == "FILE_TOO_LARGE"


async def test_edit_at_its_version_happens_and_at_another_is_refused(
    sandbox: DirectChannel,
) -> None:
    (sandbox.work / "f").write_text("a")
    raw = {"path": "f", "oldText": "a", "newText": "b"}
    refused = await sandbox.call(EDIT, **raw, expectedVersion="v")
    assert reason_of(refused) == "VERSION_CONFLICT"
    assert refused.is_error
    assert refused.text == ("f is not at the expected version. Read it again before you change it.")
    version = (await sandbox.call(ReadTool(), path="f")).read.version
    done = await sandbox.call(EDIT, **raw, expectedVersion=version)
    assert done.text == "Edited f: 1 replacement at line 1."
    assert done.edit.version not in ("", version)


@pytest.mark.parametrize(
    ("data", "old", "count", "lines"),
    [
        ("aaa\n", "aa", 2, "1, 1"),
        ("a\n\n\nb\n", "\n\n", 2, "1, 2"),
        ("a\r\n\r\n\r\nb", "\n\n", 2, "1, 2"),
        ("x\ny\nx\ny\nx\n", "x\ny\nx\n", 2, "1, 3"),
        ("a" * 25, "a" * 13, 13, "1, 1, 1, 1, 1, 1, 1, 1, 1, 1 and 3 more"),
    ],
)
async def test_edit_of_a_text_that_can_begin_at_several_places_is_refused(
    sandbox: DirectChannel, data: str, old: str, count: int, lines: str
) -> None:
    (sandbox.work / "f").write_bytes(data.encode())
    refused = await sandbox.call(EDIT, path="f", oldText=old, newText="Z")
    assert refused.text == (
        f"oldText matches {count} places in f (lines {lines}). Add more surrounding context to "
        "make it unique, or set replaceAll."
    )
    assert (refused.edit.replacements, len(refused.edit.lines)) == (count, count)
    done = await sandbox.call(EDIT, path="f", oldText=old, newText="Z", replaceAll=True)
    assert done.text == "Edited f: 1 replacement at line 1."


@pytest.mark.parametrize(
    "fault",
    [
        GuestFault("SEVERAL_MATCHES", "t", {"count": 2}),
        GuestFault("SEVERAL_MATCHES", "t", {"count": 2, "lines": [0]}),
        GuestFault("SEVERAL_MATCHES", "t", {"count": 2, "lines": list(range(1, 102))}),
        GuestFault("NO_MATCH", "t", {"kind": 5}),
        GuestFault("FILE_NOT_FOUND", "t", {"near": ["a"] * 4}),
    ],
)
async def test_edit_of_malformed_facts_ends_the_sandbox(fault: GuestFault) -> None:
    raw = {"path": "f", "oldText": "a", "newText": "b"}
    with pytest.raises(SandboxLost):
        await run_unworded(EDIT, FixedChannel(fault), raw)


@pytest.mark.parametrize(
    "odd", [{"lines": []}, {"replacements": 0}, {"version": "v" * 65}, {"version": "\0"}]
)
async def test_edit_of_malformed_answers_ends_the_sandbox(odd: dict[str, Any]) -> None:
    facts = {"replacements": 1, "lines": [1], "version": "v", **odd}
    with pytest.raises(SandboxLost):
        await run_unworded(
            EDIT, FixedChannel(Reply(facts)), {"path": "f", "oldText": "a", "newText": "b"}
        )
