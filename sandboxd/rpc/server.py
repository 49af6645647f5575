"""The gRPC server: its options, its services, its start and its end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from sandbox_adapter.v1 import (
    adapter_pb2,
    adapter_pb2_grpc,
    file_pb2,
    file_pb2_grpc,
    process_pb2,
    process_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    tool_pb2,
    tool_pb2_grpc,
)
from sandboxd import limits
from sandboxd.errors import EXIT_ADDRESS, StartupError
from sandboxd.metrics import Metrics
from sandboxd.rpc.adapter_service import AdapterService
from sandboxd.rpc.address import Address, claim_port, claim_socket
from sandboxd.rpc.errors import Boundary
from sandboxd.rpc.file_service import FileService
from sandboxd.rpc.process_service import ProcessService
from sandboxd.rpc.session_service import SessionService
from sandboxd.rpc.tool_service import ToolService

_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
    # Pings may come every 10 s, also where no call runs (contract.md 7).
    ("grpc.http2.min_recv_ping_interval_without_data_ms", limits.KEEPALIVE_MIN_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", limits.KEEPALIVE_MIN_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Otherwise a second daemon would share the port without a word.
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True)
class Services:
    """What is served."""

    adapter: AdapterService
    session: SessionService
    tool: ToolService
    file: FileService
    process: ProcessService


class Server:
    """One gRPC server on one address."""

    def __init__(self, services: Services, metrics: Metrics) -> None:
        self._server = aio.server(interceptors=(Boundary(metrics),), options=_OPTIONS)
        self._health = health.aio.HealthServicer()
        self._process = services.process
        self._socket: os.PathLike[str] | None = None
        server: Any = self._server
        adapter_pb2_grpc.add_AdapterServiceServicer_to_server(services.adapter, server)
        session_pb2_grpc.add_SessionServiceServicer_to_server(services.session, server)
        tool_pb2_grpc.add_ToolServiceServicer_to_server(services.tool, server)
        file_pb2_grpc.add_FileServiceServicer_to_server(services.file, server)
        process_pb2_grpc.add_ProcessServiceServicer_to_server(services.process, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        self._names = [
            adapter_pb2.DESCRIPTOR.services_by_name["AdapterService"].full_name,
            session_pb2.DESCRIPTOR.services_by_name["SessionService"].full_name,
            tool_pb2.DESCRIPTOR.services_by_name["ToolService"].full_name,
            file_pb2.DESCRIPTOR.services_by_name["FileService"].full_name,
            process_pb2.DESCRIPTOR.services_by_name["ProcessService"].full_name,
            health.SERVICE_NAME,
        ]
        reflection.enable_server_reflection([*self._names, reflection.SERVICE_NAME], server)

    async def start(self, address: Address) -> str:
        """Listens and serves; returns the address as it is, with the real port.

        Raises `StartupError` (EXIT_ADDRESS) where the address cannot be had.
        """
        if address.path is not None:
            claim_socket(address.path)
        else:
            claim_port(address.host, address.port)
        # The socket takes the mode that the umask leaves: its owner's alone.
        umask = os.umask(0o077)
        try:
            port = self._server.add_insecure_port(address.text)
            if port == 0:
                raise RuntimeError("no port")
            await self._server.start()
        except RuntimeError:
            raise StartupError(
                f"cannot listen on `{address.text}`: it is in use, or not this machine's",
                EXIT_ADDRESS,
            ) from None
        finally:
            os.umask(umask)
        self._socket = address.path
        await self._announce(health_pb2.HealthCheckResponse.SERVING)
        if address.path is not None:
            return address.text
        return Address(None, address.host, port).text

    async def announce_end(self) -> None:
        """Health says NOT_SERVING from here on, and nothing that has no end goes on."""
        await self._announce(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._health.enter_graceful_shutdown()
        self._process.end()

    async def stop(self, grace_s: float) -> None:
        """Takes no more RPCs, gives running ones `grace_s`, closes the socket."""
        await self._server.stop(grace_s)
        if self._socket is not None:
            try:
                os.unlink(self._socket)
            except FileNotFoundError:
                pass

    async def _announce(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)
