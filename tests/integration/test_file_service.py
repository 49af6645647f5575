"""File verbs over gRPC, on both backends: whole contents, streamed, daemon memory flat."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from sandbox_adapter.errors import AdapterError
from sandbox_adapter.v1 import file_pb2
from tests.integration.conftest import OpenSession
from tests.integration.daemon_process import until

MIB = 1024 * 1024


async def digest_of(session: OpenSession, path: str) -> tuple[str, int]:
    """SHA-256 and size of a file as it is streamed."""
    digest, size = hashlib.sha256(), 0
    async with session.client.files.read(session.id, path) as reader:
        async for chunk in reader:
            assert len(chunk) <= 256 * 1024
            digest.update(chunk)
            size += len(chunk)
        assert reader.stat.size == size
    return digest.hexdigest(), size


async def test_a_large_file_goes_up_and_down_whole_and_the_daemon_stays_flat(
    session: OpenSession,
) -> None:
    digest = hashlib.sha256()

    async def blocks() -> AsyncIterator[bytes]:
        for number in range(150):
            block = number.to_bytes(2, "big") * (MIB // 2)
            digest.update(block)
            yield block

    await session.client.files.write(session.id, "warm", b"x" * MIB)
    before = session.daemon.rss_bytes()
    answer = await session.client.files.write(session.id, "d/big", blocks(), make_parents=True)
    assert answer.bytes_written == 150 * MIB
    assert answer.created
    assert await digest_of(session, "d/big") == (digest.hexdigest(), 150 * MIB)
    assert session.daemon.rss_bytes() - before < 50 * MIB
    inside = await session.bash("sha256sum d/big")
    assert inside.text.split()[0] == digest.hexdigest()


async def test_an_upload_that_breaks_off_changes_nothing(session: OpenSession) -> None:
    await session.tool("write", path="f", content="old")
    sending = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"new" * 10_000
            sending.set()
            await asyncio.sleep(0.01)

    upload = asyncio.create_task(session.client.files.write(session.id, "f", endless()))
    await sending.wait()
    upload.cancel()
    await asyncio.gather(upload, return_exceptions=True)

    async def is_as_before() -> bool:
        return (await session.bash("cat f; ls -A | wc -l")).text == "old1\n"

    await until(is_as_before, 20)


async def test_verbs_do_what_they_say(session: OpenSession) -> None:
    files = session.client.files
    assert await files.make_directory(session.id, "a/b/c")
    assert not await files.make_directory(session.id, "a/b/c")
    await files.write(session.id, "a/f.sh", b"\0\xff binary\r\n", mode=0o750)
    await session.bash("ln -s f.sh a/link; mkfifo a/fifo; printf x > $'a/odd\\xff\\nname'")
    stat = await files.stat(session.id, "a/f.sh")
    assert (stat.kind, stat.size, stat.mode) == (file_pb2.FILE_KIND_FILE, 11, 0o750)
    link = await files.stat(session.id, "a/link", no_follow=True)
    assert (link.kind, link.link_target) == (file_pb2.FILE_KIND_SYMLINK, "f.sh")
    entries = [
        entry
        async for batch in files.list(session.id, "a", recursive=True)
        for entry in batch.entries
    ]
    assert [entry.raw_path for entry in entries] == [
        b"b",
        b"b/c",
        b"f.sh",
        b"fifo",
        b"link",
        b"odd\xff\nname",
    ]
    await files.move(session.id, "a/f.sh", "a/b/g.sh")
    with pytest.raises(AdapterError) as taken:
        await files.move(session.id, "a/b/g.sh", "a/fifo")
    assert taken.value.reason == "FILE_EXISTS"
    with pytest.raises(AdapterError) as full:
        await files.remove(session.id, "a")
    assert full.value.reason == "NOT_EMPTY"
    assert await files.remove(session.id, "a", recursive=True)
    assert not await files.remove(session.id, "a")
    with pytest.raises(AdapterError) as missing:
        await files.stat(session.id, "a")
    assert missing.value.reason == "FILE_NOT_FOUND"


async def test_a_stale_owner_cannot_write(session: OpenSession) -> None:
    await session.client.update_session(session.id, epoch=5)
    with pytest.raises(AdapterError) as stale:
        await session.client.files.write(session.id, "f", b"x", epoch=4)
    assert stale.value.reason == "EPOCH_STALE"
    assert (await session.bash("ls -A")).text == "(no output)"
    with pytest.raises(AdapterError) as call:
        await session.client.call_tool(session.id, "bash", {"command": "touch f"}, epoch=4)
    assert call.value.reason == "EPOCH_STALE"


async def test_local_refuses_paths_outside_its_folder(session: OpenSession) -> None:
    if session.backend != "local":
        # In a container the container is the boundary: the same path is fine.
        assert "root" in (await session.tool("read", path="/etc/passwd")).text
        return
    await session.bash("ln -s /etc/passwd out")
    for path in ("/etc/passwd", "../../../../etc/passwd", "out"):
        result = await session.tool("read", path=path)
        assert result.is_error
        with pytest.raises(AdapterError) as refused:
            await session.client.files.stat(session.id, path)
        assert refused.value.reason == "PATH_OUTSIDE"
