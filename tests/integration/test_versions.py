"""File versions over gRPC, on both backends: tools and file verbs compare the same ones."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator

import pytest

from sandbox_adapter import errors
from sandbox_adapter.v1 import error_pb2, tool_pb2
from tests.integration.conftest import OpenSession

MIB = 1024 * 1024
CONFLICT = "{} is not at the expected version. Read it again before you change it."


def refused(result: tool_pb2.ToolResult, path: str) -> None:
    assert result.is_error
    assert result.reason == error_pb2.REASON_VERSION_CONFLICT
    assert result.ending == tool_pb2.ENDING_COMPLETED
    assert result.text == CONFLICT.format(path)


async def version_of(session: OpenSession, path: str) -> str:
    return (await session.client.files.stat(session.id, path)).version


async def test_every_result_tells_the_same_version(session: OpenSession) -> None:
    files = session.client.files
    wrote = (await session.tool("write", path="a", content="x = 1\ny = 2\n")).write.version
    shown = (await session.tool("read", path="a", offset=2, limit=1)).read.version
    put = (await files.write(session.id, "b", b"x = 1\ny = 2\n")).version
    async with files.read(session.id, "b") as reader:
        opened = reader.stat.version
    for part in ({"offset": 3}, {"length": 1}, {"offset": 3, "length": 1}):
        async with files.read(session.id, "b", **part) as reader:
            # Nobody waits for the hash of the whole.
            assert reader.stat.version == ""
    assert {wrote, shown, put, opened, await version_of(session, "b")} == {wrote}
    assert 0 < len(wrote) <= 64
    edited = await session.tool("edit", path="a", oldText="y = 2", newText="y = 3")
    assert edited.edit.version == await version_of(session, "a") != wrote
    listed = [entry async for page in files.list(session.id, ".") for entry in page.entries]
    assert {entry.stat.version for entry in listed} == {""}


async def test_a_chain_of_changes_each_at_the_version_before(session: OpenSession) -> None:
    files = session.client.files
    made = await session.tool("write", path="d/f", content="one\n", expectedVersion="absent")
    first = made.write.version
    edited = await session.tool(
        "edit", path="d/f", oldText="one", newText="two", expectedVersion=first
    )
    assert edited.text == "Edited d/f: 1 replacement at line 1."
    stored = await files.write(session.id, "d/f", b"three\n", expected_version=edited.edit.version)
    typed = await session.client.call_typed(
        session.id,
        tool_pb2.WriteInput(path="d/f", content="four\n", expected_version=stored.version),
    )
    assert not typed.result.is_error
    refused(await session.tool("write", path="d/f", content="late", expectedVersion=first), "d/f")
    refused(
        await session.tool("edit", path="d/f", oldText="f", newText="F", expectedVersion=first),
        "d/f",
    )
    with pytest.raises(errors.VersionConflict) as caught:
        await files.write(session.id, "d/f", b"late", expected_version=first)
    assert caught.value.status == "ABORTED"
    assert (await session.bash("cat d/f")).text == "four\n"


async def test_refused_change_leaves_no_trace(session: OpenSession) -> None:
    await session.bash("printf old > f; chmod 640 f; ln f hard; ln -s f soft; sleep 0.02")
    look = "stat -c '%n %a %i %s %y %z' . f hard soft; ls -A; cat f"
    before = (await session.bash(look)).text
    for path in ("f", "hard", "soft"):
        for expected in ("absent", "v", "c-" + "0" * 60):
            result = await session.tool("write", path=path, content="n", expectedVersion=expected)
            refused(result, path)
            result = await session.tool(
                "edit", path=path, oldText="old", newText="n", expectedVersion=expected
            )
            refused(result, path)
            with pytest.raises(errors.VersionConflict):
                await session.client.files.write(
                    session.id, path, b"n", mode=0o600, expected_version=expected
                )
    gone = await session.tool("write", path="new/dir/f", content="n", expectedVersion="v")
    refused(gone, "new/dir/f")
    with pytest.raises(errors.VersionConflict):
        await session.client.files.write(
            session.id, "new/dir/f", b"n", make_parents=True, expected_version="v"
        )
    assert (await session.bash(look)).text == before
    missing = await session.tool(
        "edit", path="no", oldText="a", newText="b", expectedVersion="absent"
    )
    assert missing.reason == error_pb2.REASON_FILE_NOT_FOUND


@pytest.mark.parametrize("expected", ["", "v" * 65, "é", "a\tb"])
async def test_value_that_can_be_no_version_is_invalid(session: OpenSession, expected: str) -> None:
    await session.tool("write", path="f", content="old")
    for name, fields in (
        ("write", {"content": "x"}),
        ("edit", {"oldText": "old", "newText": "x"}),
    ):
        result = await session.tool(name, path="f", expectedVersion=expected, **fields)
        assert result.reason == error_pb2.REASON_INVALID_INPUT
        assert "`expectedVersion` must be 1 to 64 characters" in result.text
    with pytest.raises(errors.AdapterError) as caught:
        await session.client.files.write(session.id, "f", b"x", expected_version=expected)
    assert (caught.value.status, caught.value.reason) == ("INVALID_ARGUMENT", "INVALID_INPUT")
    assert (await session.bash("cat f")).text == "old"


@pytest.mark.parametrize("expected", ["v1", "absent", ""])
async def test_typed_and_custom_form_with_a_version_are_one_call(
    session: OpenSession, expected: str
) -> None:
    typed = tool_pb2.EditInput(path="f", old_text="a", new_text="b", expected_version=expected)
    first = (await session.client.call_typed(session.id, typed, call_id="same")).result
    again = await session.tool(
        "edit", path="f", oldText="a", newText="b", expectedVersion=expected, call_id="same"
    )
    assert again.replayed
    again.replayed = False
    assert again == first


async def test_of_many_writers_at_one_version_exactly_one_wins(session: OpenSession) -> None:
    await session.bash("printf old > f; ln f hard; ln -s hard soft")
    names = ["f", "hard", "soft", f"{session.workdir}/./f"]
    for _ in range(3):
        await session.tool("write", path="f", content="old")
        version = await version_of(session, "f")

        async def attempt(number: int, version: str = version) -> str:
            name, text = names[number % 4], f"by {number}"
            if number % 3 == 0:
                result = await session.tool(
                    "write", path=name, content=text, expectedVersion=version
                )
            elif number % 3 == 1:
                result = await session.tool(
                    "edit", path=name, oldText="old", newText=text, expectedVersion=version
                )
            else:
                try:
                    await session.client.files.write(
                        session.id, name, text.encode(), expected_version=version
                    )
                except errors.VersionConflict:
                    return ""
                return text
            if result.is_error:
                refused(result, name)
                return ""
            return text

        won = [text for text in await asyncio.gather(*map(attempt, range(30))) if text]
        assert len(won) == 1
        assert (await session.bash("cat f; ls -A")).text == f"{won[0]}f\nhard\nsoft\n"


async def test_large_file_has_a_version_and_the_guest_reads_it_piece_by_piece(
    session: OpenSession,
) -> None:
    files = session.client.files
    block = os.urandom(MIB)

    async def blocks(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield block

    digested = await files.write(session.id, "d", blocks(64))
    assert digested.version == await version_of(session, "d")
    stamped = await files.write(session.id, "s", blocks(65), expected_version="absent")
    assert stamped.version == await version_of(session, "s") != ""
    again = await files.write(session.id, "s", blocks(65), expected_version=stamped.version)
    # The same content in another file: above 64 MiB the file counts.
    assert again.version not in ("", stamped.version)
    with pytest.raises(errors.VersionConflict):
        await files.write(session.id, "s", b"late", expected_version=stamped.version)
    small = await files.write(session.id, "s", b"small", expected_version=again.version)
    assert small.version == (await files.write(session.id, "t", b"small")).version
    digest = hashlib.sha256(block * 64).hexdigest()
    assert (await session.bash("sha256sum d")).text.split()[0] == digest
