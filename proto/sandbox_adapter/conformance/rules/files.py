"""Rules on FileService: whole contents for programs (file.proto). Level full, capability FILES."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import AsyncIterator, Callable, Collection
from typing import Final

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import FILES, Check, Rule
from sandbox_adapter.conformance.rule import rule as any_rule
from sandbox_adapter.v1 import file_pb2, file_pb2_grpc

EVERY_BYTE: Final = bytes(range(256)) * 5 + b"\r\n\0\xff\xfe"
BIG_BYTES: Final = 24 * 1024 * 1024
"""More than one gRPC message may have."""


def rule(rule_id: str, cases: Collection[str] = ()) -> Callable[[Check], Rule]:
    return any_rule(rule_id, level="full", needs=(FILES,), cases=("contract 1", *cases))


@rule("files.keep-every-byte")
async def keep_every_byte(place: Place) -> None:
    """What WriteFile took, ReadFile gives, byte for byte; empty files too."""
    for name, data in (("a", EVERY_BYTE), ("b", b""), ("c", b"\xef\xbb\xbf\r\r\n")):
        path = await place.put(name, data)
        expect.equal(await place.content(name), data, f"content of {name}")
        stat = await place.client.files.stat(place.session_id, path)
        expect.equal(stat.size, len(data), "size")
        expect.equal(stat.kind, file_pb2.FILE_KIND_FILE, "kind")


@rule("files.take-more-than-a-message", ["W22"])
async def take_more_than_a_message(place: Place) -> None:
    """A file of 24 MiB passes in both directions, in chunks within their bound."""
    most = place.bound("chunk_bytes_max")
    block = hashlib.sha256(b"block").digest() * 8_192
    times = BIG_BYTES // len(block)

    async def source() -> AsyncIterator[bytes]:
        for _ in range(times):
            yield block

    path = place.at("big")
    answer = await place.client.files.write(place.session_id, path, source(), make_parents=True)
    expect.equal(answer.bytes_written, times * len(block), "bytes_written")
    wanted = hashlib.sha256(block * times).hexdigest()
    seen = hashlib.sha256()
    async with place.client.files.read(place.session_id, path) as reader:
        async for data in reader:
            expect.holds(0 < len(data) <= most, f"a chunk of {len(data)} bytes")
            seen.update(data)
    expect.equal(seen.hexdigest(), wanted, "digest")


@rule("files.read-ranges")
async def read_ranges(place: Place) -> None:
    """Offset and length cut the bytes; behind the end there are none."""
    path = await place.put("f", b"0123456789")
    for offset, length, wanted in (
        (0, None, b"0123456789"),
        (3, None, b"3456789"),
        (3, 4, b"3456"),
        (0, 0, b""),
        (8, 100, b"89"),
        (10, None, b""),
        (2**40, 5, b""),
    ):
        parts = bytearray()
        async with place.client.files.read(
            place.session_id, path, offset=offset, length=length
        ) as reader:
            expect.equal(reader.stat.size, 10, "size in the first message")
            async for data in reader:
                parts += data
        expect.equal(bytes(parts), wanted, f"offset {offset}, length {length}")
    for offset, length in ((-1, None), (0, -1)):
        with expect.fails("INVALID_ARGUMENT", "INVALID_INPUT", "INVALID_ENVELOPE"):
            async with place.client.files.read(
                place.session_id, path, offset=offset, length=length
            ):
                pass


@rule("files.write-needs-its-end")
async def write_needs_its_end(place: Place) -> None:
    """A stream without its end, or with another size, changes nothing."""
    path = await place.put("f", b"old")
    header = file_pb2.WriteFileRequest(
        header=file_pb2.WriteFileHeader(session_id=place.session_id, path=path)
    )
    data = file_pb2.WriteFileRequest(data=b"new")
    wrong = file_pb2.WriteFileRequest(end=file_pb2.WriteFileEnd(size=4))
    right = file_pb2.WriteFileRequest(end=file_pb2.WriteFileEnd(size=3))
    stub = file_pb2_grpc.FileServiceStub(place.client.connection.channel)
    broken: tuple[list[file_pb2.WriteFileRequest], ...] = (
        [header, data],
        [header, data, wrong],
        [data, right],
        [header, header, right],
        [header],
        [],
    )
    for number, messages in enumerate(broken):
        try:
            with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE"):
                await place.target.send(stub.WriteFile, _stream(messages))
        except Broken as error:
            raise Broken(f"stream {number}: {error}") from None
        expect.equal(await place.content("f"), b"old", f"content after stream {number}")
    await place.target.send(stub.WriteFile, _stream([header, data, right]))
    expect.equal(await place.content("f"), b"new", "content after a whole stream")


async def _stream(
    messages: list[file_pb2.WriteFileRequest],
) -> AsyncIterator[file_pb2.WriteFileRequest]:
    for message in messages:
        yield message


@rule("files.write-keeps-the-mode", ["W4"])
async def write_keeps_the_mode(place: Place) -> None:
    """The mode of a replaced file stays, unless the header gives one."""
    path = await place.put("f", b"old", 0o755)
    files, sid = place.client.files, place.session_id
    answer = await files.write(sid, path, b"new")
    expect.equal(answer.created, False, "created")
    expect.equal(await place.mode("f"), 0o755, "mode after a write without one")
    await files.write(sid, path, b"newer", mode=0o640)
    expect.equal(await place.mode("f"), 0o640, "mode after a write with one")
    created = await files.write(sid, place.at("g"), b"x")
    expect.equal(created.created, True, "created of a new file")


@rule("files.parents-on-request", ["W12"])
async def parents_on_request(place: Place) -> None:
    """Missing parents are made only where the header asks for it."""
    files, sid = place.client.files, place.session_id
    with expect.fails("NOT_FOUND", "FILE_NOT_FOUND"):
        await files.write(sid, place.at("a/b/c"), b"x")
    expect.holds(not await place.exists("a"), "a parent was made all the same")
    await files.write(sid, place.at("a/b/c"), b"x", make_parents=True)
    expect.equal(await place.content("a/b/c"), b"x", "content")


@rule("files.say-what-is-wrong", ["R25", "R26", "R27", "R32"])
async def say_what_is_wrong(place: Place) -> None:
    """Faults of the file system are statuses with their reasons."""
    await place.put("f", b"x")
    await place.make_folder("d")
    sid, files = place.session_id, place.client.files
    faults = (
        ("missing", "NOT_FOUND", ("FILE_NOT_FOUND",)),
        ("d", "FAILED_PRECONDITION", ("IS_DIRECTORY",)),
        ("f/x", "FAILED_PRECONDITION", ("NOT_DIRECTORY",)),
        ("n" * 300, "FAILED_PRECONDITION", ("PATH_TOO_LONG",)),
        ("a\0b", "INVALID_ARGUMENT", ("INVALID_INPUT", "INVALID_ENVELOPE")),
    )
    for name, status, reasons in faults:
        try:
            with expect.fails(status, *reasons):
                async with files.read(sid, place.at(name)):
                    pass
        except Broken as broken:
            raise Broken(f"{expect.shown(name)}: {broken}") from None
    with expect.fails("INVALID_ARGUMENT", "INVALID_INPUT", "INVALID_ENVELOPE"):
        await files.stat(sid, "")


@rule("files.refuse-what-is-not-regular", ["R20", "R21", "W17"])
async def refuse_what_is_not_regular(place: Place) -> None:
    """A FIFO is refused at once, for reading and for writing."""
    path = await place.fifo("p")
    sid, files = place.session_id, place.client.files
    with expect.fails("FAILED_PRECONDITION", "NOT_REGULAR"):
        async with files.read(sid, path):
            pass
    with expect.fails("FAILED_PRECONDITION", "NOT_REGULAR"):
        await files.write(sid, path, b"x")
    stat = await files.stat(sid, path)
    expect.equal(stat.kind, file_pb2.FILE_KIND_SPECIAL, "kind")


@rule("files.links-are-told-apart", ["W1"])
async def links_are_told_apart(place: Place) -> None:
    """StatPath follows links or tells of them; writing goes through them; removing does not."""
    await place.put("f", b"old")
    link = await place.link("l", "f")
    sid, files = place.session_id, place.client.files
    expect.equal((await files.stat(sid, link)).kind, file_pb2.FILE_KIND_FILE, "kind, followed")
    itself = await files.stat(sid, link, no_follow=True)
    expect.equal(itself.kind, file_pb2.FILE_KIND_SYMLINK, "kind, not followed")
    expect.equal(itself.link_target, "f", "link_target")
    await files.write(sid, link, b"new")
    expect.equal(await place.content("f"), b"new", "content of the target")
    with expect.fails("FAILED_PRECONDITION", "NOT_DIRECTORY"):
        await files.remove(sid, f"{link}/")
    expect.equal(await files.remove(sid, link), True, "removed")
    expect.equal(await place.content("f"), b"new", "content of the target afterwards")


@rule("files.list-in-order")
async def list_in_order(place: Place) -> None:
    """A listing is in bytewise order, a directory before what it holds, links not followed."""
    for name in ("b/x", "a.txt", "a/z", "a/B", "a-b", "é", ".h"):
        await place.put(name, b"")
    sid, files = place.session_id, place.client.files
    flat = [e.path async for batch in files.list(sid, place.folder) for e in batch.entries]
    expect.equal(flat, [".h", "a", "a-b", "a.txt", "b", "é"], "entries")
    tree = [
        entry
        async for batch in files.list(sid, place.folder, recursive=True)
        for entry in batch.entries
    ]
    wanted = [".h", "a", "a/B", "a/z", "a-b", "a.txt", "b", "b/x", "é"]
    expect.equal([entry.path for entry in tree], wanted, "entries of the tree")
    expect.equal(tree[-1].raw_path, "é".encode(), "raw_path")
    with expect.fails("FAILED_PRECONDITION", "NOT_DIRECTORY"):
        async for _ in files.list(sid, place.at("a.txt")):
            pass
    with expect.fails("NOT_FOUND", "FILE_NOT_FOUND"):
        async for _ in files.list(sid, place.at("missing")):
            pass


@rule("files.list-names-that-are-not-utf8", ["R31"])
async def list_names_that_are_not_utf8(place: Place) -> None:
    """A name that is not UTF-8 is listed escaped, and in its own bytes."""
    await place.make_folder()
    await place.shell(f"cd {shlex.quote(place.folder)} && : > \"$(printf 'x\\377y')\"")
    entries = [
        entry
        async for batch in place.client.files.list(place.session_id, place.folder)
        for entry in batch.entries
    ]
    expect.equal([entry.path for entry in entries], ["x\\xffy"], "path")
    expect.equal(entries[0].raw_path, b"x\xffy", "raw_path")


@rule("files.directories-are-made-once")
async def directories_are_made_once(place: Place) -> None:
    """MakeDirectory makes parents, says whether it made one, and is safe to repeat."""
    sid, files = place.session_id, place.client.files
    path = place.at("a/b/c")
    expect.equal(await files.make_directory(sid, path, mode=0o750), True, "created")
    expect.equal(await place.mode("a/b/c"), 0o750, "mode")
    expect.equal(await files.make_directory(sid, path), False, "created again")
    await place.put("f", b"")
    with expect.fails("FAILED_PRECONDITION", "FILE_EXISTS"):
        await files.make_directory(sid, place.at("f"))


@rule("files.move")
async def move(place: Place) -> None:
    """MovePath renames, and replaces only where it is told to."""
    source, target = await place.put("f", b"1"), await place.put("g", b"2")
    sid, files = place.session_id, place.client.files
    with expect.fails("FAILED_PRECONDITION", "FILE_EXISTS"):
        await files.move(sid, source, target)
    expect.equal(await place.content("g"), b"2", "the target after a refusal")
    await files.move(sid, source, target, replace=True)
    expect.equal(await place.content("g"), b"1", "the target")
    expect.holds(not await place.exists("f"), "the source is still there")
    with expect.fails("NOT_FOUND", "FILE_NOT_FOUND"):
        await files.move(sid, source, target, replace=True)
    await place.put("d/x", b"3")
    await files.move(sid, place.at("d"), place.at("e"))
    expect.equal(await place.content("e/x"), b"3", "what a moved directory holds")


@rule("files.remove")
async def remove(place: Place) -> None:
    """RemovePath takes a tree only where it is told to, and is safe to repeat."""
    await place.put("d/e/x", b"")
    sid, files = place.session_id, place.client.files
    with expect.fails("FAILED_PRECONDITION", "NOT_EMPTY"):
        await files.remove(sid, place.at("d"))
    expect.holds(await place.exists("d/e/x"), "a refused removal removed something")
    expect.equal(await files.remove(sid, place.at("d"), recursive=True), True, "removed")
    expect.holds(not await place.exists("d"), "it is still there")
    expect.equal(await files.remove(sid, place.at("d"), recursive=True), False, "removed again")


@rule("files.epochs-fence-writes", ["contract 2"])
async def epochs_fence_writes(place: Place) -> None:
    """A write, move, removal or new directory of a stale owner is refused and changes nothing."""
    async with place.target.session() as session:
        own = Place(place.target, session, session.effective.working_directory)
        path = await own.put("f", b"old")
        sid, files = session.session_id, place.client.files
        await place.client.update_session(sid, epoch=3)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await files.write(sid, path, b"new", epoch=2)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await files.move(sid, path, own.at("g"), epoch=2)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await files.remove(sid, path, epoch=2)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await files.make_directory(sid, own.at("d"), epoch=2)
        expect.equal(await own.content("f"), b"old", "content afterwards")
        expect.holds(not await own.exists("d"), "a directory was made")


@rule("files.unknown-sessions")
async def unknown_sessions(place: Place) -> None:
    """A session that is not there is NOT_FOUND for every verb."""
    files = place.client.files
    with expect.fails("NOT_FOUND", "SESSION_UNKNOWN"):
        await files.stat("never-made", "f")
    with expect.fails("NOT_FOUND", "SESSION_UNKNOWN"):
        await files.write("never-made", "f", b"x")
    with expect.fails("NOT_FOUND", "SESSION_UNKNOWN"):
        await files.remove("never-made", "f")
    with expect.fails("NOT_FOUND", "SESSION_UNKNOWN"):
        async for _ in files.list("never-made", "."):
            pass


@rule("files.paths-as-in-the-tools", ["R28", "R34"])
async def paths_as_in_the_tools(place: Place) -> None:
    """Relative paths start in the working directory and `~` at the home, as in the tools."""
    sid, files = place.session_id, place.client.files
    path = await place.put("f", b"here")
    relative = path.removeprefix(place.workdir).lstrip("/")
    expect.equal((await files.stat(sid, relative)).size, 4, "size by a relative path")
    home = place.session.effective.home_directory
    expect.equal(
        await files.stat(sid, "~", no_follow=True),
        await files.stat(sid, home, no_follow=True),
        "what `~` is",
    )
