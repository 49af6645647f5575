"""Everything that happens in a run, as one union of events.

Events with `durable` go to the log, in order, before the next step is taken; the
others go only to those who watch. A fragment of a reply is never durable: the
`assistant` event replaces the fragments of its attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, TypeAdapter

from orchestrator.messages import (
    ChangeFact,
    Outcome,
    RefusedFact,
    Reply,
    SandboxFacts,
    ToolCall,
    ToolSpec,
    Usage,
    Value,
)


class _Event(Value):
    durable: ClassVar[bool] = True


class RunStarted(_Event):
    """A run began."""

    type: Literal["run_started"] = "run_started"
    model: str
    workspace: str = ""
    dry_run: bool = False
    model_calls_max: int


class SandboxReady(_Event):
    """The session takes calls; from here on it has these tools."""

    type: Literal["sandbox_ready"] = "sandbox_ready"
    sandbox: SandboxFacts
    tools: tuple[ToolSpec, ...]
    boot_id: str
    ledger_id: str
    """Under which NEVER_SEEN proves that a call did not run (contract.md 2)."""


class CopiedIn(_Event):
    """The workspace is in the sandbox."""

    type: Literal["copied_in"] = "copied_in"
    files: int
    bytes: int
    duration_s: float
    left: tuple[RefusedFact, ...] = ()


class SystemPrompt(_Event):
    """The instructions, frozen for the conversation."""

    type: Literal["system"] = "system"
    text: str


class UserSaid(_Event):
    """The task."""

    type: Literal["user"] = "user"
    text: str


class ModelAsked(_Event):
    """A model call began. Not durable: `model_call` says what came of it."""

    durable = False
    type: Literal["model_asked"] = "model_asked"
    number: int


class TextDelta(_Event):
    """A fragment of the reply's text."""

    durable = False
    type: Literal["text_delta"] = "text_delta"
    text: str


class ReasoningDelta(_Event):
    """A fragment of the reply's reasoning."""

    durable = False
    type: Literal["reasoning_delta"] = "reasoning_delta"
    text: str


class AttemptDiscarded(_Event):
    """An attempt failed; its fragments are void. Another follows after `wait_s`."""

    durable = False
    type: Literal["attempt_discarded"] = "attempt_discarded"
    number: int
    attempt: int
    category: str
    error: str
    wait_s: float


class ModelCalled(_Event):
    """A model call ended, well or not, after all its attempts.

    `usage` is that of the attempt that succeeded: a failed one reports none.
    """

    type: Literal["model_call"] = "model_call"
    number: int
    attempts: int
    ok: bool
    category: str = ""
    first_fragment_s: float | None = None
    duration_s: float
    usage: Usage = Usage()


class AssistantSaid(_Event):
    """A complete reply."""

    type: Literal["assistant"] = "assistant"
    number: int
    reply: Reply


class CallStarted(_Event):
    """A call is about to be sent: from here on its effect is possible."""

    type: Literal["call_started"] = "call_started"
    call: ToolCall
    effect: bool


class CallEnded(_Event):
    """A call has its one result."""

    type: Literal["result"] = "result"
    call: ToolCall
    outcome: Outcome


class TurnClosed(_Event):
    """Every call of the turn has its result."""

    type: Literal["turn_closed"] = "turn_closed"
    number: int


class CopiedOut(_Event):
    """What was taken over into the workspace, or would be in a dry run."""

    type: Literal["copied_out"] = "copied_out"
    dry_run: bool
    changes: tuple[ChangeFact, ...]
    refused: tuple[RefusedFact, ...]
    left: tuple[str, ...]
    """Kinds of files that stay in the sandbox by rule, such as `.git`, with counts."""
    bytes: int
    duration_s: float


class Settled(_Event):
    """The run's one outcome."""

    type: Literal["settled"] = "settled"
    outcome: Literal["completed", "failed", "aborted"]
    exit_code: int
    error: str = ""
    hint: str = ""
    model_calls: int
    tool_calls: int
    usage: Usage
    duration_s: float


Event = Annotated[
    RunStarted
    | SandboxReady
    | CopiedIn
    | SystemPrompt
    | UserSaid
    | ModelAsked
    | TextDelta
    | ReasoningDelta
    | AttemptDiscarded
    | ModelCalled
    | AssistantSaid
    | CallStarted
    | CallEnded
    | TurnClosed
    | CopiedOut
    | Settled,
    Field(discriminator="type"),
]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)

Watch = Callable[[Event], None]
"""Told of every event, in order. Must not block and must not raise."""
