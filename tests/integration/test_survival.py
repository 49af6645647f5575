"""A daemon that dies under running calls, and the next one that goes on with them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.errors import AdapterError
from sandbox_adapter.v1 import tool_pb2
from tests.integration.conftest import BACKENDS
from tests.integration.daemon_process import DaemonProcess, until

RUNNING = tool_pb2.CALL_STATE_RUNNING
FINISHED = tool_pb2.CALL_STATE_FINISHED


@pytest.fixture(params=BACKENDS)
def daemon(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[DaemonProcess]:
    """A daemon that the test may kill, once for each backend."""
    started = DaemonProcess(request.param, state_dir)
    try:
        yield started.start()
    finally:
        started.end_for_good()


async def is_up(client: AdapterClient) -> bool:
    """Whether the command under test has made the file that says that it runs."""
    shown = await client.call_tool("s", "glob", {"pattern": "up"})
    return "up" in shown.result.text.split()


async def begun(daemon: DaemonProcess, call_id: str, command: str) -> None:
    """Starts a call and returns once its command runs; its caller goes with the daemon."""
    async with AdapterClient(daemon.address) as client:
        with contextlib.suppress(AdapterError):
            await client.create_session(session_id="s")
        call = asyncio.create_task(
            client.call_tool("s", "bash", {"command": f"touch up; {command}"}, call_id=call_id)
        )
        await until(partial(is_up, client), 20)
        daemon.kill()
        call.cancel()
        await asyncio.wait({call})


async def test_s7_running_command_goes_on_and_its_result_is_whole(daemon: DaemonProcess) -> None:
    command = "echo ran >> effects; for i in $(seq 30); do echo line $i; sleep 0.05; done; exit 7"
    await begun(daemon, "c1", command)
    daemon.start()
    async with AdapterClient(daemon.address) as client:
        assert (await client.get_call("s", "c1")).state in (RUNNING, FINISHED)
        answer = await client.call_tool(
            "s", "bash", {"command": f"touch up; {command}"}, call_id="c1"
        )
        result = answer.result
        lines = [f"line {number}" for number in range(1, 31)]
        assert result.text.splitlines() == [*lines, "[Command exited with code 7]"]
        assert (result.ending, result.exit_code) == (tool_pb2.ENDING_EXITED, 7)
        assert result.generation == 1
        assert result.replayed
        shown = await client.call_tool("s", "bash", {"command": "cat effects"})
        assert shown.result.text == "ran\n"
        assert (await client.get_call("s", "c1")).state == FINISHED


async def test_result_of_a_command_that_ended_meanwhile_is_not_lost(daemon: DaemonProcess) -> None:
    await begun(daemon, "c1", "sleep 0.3; echo late > done; echo end; exit 3")
    async with asyncio.timeout(20):
        # While nobody serves.
        while not list(daemon.state_dir.glob("s/*/store/workspace/done")):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    daemon.start()
    async with AdapterClient(daemon.address) as client:

        async def is_finished() -> bool:
            return (await client.get_call("s", "c1")).state == FINISHED

        await until(is_finished, 10)
        result = (await client.get_call("s", "c1")).result
        assert result.text == "end\n[Command exited with code 3]"
        # How long it ran, not how long its daemon was away.
        assert result.duration.ToMilliseconds() < 1_500


async def test_call_resumed_by_the_second_daemon_after_it_is_cancelled_with_its_tree(
    daemon: DaemonProcess,
) -> None:
    await begun(daemon, "c1", "echo partial; sleep 300 & sleep 301")
    daemon.start()
    daemon.kill()
    daemon.start()
    async with AdapterClient(daemon.address) as client:
        assert (await client.get_call("s", "c1")).state == RUNNING
        result = await client.cancel_call("s", "c1")
        assert result.ending == tool_pb2.ENDING_CANCELLED
        assert result.text.startswith("partial\n")
        assert not result.survivors
        left = await client.call_tool("s", "bash", {"command": "pgrep -f 'sleep 30[01]'; true"})
        assert left.result.text == "(no output)" or daemon.backend == "local"


async def test_s16_ledger_that_was_set_back_to_a_backup_gets_another_id(
    daemon: DaemonProcess,
) -> None:
    database = daemon.state_dir / "state.db"
    async with AdapterClient(daemon.address) as client:
        await client.create_session(session_id="s")
        before = (await client.get_info()).ledger_id
    assert daemon.terminate() == 0
    backup = database.read_bytes()
    daemon.start()
    async with AdapterClient(daemon.address) as client:
        for number in range(3):
            await client.call_tool("s", "bash", {"command": "echo"}, call_id=f"c{number}")
        assert (await client.get_info()).ledger_id == before
    assert daemon.terminate() == 0
    # Written over, as by hand: the same file, of an earlier day. Only the guest can know.
    database.write_bytes(backup)
    daemon.start()
    async with AdapterClient(daemon.address) as client:

        async def is_renewed() -> bool:
            return (await client.get_info()).ledger_id != before

        await until(is_renewed, 20)


async def test_timeout_counts_while_no_daemon_runs(daemon: DaemonProcess) -> None:
    async with AdapterClient(daemon.address) as client:
        await client.create_session(session_id="s")
        arguments = {"command": "echo begun; touch up; sleep 300", "timeout": 1}
        call = asyncio.create_task(client.call_tool("s", "bash", arguments, call_id="c1"))
        await until(partial(is_up, client), 20)
        daemon.kill()
        call.cancel()
        await asyncio.wait({call})
    daemon.start()
    async with AdapterClient(daemon.address) as client:
        result = (await client.call_tool("s", "bash", arguments, call_id="c1")).result
        assert result.ending == tool_pb2.ENDING_TIMED_OUT
        assert result.text == "begun\n[Command timed out after 1 second]"


async def test_same_call_fifty_times_at_once_over_a_kill_runs_once(daemon: DaemonProcess) -> None:
    arguments = {"command": "echo ran >> effects; sleep 0.8; cat effects"}
    async with AdapterClient(daemon.address) as client:
        await client.create_session(session_id="s")

        async def ask() -> bytes:
            answer = await client.call_tool("s", "bash", arguments, call_id="one")
            answer.result.replayed = True
            return answer.result.SerializeToString(deterministic=True)

        fifty = [asyncio.create_task(ask()) for _ in range(50)]
        assert len(set(await asyncio.gather(*fifty))) == 1
        with pytest.raises(AdapterError) as conflict:
            await client.call_tool("s", "bash", {"command": "echo other"}, call_id="one")
        assert conflict.value.reason == "ID_CONFLICT"
    await begun(daemon, "two", "echo ran >> effects; sleep 0.5; cat effects")
    daemon.start()
    arguments = {"command": "touch up; echo ran >> effects; sleep 0.5; cat effects"}
    async with AdapterClient(daemon.address) as client:
        answers = await asyncio.gather(
            *(client.call_tool("s", "bash", arguments, call_id="two") for _ in range(50))
        )
        texts = {answer.result.text for answer in answers}
        assert texts == {"ran\nran\n"}
