"""A thin asyncio client of an adapter.

It makes ids, keeps deadlines, maps failures to `errors` by reason, and repeats
only what the contract makes safe: reads, requests that carry an id of the
client's, and verbs whose contract says that repeating is safe. Every repeat
carries the same id, so an effect happens once (contract.md 2).

Answers are the contract's own messages; there is no second set of classes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Self

from sandbox_adapter import errors
from sandbox_adapter.connection import (
    MESSAGE_BYTES_MAX,
    RETRY_S_MAX,
    SHORT_TIMEOUT_S,
    Connection,
    Credentials,
    duration,
    new_id,
)
from sandbox_adapter.files import FileClient, FileReader
from sandbox_adapter.processes import ProcessClient
from sandbox_adapter.v1 import (
    adapter_pb2,
    adapter_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    tool_pb2,
    tool_pb2_grpc,
)
from sandbox_adapter.watching import CallWatcher

__all__ = [
    "AdapterClient",
    "FileClient",
    "FileReader",
    "ProcessClient",
    "TypedInput",
    "new_id",
]

CREATE_TIMEOUT_S: Final = 660.0
"""Default deadline of CreateSession and DeleteSession: a pull may be part of it."""
CALL_TIMEOUT_S: Final = 3_720.0
"""Default deadline of a call: the longest timeout of bash, and time to answer."""

TypedInput = (
    tool_pb2.ReadInput
    | tool_pb2.WriteInput
    | tool_pb2.EditInput
    | tool_pb2.BashInput
    | tool_pb2.GrepInput
    | tool_pb2.GlobInput
)


class AdapterClient:
    """One connection to an adapter. Use it as an async context manager.

    `target` is what gRPC takes: `HOST:PORT`, `unix:PATH`. Every method takes
    `timeout_s`, the caller's deadline over all repeats, and raises
    `errors.AdapterError`. Cancelling a method detaches the caller and nothing
    more, see `CallTool`.
    """

    files: FileClient
    processes: ProcessClient

    def __init__(
        self,
        target: str,
        *,
        retry_s_max: float = RETRY_S_MAX,
        credentials: Credentials | None = None,
    ) -> None:
        self._connection = Connection(target, retry_s_max, credentials)

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        channel = self._connection.channel
        self._adapter = adapter_pb2_grpc.AdapterServiceStub(channel)
        self._sessions = session_pb2_grpc.SessionServiceStub(channel)
        self._tools = tool_pb2_grpc.ToolServiceStub(channel)
        self.files = FileClient(self._connection)
        self.processes = ProcessClient(self._connection)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._connection.__aexit__(kind, error, trace)

    @property
    def connection(self) -> Connection:
        """The connection, for requests that this class does not wrap, or would repeat."""
        return self._connection

    # --- AdapterService ------------------------------------------------------

    async def get_info(self, *, timeout_s: float = SHORT_TIMEOUT_S) -> adapter_pb2.GetInfoResponse:
        """What the adapter is, can do and bounds."""
        answer: adapter_pb2.GetInfoResponse = await self._connection.repeat(
            self._adapter.GetInfo, adapter_pb2.GetInfoRequest(), timeout_s
        )
        return answer

    # --- SessionService ------------------------------------------------------

    async def create_session(
        self,
        *,
        session_id: str | None = None,
        profile: str = "",
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        resources: session_pb2.Resources | None = None,
        network: session_pb2.Network | None = None,
        timeout_s: float = CREATE_TIMEOUT_S,
    ) -> session_pb2.Session:
        """A session that is ready for calls. Makes the id where none is given."""
        request = session_pb2.CreateSessionRequest(
            session_id=session_id or new_id("ses"),
            profile=profile,
            env=env or {},
            labels=labels or {},
            idle_timeout=duration(idle_timeout_s),
            max_lifetime=duration(max_lifetime_s),
            resources=resources,
            network=network,
        )
        answer: session_pb2.CreateSessionResponse = await self._connection.repeat(
            self._sessions.CreateSession, request, timeout_s
        )
        return answer.session

    async def get_session(
        self, session_id: str, *, timeout_s: float = SHORT_TIMEOUT_S
    ) -> session_pb2.Session:
        """The session as it is now."""
        request = session_pb2.GetSessionRequest(session_id=session_id)
        answer: session_pb2.GetSessionResponse = await self._connection.repeat(
            self._sessions.GetSession, request, timeout_s
        )
        return answer.session

    async def list_sessions(
        self, *, page_size: int = 0, timeout_s: float = SHORT_TIMEOUT_S
    ) -> AsyncIterator[session_pb2.Session]:
        """The caller's sessions, oldest first. The deadline is each page's."""
        token = ""
        while True:
            request = session_pb2.ListSessionsRequest(page_size=page_size, page_token=token)
            answer: session_pb2.ListSessionsResponse = await self._connection.repeat(
                self._sessions.ListSessions, request, timeout_s
            )
            for session in answer.sessions:
                yield session
            token = answer.next_page_token
            if not token:
                return

    async def update_session(
        self,
        session_id: str,
        *,
        epoch: int | None = None,
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        labels: Mapping[str, str] | None = None,
        timeout_s: float = SHORT_TIMEOUT_S,
    ) -> session_pb2.Session:
        """Changes what is given and counts as use; announces `epoch`."""
        request = session_pb2.UpdateSessionRequest(
            session_id=session_id,
            epoch=epoch,
            idle_timeout=duration(idle_timeout_s),
            max_lifetime=duration(max_lifetime_s),
            labels=labels or {},
        )
        answer: session_pb2.UpdateSessionResponse = await self._connection.repeat(
            self._sessions.UpdateSession, request, timeout_s
        )
        return answer.session

    async def delete_session(
        self, session_id: str, *, epoch: int | None = None, timeout_s: float = CREATE_TIMEOUT_S
    ) -> None:
        """Ends the session and everything in it."""
        request = session_pb2.DeleteSessionRequest(session_id=session_id, epoch=epoch)
        await self._connection.repeat(self._sessions.DeleteSession, request, timeout_s)

    # --- ToolService ---------------------------------------------------------

    async def list_tools(self, *, timeout_s: float = SHORT_TIMEOUT_S) -> list[tool_pb2.Tool]:
        """The tools that the adapter offers, in its order."""
        request = tool_pb2.ListToolsRequest()
        answer: tool_pb2.ListToolsResponse = await self._connection.repeat(
            self._tools.ListTools, request, timeout_s
        )
        return list(answer.tools)

    async def call_tool(
        self,
        session_id: str,
        name: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str | None = None,
        epoch: int | None = None,
        cancel_on_disconnect: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> tool_pb2.CallToolResponse:
        """Runs any tool of `list_tools` with JSON input and waits for its end.

        Makes the id where none is given. A lost connection is answered by the
        same request again, which joins the call or gets its recorded result.
        Raises `errors.InvalidRequest`, and sends nothing, where the request is
        larger than a message may be.
        """
        return await self.call_json(
            session_id,
            name,
            _json(arguments),
            call_id=call_id,
            epoch=epoch,
            cancel_on_disconnect=cancel_on_disconnect,
            timeout_s=timeout_s,
        )

    async def call_json(
        self,
        session_id: str,
        name: str,
        text: str,
        *,
        call_id: str | None = None,
        epoch: int | None = None,
        cancel_on_disconnect: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> tool_pb2.CallToolResponse:
        """As `call_tool`, with the input as JSON text, sent as it stands."""
        request = tool_pb2.CallToolRequest(
            session_id=session_id,
            call_id=call_id or new_id("call"),
            epoch=epoch,
            custom=tool_pb2.CustomInput(name=name, json=text),
            cancel_on_disconnect=cancel_on_disconnect,
        )
        _refuse_oversize(request)
        answer: tool_pb2.CallToolResponse = await self._connection.repeat(
            self._tools.CallTool, request, timeout_s
        )
        return answer

    async def call_typed(
        self,
        session_id: str,
        typed: TypedInput,
        *,
        call_id: str | None = None,
        epoch: int | None = None,
        cancel_on_disconnect: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> tool_pb2.CallToolResponse:
        """Runs one of the six tools with typed input, otherwise as `call_tool`."""
        request = tool_pb2.CallToolRequest(
            session_id=session_id,
            call_id=call_id or new_id("call"),
            epoch=epoch,
            cancel_on_disconnect=cancel_on_disconnect,
        )
        field = type(typed).DESCRIPTOR.name.removesuffix("Input").lower()
        getattr(request, field).CopyFrom(typed)
        _refuse_oversize(request)
        answer: tool_pb2.CallToolResponse = await self._connection.repeat(
            self._tools.CallTool, request, timeout_s
        )
        return answer

    async def get_call(
        self, session_id: str, call_id: str, *, timeout_s: float = SHORT_TIMEOUT_S
    ) -> tool_pb2.GetCallResponse:
        """What is known of a call. Does not wait for one that runs."""
        request = tool_pb2.GetCallRequest(session_id=session_id, call_id=call_id)
        answer: tool_pb2.GetCallResponse = await self._connection.repeat(
            self._tools.GetCall, request, timeout_s
        )
        return answer

    async def cancel_call(
        self,
        session_id: str,
        call_id: str,
        *,
        epoch: int | None = None,
        timeout_s: float = SHORT_TIMEOUT_S,
    ) -> tool_pb2.ToolResult:
        """Ends a call and returns when its processes are gone, or named."""
        request = tool_pb2.CancelCallRequest(session_id=session_id, call_id=call_id, epoch=epoch)
        answer: tool_pb2.CancelCallResponse = await self._connection.repeat(
            self._tools.CancelCall, request, timeout_s
        )
        return answer.result

    async def watch_call(
        self,
        session_id: str,
        call_id: str,
        after_sequence: int = 0,
        heartbeat_s: float | None = None,
    ) -> AsyncGenerator[tool_pb2.WatchCallResponse, None]:
        """What a call does, from any point on; its result is the last event.

        Goes on by itself, behind the last event, after a lost connection and where the adapter
        cuts this reader loose: no event comes twice, and `resume_from` never comes. Raises
        where nothing could be heard for the client's `retry_s_max`. There is no deadline:
        leave it, or put `asyncio.timeout` around it.
        """
        request = tool_pb2.WatchCallRequest(
            session_id=session_id, call_id=call_id, after_sequence=after_sequence
        )
        watcher = CallWatcher(self._connection, self._tools, request, heartbeat_s)
        async with aclosing(watcher.events()) as events:
            async for event in events:
                yield event


def _json(arguments: Mapping[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # A lone surrogate travels as its escape: it is the tool's to refuse, in a result.
        return json.dumps(arguments, allow_nan=False)
    return text


def _refuse_oversize(request: tool_pb2.CallToolRequest) -> None:
    # The transport would refuse it as well, but with neither a reason nor a way out.
    count = request.ByteSize()
    if count <= MESSAGE_BYTES_MAX:
        return
    bound = f"{MESSAGE_BYTES_MAX // (1024 * 1024)} MiB"
    kind = request.WhichOneof("input") or ""
    field = "custom.json" if kind == "custom" else kind
    raise errors.InvalidRequest(
        errors.Failure(
            "INVALID_ARGUMENT",
            f"the request has {count} bytes, over the {bound} of one message; "
            "send less at a time, or use FileService, which takes larger contents",
            "INVALID_ENVELOPE",
            metadata={"field": field, "rule": f"must fit in a message of {bound}"},
        )
    )
