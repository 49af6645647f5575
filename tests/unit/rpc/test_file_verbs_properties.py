"""Whatever a guest answers to a verb, it is messages, a fault or a lost sandbox (S8)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_adapter.v1 import file_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.errors import CallerError, GuestFault, SandboxLost, VerbFault
from sandboxd.metrics import Metrics
from sandboxd.rpc.errors import status_of
from sandboxd.rpc.file_service import FileService
from sandboxd.sessions.verbs import Verbs
from tests.unit.strategies import JSON, TEXTS, mutated

STAT = {
    "kind": "file",
    "size": 3,
    "mode": 0o644,
    "uid": 1,
    "gid": 2,
    "mtime_ns": 1_700_000_000_123_456_789,
    "version": "",
    "link_target": "",
}
ENTRY = {"path": "a\0b", "raw": base64.b64encode(b"a\xff").decode(), "stat": STAT}
STATS = mutated(STAT) | st.just(STAT)
ENTRIES = mutated(ENTRY) | STATS.map(lambda stat: {**ENTRY, "stat": stat})
FACTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "file_open": STATS.flatmap(lambda stat: mutated({"handle": "h", "stat": stat})),
    "file_read": mutated({"eof": True}),
    "upload_open": mutated({"handle": "u"}),
    "upload_append": mutated({"bytes": 3}),
    "upload_commit": mutated({"bytes": 3, "created": True, "version": "", "lock_wait_s": 0.5}),
    "stat": STATS.map(lambda stat: {"stat": stat}),
    "list_open": mutated({"handle": "l"}),
    "list_next": st.lists(ENTRIES, max_size=3).flatmap(
        lambda entries: mutated({"entries": entries, "done": True, "unreadable": 1})
    ),
    "mkdir": mutated({"created": True}),
    "remove": mutated({"removed": True}),
}
ANYTHING = st.dictionaries(TEXTS, JSON, max_size=3)
FAULTS = st.builds(
    GuestFault,
    st.sampled_from(["FILE_NOT_FOUND", "VERSION_CONFLICT", "NO_SUCH_REASON", "UNSPECIFIED"]),
    TEXTS | TEXTS.map(lambda text: text * 3_000),
    st.just({}),
)
STEPS_MAX = 20


class HostileVerbs:
    """Gives a channel whose guest answers what is drawn, a bounded number of times."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.steps = 0

    @asynccontextmanager
    async def verb(self, key: object, epoch: int | None = None) -> AsyncIterator[HostileVerbs]:
        try:
            yield self
        except GuestFault as fault:
            # What the real one does; a real session is not needed for it.
            raise VerbFault(fault.reason, str(fault)) from fault

    def check_epoch(self) -> None: ...

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        body: bytes = b"",
        *,
        reply_bytes_max: int = limits.KIB,
    ) -> Reply:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise SandboxLost("ENDED", "the example is over")
        answer = self._data.draw(FACTS.get(op, ANYTHING) | ANYTHING | FAULTS)
        if isinstance(answer, GuestFault):
            raise answer
        return Reply(answer, self._data.draw(st.binary(max_size=min(20, reply_bytes_max))))


async def _upload() -> AsyncIterator[file_pb2.WriteFileRequest]:
    header = file_pb2.WriteFileHeader(session_id="s", path="f")
    yield file_pb2.WriteFileRequest(header=header)
    yield file_pb2.WriteFileRequest(data=b"abc")
    yield file_pb2.WriteFileRequest(end=file_pb2.WriteFileEnd(size=3))


async def use(service: FileService, verb: str) -> list[Any]:
    """Every message of one RPC."""
    context: Any = None
    match verb:
        case "ReadFile":
            read = file_pb2.ReadFileRequest(session_id="s", path="f")
            return [message async for message in service.ReadFile(read, context)]
        case "ListDirectory":
            listed = file_pb2.ListDirectoryRequest(session_id="s", path="f")
            return [message async for message in service.ListDirectory(listed, context)]
        case "WriteFile":
            return [await service.WriteFile(_upload(), context)]
        case "StatPath":
            stat = file_pb2.StatPathRequest(session_id="s", path="f")
            return [await service.StatPath(stat, context)]
        case "MakeDirectory":
            made = file_pb2.MakeDirectoryRequest(session_id="s", path="f")
            return [await service.MakeDirectory(made, context)]
        case "MovePath":
            moved = file_pb2.MovePathRequest(session_id="s", source="f", target="g")
            return [await service.MovePath(moved, context)]
        case _:
            removed = file_pb2.RemovePathRequest(session_id="s", path="f")
            return [await service.RemovePath(removed, context)]


VERBS = ["ReadFile", "ListDirectory", "WriteFile", "StatPath", "MakeDirectory", "MovePath"]


@pytest.mark.parametrize("verb", [*VERBS, "RemovePath"])
@given(data=st.data())
def test_s8_any_answer_to_a_verb_is_messages_a_fault_or_a_lost_sandbox(
    verb: str, data: st.DataObject
) -> None:
    verbs = HostileVerbs(data)
    service = FileService(cast(Verbs, verbs), Metrics())
    try:
        messages = asyncio.run(use(service, verb))
    except SandboxLost as lost:
        lost.operator_text.encode("utf-8")
        return
    except CallerError as fault:
        status = status_of(fault)
        # A trailer: gRPC's own bound for all metadata is 8 KiB.
        assert status.ByteSize() < 8 * limits.KIB
        status.message.encode("utf-8")
        return
    for message in messages:
        assert type(message).FromString(message.SerializeToString()) == message

    assert verbs.steps <= STEPS_MAX
