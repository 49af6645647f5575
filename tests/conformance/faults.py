"""The planted faults: each is a way in which tools like these are known to be wrong."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sandbox_adapter import errors
from sandbox_adapter.client import AdapterClient, new_id
from sandbox_adapter.v1 import file_pb2, tool_pb2
from tests.conformance.faulty_adapter import Send

HANG_S: Final = 120.0
"""Longer than any rule waits for a call that should have returned."""

Request: TypeAlias = tool_pb2.CallToolRequest
Response: TypeAlias = tool_pb2.CallToolResponse
Result: TypeAlias = tool_pb2.ToolResult


def tool_of(request: Request) -> str:
    which = request.WhichOneof("input")
    return request.custom.name if which == "custom" else str(which)


def field_of(request: Request, name: str) -> Any:
    """A field of the input by its name in the contract; None where it is absent."""
    which = request.WhichOneof("input")
    if which == "custom":
        head, *rest = name.split("_")
        camel = head + "".join(part.capitalize() for part in rest)
        try:
            value = json.loads(request.custom.json)
        except ValueError:
            return None
        return value.get(camel) if isinstance(value, dict) else None
    return getattr(getattr(request, which), name) if which else None


def with_path(request: Request, path: str) -> Request:
    """The same request for another file."""
    other = Request()
    other.CopyFrom(request)
    which = request.WhichOneof("input")
    if which == "custom":
        other.custom.json = json.dumps({**json.loads(request.custom.json), "path": path})
    elif which is not None:
        getattr(other, which).path = path
    return other


class Sound:
    """No fault at all: the proxy itself must pass every rule."""

    async def call(self, request: Request, send: Send, behind: AdapterClient) -> Response:
        return await send(request)


@dataclass
class Wrong:
    """Spoils the results of some tools that did not fail."""

    tools: set[str]
    spoil: Callable[[Result], None]

    async def call(self, request: Request, send: Send, behind: AdapterClient) -> Response:
        answer = await send(request)
        if tool_of(request) in self.tools and not answer.result.is_error:
            self.spoil(answer.result)
        return answer


@dataclass
class Tampering:
    """Spoils the file after an edit or write that succeeded."""

    tools: set[str]
    content: Callable[[bytes], bytes] = bytes
    mode: int | None = None

    async def call(self, request: Request, send: Send, behind: AdapterClient) -> Response:
        answer = await send(request)
        if tool_of(request) not in self.tools or answer.result.is_error:
            return answer
        path, sid = field_of(request, "path"), request.session_id
        data = await content(behind, sid, path)
        await behind.files.write(sid, path, self.content(data), mode=self.mode)
        return answer


class LostEdit:
    """Edits without a lock: changes a copy, then puts it in the place of the file."""

    async def call(self, request: Request, send: Send, behind: AdapterClient) -> Response:
        path, sid = field_of(request, "path"), request.session_id
        if tool_of(request) != "edit" or not isinstance(path, str):
            return await send(request)
        copy = f"{path}.{request.call_id}"
        try:
            await behind.files.write(sid, copy, await content(behind, sid, path))
        except errors.AdapterError:
            return await send(request)
        answer = await send(with_path(request, copy))
        answer.result.text = answer.result.text.replace(copy, path)
        if not answer.result.is_error:
            await behind.files.write(sid, path, await content(behind, sid, copy))
        await behind.files.remove(sid, copy)
        return answer


class LostWrite:
    """Says what it wrote, of a file that nobody asked for and that is gone."""

    async def call(self, request: Request, send: Send, behind: AdapterClient) -> Response:
        path, sid = None, request.session_id
        if tool_of(request) == "write":
            path = field_of(request, "path")
        if not isinstance(path, str):
            return await send(request)
        other = f"{path}.{request.call_id}"
        answer = await send(with_path(request, other))
        answer.result.text = answer.result.text.replace(other, path)
        if not answer.result.is_error:
            await behind.files.remove(sid, other)
        return answer


class LinkReplaced:
    """Writes a file in the place of a link, instead of through it."""

    async def call(self, request: Request, send: Send, behind: AdapterClient) -> Response:
        path = field_of(request, "path")
        if tool_of(request) == "write" and isinstance(path, str):
            try:
                stat = await behind.files.stat(request.session_id, path, no_follow=True)
                if stat.kind == file_pb2.FILE_KIND_SYMLINK:
                    await behind.files.remove(request.session_id, path)
            except errors.AdapterError:
                pass
        return await send(request)


class HangsOnBackgroundJobs:
    """Waits for everything that holds the pipe, not for the shell."""

    async def call(self, request: Request, send: Send, behind: AdapterClient) -> Response:
        answer = await send(request)
        if answer.result.survivors:
            await asyncio.sleep(HANG_S)
        return answer


class RunsAgain:
    """Takes a repeated id for a new call."""

    async def call(self, request: Request, send: Send, behind: AdapterClient) -> Response:
        again = Request()
        again.CopyFrom(request)
        again.call_id = new_id("again")
        answer = await send(again)
        answer.call_id = request.call_id
        return answer


class FirstOfSeveral:
    """Replaces the first of several matches instead of refusing."""

    async def call(self, request: Request, send: Send, behind: AdapterClient) -> Response:
        answer = await send(request)
        old, path = field_of(request, "old_text"), field_of(request, "path")
        if tool_of(request) == "edit" and answer.result.text.startswith("oldText matches"):
            data = await content(behind, request.session_id, path)
            new = field_of(request, "new_text")
            changed = data.replace(old.encode(), new.encode(), 1)
            await behind.files.write(request.session_id, path, changed)
            answer.result.is_error = False
            answer.result.ClearField("reason")
            answer.result.text = f"Edited {path}: 1 replacement at line 1."
        return answer


async def content(client: AdapterClient, session_id: str, path: str) -> bytes:
    parts = bytearray()
    async with client.files.read(session_id, path) as reader:
        async for data in reader:
            parts += data
    return bytes(parts)


def phantom_last_line(result: Result) -> None:
    if result.text.endswith("\n") or "[Showing lines" in result.text:
        result.lines_total += 1
        result.text = re.sub(
            r"(\[Showing lines \d+-\d+ of )(\d+)",
            lambda found: f"{found[1]}{int(found[2]) + 1}",
            result.text,
        )


def marker_off_by_one(result: Result) -> None:
    if result.read.HasField("next_offset"):
        right = result.read.next_offset
        result.read.next_offset = right + 1
        result.text = result.text.replace(f"Use offset={right} ", f"Use offset={right + 1} ")


def silent_cap(result: Result) -> None:
    result.text = re.sub(r"\n?\[Showing the first [^\n]*\]", "", result.text)
    which = result.WhichOneof("details")
    if which is not None:
        getattr(result, which).capped = False
    result.truncated = False


def cut_inside_code_point(result: Result) -> None:
    marker, newline, body = result.text.partition("\n")
    if result.truncated and marker.startswith("[Showing the last") and body[:1] > "\x7f":
        result.text = f"{marker}{newline}\ufffd{body[1:]}"


def exit_code_lost(result: Result) -> None:
    result.exit_code = 0
    result.text = re.sub(r"\n?\[Command (exited|was killed)[^\n]*\]", "", result.text)


def status_two_discarded(result: Result) -> None:
    if result.grep.unsearched:
        result.text = "No matches found."
        result.grep.Clear()
        result.grep.SetInParent()


def nul_passed_on(result: Result) -> None:
    result.text = result.text.replace("␀", "\0").replace("\\x00", "\0")


def timeout_as_kill(result: Result) -> None:
    if result.ending == tool_pb2.ENDING_TIMED_OUT:
        result.ending = tool_pb2.ENDING_SIGNALED
        result.exit_code = 137


def hidden_left_out(result: Result) -> None:
    shown = [path for path in result.glob.paths if "/." not in path]
    result.glob.paths[:] = shown
    result.text = "\n".join(shown) or "No files found."


def any_order(result: Result) -> None:
    rows = result.text.split("\n")
    notes = [row for row in rows if row.startswith("[")]
    result.text = "\n".join([*reversed(rows[: len(rows) - len(notes)]), *notes])


def partial_output_lost(result: Result) -> None:
    if result.ending == tool_pb2.ENDING_TIMED_OUT:
        result.text = result.text[result.text.rfind("[Command timed out") :]


def fold_crlf(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n")


def add_final_newline(data: bytes) -> bytes:
    return data if data.endswith(b"\n") else data + b"\n"


def guess_encoding(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode()
