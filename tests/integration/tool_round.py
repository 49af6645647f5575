"""All six tools once: whether a sandbox is a whole one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandbox_adapter.v1 import tool_pb2
from tests.integration.conftest import OpenSession, open_session
from tests.integration.daemon_process import DaemonProcess


@asynccontextmanager
async def sandbox(daemon: DaemonProcess, profile: str) -> AsyncIterator[OpenSession]:
    async for opened in open_session(daemon, profile=profile):
        yield opened


async def assert_five_tools(session: OpenSession) -> None:
    """All but bash, on one file."""
    wrote = await session.tool("write", path="new/a.txt", content="one\ntwo\n")
    assert wrote.text == "Wrote 8 bytes to new/a.txt."
    edited = await session.tool("edit", path="new/a.txt", oldText="two", newText="three")
    assert edited.text == "Edited new/a.txt: 1 replacement at line 2."
    assert (await session.tool("read", path="new/a.txt")).text == "one\nthree\n"
    assert (await session.tool("grep", pattern="^th")).text == "new/a.txt:2:three"
    assert (await session.tool("glob", pattern="*.txt")).text == "new/a.txt"
    home = await session.tool("write", path="~/kept", content="x")
    assert not home.is_error


async def said(session: OpenSession, command: str) -> str:
    result = await session.bash(command)
    assert (result.ending, result.exit_code) == (tool_pb2.ENDING_EXITED, 0), result.text
    return result.text


async def assert_bash(session: OpenSession) -> None:
    """A command sees the tools' file, its user, its places, and its output is kept whole."""
    effective = session.session.effective
    text = await said(session, "cat new/a.txt; echo $(id -u) $(id -g); pwd; echo $HOME")
    assert "one\nthree\n" in text
    assert text.endswith(f"{effective.uid} {effective.gid}\n/workspace\n/home/sandbox\n")
    text = await said(session, "echo x > /tmp/x; echo x > ~/x; echo x > /var/tmp/x; cat /tmp/x ~/x")
    assert text.endswith("x\nx\n")
    long = await session.bash("seq 3000")
    assert long.truncated
    whole = await session.tool("read", path=long.spill_path)
    assert "1\n2\n3\n" in whole.text
