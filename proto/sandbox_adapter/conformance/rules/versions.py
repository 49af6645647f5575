"""Rules on versions: what results say of a content, and writing only what is expected.

contract.md 4 and 6; the fields `version` and `expected_version` of the proto files. An
adapter that gives no versions leaves them empty; then only what it must refuse is judged.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from sandbox_adapter import errors
from sandbox_adapter.conformance import expect, snapshot
from sandbox_adapter.conformance.outcome import Broken, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import FILES, SIX_TOOLS, rule
from sandbox_adapter.v1 import file_pb2, tool_pb2

VERSION_BYTES_MAX: Final = 64
DIGEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest file whose version is a digest of its content."""
ABSENT: Final = "absent"
PARALLEL: Final = 12
"""Writers of one file that expect the same version."""
WITH_FILES: Final = (SIX_TOOLS, FILES)
UNKNOWN: Final = "no-such-version"
"""A value that can be a version, and is none of any file."""


async def _version(place: Place, name: str) -> str:
    """The version in a read. Raises `Uncheckable` where the adapter gives none."""
    result = expect.fine(await place.read(name))
    if not result.read.version:
        raise Uncheckable("the adapter gives no versions")
    return _sound(result.read.version, "read")


def _sound(version: str, where: str) -> str:
    expect.holds(version != "", f"{where} gives no version, and read does")
    size = len(version.encode())
    expect.holds(size <= VERSION_BYTES_MAX, f"the version of {where} has {size} bytes")
    expect.holds(version != ABSENT, f"{where} gives `{ABSENT}`, which stands for no file")
    return version


def _conflict(place: Place, name: str, result: tool_pb2.ToolResult) -> None:
    text = f"{place.at(name)} is not at the expected version. Read it again before you change it."
    expect.refused(result, "VERSION_CONFLICT", text)


async def _stat(place: Place, name: str) -> str:
    return (await place.client.files.stat(place.session_id, place.at(name))).version


async def _upload(
    place: Place, name: str, content: bytes, expected: str, **arguments: Any
) -> file_pb2.WriteFileResponse:
    return await place.client.files.write(
        place.session_id, place.at(name), content, expected_version=expected, **arguments
    )


# --- What results say ------------------------------------------------------------


@rule("versions.tools-agree", cases=["contract 4", "contract 6"])
async def tools_agree(place: Place) -> None:
    """write, edit and read give one version for one content."""
    wrote = expect.fine(await place.write("f", "one\ntwo\n"))
    expect.equal(wrote.write.version, await _version(place, "f"), "version in write, against read")
    edited = expect.fine(await place.edit("f", "two", "2"))
    expect.equal(edited.edit.version, await _version(place, "f"), "version in edit, against read")
    again = expect.fine(await place.write("f", "one\n2\n"))
    expect.equal(again.write.version, edited.edit.version, "version of the same content, written")


@rule("versions.verbs-agree", cases=["contract 4"], needs=WITH_FILES)
async def verbs_agree(place: Place) -> None:
    """StatPath, ReadFile and WriteFile give the version that the tools give."""
    expect.fine(await place.write("f", "text\n"))
    version = await _version(place, "f")
    expect.equal(await _stat(place, "f"), version, "version in StatPath")
    async with place.client.files.read(place.session_id, place.at("f")) as reader:
        expect.equal(reader.stat.version, version, "version in ReadFile")
    wrote = await place.client.files.write(place.session_id, place.at("g"), b"text\n")
    expect.equal(wrote.version, version, "version in WriteFile of the same content")
    expect.equal(await _version(place, "g"), version, "version in a read of it")


@rule("versions.follow-the-content", cases=["contract 4"])
async def follow_the_content(place: Place) -> None:
    """Equal contents have equal versions, whatever their names, and come back with them."""
    await place.put("a", "same\n")
    await place.put("d/b", "same\n")
    version = await _version(place, "a")
    expect.equal(await _version(place, "d/b"), version, "version of another file")
    expect.fine(await place.write("a", "other\n"))
    expect.holds(await _version(place, "a") != version, "the version outlived the content")
    expect.fine(await place.write("a", "same\n"))
    expect.equal(await _version(place, "a"), version, "version once the content is back")


@rule("versions.differ-with-a-byte", cases=["contract 4"])
async def differ_with_a_byte(place: Place) -> None:
    """Contents that look alike have versions of their own."""
    contents: Sequence[bytes] = (
        *(b"", b"\n", b"a", b"b", b"a\n", b"a\r\n", b"\xef\xbb\xbfa\n", b"a\n\n"),
        *(b"a" * 60_000 + b"x", b"a" * 60_000 + b"y", b"\xe9\n", b"\xe8\n"),
    )
    seen: dict[str, bytes] = {}
    for content in contents:
        await place.put("f", content)
        version = await _version(place, "f")
        if version in seen:
            raise Broken(f"{content[-9:]!r} and {seen[version][-9:]!r} have the same version")
        seen[version] = content


@rule("versions.see-what-times-hide", cases=["contract 4"])
async def see_what_times_hide(place: Place) -> None:
    """A change of the same size by a command, with its time put back, is a new version."""
    await place.put("f", "old\n")
    version = await _version(place, "f")
    path = shlex.quote(place.at("f"))
    await place.shell(
        f"touch -r {path} {path}.t && printf 'new\\n' > {path} && touch -r {path}.t {path}"
    )
    expect.holds(await _version(place, "f") != version, "the version is the same")
    _conflict(place, "f", await place.write("f", "mine\n", expectedVersion=version))
    expect.equal(await place.content("f"), b"new\n", "the file afterwards")


@rule("versions.are-of-the-content-only", cases=["contract 4"])
async def are_of_the_content_only(place: Place) -> None:
    """Another time, mode or name of a file changes no version."""
    await place.put("f", "a\n")
    version = await _version(place, "f")
    folder = shlex.quote(place.folder)
    await place.shell(f"cd {folder} && touch -t 202001020304 f && chmod 600 f && mv f g && ln g h")
    for name in ("g", "h"):
        expect.equal(await _version(place, name), version, f"version of {name}")


@rule("versions.of-parts", cases=["contract 4"])
async def of_parts(place: Place) -> None:
    """A read of some lines gives the version of the whole file, also through a link."""
    await place.put("f", "".join(f"line {number}\n" for number in range(5_000)))
    version = _sound((await place.read("f")).read.version or await _version(place, "f"), "read")
    for arguments in ({"limit": 1}, {"offset": 4_990}, {"offset": 7, "limit": 3}):
        result = expect.fine(await place.read("f", **arguments))
        expect.equal(result.read.version, version, f"version with {arguments}")
    await place.link("l", "f")
    expect.equal(await _version(place, "l"), version, "version through a link")


# --- Writing what is expected ----------------------------------------------------


@rule("versions.chain", cases=["contract 6", "W18"])
async def chain(place: Place) -> None:
    """Each result's version is what the next write or edit may expect."""
    wrote = expect.fine(await place.write("f", "1\n"))
    version = wrote.write.version or await _version(place, "f")
    for number in range(2, 5):
        edited = await place.edit("f", str(number - 1), str(number), expectedVersion=version)
        version = _sound(expect.fine(edited).edit.version, "edit")
    wrote = await place.write("f", "end\n", expectedVersion=version)
    expect.fine(wrote, f"Wrote 4 bytes to {place.at('f')}.")
    expect.equal(await place.content("f"), b"end\n", "the file afterwards")


@rule("versions.conflict", cases=["contract 6", "contract 9"])
async def conflict(place: Place) -> None:
    """write and edit of another version are refused in the contract's words; nothing changes."""
    await place.put("f", "a\nb\n", mode=0o640)
    old = await _version(place, "f")
    expect.fine(await place.edit("f", "a", "A"))
    before = await snapshot.taken(place)
    path = place.at("f")
    for version in (old, UNKNOWN, ABSENT, old[:-1] + ("0" if old[-1] != "0" else "1")):
        _conflict(place, "f", await place.write("f", "x\n", expectedVersion=version))
        _conflict(place, "f", await place.edit("f", "b", "x", expectedVersion=version))
        write = tool_pb2.WriteInput(path=path, content="x\n", expected_version=version)
        _conflict(place, "f", await place.call_typed(write))
        edit = tool_pb2.EditInput(path=path, old_text="b", new_text="x", expected_version=version)
        _conflict(place, "f", await place.call_typed(edit))
    snapshot.same(before, await snapshot.taken(place))
    new = await _version(place, "f")
    expect.fine(await place.edit("f", "b", "B", expectedVersion=new))


@rule("versions.conflict-of-uploads", cases=["contract 4"], needs=WITH_FILES)
async def conflict_of_uploads(place: Place) -> None:
    """WriteFile of another version fails as ABORTED; content, mode and time stay."""
    await place.put("f", "a\n", mode=0o640)
    old = await _version(place, "f")
    await place.put("f", "b\n")
    before = await snapshot.taken(place)
    for version in (old, UNKNOWN, ABSENT):
        with expect.fails("ABORTED", "VERSION_CONFLICT"):
            await _upload(place, "f", b"x" * 300_000, version, mode=0o755)
    snapshot.same(before, await snapshot.taken(place))
    answer = await _upload(place, "f", b"c\n", await _stat(place, "f"))
    expect.equal(answer.created, False, "created")
    expect.equal(await place.content("f"), b"c\n", "the file afterwards")


@rule("versions.absent", cases=["contract 4"])
async def absent(place: Place) -> None:
    """`absent` makes a new file with its parents, and replaces none."""
    result = await place.write("d/e/f", "new\n", expectedVersion=ABSENT)
    if result.is_error:
        await _version_of_any(place)
    expect.fine(result, f"Wrote 4 bytes to {place.at('d/e/f')}.")
    expect.equal(result.write.created, True, "details.created")
    _conflict(place, "d/e/f", await place.write("d/e/f", "x", expectedVersion=ABSENT))
    await place.put("empty", "")
    _conflict(place, "empty", await place.write("empty", "x", expectedVersion=ABSENT))
    expect.equal(await place.content("d/e/f"), b"new\n", "the file afterwards")
    expect.equal(await place.content("empty"), b"", "the empty file afterwards")


async def _version_of_any(place: Place) -> str:
    await place.put("any", "any\n")
    return await _version(place, "any")


@rule("versions.absent-in-uploads", cases=["contract 4"], needs=WITH_FILES)
async def absent_in_uploads(place: Place) -> None:
    """`absent` in WriteFile makes a new file, and replaces none."""
    await place.make_folder()
    answer = await _upload(place, "f", b"new\n", ABSENT)
    expect.equal(answer.created, True, "created")
    with expect.fails("ABORTED", "VERSION_CONFLICT"):
        await _upload(place, "f", b"x", ABSENT)
    expect.equal(await place.content("f"), b"new\n", "the file afterwards")


@rule("versions.of-a-missing-file", cases=["contract 4", "E22"])
async def of_a_missing_file(place: Place) -> None:
    """What a missing file is expected to be is a conflict; no file and no parent is made."""
    version = await _version_of_any(place)
    before = await snapshot.taken(place)
    for expected in (version, UNKNOWN):
        for name in ("missing", "no/such/folder"):
            _conflict(place, name, await place.write(name, "x", expectedVersion=expected))
            result = await place.edit(name, "a", "b", expectedVersion=expected)
            if expect.reason_of(result) != "FILE_NOT_FOUND":
                _conflict(place, name, result)
            if place.has_files:
                with expect.fails("ABORTED", "VERSION_CONFLICT"):
                    await _upload(place, name, b"x", expected, make_parents=True)
    expect.refused(await place.edit("missing", "a", "b", expectedVersion=ABSENT), "FILE_NOT_FOUND")
    snapshot.same(before, await snapshot.taken(place))


@rule("versions.never-ignored", cases=["contract 6"])
async def never_ignored(place: Place) -> None:
    """What is no version of the file conflicts, what is no version at all is a bad field."""
    await place.put("f", "a\n")
    before = await snapshot.taken(place)
    malformed = dict.fromkeys(("x" * 65, "x" * 100_000, "", "ä" * 40, "a\nb"), "INVALID_INPUT")
    for version, reason in {UNKNOWN: "VERSION_CONFLICT", **malformed}.items():
        for result in (
            await place.write("f", "b\n", expectedVersion=version),
            await place.edit("f", "a", "b", expectedVersion=version),
        ):
            expect.refused(result, reason)
            expect.holds(len(result.text) < 10_000, "the error repeats a long value")
        if place.has_files:
            status = "INVALID_ARGUMENT" if version in malformed else "ABORTED"
            with expect.fails(status, reason):
                await _upload(place, "f", b"b\n", version)
    snapshot.same(before, await snapshot.taken(place))


@rule("versions.part-of-the-call", cases=["contract 2"])
async def part_of_the_call(place: Place) -> None:
    """A repeated call returns its result, though its version is gone; another version conflicts."""
    await place.put("f", "a\n")
    version = await _version(place, "f")
    call_id = "versions-" + place.folder.rpartition("/")[2]
    path = place.at("f")
    arguments = {"path": path, "content": "b\n", "expectedVersion": version}
    first = expect.fine(await place.call("write", arguments, call_id=call_id))
    again = expect.fine(await place.call("write", arguments, call_id=call_id), first.text)
    expect.equal(again.replayed, True, "replayed")
    typed = tool_pb2.WriteInput(path=path, content="b\n", expected_version=version)
    answer = await place.client.call_typed(place.session_id, typed, call_id=call_id)
    expect.equal(answer.result.replayed, True, "replayed, in the typed form")
    for other in ({**arguments, "expectedVersion": UNKNOWN}, {"path": path, "content": "b\n"}):
        with expect.fails("ALREADY_EXISTS", "ID_CONFLICT"):
            await place.call("write", other, call_id=call_id)


# --- At the same time --------------------------------------------------------------


async def _one_wins(place: Place, name: str, writers: Sequence[Awaitable[Any]]) -> None:
    """Exactly one of the writers succeeds, and the file then holds what it wrote."""
    outcomes = await asyncio.gather(*writers, return_exceptions=True)
    won: list[int] = []
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, errors.VersionConflict):
            continue
        if isinstance(outcome, BaseException):
            raise outcome
        if isinstance(outcome, tool_pb2.ToolResult) and outcome.is_error:
            expect.refused(outcome, "VERSION_CONFLICT")
            continue
        won.append(number)
    expect.equal(len(won), 1, f"writers of {PARALLEL} that succeeded")
    expect.equal(await place.content(name), b"writer %d\n" % won[0], "the file afterwards")


@rule("versions.one-write-wins", cases=["contract 6", "W18"])
async def one_write_wins(place: Place) -> None:
    """Of writes at the same time that expect one version, exactly one is made."""
    await place.put("f", "start\n")
    version = await _version(place, "f")
    text = "writer {}\n".format
    writers = [place.write("f", text(n), expectedVersion=version) for n in range(PARALLEL)]
    await _one_wins(place, "f", writers)


@rule("versions.one-edit-wins", cases=["contract 6", "E25"])
async def one_edit_wins(place: Place) -> None:
    """Of edits at the same time that expect one version, exactly one is made."""
    await place.put("f", "writer x\n")
    version = await _version(place, "f")
    # Each leaves a text in which the others would find theirs.
    writers = [
        place.edit("f", "writer ", f"writer {n} ", expectedVersion=version) for n in range(9)
    ]
    results = await asyncio.gather(*writers)
    won = [number for number, result in enumerate(results) if not result.is_error]
    expect.equal(len(won), 1, "edits that were made")
    for result in results:
        if result.is_error:
            _conflict(place, "f", result)
    expect.equal(await place.content("f"), b"writer %d x\n" % won[0], "the file afterwards")


@rule("versions.one-creator-wins", cases=["contract 4", "W18"])
async def one_creator_wins(place: Place) -> None:
    """Of writes at the same time that expect no file, exactly one makes it."""
    await _version_of_any(place)
    text = "writer {}\n".format
    writers = [place.write("d/f", text(n), expectedVersion=ABSENT) for n in range(PARALLEL)]
    await _one_wins(place, "d/f", writers)


@rule("versions.one-of-all-ways-wins", cases=["contract 6", "W18", "E25"], needs=WITH_FILES)
async def one_of_all_ways_wins(place: Place) -> None:
    """The same holds for write and WriteFile together, through links and hard links."""
    await place.put("d/f", "start\n")
    await place.link("soft", "d/f")
    await place.shell(f"ln {shlex.quote(place.at('d/f'))} {shlex.quote(place.at('hard'))}")
    version = await _version(place, "d/f")
    writers: list[Awaitable[Any]] = []
    for number in range(PARALLEL):
        name, text = ("d/f", "soft", "hard", "d/../d/f")[number % 4], f"writer {number}\n"
        if number % 3:
            writers.append(place.write(name, text, expectedVersion=version))
        else:
            writers.append(_upload(place, name, text.encode(), version))
    await _one_wins(place, "hard", writers)


@rule("versions.large-files", cases=["contract 4"], level="full", needs=WITH_FILES)
async def large_files(place: Place) -> None:
    """A file over 64 MiB has a version too, which a change ends and a write can expect."""
    await place.put("f", "start\n")
    await _version(place, "f")
    path = shlex.quote(place.at("f"))
    grow = f"dd if=/dev/zero of={path} bs=1 count=0 seek={DIGEST_BYTES_MAX + 1} 2>/dev/null"
    await place.shell(grow)
    version = _sound(await _stat(place, "f"), "StatPath of a large file")
    expect.equal(await _stat(place, "f"), version, "version when nothing changed")
    await place.shell(f"printf x >> {path}")
    changed = _sound(await _stat(place, "f"), "StatPath of a large file")
    expect.holds(changed != version, "the version outlived a change")
    with expect.fails("ABORTED", "VERSION_CONFLICT"):
        await _upload(place, "f", b"small\n", version)
    await _upload(place, "f", b"small\n", changed)
    expect.equal(await place.content("f"), b"small\n", "the file afterwards")
