"""`AdapterService`: what this worker is, can do, and enforces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sandbox_adapter.v1 import adapter_pb2, adapter_pb2_grpc
from sandboxd import __version__
from sandboxd.backends.base import Backend
from sandboxd.config import Settings
from sandboxd.rpc import convert
from sandboxd.rpc.errors import Context
from sandboxd.sessions.directory import Directory

CONTRACT: Final = "sandbox_adapter.v1"


class AdapterService(adapter_pb2_grpc.AdapterServiceServicer):
    """Answers from memory, also while the daemon drains or the engine is down."""

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        directory: Directory,
        boot_id: str,
        ledger_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._directory = directory
        self._boot_id = boot_id
        self._ledger_id = ledger_id

    async def GetInfo(
        self, request: adapter_pb2.GetInfoRequest, context: Context
    ) -> adapter_pb2.GetInfoResponse:
        engine = self._settings.backend == "docker"
        capabilities = [
            adapter_pb2.CAPABILITY_WATCH_CALL,
            adapter_pb2.CAPABILITY_FILES,
            adapter_pb2.CAPABILITY_PROCESSES,
            adapter_pb2.CAPABILITY_PTY,
            adapter_pb2.CAPABILITY_SIX_TOOLS,
            adapter_pb2.CAPABILITY_CONFIRMED_CANCEL,
            adapter_pb2.CAPABILITY_SURVIVES_RESTART,
        ]
        if self._backend.isolated:
            capabilities.append(adapter_pb2.CAPABILITY_ISOLATED)
        if self._backend.tells_oom:
            capabilities.append(adapter_pb2.CAPABILITY_OOM_CAUSE)
        return adapter_pb2.GetInfoResponse(
            name="sandboxd",
            version=__version__,
            contract_versions=[CONTRACT],
            capabilities=capabilities,
            profiles=[
                convert.profile(
                    item, is_default=name == self._settings.default_profile, engine=engine
                )
                for name, item in sorted(self._settings.profiles.items())
            ],
            limits=convert.bounds(self._settings),
            capacity=adapter_pb2.Capacity(
                sessions_open=len(self._directory), sessions_max=self._directory.sessions_max
            ),
            boot_id=self._boot_id,
            ledger_id=self._ledger_id(),
            backend=self._backend.name,
        )
