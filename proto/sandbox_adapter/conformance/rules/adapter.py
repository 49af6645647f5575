"""Rules on what an adapter says of itself: GetInfo, ListTools, the services beside them."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]

from sandbox_adapter import errors
from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import SIX_TOOLS, rule
from sandbox_adapter.v1 import adapter_pb2, process_pb2, process_pb2_grpc, tool_pb2

_ANNOUNCED: Final = {
    "read_lines_max": 2_000,
    "read_bytes_max": 51_200,
    "bash_lines_max": 2_000,
    "bash_bytes_max": 51_200,
    "grep_matches_max": 100,
    "grep_line_chars_max": 500,
    "glob_paths_max": 1_000,
    "write_bytes_max": 16 * 1024 * 1024,
    "edit_file_bytes_max": 64 * 1024 * 1024,
    "message_bytes_max": 20 * 1024 * 1024,
    "chunk_bytes_max": 256 * 1024,
    "spill_bytes_max": 16 * 1024 * 1024,
    "calls_parallel_max": 16,
    "calls_queued_max": 256,
}
_REFLECTION_S: Final = 30.0
_SECONDS: Final = {"search_timeout": 30, "kill_grace": 2, "read_scan": 30}
_FIELDS: Final = {
    "read": ({"path", "offset", "limit"}, {"path"}),
    "write": ({"path", "content"}, {"path", "content"}),
    "edit": ({"path", "oldText", "newText", "replaceAll"}, {"path", "oldText", "newText"}),
    "bash": ({"command", "timeout"}, {"command"}),
    "grep": ({"pattern", "path", "include", "literal"}, {"pattern"}),
    "glob": ({"pattern", "path"}, {"pattern"}),
}
_PROGRAM_FIELDS: Final = {"expectedVersion"}
"""Fields for programs, which a schema may name as well."""
_EFFECTS: Final = {
    "read": {tool_pb2.EFFECT_CLASS_READ},
    "grep": {tool_pb2.EFFECT_CLASS_READ},
    "glob": {tool_pb2.EFFECT_CLASS_READ},
    "write": {tool_pb2.EFFECT_CLASS_MUTATE, tool_pb2.EFFECT_CLASS_DESTRUCTIVE},
    "edit": {tool_pb2.EFFECT_CLASS_MUTATE},
    "bash": {tool_pb2.EFFECT_CLASS_OPAQUE},
}


@rule("adapter.says-who-it-is", cases=["contract 1"], needs=())
async def says_who_it_is(place: Place) -> None:
    """GetInfo names the adapter, the contract, this run and this ledger."""
    info = place.target.info
    for name in ("name", "version", "boot_id", "ledger_id"):
        expect.holds(bool(getattr(info, name)), f"GetInfo.{name} is empty")
    expect.holds(
        "sandbox_adapter.v1" in info.contract_versions,
        f"contract_versions is {list(info.contract_versions)}",
    )


@rule("adapter.offers-profiles", cases=["contract 1"], needs=())
async def offers_profiles(place: Place) -> None:
    """GetInfo lists profiles by name, and just one of them is the default."""
    profiles = place.target.info.profiles
    expect.holds(bool(profiles), "no profile is offered")
    names = [profile.name for profile in profiles]
    expect.equal(len(set(names)), len(names), "different names of profiles")
    expect.equal(sum(profile.is_default for profile in profiles), 1, "default profiles")


@rule("adapter.is-steady", cases=["contract 1", "contract 2"], needs=())
async def is_steady(place: Place) -> None:
    """Within one run, boot_id, ledger_id, capabilities and limits stay the same."""
    first, second = place.target.info, await place.client.get_info()
    for name in ("boot_id", "ledger_id", "limits"):
        expect.equal(getattr(second, name), getattr(first, name), name)
    expect.equal(list(second.capabilities), list(first.capabilities), "capabilities")


@rule("adapter.counts-sessions", cases=["contract 1"], needs=())
async def counts_sessions(place: Place) -> None:
    """Capacity counts at least this rule's session, and no more than its maximum."""
    capacity = (await place.client.get_info()).capacity
    expect.holds(capacity.sessions_open >= 1, "sessions_open is 0 while a session is open")
    expect.holds(capacity.sessions_max >= capacity.sessions_open, f"capacity is {capacity}")


@rule("adapter.announces-limits", cases=["contract 5"])
async def announces_limits(place: Place) -> None:
    """The bounds that the contract fixes are announced with its numbers."""
    limits = place.target.limits
    for name, value in _ANNOUNCED.items():
        expect.equal(getattr(limits, name), value, f"limits.{name}")
    for name, seconds in _SECONDS.items():
        expect.equal(getattr(limits, name), Duration(seconds=seconds), f"limits.{name}")
    least = ("bash_timeout_default", "bash_timeout_max", "result_retention", "tombstone_retention")
    for name in least:
        expect.holds(getattr(limits, name).ToSeconds() > 0, f"limits.{name} is not announced")
    expect.holds(
        limits.bash_timeout_default.ToSeconds() <= limits.bash_timeout_max.ToSeconds(),
        "the default timeout of bash is over the greatest",
    )


@rule("adapter.lists-tools", cases=["contract 4"], needs=())
async def lists_tools(place: Place) -> None:
    """Every tool has a name, a description for a model, and a schema of its input."""
    tools = await place.client.list_tools()
    expect.holds(bool(tools), "ListTools is empty")
    names = [tool.name for tool in tools]
    expect.equal(len(set(names)), len(names), "different names of tools")
    for tool in tools:
        expect.holds(
            re.fullmatch(r"[a-z][a-z0-9_]{0,63}", tool.name) is not None,
            f"{expect.shown(tool.name)} is no name of a tool",
        )
        expect.holds(bool(tool.description.strip()), f"{tool.name} has no description")
        schema = json.loads(tool.input_schema_json)
        expect.equal(schema.get("type"), "object", f"type in the schema of {tool.name}")
        expect.holds(tool.effect != 0, f"{tool.name} has no effect class")


@rule("adapter.lists-the-six", cases=["contract 4", "contract 6"])
async def lists_the_six(place: Place) -> None:
    """The six tools are listed with the contract's fields, effects and bounds."""
    tools = {tool.name: tool for tool in await place.client.list_tools()}
    for name, (fields, required) in _FIELDS.items():
        expect.holds(name in tools, f"{name} is not listed")
        schema: dict[str, Any] = json.loads(tools[name].input_schema_json)
        given = set(schema["properties"]) - _PROGRAM_FIELDS
        expect.equal(given, fields, f"fields of {name}")
        expect.equal(set(schema["required"]), required, f"required fields of {name}")
        expect.equal(schema.get("additionalProperties"), False, f"additional fields of {name}")
        expect.holds(tools[name].effect in _EFFECTS[name], f"effect of {name}")
        for field, described in schema["properties"].items():
            expect.holds("type" in described, f"{name}.{field} has no type")
            expect.holds(bool(described.get("description")), f"{name}.{field} is not described")
    limits = place.target.limits
    expect.equal(tools["bash"].timeout_default, limits.bash_timeout_default, "default of bash")
    expect.equal(tools["bash"].timeout_max, limits.bash_timeout_max, "maximum of bash")
    expect.equal(tools["grep"].timeout_max, limits.search_timeout, "maximum of grep")


@rule("adapter.refuses-unknown-tools", cases=["contract 4"], needs=())
async def refuses_unknown_tools(place: Place) -> None:
    """A tool that is not listed is a fault of the envelope."""
    for name in ("no_such_tool", "", "READ", "read ", "read\n", "x" * 10_000):
        with expect.fails("INVALID_ARGUMENT", "UNKNOWN_TOOL", "INVALID_ENVELOPE"):
            await place.client.call_json(place.session_id, name, "{}")


@rule("adapter.answers-health", cases=["contract 1"], needs=())
async def answers_health(place: Place) -> None:
    """The standard health service says SERVING."""
    stub = health_pb2_grpc.HealthStub(place.client.connection.channel)
    answer = await place.target.send(stub.Check, health_pb2.HealthCheckRequest())
    expect.equal(answer.status, health_pb2.HealthCheckResponse.SERVING, "health")


@rule("adapter.answers-reflection", cases=["contract 1"], needs=())
async def answers_reflection(place: Place) -> None:
    """Server reflection lists the services of the contract."""
    try:
        names = await _reflected(place, "v1")
    except errors.AdapterError:
        # Not only NotServed: where the refusal comes before the request has left, the
        # client's library says INTERNAL.
        names = await _reflected(place, "v1alpha")
    for wanted in ("AdapterService", "SessionService", "ToolService"):
        expect.holds(f"sandbox_adapter.v1.{wanted}" in names, f"{wanted} is not listed")


async def _reflected(place: Place, version: str) -> set[str]:
    """Names of the services that this version of reflection lists."""
    # The messages of both versions are the same on the wire; only the service differs.
    connection = place.client.connection
    method = connection.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stream, _, first = await connection.repeat_open(method, [request], _REFLECTION_S)
    stream.cancel()
    expect.holds(first is not None, "reflection answers nothing")
    return {service.name for service in first.list_services_response.service}


@rule("adapter.refuses-what-it-does-not-claim", cases=["contract 1"], needs=())
async def refuses_what_it_does_not_claim(place: Place) -> None:
    """An RPC of a capability that is not claimed answers UNIMPLEMENTED, NOT_SERVED."""
    target = place.target
    judged = False
    if not target.claims(adapter_pb2.CAPABILITY_FILES):
        judged = True
        with expect.fails("UNIMPLEMENTED", "NOT_SERVED"):
            await place.client.files.stat(place.session_id, place.folder)
        with expect.fails("UNIMPLEMENTED", "NOT_SERVED"):
            async with place.client.files.read(place.session_id, place.at("f")) as reader:
                async for _ in reader:
                    pass
        with expect.fails("UNIMPLEMENTED", "NOT_SERVED"):
            await place.client.files.write(place.session_id, place.at("f"), b"x")
    if not target.claims(adapter_pb2.CAPABILITY_PROCESSES):
        judged = True
        stub = process_pb2_grpc.ProcessServiceStub(place.client.connection.channel)
        with expect.fails("UNIMPLEMENTED", "NOT_SERVED"):
            await target.send(
                stub.ListProcesses, process_pb2.ListProcessesRequest(session_id=place.session_id)
            )
    if not target.claims(adapter_pb2.CAPABILITY_WATCH_CALL):
        judged = True
        request = tool_pb2.WatchCallRequest(session_id=place.session_id, call_id=new_id("call"))
        with expect.fails("UNIMPLEMENTED", "NOT_SERVED"):
            await place.client.connection.repeat_open(target.tools.WatchCall, request, 30)
    if not judged:
        raise Uncheckable("the adapter claims all that could be asked for")


@rule("adapter.takes-json-for-every-tool", cases=["contract 4"], needs=(SIX_TOOLS,))
async def takes_json_for_every_tool(place: Place) -> None:
    """Each listed tool of the six can be called with JSON alone."""
    expect.fine(await place.write("f", "one\n"))
    expect.fine(await place.read("f"), "one\n")
    expect.fine(await place.edit("f", "one", "two"))
    expect.fine(await place.grep("two"))
    expect.fine(await place.glob("f"), place.at("f"))
