"""One submission: ask the model, run what it asks for, tell it what came of it.

The model proposes literal calls; order, bounds and stopping are decided here. By the
tools' metadata, never by their names: the calls before the first effect are run side
by side, from the first effect on everything is run in order, one at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, Protocol

from orchestrator import arguments
from orchestrator.config import RunSettings
from orchestrator.context import fold
from orchestrator.errors import CeilingReached, ModelError, SandboxFailed
from orchestrator.escape import clipped, printable
from orchestrator.events import (
    AssistantSaid,
    AttemptDiscarded,
    CallEnded,
    CallStarted,
    Event,
    ModelAsked,
    ModelCalled,
    ReasoningDelta,
    TextDelta,
    TurnClosed,
    Watch,
)
from orchestrator.messages import Outcome, Reply, ToolCall, ToolSpec, Usage
from orchestrator.models.base import Fragment, Model
from orchestrator.models.retry import ask
from orchestrator.store.base import Log

CANCEL_TIMEOUT_S: Final = 10.0
"""Longest time that an interrupted run spends on ending its calls."""

_LENGTH: Final = (
    "Your reply was cut at the output limit, so this call was discarded and nothing was run. "
    "Ask for less at a time: smaller contents, fewer calls."
)
_REFUSED: Final = "The reply ended with a refusal, so this call was not run."
_ODD_END: Final = "The reply did not end cleanly ({0}), so this call was not run. Ask again."
_INTERRUPTED: Final = (
    "The run was interrupted while this call ran; its effect may have happened. "
    "Check before you repeat it."
)
_SKIPPED: Final = "This call was not run: the run ended before it. Nothing was changed."
_CUT_TEXT: Final = "the reply was cut at the model's output limit"


class Caller(Protocol):
    """What the loop needs of a sandbox."""

    async def call(self, call: ToolCall, spec: ToolSpec) -> Outcome:
        """Runs a call. Raises `SandboxFailed` where no more calls can be run."""
        ...

    async def cancel(self, call_id: str) -> Outcome | None:
        """Ends a call; None where what came of it cannot be learnt."""
        ...


class Journal:
    """The conversation: every durable event is in the log before it is shown."""

    def __init__(self, log: Log, conversation: str, watch: Watch) -> None:
        self._log = log
        self._watch = watch
        # Two reads may end at the same moment; the log takes one append at a time.
        self._lock = asyncio.Lock()
        self.conversation = conversation
        self.events: list[Event] = []

    async def write(self, *events: Event) -> None:
        """Appends durable events, then shows them."""
        async with self._lock:
            appending = asyncio.ensure_future(self._append(events))
            try:
                await asyncio.shield(appending)
            except asyncio.CancelledError:
                # The lock is held until the log has answered: the next append must know
                # where the log ends.
                await asyncio.wait({appending})
                raise

    def show(self, event: Event) -> None:
        """Shows an event that is not kept."""
        self._watch(event)

    async def _append(self, events: Sequence[Event]) -> None:
        await self._log.append(self.conversation, len(self.events), events)
        self.events.extend(events)
        for event in events:
            self._watch(event)


class Loop:
    """Runs one conversation to its end. `tools` is the adapter's list."""

    def __init__(
        self,
        settings: RunSettings,
        model: Model,
        sandbox: Caller,
        tools: Sequence[ToolSpec],
        journal: Journal,
    ) -> None:
        self._settings = settings
        self._model = model
        self._sandbox = sandbox
        self._tools = {tool.name: tool for tool in tools}
        self._journal = journal
        self._gate = asyncio.Semaphore(settings.reads_parallel_max)
        self.model_calls = 0
        self.tool_calls = 0
        self.usage = Usage()

    async def run(self) -> Reply:
        """Goes on until the model answers without a call.

        Raises `ModelError`, `CeilingReached` or `SandboxFailed`; then every call in
        the log has its result all the same.
        """
        while True:
            if self.model_calls >= self._settings.model_calls_max:
                raise CeilingReached(self._settings.model_calls_max)
            self.model_calls += 1
            number = self.model_calls
            reply = await self._ask(number)
            if not reply.calls:
                if reply.stop == "length":
                    raise ModelError("too_many_tokens", _CUT_TEXT)
                if reply.stop == "refused":
                    raise ModelError("refused", "the model refused to answer")
                if reply.stop == "other":
                    # Whether the model was done is not known, so it is not called done.
                    word = clipped(printable(reply.raw_stop), 80)
                    raise ModelError("garbled", f"the reply ended with `{word}`, not as one does")
                return reply
            await self._run_calls(reply)
            await self._journal.write(TurnClosed(number=number))

    # --- The model -----------------------------------------------------------

    async def _ask(self, number: int) -> Reply:
        request = fold(self._journal.events, tuple(self._tools.values()))
        self._journal.show(ModelAsked(number=number))
        discarded: list[AttemptDiscarded] = []

        def on_fragment(fragment: Fragment) -> None:
            kind = TextDelta if fragment.kind == "text" else ReasoningDelta
            self._journal.show(kind(text=fragment.text))

        def on_discard(attempt: int, error: ModelError, wait_s: float) -> None:
            event = AttemptDiscarded(
                number=number,
                attempt=attempt,
                category=error.category,
                error=str(error),
                wait_s=wait_s,
            )
            discarded.append(event)
            self._journal.show(event)

        begun = time.monotonic()
        try:
            asked = await ask(self._model, request, self._settings.model, on_fragment, on_discard)
        except ModelError as error:
            await self._journal.write(
                ModelCalled(
                    number=number,
                    attempts=len(discarded) + 1,
                    ok=False,
                    category=error.category,
                    duration_s=time.monotonic() - begun,
                )
            )
            raise
        self.usage += asked.reply.usage
        await self._journal.write(
            ModelCalled(
                number=number,
                attempts=asked.attempts,
                ok=True,
                first_fragment_s=asked.first_fragment_s,
                duration_s=time.monotonic() - begun,
                usage=asked.reply.usage,
            ),
            AssistantSaid(number=number, reply=asked.reply),
        )
        return asked.reply

    # --- The calls -----------------------------------------------------------

    async def _run_calls(self, reply: Reply) -> None:
        refusal = _refusal(reply)
        if refusal is not None:
            for call in reply.calls:
                await self._end(call, Outcome.not_run(refusal))
            return
        gathered = self._gathered(reply.calls)
        try:
            await self._run_beside(reply.calls[:gathered])
            for call in reply.calls[gathered:]:
                await self._run_one(call)
        except SandboxFailed:
            # Nothing can be asked any more: what had started is unknown.
            await self._close_open(reply.calls, ask=False)
            raise
        except asyncio.CancelledError:
            await self._close_open(reply.calls, ask=True)
            raise

    async def _run_beside(self, calls: Sequence[ToolCall]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(self._run_one(call))
        except ExceptionGroup as failed:
            # One of them ended the run; the group has cancelled the others.
            raise failed.exceptions[0] from None

    def _gathered(self, calls: Sequence[ToolCall]) -> int:
        """How many calls stand before the first effect."""
        for at, call in enumerate(calls):
            spec = self._tools.get(call.name)
            if spec is not None and not spec.gathers:
                return at
        return len(calls)

    async def _run_one(self, call: ToolCall) -> None:
        fault = arguments.problem(call, self._tools)
        if fault is not None:
            await self._end(call, Outcome.not_run(fault))
            return
        spec = self._tools[call.name]
        async with self._gate:
            # Before the call is sent: whoever reads the log after a crash knows that its
            # effect is possible.
            await self._journal.write(CallStarted(call=call, effect=not spec.gathers))
            self.tool_calls += 1
            outcome = await self._sandbox.call(call, spec)
        await self._end(call, outcome)

    async def _end(self, call: ToolCall, outcome: Outcome) -> None:
        await self._journal.write(CallEnded(call=call, outcome=outcome))

    async def _close_open(self, calls: Sequence[ToolCall], *, ask: bool) -> None:
        """Gives every call of a broken turn its one result, truthfully."""
        started = {e.call.call_id for e in self._journal.events if isinstance(e, CallStarted)}
        ended = {e.call.call_id for e in self._journal.events if isinstance(e, CallEnded)}
        for call in calls:
            if call.call_id in ended:
                continue
            outcome: Outcome | None = Outcome.not_run(_SKIPPED)
            if call.call_id in started:
                outcome = await self._cancel(call) if ask else None
            await self._end(call, outcome or Outcome.unknown(_INTERRUPTED))

    async def _cancel(self, call: ToolCall) -> Outcome | None:
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                return await self._sandbox.cancel(call.call_id)
        except TimeoutError:
            return None


def _refusal(reply: Reply) -> str | None:
    """Why no call of a reply is run; None where they are."""
    if reply.stop == "calls":
        return None
    if reply.stop == "length":
        return _LENGTH
    if reply.stop == "refused":
        return _REFUSED
    return _ODD_END.format(reply.raw_stop or "no reason given")
