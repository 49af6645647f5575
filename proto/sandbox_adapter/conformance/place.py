"""Where a rule runs: a folder of its own in a session, with the six tools at hand.

Fixtures are made with what the adapter claims: FileService where it has one,
otherwise the write tool, otherwise a shell. Where none of them can make what a
rule needs, the rule is `Uncheckable`.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from typing import Any, Final

from sandbox_adapter import errors
from sandbox_adapter.client import AdapterClient, TypedInput
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken, Uncheckable
from sandbox_adapter.conformance.target import Target
from sandbox_adapter.v1 import adapter_pb2, error_pb2, session_pb2, tool_pb2

_OCTAL_BYTES: Final = 4_096
"""Bytes that one `printf` of the shell makes."""
_LOOKED_AT_BYTES: Final = 12 * 1024
"""Bytes that one `od` of the shell shows, below what bash cuts."""
_LOOKED_AT_BYTES_MAX: Final = 100 * _LOOKED_AT_BYTES
"""Largest file that is looked at so."""
_COMMAND_MISSING: Final = 127
"""Exit code of a shell that does not find a command."""
_ABSENT: Final = "absent"
_END: Final = "looked"
"""Last line of a script that looks: without it the answer is no answer."""


class Place:
    """A folder that only one rule uses, in the shared session or one of its own."""

    def __init__(self, target: Target, session: session_pb2.Session, folder: str) -> None:
        self.target = target
        self.session = session
        self.folder = folder
        """Absolute path in the sandbox. It exists only once something was put there."""
        self.restarts_told: dict[int, list[bool]] = {}
        """Of each result, in the order of arrival, whether it told a restart; by generation."""

    @property
    def client(self) -> AdapterClient:
        return self.target.client

    @property
    def session_id(self) -> str:
        return self.session.session_id

    @property
    def workdir(self) -> str:
        return self.session.effective.working_directory

    @property
    def has_files(self) -> bool:
        """Whether FileService can be used."""
        return self.target.claims(adapter_pb2.CAPABILITY_FILES)

    @property
    def is_root(self) -> bool:
        return self.session.effective.uid == 0

    def bound(self, name: str) -> int:
        """A limit of GetInfo by its field's name, in the unit that the field names.

        Raises `Uncheckable` where it is 0, which means: not bounded (adapter.proto).
        """
        value: int = getattr(self.target.limits, name)
        if value == 0:
            raise Uncheckable(f"the adapter does not bound {name}")
        return value

    def at(self, name: str) -> str:
        """The absolute path of a name in the folder."""
        return f"{self.folder}/{name}"

    def below(self, name: str) -> Place:
        """A place of the same rule, one folder down."""
        return Place(self.target, self.session, self.at(name))

    # --- Tools ---------------------------------------------------------------

    async def call(
        self, tool: str, arguments: dict[str, Any], *, call_id: str | None = None
    ) -> tool_pb2.ToolResult:
        """Runs a tool with JSON input, checks what every result must keep, returns it."""
        answer = await self.client.call_tool(self.session_id, tool, arguments, call_id=call_id)
        return self._seen(answer.result)

    async def call_json(self, tool: str, text: str) -> tool_pb2.ToolResult:
        """Runs a tool with JSON text as it stands, valid or not."""
        answer = await self.client.call_json(self.session_id, tool, text)
        return self._seen(answer.result)

    async def call_typed(self, typed: TypedInput) -> tool_pb2.ToolResult:
        answer = await self.client.call_typed(self.session_id, typed)
        return self._seen(answer.result)

    def _seen(self, result: tool_pb2.ToolResult) -> tool_pb2.ToolResult:
        """Checks what every result must keep, notes what it tells of a restart."""
        expect.well_formed(result)
        told = result.text.startswith(expect.RESTARTED)
        self.restarts_told.setdefault(result.generation, []).append(told)
        return result

    async def read(self, name: str, **arguments: Any) -> tool_pb2.ToolResult:
        return await self.call("read", {"path": self.at(name), **arguments})

    async def write(self, name: str, content: str, **arguments: Any) -> tool_pb2.ToolResult:
        return await self.call("write", {"path": self.at(name), "content": content, **arguments})

    async def edit(
        self, name: str, old_text: str, new_text: str, **arguments: Any
    ) -> tool_pb2.ToolResult:
        fields = {"path": self.at(name), "oldText": old_text, "newText": new_text, **arguments}
        return await self.call("edit", fields)

    async def bash(self, command: str, **arguments: Any) -> tool_pb2.ToolResult:
        """Runs a command in the session's working directory. Needs a shell."""
        return self.with_shell(await self.call("bash", {"command": command, **arguments}))

    def with_shell(self, result: tool_pb2.ToolResult) -> tool_pb2.ToolResult:
        """The result. Raises `Uncheckable` where it says that there is no shell."""
        if result.is_error and result.reason == error_pb2.REASON_SHELL_MISSING:
            raise Uncheckable("the sandbox has no shell")
        return result

    async def bash_here(self, command: str, **arguments: Any) -> tool_pb2.ToolResult:
        """Runs a command in this place's folder, which is made first."""
        folder = shlex.quote(self.folder)
        return await self.bash(
            f"mkdir -p {folder} && cd {folder} || exit 99\n{command}", **arguments
        )

    async def grep(self, pattern: str, name: str = "", **arguments: Any) -> tool_pb2.ToolResult:
        """Searches the folder, or what `name` leads to in it."""
        fields = {"pattern": pattern, "path": self.at(name) if name else self.folder, **arguments}
        return await self.call("grep", fields)

    async def glob(self, pattern: str, name: str = "", **arguments: Any) -> tool_pb2.ToolResult:
        fields = {"pattern": pattern, "path": self.at(name) if name else self.folder, **arguments}
        return await self.call("glob", fields)

    # --- Fixtures ------------------------------------------------------------

    async def put(self, name: str, content: bytes | str, mode: int | None = None) -> str:
        """Makes a file with just these bytes, parents included; returns its path."""
        data = content.encode() if isinstance(content, str) else content
        path = self.at(name)
        if self.has_files:
            await self.client.files.write(self.session_id, path, data, mode=mode, make_parents=True)
        elif not await self._put_as_text(path, data):
            await self._put_by_shell(path, data)
        if mode is not None and not self.has_files:
            quoted = shlex.quote(path)
            answer = await self.look(
                f"if [ -e {quoted} ]; then chmod {mode:o} {quoted} || exit 127;"
                f" else echo {_ABSENT}; fi"
            )
            self._must_be_there(answer, name)
        return path

    async def content(self, name: str) -> bytes:
        """The bytes of a file, by another way than the tool under test where there is one."""
        path = self.at(name)
        if self.has_files:
            parts = bytearray()
            async with self.client.files.read(self.session_id, path) as reader:
                async for data in reader:
                    parts += data
            return bytes(parts)
        return await self._content_by_shell(path)

    async def exists(self, name: str) -> bool:
        """Whether anything is at the path, a dangling link included."""
        path = self.at(name)
        if self.has_files:
            try:
                await self.client.files.stat(self.session_id, path, no_follow=True)
            except errors.FileNotFound:
                return False
            return True
        quoted = shlex.quote(path)
        answer = await self.look(f"if [ -e {quoted} ] || [ -L {quoted} ]; then echo yes; fi")
        return answer == "yes\n"

    async def until_made(self, name: str, running: asyncio.Task[tool_pb2.ToolResult]) -> None:
        """Waits until a running command has made a file. Raises where it ends without."""
        while not (await self.call("glob", {"pattern": name, "path": self.folder})).glob.paths:
            if running.done():
                text = running.result().text
                raise Broken(f"the command ended before it should: {expect.shown(text)}")
            await asyncio.sleep(0.05)

    async def mode(self, name: str) -> int:
        """Permission bits of what the path leads to."""
        path = self.at(name)
        if self.has_files:
            return (await self.client.files.stat(self.session_id, path)).mode
        await self.require("stat")
        quoted = shlex.quote(path)
        answer = await self.look(
            f"stat -L -c %a / > /dev/null || exit 127\n"
            f"if [ -e {quoted} ]; then stat -L -c %a {quoted}; else echo {_ABSENT}; fi"
        )
        self._must_be_there(answer, name)
        return int(answer, 8)

    async def link(self, name: str, to: str) -> str:
        """Makes a symbolic link that points to `to`, as it stands."""
        await self.require("ln")
        await self.make_folder()
        await self.shell(f"ln -s {shlex.quote(to)} {shlex.quote(self.at(name))}")
        return self.at(name)

    async def fifo(self, name: str) -> str:
        await self.require("mkfifo")
        await self.make_folder()
        await self.shell(f"mkfifo {shlex.quote(self.at(name))}")
        return self.at(name)

    async def make_folder(self, name: str = "", mode: int | None = None) -> str:
        """Makes a directory with its parents."""
        path = self.at(name) if name else self.folder
        if self.has_files:
            await self.client.files.make_directory(self.session_id, path, mode=mode)
        else:
            await self.shell(f"mkdir -p {shlex.quote(path)}")
            if mode is not None:
                await self.shell(f"chmod {mode:o} {shlex.quote(path)}")
        return path

    async def shell(self, script: str) -> str:
        """The output of a script that makes what a sandbox may be unable to make.

        Raises `Uncheckable` where there is no shell, or where the script fails; so it
        never says anything of the adapter. What tools made is looked at with `look`.
        """
        result = await self._script(script)
        if result.exit_code != 0:
            raise Uncheckable(f"a fixture could not be made: {expect.shown(result.text)}")
        return "" if result.text == "(no output)" else result.text

    async def look(self, script: str) -> str:
        """The output of a script that looks at what tools made; it must end with 0.

        Raises `Uncheckable` where there is no shell, or where the script ends with 127:
        a command is missing or cannot do what is asked. Raises `Broken` for every other
        end, so that a wrong state is never taken for a sandbox that lacks something.
        """
        result = await self._script(f"{script}\necho {_END}")
        if result.exit_code == _COMMAND_MISSING:
            raise Uncheckable(f"the sandbox lacks a command: {expect.shown(result.text)}")
        if result.truncated:
            raise Uncheckable("what is on disk is too much to be looked at without FileService")
        if result.exit_code != 0 or not result.text.endswith(f"{_END}\n"):
            raise Broken(f"what is on disk cannot be looked at: {expect.shown(result.text)}")
        return result.text.removesuffix(f"{_END}\n")

    async def _script(self, script: str) -> tool_pb2.ToolResult:
        """The result of a script that ended by itself, whatever its exit code."""
        result = await self.bash(script)
        if result.is_error or result.ending != tool_pb2.ENDING_EXITED:
            raise Broken(f"bash did not run a script to its end: {expect.shown(result.text)}")
        expect.holds(result.HasField("exit_code"), "a command ended, and its exit code is absent")
        return result

    async def require(self, *commands: str) -> None:
        """Raises `Uncheckable` where the sandbox lacks one of these commands."""
        known = self.target.commands
        if unknown := [command for command in commands if command not in known]:
            words = " ".join(shlex.quote(command) for command in unknown)
            missing = await self.look(
                f'for each in {words}; do command -v "$each" > /dev/null 2>&1 || echo "$each"; done'
            )
            known.update((command, command not in missing.splitlines()) for command in unknown)
        for command in commands:
            if not known[command]:
                raise Uncheckable(f"the sandbox has no command `{command}`")

    def require_permissions(self) -> None:
        """Raises `Uncheckable` where permission bits do not stop the tools' user."""
        if self.is_root:
            raise Uncheckable("the tools run as root, whom permission bits do not stop")

    async def _put_as_text(self, path: str, data: bytes) -> bool:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return False
        if len(data) > self.target.limits.write_bytes_max:
            return False
        result = await self.call("write", {"path": path, "content": text})
        if result.is_error:
            raise Broken(f"write refused a fixture: {expect.shown(result.text)}")
        return True

    async def _content_by_shell(self, path: str) -> bytes:
        await self.require("dd", "od")
        quoted = shlex.quote(path)
        data = bytearray()
        while len(data) < _LOOKED_AT_BYTES_MAX:
            block = len(data) // _LOOKED_AT_BYTES
            text = await self.look(
                f"if [ -f {quoted} ] && [ -r {quoted} ]; then\n"
                f"dd if={quoted} bs={_LOOKED_AT_BYTES} skip={block} count=1 2>/dev/null"
                f" | od -An -v -tx1\nelse echo {_ABSENT}; fi"
            )
            self._must_be_there(text, path)
            piece = bytes.fromhex(text)
            data += piece
            if len(piece) < _LOOKED_AT_BYTES:
                return bytes(data)
        raise Uncheckable("a file is too large to be looked at without FileService")

    def _must_be_there(self, answer: str, name: str) -> None:
        expect.holds(answer != f"{_ABSENT}\n", f"no file that can be read is at {name}")

    async def _put_by_shell(self, path: str, data: bytes) -> None:
        quoted = shlex.quote(path)
        lines = [f"mkdir -p {shlex.quote(path.rpartition('/')[0])} && : > {quoted}"]
        for at in range(0, len(data), _OCTAL_BYTES):
            octal = "".join(f"\\{byte:03o}" for byte in data[at : at + _OCTAL_BYTES])
            lines.append(f"printf '{octal}' >> {quoted}")
        await self.shell("\n".join(lines))


def to_json(arguments: dict[str, Any]) -> str:
    """JSON of an input as clients send it; lone surrogates stay as escapes."""
    return json.dumps(arguments, ensure_ascii=True)
