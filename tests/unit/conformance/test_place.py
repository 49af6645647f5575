"""Looking without FileService: what is wrong is never taken for what cannot be looked at.

`bash` of the adapter is the shell of the machine that runs the test, in a folder of the
test; only the commands that a test names can be found in it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox_adapter.conformance import snapshot, vectors
from sandbox_adapter.conformance.outcome import Broken, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.target import Target, TrackingClient
from sandbox_adapter.v1 import adapter_pb2, session_pb2, tool_pb2

COMMANDS = ("dd", "od", "stat", "find", "sort", "cksum", "chmod", "mkdir", "ln", "mkfifo")


class HostPlace(Place):
    """A place whose bash is a real shell; `answer` may put another result in its place."""

    def __init__(self, target: Target, folder: Path, commands: Path) -> None:
        session = session_pb2.Session(session_id="s")
        super().__init__(target, session, str(folder))
        self.commands = commands
        self.answer: Callable[[tool_pb2.ToolResult], tool_pb2.ToolResult] = lambda result: result

    async def call(
        self, tool: str, arguments: dict[str, Any], *, call_id: str | None = None
    ) -> tool_pb2.ToolResult:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", arguments["command"] if tool == "bash" else ""),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": str(self.commands)},
        )
        output, _ = await process.communicate()
        text, code = output.decode(), process.returncode
        ending = tool_pb2.ENDING_EXITED
        return self.answer(tool_pb2.ToolResult(text=text, ending=ending, exit_code=code))

    def below(self, name: str) -> HostPlace:
        place = HostPlace(self.target, Path(self.at(name)), self.commands)
        place.answer = self.answer
        return place

    def without(self, *commands: str) -> None:
        for command in commands:
            (self.commands / command).unlink()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[HostPlace]:
    commands, folder = tmp_path / "bin", tmp_path / "it's a folder"
    commands.mkdir()
    folder.mkdir()
    for command in COMMANDS:
        (commands / command).symlink_to(shutil.which(command) or command)
    info = adapter_pb2.GetInfoResponse(limits=adapter_pb2.Limits(write_bytes_max=5))
    async with TrackingClient("unix:/nowhere") as client:
        yield HostPlace(Target(client, info, ""), folder, commands)


def folder(place: Place) -> Path:
    return Path(place.folder)


async def test_bytes_and_mode_are_those_of_the_file(place: HostPlace) -> None:
    data = bytes(range(256)) * 100
    (folder(place) / "f").write_bytes(data)
    (folder(place) / "f").chmod(0o640)
    assert await place.content("f") == data
    assert await place.mode("f") == 0o640
    assert await place.exists("f")


async def test_empty_file_is_there_and_has_no_bytes(place: HostPlace) -> None:
    (folder(place) / "f").touch()
    assert await place.content("f") == b""


@pytest.mark.parametrize("look", [Place.content, Place.mode])
async def test_file_that_is_not_there_breaks_the_rule(place: HostPlace, look: Any) -> None:
    with pytest.raises(Broken, match="no file that can be read"):
        await look(place, "f")


async def test_folder_in_the_place_of_a_file_breaks_the_rule(place: HostPlace) -> None:
    (folder(place) / "f").mkdir()
    with pytest.raises(Broken):
        await place.content("f")


async def test_dangling_link_exists_and_nothing_does_not(place: HostPlace) -> None:
    (folder(place) / "l").symlink_to("nowhere")
    assert await place.exists("l")
    assert not await place.exists("f")


@pytest.mark.parametrize(("look", "missing"), [(Place.content, "od"), (Place.mode, "stat")])
async def test_missing_command_makes_a_rule_uncheckable(
    place: HostPlace, look: Any, missing: str
) -> None:
    (folder(place) / "f").touch()
    place.without(missing)
    with pytest.raises(Uncheckable, match=missing):
        await look(place, "f")


async def test_answer_without_its_end_breaks_the_rule(place: HostPlace) -> None:
    def silent(_: tool_pb2.ToolResult) -> tool_pb2.ToolResult:
        return tool_pb2.ToolResult(ending=tool_pb2.ENDING_EXITED, exit_code=0)

    place.answer = silent
    with pytest.raises(Broken, match="cannot be looked at"):
        await place.exists("f")


async def test_script_that_did_not_end_by_itself_breaks_the_rule(place: HostPlace) -> None:
    def cut(_: tool_pb2.ToolResult) -> tool_pb2.ToolResult:
        return tool_pb2.ToolResult(ending=tool_pb2.ENDING_TIMED_OUT, text="x")

    place.answer = cut
    with pytest.raises(Broken, match="did not run a script to its end"):
        await place.shell("true")


async def test_snapshot_tells_every_change_and_no_other(place: HostPlace) -> None:
    assert await snapshot.taken(place.below("none")) == {}
    (folder(place) / "f").write_text("one")
    before = await snapshot.taken(place)
    snapshot.same(before, await snapshot.taken(place))
    (folder(place) / "f").write_text("two")
    with pytest.raises(Broken):
        snapshot.same(before, await snapshot.taken(place))


async def test_snapshot_leaves_out_the_folder_itself(place: HostPlace) -> None:
    (folder(place) / "f").touch()
    before = await snapshot.taken(place)
    folder(place).chmod(0o700)
    snapshot.same(before, await snapshot.taken(place))


@pytest.mark.parametrize("missing", ["find", "stat", "sort", "cksum"])
async def test_snapshot_without_a_command_is_uncheckable(place: HostPlace, missing: str) -> None:
    place.without(missing)
    with pytest.raises(Uncheckable, match=missing):
        await snapshot.taken(place)


async def test_snapshot_with_a_stat_that_knows_no_format_is_uncheckable(place: HostPlace) -> None:
    place.without("stat")
    (place.commands / "stat").write_text("#!/bin/sh\nexit 1\n")
    (place.commands / "stat").chmod(0o755)
    with pytest.raises(Uncheckable):
        await snapshot.taken(place)


async def test_bound_of_zero_cannot_be_judged(place: HostPlace) -> None:
    assert place.bound("write_bytes_max") == 5
    with pytest.raises(Uncheckable, match="does not bound spill_bytes_max"):
        place.bound("spill_bytes_max")


def vector(**keys: Any) -> vectors.Vector:
    return {"id": "bash.x", "title": "x", "typed": False, **keys}


def judged(place: Place, **keys: Any) -> Any:
    return vectors.rule_of(vector(**keys), "bash.json").check(place)


async def test_vector_with_a_missing_command_is_uncheckable(place: HostPlace) -> None:
    with pytest.raises(Uncheckable, match="no command `seq`"):
        await judged(place, commands=["seq"], calls=[])


async def test_quoted_folder_is_one_word_of_a_shell(place: HostPlace) -> None:
    command = "mkdir $QDIR && cd $QDIR && echo here"
    call = {"tool": "bash", "input": {"command": command}, "expect": {"text": "here\n"}}
    await judged(place, calls=[call])
    assert (folder(place) / "custom").is_dir()


@pytest.mark.parametrize("name", ["exit_code", "signal", "bytes_total", "lines_total"])
async def test_optional_field_that_is_absent_is_null_and_not_zero(
    place: HostPlace, name: str
) -> None:
    def only_a_text(_: tool_pb2.ToolResult) -> tool_pb2.ToolResult:
        return tool_pb2.ToolResult(ending=tool_pb2.ENDING_EXITED)

    place.answer = only_a_text
    call = {"tool": "bash", "input": {"command": "true"}}
    await judged(place, calls=[{**call, "expect": {name: None}}])
    with pytest.raises(Broken, match=name):
        await judged(place, calls=[{**call, "expect": {name: 0}}])


async def test_details_keep_their_types(place: HostPlace) -> None:
    def grepped(_: tool_pb2.ToolResult) -> tool_pb2.ToolResult:
        result = tool_pb2.ToolResult(ending=tool_pb2.ENDING_COMPLETED)
        result.grep.matches.add(path="/f", line=7, text="123")
        return result

    place.answer = grepped
    facts = {"path": "/f", "line": 7, "text": "123"}
    call = {"tool": "grep", "input": {}}
    await judged(place, calls=[{**call, "expect": {"details": {"matches": [facts]}}}])
    for wrong in ({"text": 123}, {"line": "7"}):
        matches = [{**facts, **wrong}]
        with pytest.raises(Broken, match=r"details\.matches"):
            await judged(place, calls=[{**call, "expect": {"details": {"matches": matches}}}])
