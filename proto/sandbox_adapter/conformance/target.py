"""The adapter under test: what it claims, and the sessions that rules run in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sandbox_adapter import errors
from sandbox_adapter.client import AdapterClient, new_id
from sandbox_adapter.conformance.expect import shown
from sandbox_adapter.v1 import adapter_pb2, session_pb2, session_pb2_grpc, tool_pb2_grpc

SEND_S: Final = 60.0
"""Deadline of one request that is sent once."""
DELETE_S: Final = 60.0
"""Deadline of ending one session, over all repeats."""


class TrackingClient(AdapterClient):
    """A client that knows which sessions may be there because of it.

    An id is noted before the request leaves: the adapter may have taken a request
    whose answer nobody waited for.
    """

    def __init__(self, target: str, **arguments: Any) -> None:
        super().__init__(target, **arguments)
        self.opened: set[str] = set()

    async def create_session(
        self, *, session_id: str | None = None, **arguments: Any
    ) -> session_pb2.Session:
        wanted = session_id or new_id("conformance")
        with self.noted(wanted):
            return await super().create_session(session_id=wanted, **arguments)

    async def delete_session(self, session_id: str, **arguments: Any) -> None:
        await super().delete_session(session_id, **arguments)
        self.opened.discard(session_id)

    @contextmanager
    def noted(self, session_id: str) -> Iterator[None]:
        """Around a request that makes this session; forgets it where it was refused.

        An empty id leaves the choice to the adapter, so that there is nothing to note.
        """
        known = not session_id or session_id in self.opened
        if session_id:
            self.opened.add(session_id)
        try:
            yield
        except errors.AdapterError as error:
            if not known and not _may_have_happened(error):
                self.opened.discard(session_id)
            raise


def _may_have_happened(error: errors.AdapterError) -> bool:
    return isinstance(error, errors.Unavailable | errors.DeadlineExceeded | errors.AdapterBug)


@dataclass
class _Shared:
    """A session that rules share, until it is retired and the last of them is done."""

    session: session_pb2.Session
    users: int = 0
    retired: bool = False


class Target:
    """One adapter and one of its profiles.

    Most rules share a session, because making one can take seconds. One that broke, or
    in which a rule left a call behind, is replaced before the next rule asks for it.
    """

    def __init__(
        self, client: TrackingClient, info: adapter_pb2.GetInfoResponse, profile: str
    ) -> None:
        self.client = client
        self.info = info
        self.profile = profile
        self.commands: dict[str, bool] = {}
        """Which commands the sandbox is known to have, and to lack."""
        self.problems: list[str] = []
        """What went wrong in ending sessions, a line each: no rule's verdict, yet to be said."""
        channel = client.connection.channel
        self.sessions = session_pb2_grpc.SessionServiceStub(channel)
        self.tools = tool_pb2_grpc.ToolServiceStub(channel)
        self._shared: _Shared | None = None
        # Held while the shared session is made, so that rules that start together do
        # not make two.
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
        if not isinstance(request, session_pb2.CreateSessionRequest):
            return await self.client.connection.once(method, request, timeout_s)
        with self.client.noted(request.session_id):
            answer = await self.client.connection.once(method, request, timeout_s)
        # The id of the answer, where the request left it to the adapter.
        if answer.session.session_id:
            self.client.opened.add(answer.session.session_id)
        return answer

    @asynccontextmanager
    async def shared_session(self) -> AsyncIterator[session_pb2.Session]:
        """The session of all rules that harm none."""
        async with self._lock:
            if self._shared is None:
                self._shared = _Shared(await self._create())
            shared = self._shared
            shared.users += 1
        try:
            yield shared.session
        finally:
            shared.users -= 1
            if shared.retired and not shared.users:
                await self._delete(shared.session.session_id)

    def retire(self, session: session_pb2.Session) -> None:
        """Gives the shared session to no more rules. Those that have it keep it."""
        if self._shared is not None and self._shared.session.session_id == session.session_id:
            self._shared.retired = True
            self._shared = None

    async def look_after(self, session: session_pb2.Session) -> None:
        """Retires the shared session if what a rule met has cost it its sandbox."""
        try:
            now = await self.client.get_session(session.session_id)
            usable = (
                now.state == session_pb2.SESSION_STATE_READY
                and now.generation == session.generation
            )
        except errors.AdapterError:
            usable = False
        if not usable:
            self.retire(session)

    @asynccontextmanager
    async def session(self, **arguments: Any) -> AsyncIterator[session_pb2.Session]:
        """A session of the rule's own, deleted at the end. Arguments as in `create_session`."""
        created = await self._create(**arguments)
        try:
            yield created
        finally:
            await self._delete(created.session_id)

    async def close(self) -> None:
        """Ends every session that is left, also of requests that were cut off."""
        self._shared = None
        left = sorted(self.client.opened)
        await asyncio.gather(*(self._delete(session_id) for session_id in left))

    async def _create(self, **arguments: Any) -> session_pb2.Session:
        arguments.setdefault("profile", self.profile)
        return await self.client.create_session(**arguments)

    async def _delete(self, session_id: str) -> None:
        # A verdict is about the rule: what fails here is told, and never takes its place.
        try:
            await self.client.delete_session(session_id, timeout_s=DELETE_S)
        except errors.SessionGone:
            self.client.opened.discard(session_id)
        except errors.AdapterError as error:
            self.problems.append(
                f"session {shown(session_id)} could not be ended: {error.status}"
                f" {shown(error.reason)}: {shown(str(error))}"
            )
