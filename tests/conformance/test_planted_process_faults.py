"""The kit finds what is wrong with processes: faults planted in a sound adapter's ProcessService.

Each is a change of the requests that pass a proxy, or of the answers, as a client would see
of an adapter that is wrong in this way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from sandbox_adapter.client import AdapterClient, new_id
from sandbox_adapter.processes import STDERR, STDOUT
from sandbox_adapter.v1 import process_pb2
from tests.conformance import faults
from tests.conformance.faulty_adapter import _OPTIONS, _answered, _Proxy, _streamed
from tests.conformance.kit import KitRun, run_kit
from tests.integration.daemon_process import DaemonProcess

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

Change = Callable[[Any], None]
SERVICE = "/sandbox_adapter.v1.ProcessService/"


@dataclass(frozen=True)
class Planted:
    """A fault of one RPC, the rules that must find it, and rules that must still pass."""

    name: str
    rpc: str
    found_by: tuple[str, ...]
    beside: tuple[str, ...]
    request: Change = lambda message: None
    answer: Change = lambda message: None


def clear(field: str) -> Change:
    return lambda message: message.ClearField(field)


def signal_swallowed(answer: process_pb2.WaitProcessResponse) -> None:
    if answer.process.HasField("signal"):
        answer.process.exit_code = answer.process.signal
        answer.process.ClearField("signal")


def other_stream(request: process_pb2.ReadOutputRequest) -> None:
    request.stream = STDERR if request.stream == STDOUT else STDOUT


def new_each_time(request: process_pb2.StartProcessRequest) -> None:
    request.process_id = new_id("p")


def from_the_start(request: process_pb2.ReadOutputRequest) -> None:
    request.offset = 0


def jobs_left_out(answer: process_pb2.ListProcessesResponse) -> None:
    kept = [each for each in answer.processes if not each.call_id]
    del answer.processes[:]
    answer.processes.extend(kept)


def newest_first(answer: process_pb2.ListProcessesResponse) -> None:
    kept = list(answer.processes)
    del answer.processes[:]
    answer.processes.extend(reversed(kept))


def words_split(request: process_pb2.StartProcessRequest) -> None:
    words = [part for word in request.argv for part in (word.split(" ") if word else [])]
    if len(request.argv) > 4:
        request.argv[:] = words


PLANTED = (
    Planted(
        "runs_again",
        "StartProcess",
        ("processes.start-is-idempotent", "processes.ids-conflict"),
        ("processes.exit-codes",),
        request=new_each_time,
    ),
    Planted(
        "replay_not_told",
        "StartProcess",
        ("processes.start-is-idempotent", "processes.simultaneous-starts-are-one"),
        ("processes.ids-conflict",),
        answer=clear("replayed"),
    ),
    Planted(
        "signal_swallowed",
        "WaitProcess",
        ("processes.exit-codes",),
        ("processes.start-and-wait",),
        answer=signal_swallowed,
    ),
    Planted(
        "streams_exchanged",
        "ReadOutput",
        ("processes.streams-are-separate",),
        ("processes.exit-codes",),
        request=other_stream,
    ),
    Planted(
        "offset_ignored",
        "ReadOutput",
        ("processes.output-from-any-offset",),
        ("processes.streams-are-separate",),
        request=from_the_start,
    ),
    Planted(
        "drops_untold",
        "ReadOutput",
        ("processes.dropped-output-is-told",),
        ("processes.streams-are-separate",),
        answer=clear("bytes_dropped"),
    ),
    Planted(
        "end_untold",
        "ReadOutput",
        (
            "processes.streams-are-separate",
            "processes.output-is-followed",
            "processes.output-from-any-offset",
        ),
        ("processes.exit-codes",),
        answer=clear("closed"),
    ),
    Planted(
        "input_never_closed",
        "WriteInput",
        ("processes.input-repeats-are-skipped",),
        ("processes.full-input-returns",),
        request=clear("close"),
    ),
    Planted(
        "folder_ignored",
        "StartProcess",
        ("processes.working-directory", "processes.working-directory-missing"),
        ("processes.environment",),
        request=clear("cwd"),
    ),
    Planted(
        "environment_ignored",
        "StartProcess",
        ("processes.environment", "processes.program-by-path"),
        ("processes.working-directory",),
        request=clear("env"),
    ),
    Planted(
        "arguments_split",
        "StartProcess",
        ("processes.arguments-as-they-stand",),
        ("processes.environment",),
        request=words_split,
    ),
    Planted(
        "no_terminal",
        "StartProcess",
        ("processes.terminal-is-one", "processes.terminal-echoes"),
        ("processes.streams-are-separate",),
        request=clear("terminal"),
    ),
    Planted(
        "resize_lost",
        "ResizeTerminal",
        ("processes.terminal-size",),
        ("processes.terminal-is-one",),
        request=lambda message: message.terminal.CopyFrom(
            process_pb2.TerminalSize(rows=37, columns=111)
        ),
    ),
    Planted(
        "no_timeout",
        "StartProcess",
        ("processes.timeout-kills-what-ignores-it",),
        ("processes.exit-codes",),
        request=clear("timeout"),
    ),
    Planted(
        "epoch_ignored",
        "StartProcess",
        ("processes.epochs-fence",),
        ("processes.start-and-wait",),
        request=clear("epoch"),
    ),
    Planted(
        "jobs_left_out",
        "ListProcesses",
        ("processes.list-has-background-jobs",),
        ("processes.listed-oldest-first",),
        answer=jobs_left_out,
    ),
    Planted(
        "newest_first",
        "ListProcesses",
        ("processes.listed-oldest-first",),
        ("processes.list-has-background-jobs",),
        answer=newest_first,
    ),
)


class _ProcessProxy(_Proxy):
    """Passes everything on but for one RPC, whose messages it changes."""

    def __init__(self, upstream: grpc.aio.Channel, behind: AdapterClient, planted: Planted) -> None:
        super().__init__(upstream, behind, faults.Sound(), files=True)
        self._planted = planted
        method = process_pb2.DESCRIPTOR.services_by_name["ProcessService"].methods_by_name[
            planted.rpc
        ]
        self._request: type[Message] = getattr(process_pb2, method.input_type.name)
        self._answer: type[Message] = getattr(process_pb2, method.output_type.name)

    def service(self, call_details: grpc.HandlerCallDetails) -> Any:
        method = call_details.method
        if method != SERVICE + self._planted.rpc:
            return super().service(call_details)
        if self._planted.rpc != "ReadOutput":
            unary: Any = _answered(self._upstream.unary_unary(method))

            async def answer(data: bytes, context: Any) -> bytes:
                return self._changed(await unary(self._asked(data), context))

            return grpc.unary_unary_rpc_method_handler(answer)
        streamed: Any = _streamed(self._upstream.unary_stream(method))

        async def messages(data: bytes, context: Any) -> AsyncIterator[bytes]:
            async for message in streamed(self._asked(data), context):
                yield self._changed(message)

        return grpc.unary_stream_rpc_method_handler(messages)

    def _asked(self, data: bytes) -> bytes:
        request = self._request.FromString(data)
        self._planted.request(request)
        return request.SerializeToString()

    def _changed(self, data: bytes) -> bytes:
        answer = self._answer.FromString(data)
        self._planted.answer(answer)
        return answer.SerializeToString()


@asynccontextmanager
async def serving(real: str, folder: Path, planted: Planted) -> AsyncIterator[str]:
    address = f"unix:{folder}/faulty.sock"
    async with (
        grpc.aio.insecure_channel(real, options=_OPTIONS) as upstream,
        AdapterClient(real) as behind,
    ):
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((_ProcessProxy(upstream, behind, planted),))
        server.add_insecure_port(address)
        await server.start()
        try:
            yield address
        finally:
            await server.stop(0)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess("docker", tmp_path_factory.mktemp("sound") / "state").start()
    try:
        yield daemon
    finally:
        daemon.end_for_good()


async def judged(sound: DaemonProcess, folder: Path, planted: Planted, *rules: str) -> KitRun:
    arguments = [part for rule in rules for part in ("--select", rule)]
    async with serving(sound.address, folder, planted) as address:
        return await asyncio.to_thread(run_kit, address, folder, *arguments)


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
async def test_fault_is_found_by_its_rules_alone(
    sound: DaemonProcess, tmp_path: Path, planted: Planted
) -> None:
    run = await judged(sound, tmp_path, planted, *planted.found_by, *planted.beside)
    assert run.failed == set(planted.found_by), run.said
    assert run.counts["pass"] == len(planted.beside), run.said


async def test_sound_adapter_passes_through_the_same_proxy(
    sound: DaemonProcess, tmp_path: Path
) -> None:
    rules = {rule for planted in PLANTED for rule in (*planted.found_by, *planted.beside)}
    nothing = Planted("nothing", "ReadOutput", (), ())
    run = await judged(sound, tmp_path, nothing, *sorted(rules))
    assert run.code == 0, run.said
    assert run.counts["pass"] == len(rules), run.said
