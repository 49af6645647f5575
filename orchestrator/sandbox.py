"""The sandbox of a run: the only user of the adapter client.

What the contract says of a call is turned into an `Outcome` here, truthfully: a
call whose outcome cannot be known says so, to the model too.
"""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self, cast

from google.protobuf.json_format import MessageToDict
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from orchestrator.errors import SandboxFailed
from orchestrator.escape import printable
from orchestrator.messages import JsonObject, Outcome, SandboxFacts, ToolCall, ToolSpec
from sandbox_adapter import errors as adapter_errors
from sandbox_adapter.client import AdapterClient, new_id
from sandbox_adapter.v1 import adapter_pb2, error_pb2, file_pb2, session_pb2, tool_pb2

_log = logging.getLogger(__name__)

ANSWER_MARGIN_S: Final = 60.0
"""Time over a tool's own limit until its answer is given up."""
UNTIMED_CALL_S: Final = 600.0
"""Deadline of a call whose tool announces no limit."""
CLOSE_TIMEOUT_S: Final = 60.0
REJOINS_MAX: Final = 4
"""How often a call is asked for again after its connection was lost for good."""
FACTS_CHARS_MAX: Final = 20_000
"""Typed facts of a result that are kept in the log; beyond it a list is kept as its length."""

OUTCOME_UNKNOWN: Final = (
    "The connection to the sandbox was lost while this call ran, and what came of it cannot "
    "be known: its effect may have happened. Check before you repeat it."
)
EXPIRED: Final = "This call ran, but its result is no longer kept. Check its effect."
NOT_RUN: Final = "This call was not run: the sandbox could not be reached. Nothing was changed."


class FileVerbFailed(Exception):
    """A file verb failed at one path; `reason` is the contract's, or a status name."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class TreeEntry:
    """An entry of the sandbox's tree. Hostile until checked."""

    raw_path: bytes
    """Relative to the listed directory, in the file system's own bytes."""
    kind: Literal["file", "directory", "link", "special"]
    size: int
    mode: int
    version: str
    """Empty: not given."""
    link_target: str


def call_id() -> str:
    """A new id for a call."""
    return new_id("call")


def conversation_id() -> str:
    """A new id for a conversation."""
    return new_id("conv")


class Sandbox:
    """A session of an adapter. Use it as an async context manager: leaving deletes it.

    Raises `SandboxFailed` where there is no sandbox to go on with.
    """

    facts: SandboxFacts
    tools: tuple[ToolSpec, ...]
    boot_id: str
    ledger_id: str

    def __init__(self, address: str, profile: str, connect_s: float) -> None:
        self._address = address
        self._profile = profile
        self._client = AdapterClient(address)
        self._session_id = new_id("ses")
        self._connect_s = connect_s

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            await self._start()
        except BaseException as error:
            await self._client.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._client.delete_session(self._session_id, timeout_s=CLOSE_TIMEOUT_S)
        except adapter_errors.SessionGone:
            return
        except adapter_errors.AdapterError as failure:
            _log.warning("session %s may be left: %s", self._session_id, _words(failure))
            if error is None:
                raise SandboxFailed(
                    f"session `{self._session_id}` could not be deleted: {_words(failure)}",
                    "the adapter deletes it when its idle time is over",
                ) from None
        finally:
            await self._client.__aexit__(kind, error, trace)

    @property
    def working_directory(self) -> str:
        return self.facts.working_directory

    async def _start(self) -> None:
        begun = time.monotonic()
        try:
            info = await self._client.get_info(timeout_s=self._connect_s)
            listed = await self._client.list_tools()
            # Before there is anything to delete: an adapter may offer what nobody can use.
            self.tools = tuple(_tool_spec(tool) for tool in listed)
            session = await self._create()
        except adapter_errors.ConnectionLost as error:
            raise SandboxFailed(
                f"cannot reach the sandbox at `{self._address}`: {_words(error)}",
                "is the daemon running? `python -m sandboxd serve`",
            ) from None
        except adapter_errors.DeadlineExceeded:
            raise SandboxFailed(f"the sandbox at `{self._address}` does not answer") from None
        except adapter_errors.AdapterError as error:
            raise SandboxFailed(f"no sandbox could be had: {_words(error)}") from None
        self.boot_id, self.ledger_id = info.boot_id, info.ledger_id
        self.facts = _facts(self._address, info, session, time.monotonic() - begun)

    async def _create(self) -> session_pb2.Session:
        try:
            return await self._client.create_session(
                session_id=self._session_id,
                profile=self._profile,
                labels={"made-by": "orchestrator"},
            )
        except BaseException:
            # The request may have arrived although its answer did not; the id is ours.
            try:
                await self._client.delete_session(self._session_id, timeout_s=5.0)
            except adapter_errors.AdapterError:
                pass
            raise

    # --- Calls ---------------------------------------------------------------

    async def call(self, call: ToolCall, spec: ToolSpec) -> Outcome:
        """Runs a call and says what came of it. Safe to repeat with the same call.

        `call.arguments` must have been checked against the tool's schema.
        """
        limit_s = spec.timeout_max_s
        wait_s = UNTIMED_CALL_S if limit_s is None else limit_s + ANSWER_MARGIN_S
        deadline = time.monotonic() + wait_s
        for _ in range(REJOINS_MAX):
            try:
                response = await self._client.call_tool(
                    self._session_id,
                    call.name,
                    call.arguments or {},
                    call_id=call.call_id,
                    timeout_s=max(1.0, deadline - time.monotonic()),
                )
                return _outcome(response.result)
            except (adapter_errors.InvalidRequest, adapter_errors.Exhausted) as error:
                return Outcome.not_run(
                    f"The sandbox refused this call: {_words(error)}. Nothing was run."
                )
            except adapter_errors.ResultExpired:
                return Outcome.unknown(EXPIRED)
            except adapter_errors.DeadlineExceeded:
                # Longer than any limit it announced: it is ended, and that is the answer.
                return await self.cancel(call.call_id) or Outcome.unknown(OUTCOME_UNKNOWN)
            except (adapter_errors.ConnectionLost, adapter_errors.AdapterBug) as error:
                known = await self._ask_what_happened(call, error)
            except adapter_errors.AdapterError as error:
                raise SandboxFailed(f"the sandbox takes no more calls: {_words(error)}") from None
            if known is not None:
                return known
        return await self.cancel(call.call_id) or Outcome.unknown(OUTCOME_UNKNOWN)

    async def _ask_what_happened(
        self, call: ToolCall, cause: adapter_errors.AdapterError
    ) -> Outcome | None:
        """What is known of a call whose answer was lost; None while it runs."""
        try:
            known = await self._client.get_call(self._session_id, call.call_id)
        except adapter_errors.AdapterError:
            raise SandboxFailed(f"the sandbox was lost: {_words(cause)}") from None
        if known.state == tool_pb2.CALL_STATE_RUNNING:
            return None
        if known.state == tool_pb2.CALL_STATE_FINISHED:
            return Outcome.unknown(EXPIRED) if known.reason else _outcome(known.result)
        if known.state == tool_pb2.CALL_STATE_NEVER_SEEN and known.ledger_id == self.ledger_id:
            return Outcome.not_run(NOT_RUN)
        return Outcome.unknown(OUTCOME_UNKNOWN)

    async def cancel(self, call_id: str) -> Outcome | None:
        """Ends a call and returns what came of it; None where that cannot be learnt."""
        try:
            return _outcome(await self._client.cancel_call(self._session_id, call_id))
        except adapter_errors.AdapterError:
            return None

    # --- File verbs ----------------------------------------------------------

    async def tree(self) -> AsyncIterator[TreeEntry]:
        """Everything under the working directory, in the adapter's order."""
        listing = self._client.files.list(self._session_id, self.working_directory, recursive=True)
        try:
            async with aclosing(cast("Any", listing)) as batches:
                async for batch in batches:
                    for entry in batch.entries:
                        yield _tree_entry(entry)
                    if batch.unreadable:
                        raise FileVerbFailed(
                            "PERMISSION_DENIED", f"{batch.unreadable} directories are unreadable"
                        )
        except adapter_errors.AdapterError as error:
            raise _verb_failed(error) from None

    async def read_file(self, path: str, bytes_max: int) -> AsyncIterator[bytes]:
        """The content of a file under the working directory, in pieces.

        Raises `FileVerbFailed` (FILE_TOO_LARGE) once it exceeds `bytes_max`: the
        size that was announced proves nothing.
        """
        received = 0
        try:
            async with self._client.files.read(self._session_id, self._inside(path)) as reader:
                if reader.stat.kind != file_pb2.FILE_KIND_FILE:
                    raise FileVerbFailed("NOT_REGULAR", "it is no regular file")
                async for piece in reader:
                    received += len(piece)
                    if received > bytes_max:
                        raise FileVerbFailed("FILE_TOO_LARGE", f"it is over {bytes_max} bytes")
                    yield piece
        except adapter_errors.AdapterError as error:
            raise _verb_failed(error) from None

    async def write_file(self, path: str, content: AsyncIterator[bytes], mode: int) -> str:
        """Creates a file with its parents and returns its version."""
        try:
            written = await self._client.files.write(
                self._session_id, self._inside(path), content, mode=mode, make_parents=True
            )
        except adapter_errors.AdapterError as error:
            raise _verb_failed(error) from None
        return written.version

    async def make_directory(self, path: str) -> None:
        """Makes a directory with its parents."""
        try:
            await self._client.files.make_directory(self._session_id, self._inside(path))
        except adapter_errors.AdapterError as error:
            raise _verb_failed(error) from None

    async def make_links(self, links: Sequence[tuple[str, str]]) -> bool:
        """Makes symbolic links, (path, target) each. False where it cannot be done.

        The contract has no verb for links; they are made by the shell.
        """
        if not any(tool.name == "bash" for tool in self.tools):
            return False
        script = " && ".join(
            shlex.join(["ln", "-s", "--", target, f"./{path}"]) for path, target in links
        )
        try:
            response = await self._client.call_tool(
                self._session_id, "bash", {"command": script}, timeout_s=UNTIMED_CALL_S
            )
        except adapter_errors.AdapterError as error:
            raise _verb_failed(error) from None
        return response.result.exit_code == 0 and not response.result.is_error

    def _inside(self, path: str) -> str:
        # Absolute, so that a name that begins with `~` is a name.
        return f"{self.working_directory}/{path}"


def _tool_spec(tool: tool_pb2.Tool) -> ToolSpec:
    try:
        schema = json.loads(tool.input_schema_json)
        Draft202012Validator.check_schema(schema)
    except (ValueError, SchemaError) as error:
        said = error.message if isinstance(error, SchemaError) else str(error)
        raise SandboxFailed(
            f"the adapter's tool `{printable(tool.name)}` has no usable schema: {printable(said)}"
        ) from None
    return ToolSpec(
        name=tool.name,
        description=tool.description,
        input_schema=schema,
        # Whatever is not declared a read may have an effect.
        reads=tool.effect == tool_pb2.EFFECT_CLASS_READ,
        parallel=tool.parallel,
        timeout_max_s=_seconds(tool.timeout_max) if tool.HasField("timeout_max") else None,
    )


def _facts(
    address: str, info: adapter_pb2.GetInfoResponse, session: session_pb2.Session, start_s: float
) -> SandboxFacts:
    return SandboxFacts(
        address=address,
        session_id=session.session_id,
        adapter=f"{info.name} {info.version}".strip(),
        backend=info.backend,
        isolated=adapter_pb2.CAPABILITY_ISOLATED in info.capabilities,
        image=session.effective.image,
        working_directory=session.effective.working_directory.rstrip("/") or "/",
        start_s=start_s,
    )


def _outcome(result: tool_pb2.ToolResult) -> Outcome:
    details = result.WhichOneof("details")
    facts: JsonObject = {}
    if details is not None:
        facts = MessageToDict(getattr(result, details))
        if len(json.dumps(facts)) > FACTS_CHARS_MAX:
            facts = {
                key: len(value) if isinstance(value, list) else value
                for key, value in facts.items()
            }
    return Outcome(
        text=result.text,
        is_error=result.is_error,
        ending=_name(tool_pb2.Ending, result.ending, "ENDING_"),
        reason=_name(error_pb2.Reason, result.reason, "REASON_") if result.reason else "",
        exit_code=result.exit_code if result.HasField("exit_code") else None,
        duration_s=_seconds(result.duration),
        truncated=result.truncated,
        facts=facts,
    )


def _name(enum: Any, value: int, prefix: str) -> str:
    # Adapters may be newer than this program.
    name = enum.Name(value) if value in enum.values() else f"{prefix}{value}"
    return str(name).removeprefix(prefix)


def _seconds(duration: Any) -> float:
    return float(duration.ToNanoseconds()) / 1e9


_KINDS: Final[dict[int, Literal["file", "directory", "link", "special"]]] = {
    file_pb2.FILE_KIND_FILE: "file",
    file_pb2.FILE_KIND_DIRECTORY: "directory",
    file_pb2.FILE_KIND_SYMLINK: "link",
}


def _tree_entry(entry: file_pb2.DirectoryEntry) -> TreeEntry:
    stat = entry.stat
    return TreeEntry(
        raw_path=entry.raw_path or entry.path.encode(),
        kind=_KINDS.get(stat.kind, "special"),
        size=stat.size,
        mode=stat.mode,
        version=stat.version,
        link_target=stat.link_target,
    )


def _verb_failed(error: adapter_errors.AdapterError) -> Exception:
    if isinstance(
        error, adapter_errors.SessionGone | adapter_errors.Unavailable | adapter_errors.EpochStale
    ):
        return SandboxFailed(f"the sandbox was lost: {_words(error)}")
    return FileVerbFailed(error.reason or error.status, printable(str(error)))


def _words(error: adapter_errors.AdapterError) -> str:
    reason = f" ({error.reason})" if error.reason else ""
    return f"{printable(str(error))}{reason}"
