"""Values that the model, the loop and the log share. Frozen; JSON in and out."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

JsonObject = dict[str, Any]

StopReason = Literal["end", "calls", "length", "refused", "other"]
"""Why a reply ended: the model was done; it asks for calls; its output limit was
hit; a filter or the model refused; something that this version does not know."""


class Value(BaseModel):
    """A frozen value that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Usage(Value):
    """Tokens of one model call. `input` includes what came from the cache."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    reported: bool = False
    """False where the server gave no numbers."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
            reasoning=self.reasoning + other.reasoning,
            reported=self.reported or other.reported,
        )


class ToolCall(Value):
    """A call that the model proposes."""

    call_id: str
    """Ours, unique for ever: models repeat theirs."""
    provider_id: str = ""
    name: str
    arguments: JsonObject | None
    """None where what the model wrote is no JSON object; then nothing runs."""
    raw_arguments: str = ""
    """What the model wrote, kept only where `arguments` is None."""
    fault: str = ""
    """Why `arguments` is None."""


class Reply(Value):
    """A complete answer of a model."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop: StopReason
    raw_stop: str = ""
    """The server's own word for `stop`."""
    usage: Usage = Usage()


class ToolSpec(Value):
    """A tool as the adapter announces it."""

    name: str
    description: str
    input_schema: JsonObject
    reads: bool
    """The adapter calls its effect READ."""
    parallel: bool
    timeout_max_s: float | None

    @property
    def gathers(self) -> bool:
        """True where calls may run beside others: decided by metadata, never by name."""
        return self.reads and self.parallel


class Outcome(Value):
    """What came of a call, as the model and a person are told."""

    text: str
    is_error: bool = False
    ending: str = "COMPLETED"
    """Name of the contract's `Ending`, or `NOT_RUN` where nothing was started."""
    reason: str = ""
    exit_code: int | None = None
    duration_s: float | None = None
    truncated: bool = False
    facts: JsonObject = {}
    """Typed facts of the tool, as JSON."""

    @classmethod
    def not_run(cls, text: str) -> Self:
        """Nothing was started, and `text` says why."""
        return cls(text=text, is_error=True, ending="NOT_RUN")

    @classmethod
    def unknown(cls, text: str) -> Self:
        """Whether there was an effect cannot be known."""
        return cls(text=text, is_error=True, ending="UNKNOWN", reason="OUTCOME_UNKNOWN")


class SandboxFacts(Value):
    """The sandbox of a run."""

    address: str
    session_id: str
    adapter: str
    backend: str
    isolated: bool
    image: str
    working_directory: str
    start_s: float


class ChangeFact(Value):
    """One change on its way out of the sandbox."""

    kind: Literal["added", "changed", "removed", "mode"]
    path: str
    what: Literal["file", "directory", "link"] = "file"
    size: int = 0


class RefusedFact(Value):
    """Something that was not copied, and why."""

    path: str
    why: str
    conflict: bool = False
    """True where the person has to decide: their file changed meanwhile, or the
    change could not be made."""


class ModelMessage(Value):
    """One message of a request, independent of any provider."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """Of the call that a `tool` message answers."""


class ModelRequest(Value):
    """Everything that a model is given for one call."""

    messages: tuple[ModelMessage, ...]
    tools: tuple[ToolSpec, ...]
