"""A real guest with a working directory to search, and the tools in front of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox_adapter.v1 import tool_pb2
from sandboxd.tools.base import Tool
from tests.unit.guest.guest_channel import GuestChannel
from tests.unit.guest.real_guest import Guest, pack
from tests.unit.tools.direct_channel import run_tool


@dataclass(frozen=True)
class Setup:
    """What a guest is given to search with."""

    rg: str | None = None
    grep: str | None = None
    """A program that is put on PATH as `grep`, before all others."""
    search: str = "auto"

    @property
    def is_ripgrep(self) -> bool:
        return self.rg is not None


def engines() -> dict[str, Setup]:
    """The engines of this machine: each version of ripgrep, and each kind of grep."""
    found: dict[str, Setup] = {}
    for folder in (str(Path(sys.executable).parent), *os.environ["PATH"].split(":"), "/usr/bin"):
        path = shutil.which("rg", path=folder)
        if path is not None:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
            version = re.match(r"ripgrep (\S+)", said.stdout)
            assert version is not None
            found.setdefault(f"ripgrep-{version[1]}", Setup(rg=path))
    for name, program in (("gnu-grep", "grep"), ("busybox", "busybox")):
        path = shutil.which(program)
        if path is not None:
            found[name] = Setup(grep=path, search="grep")
    return found


def a_ripgrep() -> Setup:
    return next(setup for setup in engines().values() if setup.is_ripgrep)


class SearchPlace:
    """One guest; `empty` between tests."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.workdir = guest.workdir

    def empty(self) -> None:
        for entry in os.scandir(os.fsencode(self.workdir)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)

    def write(self, path: str | bytes, content: str | bytes = "") -> None:
        target = os.path.join(os.fsencode(self.workdir), os.fsencode(path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)

    def grep(self, pattern: str, **args: Any) -> tuple[dict[str, Any], list[tuple[str, int, str]]]:
        """The op itself: facts and rows."""
        asked = {"rows_max": 100, "line_chars_max": 500, "timeout_s": 20.0, **args}
        facts, body = self.guest.request("grep", {"pattern": pattern, "literal": False, **asked})
        return facts, [
            (path, int(line), text)
            for path, line, text in (row.split("\0") for row in body.decode().split("\n")[:-1])
        ]

    def glob(self, pattern: str, **args: Any) -> tuple[dict[str, Any], list[str]]:
        """The op itself: facts and paths."""
        asked = {"paths_max": 1_000, "entries_max": 100_000, "timeout_s": 20.0, **args}
        facts, body = self.guest.request("glob", {"pattern": pattern, **asked})
        return facts, body.decode().split("\n")[:-1]

    async def use(self, tool: Tool, **raw: Any) -> tool_pb2.ToolResult:
        """The tool, as the daemon runs it."""
        return await run_tool(tool, GuestChannel(self.guest), raw)


@contextmanager
def search_place(setup: Setup) -> Iterator[SearchPlace]:
    """A place whose guest has these engines to choose from."""
    with tempfile.TemporaryDirectory(prefix="guest-zip-") as folder:
        zipapp = Path(folder) / "guest.pyz"
        pack(zipapp)
        programs = Path(folder) / "bin"
        programs.mkdir()
        if setup.grep is not None:
            (programs / "grep").symlink_to(setup.grep)
        guest = Guest(
            zipapp,
            rg_argv=[setup.rg] if setup.rg else [],
            search=setup.search,
            path=f"{programs}:{os.environ['PATH']}",
        )
        try:
            yield SearchPlace(guest)
        finally:
            guest.close()
