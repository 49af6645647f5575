"""The services over a real gRPC server on a Unix socket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]
    reflection_pb2,
    reflection_pb2_grpc,
)

from sandbox_adapter.v1 import adapter_pb2, session_pb2, tool_pb2
from sandboxd import limits
from sandboxd.rpc import inputs
from sandboxd.sessions import calls, digest
from tests.unit.worker import Worker, error_info, reason_of

SERVICES = [
    "sandbox_adapter.v1.AdapterService",
    "sandbox_adapter.v1.SessionService",
    "sandbox_adapter.v1.ToolService",
    "sandbox_adapter.v1.FileService",
    "sandbox_adapter.v1.ProcessService",
]


async def _failure(attempt: object) -> aio.AioRpcError:
    with pytest.raises(aio.AioRpcError) as failed:
        await attempt  # type: ignore[misc]
    return failed.value


async def test_info_announces_every_bound_that_is_enforced(worker: Worker) -> None:
    info = await worker.adapter.GetInfo(adapter_pb2.GetInfoRequest())
    unset = [
        field.name
        for field in info.limits.DESCRIPTOR.fields
        if field.has_presence and not info.limits.HasField(field.name)
    ]
    zero = [
        field.name
        for field in info.limits.DESCRIPTOR.fields
        if not field.has_presence and getattr(info.limits, field.name) == 0
    ]
    assert (unset, zero) == ([], [])
    assert info.limits.read_bytes_max == 51_200
    assert info.limits.message_bytes_max == 20 * 1024 * 1024
    assert adapter_pb2.CAPABILITY_WATCH_CALL in info.capabilities
    assert adapter_pb2.CAPABILITY_ISOLATED in info.capabilities
    assert [profile.name for profile in info.profiles if profile.is_default] == ["default"]
    assert info.ledger_id
    assert info.boot_id


async def test_info_announces_the_bounds_that_the_enforcers_read(worker: Worker) -> None:
    """The numbers themselves: each is compared with the constant that its enforcer uses."""
    info = await worker.adapter.GetInfo(adapter_pb2.GetInfoRequest())
    announced = info.limits
    assert announced.watchers_parallel_max == limits.WATCHERS_PARALLEL_MAX == 32
    assert announced.process_verbs_max == limits.PROCESS_VERBS_MAX == 256
    assert announced.process_argument_bytes_max == limits.PROCESS_ARGUMENT_BYTES_MAX == 65_536
    assert announced.stream_life.ToSeconds() == limits.STREAM_LIFE_S == 600
    assert announced.call_awaited.ToSeconds() == limits.CALL_AWAITED_S == 5
    assert announced.verbs_parallel_max == limits.VERBS_PARALLEL_MAX


async def test_info_counts_open_sessions(worker: Worker) -> None:
    await worker.create("s1")
    await worker.create("s2")
    info = await worker.adapter.GetInfo(adapter_pb2.GetInfoRequest())
    assert (info.capacity.sessions_open, info.capacity.sessions_max) == (2, 64)


async def test_tools_are_listed_with_what_an_orchestrator_stages_by(worker: Worker) -> None:
    answer = await worker.tools.ListTools(tool_pb2.ListToolsRequest())
    assert [tool.name for tool in answer.tools] == ["probe", "poke"]
    assert answer.tools[0].effect == tool_pb2.EFFECT_CLASS_READ
    assert json.loads(answer.tools[0].input_schema_json) == {"type": "object"}


@pytest.mark.parametrize("bad", ["", "-a", ".a", "a/b", "a b", "a" * 65, "é", "a\n", "a\x00"])
async def test_malformed_session_id_is_a_fault_of_the_envelope(worker: Worker, bad: str) -> None:
    error = await _failure(worker.get(bad))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    info = error_info(error)
    assert info.domain == "sandbox_adapter"
    assert info.reason == "INVALID_ENVELOPE"
    assert info.metadata["field"] == "session_id"
    assert info.metadata["rule"]


async def test_call_without_input_is_a_fault_of_the_envelope(worker: Worker) -> None:
    await worker.create()
    error = await _failure(worker.tools.CallTool(tool_pb2.CallToolRequest(session_id="s1")))
    assert error_info(error).metadata["field"] == "input"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1, "a": 2}',
        '{"a": {"b": 1, "b": 2}}',
        "{" + '"a":[' * 100_000,
        '{"a": ' + "9" * 5_000 + "}",
        "{}{}",
    ],
)
async def test_custom_json_that_is_no_object_runs_nothing(worker: Worker, text: str) -> None:
    await worker.create()
    error = await _failure(worker.call("c1", json=text))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_info(error).metadata["field"] == "custom.json"
    assert worker.guest.started == []


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 9007199254740993}',
        '{"n": 1e999}',
        '{"s": "\\ud800"}',
        '{"\\ud800": 1}',
        '{"s": "[[[["}',
    ],
)
async def test_every_json_object_has_a_digest_and_is_replayed(worker: Worker, text: str) -> None:
    """A digest must exist for what RFC 8785 cannot express: its fault is the tool's to say."""
    await worker.create()
    await worker.call("c1", json=text)
    assert (await worker.call("c1", json=text)).result.replayed


@pytest.mark.parametrize("size", [10, limits.MIB])
async def test_large_input_is_parsed_and_digested_beside_the_loop(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Seen: ten megabytes of small fields held up every other call for 2.8 s."""
    on_loop: list[bool] = []

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            on_loop.append(threading.current_thread() is threading.main_thread())
            return work(*arguments)

        return run

    monkeypatch.setattr(inputs, "_parsed", noted(inputs._parsed))
    monkeypatch.setattr(calls, "call_digest", noted(digest.call_digest))
    await worker.create()
    items = ",".join(["1"] * (size // 2))
    await worker.call("c1", json=f'{{"items": [{items}]}}' if size > 10 else '{"items": 1}')
    assert on_loop == [size == 10] * 2


async def test_tool_that_does_not_exist_is_named_with_those_that_do(worker: Worker) -> None:
    await worker.create()
    error = await _failure(worker.call("c1", "nothing"))
    assert (error.code(), reason_of(error)) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "UNKNOWN_TOOL",
    )
    assert "probe, poke" in (error.details() or "")


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("env", {"env": {"1A": "x"}}),
        ("env", {"env": {"A": "x\0"}}),
        ("env", {"env": {"A": "x" * limits.ENV_BYTES_MAX}}),
        ("labels", {"labels": {"k" * 64: "v"}}),
        ("labels", {"labels": {"k": "v" * 256}}),
        ("labels", {"labels": {f"k{index}": "v" for index in range(33)}}),
        ("idle_timeout", {"idle_timeout": Duration(seconds=-1)}),
        ("idle_timeout", {"idle_timeout": Duration()}),
        ("max_lifetime", {"max_lifetime": Duration(nanos=-1)}),
        ("network", {"network": 77}),
        ("resources.pids", {"resources": session_pb2.Resources(pids=0)}),
    ],
)
async def test_malformed_specification_names_its_field(
    worker: Worker, field: str, fields: dict[str, Any]
) -> None:
    error = await _failure(worker.create(**fields))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
    assert error_info(error).metadata["field"] == field
    assert worker.backend.containers == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"network": session_pb2.NETWORK_OPEN},
        {"network": session_pb2.NETWORK_ALLOWLIST},
        {"resources": session_pb2.Resources(memory_bytes=2**40)},
        {"resources": session_pb2.Resources(cpu_millis=10**6)},
        {"resources": session_pb2.Resources(pids=10**6)},
        {"resources": session_pb2.Resources(tmp_bytes=2**40)},
        {"resources": session_pb2.Resources(disk_bytes=1)},
        {"resources": session_pb2.Resources(memory_bytes=1)},
        {"max_lifetime": Duration(seconds=10**9)},
    ],
)
async def test_override_outside_the_profile_is_forbidden(
    worker: Worker, fields: dict[str, Any]
) -> None:
    error = await _failure(worker.create(**fields))
    assert (error.code(), reason_of(error)) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "PROFILE_FORBIDS",
    )
    assert worker.backend.containers == {}


async def test_memory_too_small_for_its_tmp_is_refused_by_its_own_name(worker: Worker) -> None:
    asked = session_pb2.Resources(memory_bytes=128 * limits.MIB)
    error = await _failure(worker.create(resources=asked))
    assert reason_of(error) == "PROFILE_FORBIDS"
    assert error_info(error).metadata["field"] == "resources.memory_bytes"


async def test_override_within_the_profile_is_in_force(worker: Worker) -> None:
    asked = session_pb2.Resources(memory_bytes=256 * 1024 * 1024, cpu_millis=500, pids=64)
    session = await worker.create(resources=asked, network=session_pb2.NETWORK_NONE)
    got = session.effective.resources
    assert (got.memory_bytes, got.cpu_millis, got.pids) == (256 * 1024 * 1024, 500, 64)
    assert got.tmp_bytes < 128 * 1024 * 1024


async def test_profile_that_does_not_exist_is_named_with_those_that_do(worker: Worker) -> None:
    error = await _failure(worker.create(profile="gpu"))
    assert reason_of(error) == "PROFILE_UNKNOWN"
    assert "default" in (error.details() or "")


@pytest.mark.parametrize("page", [{"page_size": -1}, {"page_size": 1_001}, {"page_token": "x"}])
async def test_malformed_page_is_refused(worker: Worker, page: dict[str, object]) -> None:
    request = session_pb2.ListSessionsRequest(**page)  # type: ignore[arg-type]
    assert reason_of(await _failure(worker.sessions.ListSessions(request))) == "INVALID_ENVELOPE"


async def test_message_over_the_bound_is_refused_and_the_server_lives(worker: Worker) -> None:
    await worker.create()
    big = "x" * (limits.MESSAGE_BYTES_MAX + 1)
    error = await _failure(worker.call("c1", json=json.dumps({"path": big})))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert worker.guest.started == []
    await worker.call("c2")


async def test_health_and_reflection_know_every_service(worker: Worker) -> None:
    health = health_pb2_grpc.HealthStub(worker.channel)
    for name in ["", *SERVICES]:
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(worker.channel)
    stream = reflection.ServerReflectionInfo()
    await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    listed = await stream.read()
    stream.cancel()
    assert set(SERVICES) <= {item.name for item in listed.list_services_response.service}
    await worker.parts.server.announce_end()
    answer = await health.Check(health_pb2.HealthCheckRequest(service=""))
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_metrics_count_calls_by_tool_and_ending_and_name_no_session(worker: Worker) -> None:
    await worker.create("secret-session")
    await asyncio.gather(*(worker.call(f"c{i}", session_id="secret-session") for i in range(3)))
    await worker.call("c1", session_id="secret-session")

    def value(name: str, **labels: str) -> float | None:
        return worker.metrics.registry.get_sample_value(name, labels)

    assert value("sandboxd_call_seconds_count", tool="poke", ending="COMPLETED") == 3
    assert value("sandboxd_call_replays_total") == 1
    assert value("sandboxd_sessions", state="READY") == 1
    assert value("sandboxd_session_phase_seconds_count", phase="guest_ready") == 1
    labels = {
        text
        for family in worker.metrics.registry.collect()
        for sample in family.samples
        for text in sample.labels.values()
    }
    assert not any("secret" in text for text in labels)


TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("traceparent", "logged"),
    [
        (f"00-{TRACE_ID}-00f067aa0ba902b7-01", True),
        (f"cc-{TRACE_ID}-00f067aa0ba902b7-01-of-a-later-version", True),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", False),
        (f"00-{TRACE_ID}-00f067aa0ba902b7", False),
        (f"00-{TRACE_ID.upper()}-00f067aa0ba902b7-01", False),
    ],
)
async def test_trace_of_the_caller_is_part_of_what_its_request_logs(
    worker: Worker, caplog: pytest.LogCaptureFixture, traceparent: str, logged: bool
) -> None:
    caplog.set_level("INFO", logger="sandboxd")
    request = session_pb2.CreateSessionRequest(session_id="traced")
    await worker.sessions.CreateSession(request, metadata=(("traceparent", traceparent),))
    fields = [getattr(record, "sandboxd_fields", {}) for record in caplog.records]
    traces = {found.get("trace") for found in fields if found.get("session") == "traced"}
    assert traces == ({TRACE_ID} if logged else {None})
