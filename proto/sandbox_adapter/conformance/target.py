"""The adapter under test: what it claims, and the sessions that rules run in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from sandbox_adapter import errors
from sandbox_adapter.client import AdapterClient, new_id
from sandbox_adapter.v1 import adapter_pb2, session_pb2, session_pb2_grpc, tool_pb2_grpc

SEND_S: Final = 60.0
"""Deadline of one request that is sent once."""


class Target:
    """One adapter and one of its profiles.

    Most rules share a session, because making one can take seconds. One that broke
    is replaced before the next rule asks for it.
    """

    def __init__(
        self, client: AdapterClient, info: adapter_pb2.GetInfoResponse, profile: str
    ) -> None:
        self.client = client
        self.info = info
        self.profile = profile
        channel = client.connection.channel
        self.sessions = session_pb2_grpc.SessionServiceStub(channel)
        self.tools = tool_pb2_grpc.ToolServiceStub(channel)
        self._shared: session_pb2.Session | None = None
        # Held while the shared session is made or looked after, so that rules that
        # start together do not make two.
        self._lock = asyncio.Lock()

    def claims(self, capability: adapter_pb2.Capability) -> bool:
        return capability in self.info.capabilities

    @property
    def limits(self) -> adapter_pb2.Limits:
        return self.info.limits

    async def send(
        self, method: Callable[..., Awaitable[Any]], request: object, timeout_s: float = SEND_S
    ) -> Any:
        """Sends a request once, as it stands; the client would repeat it or mend it.

        `method` is one of a stub, such as `target.sessions.CreateSession`.
        """
        return await self.client.connection.once(method, request, timeout_s)

    async def shared_session(self) -> session_pb2.Session:
        """The session of all rules that harm none."""
        async with self._lock:
            if self._shared is None:
                self._shared = await self._create()
            return self._shared

    async def look_after(self, session: session_pb2.Session) -> None:
        """Gives up the shared session if what a rule met has cost it its sandbox."""
        async with self._lock:
            if self._shared is None or self._shared.session_id != session.session_id:
                return
            try:
                now = await self.client.get_session(session.session_id)
                usable = (
                    now.state == session_pb2.SESSION_STATE_READY
                    and now.generation == session.generation
                )
            except errors.AdapterError:
                usable = False
            if not usable:
                self._shared = None
                await self._delete(session.session_id)

    @asynccontextmanager
    async def session(self, **arguments: Any) -> AsyncIterator[session_pb2.Session]:
        """A session of the rule's own, deleted at the end. Arguments as in `create_session`."""
        created = await self._create(**arguments)
        try:
            yield created
        finally:
            await self._delete(created.session_id)

    async def close(self) -> None:
        async with self._lock:
            if self._shared is not None:
                await self._delete(self._shared.session_id)
                self._shared = None

    async def _create(self, **arguments: Any) -> session_pb2.Session:
        arguments.setdefault("session_id", new_id("conformance"))
        arguments.setdefault("profile", self.profile)
        return await self.client.create_session(**arguments)

    async def _delete(self, session_id: str) -> None:
        try:
            await self.client.delete_session(session_id)
        except errors.SessionGone:
            return
