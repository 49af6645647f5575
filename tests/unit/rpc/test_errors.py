"""Errors and statuses: every class maps, every reason is in the contract."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc import aio

from sandbox_adapter.v1 import error_pb2, file_pb2
from sandboxd import errors
from sandboxd.backends.base import Reply
from sandboxd.backends.fake import FakeRequest
from sandboxd.errors import CallerError, GuestFault, RetryLater
from sandboxd.rpc.errors import InternalFault, status_of
from tests.unit.worker import Worker, reason_of

_ARGUMENTS: dict[str, Any] = {
    "field": "f",
    "rule": "r",
    "name": "n",
    "known": ["a"],
    "profile": "p",
    "session_id": "s",
    "call_id": "c",
    "process_id": "p1",
    "cause": "C",
    "message": "m",
    "reason": "START_FAILED",
    "text": "t",
    "operator_text": "o",
    "kind": "k",
    "id_": "i",
    "epoch": 1,
    "seen": 2,
    "capability": "FILES",
    "sessions_max": 1,
    "most": 1,
    "reference": "r",
}


def _classes(root: type[CallerError] = CallerError) -> Iterator[type[CallerError]]:
    for child in root.__subclasses__():
        if child is not RetryLater:
            yield child
        yield from _classes(child)


def _distinct() -> list[type[CallerError]]:
    by_name = {kind.__name__: kind for kind in _classes()}
    return [by_name[name] for name in sorted(by_name)]


def _example(kind: type[CallerError]) -> CallerError:
    names = list(inspect.signature(kind.__init__).parameters)[1:]
    return kind(**{name: _ARGUMENTS[name] for name in names})


@pytest.mark.parametrize("kind", _distinct())
def test_every_error_maps_to_a_status_and_a_reason_of_the_contract(
    kind: type[CallerError],
) -> None:
    error = _example(kind)
    status = status_of(error)
    code = getattr(grpc.StatusCode, error.status)
    assert status.code == code.value[0]
    assert f"REASON_{error.reason}" in error_pb2.Reason.keys()  # noqa: SIM118 - an enum wrapper
    assert len(status.details) == (2 if isinstance(error, RetryLater) else 1)


def test_every_error_is_drawn_in_the_tree() -> None:
    drawn = errors.__doc__ or ""
    missing = [kind.__name__ for kind in _classes() if kind.__module__ == errors.__name__]
    assert [name for name in missing if name not in drawn] == []


def test_text_that_no_trailer_takes_is_made_plain_and_bounded() -> None:
    status = status_of(errors.VerbFault("IO_ERROR", "a\0b\ud800" + "x" * 10_000))
    assert "\0" not in status.message
    assert len(status.message) <= 1_400


async def test_long_text_that_is_not_ascii_keeps_its_status(worker: Worker) -> None:
    """Seen: its trailers were over the client's bound, and it became RESOURCE_EXHAUSTED."""
    await worker.create()

    async def refuse(request: FakeRequest) -> Reply:
        raise GuestFault("FILE_NOT_FOUND", f"no such file: {request.args['path']}", {})

    worker.guest.files = refuse
    for path in ("\u6f22" * 1_300, "\x01" * 4_000, "%" * 4_000):
        with pytest.raises(aio.AioRpcError) as failed:
            await worker.files.StatPath(file_pb2.StatPathRequest(session_id="s1", path=path))
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND
        assert reason_of(failed.value) == "FILE_NOT_FOUND"


def test_internal_fault_says_nothing_but_its_reference() -> None:
    assert InternalFault("abc").metadata() == {"reference": "abc"}
