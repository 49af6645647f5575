"""`SessionService`: a shell over the session manager."""

from __future__ import annotations

from sandbox_adapter.v1 import session_pb2, session_pb2_grpc
from sandboxd.rpc import convert, envelope
from sandboxd.rpc.errors import Context
from sandboxd.sessions.manager import SessionManager
from sandboxd.sessions.records import TENANT


class SessionService(session_pb2_grpc.SessionServiceServicer):
    """Checks envelopes and converts; every decision is the manager's."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager

    async def CreateSession(
        self, request: session_pb2.CreateSessionRequest, context: Context
    ) -> session_pb2.CreateSessionResponse:
        session_id = envelope.optional_id("session_id", request.session_id)
        record, replayed = await self._manager.create(
            TENANT, session_id, convert.specification(request)
        )
        return session_pb2.CreateSessionResponse(session=convert.session(record), replayed=replayed)

    async def GetSession(
        self, request: session_pb2.GetSessionRequest, context: Context
    ) -> session_pb2.GetSessionResponse:
        record = await self._manager.get(envelope.session_key(request.session_id))
        return session_pb2.GetSessionResponse(session=convert.session(record))

    async def ListSessions(
        self, request: session_pb2.ListSessionsRequest, context: Context
    ) -> session_pb2.ListSessionsResponse:
        size = envelope.page_size(request.page_size)
        records, last = self._manager.page(TENANT, envelope.page_start(request.page_token), size)
        return session_pb2.ListSessionsResponse(
            sessions=[convert.session(record) for record in records],
            next_page_token=str(last) if last else "",
        )

    async def UpdateSession(
        self, request: session_pb2.UpdateSessionRequest, context: Context
    ) -> session_pb2.UpdateSessionResponse:
        idle_timeout_s, max_lifetime_s = convert.update_times(request)
        record = await self._manager.update(
            envelope.session_key(request.session_id),
            request.epoch if request.HasField("epoch") else None,
            idle_timeout_s=idle_timeout_s,
            max_lifetime_s=max_lifetime_s,
            labels=dict(request.labels),
        )
        return session_pb2.UpdateSessionResponse(session=convert.session(record))

    async def DeleteSession(
        self, request: session_pb2.DeleteSessionRequest, context: Context
    ) -> session_pb2.DeleteSessionResponse:
        await self._manager.delete(
            envelope.session_key(request.session_id),
            request.epoch if request.HasField("epoch") else None,
        )
        return session_pb2.DeleteSessionResponse()
