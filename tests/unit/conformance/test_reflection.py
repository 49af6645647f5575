"""Reflection is asked for in both of its versions, with the caller's credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]

from sandbox_adapter.conformance.outcome import Broken
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rules import adapter
from sandbox_adapter.conformance.target import Target, TrackingClient
from sandbox_adapter.connection import Credentials
from sandbox_adapter.v1 import adapter_pb2, session_pb2

SERVICES = ("AdapterService", "SessionService", "ToolService")


class Reflection(grpc.GenericRpcHandler):
    """Serves one version of reflection to whoever shows the token."""

    def __init__(self, version: str, *services: str) -> None:
        self._method = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        self._services = services

    def service(self, call_details: grpc.HandlerCallDetails) -> Any:
        if call_details.method != self._method:
            return None
        return grpc.stream_stream_rpc_method_handler(
            self._answer,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )

    async def _answer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        if ("authorization", "Bearer secret") not in context.invocation_metadata():
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "show the token")
        async for _ in requests:
            answer = reflection_pb2.ServerReflectionResponse()
            for name in self._services:
                answer.list_services_response.service.add(name=f"sandbox_adapter.v1.{name}")
            yield answer


@asynccontextmanager
async def placed(folder: Path, handler: Reflection) -> AsyncIterator[Place]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    address = f"unix:{folder}/s.sock"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with TrackingClient(address, credentials=Credentials(token="secret")) as client:
            target = Target(client, adapter_pb2.GetInfoResponse(), "")
            yield Place(target, session_pb2.Session(), "/x")
    finally:
        await server.stop(0)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_one_version_of_reflection_is_enough(tmp_path: Path, version: str) -> None:
    async with placed(tmp_path, Reflection(version, *SERVICES)) as place:
        await adapter.answers_reflection.check(place)


async def test_service_that_is_not_listed_breaks_the_rule(tmp_path: Path) -> None:
    async with placed(tmp_path, Reflection("v1", *SERVICES[:2])) as place:
        with pytest.raises(Broken, match="ToolService is not listed"):
            await adapter.answers_reflection.check(place)
