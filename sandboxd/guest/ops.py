"""What an op is: a request with checked arguments, a reply or an error.

Every module of ops (`files`, `edit`, `verbs`, `run`, `search`) exports a table
`OPS: dict[str, Op | PollOp]`; `__main__` joins them. An op runs on a worker thread of its
lane, or on the one thread of `polls`, and answers by returning `(facts, body)` or raising
`OpError`. Facts must fit
a header (64 KiB of JSON, no surrogates, no NaN): what can be larger is the body.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Facts: TypeAlias = dict[str, Any]
Answer: TypeAlias = tuple[Facts, bytes]


class OpError(Exception):
    """The op says no. `reason` is a name of the contract's `Reason`.

    `text` is for the caller and ends up in front of a model where the tool has
    no better words; `facts` are the op's own.
    """

    def __init__(self, reason: str, text: str, **facts: Any) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.facts = facts


@dataclass
class Machine:
    """What the ops know of the sandbox: fixed at start, except the environment."""

    mode: str
    """`container` or `local`."""
    workdir: str
    home: str
    root: str | None = None
    """In `local`: the session's folder, outside of which file ops refuse to go."""
    shell: str | None = None
    rg: list[str] = field(default_factory=list)
    """How ripgrep is started: an argv prefix. Empty: there is none."""
    search: str = "auto"
    """Which engine is wanted: one of `search_probe.CHOICES`."""
    engine: Any = None
    """The `search_engine.Engine`, None where there is none; filled in by `search_probe`."""
    engine_name: str | None = None
    engine_settled: bool = False
    """Whether it is known which engine there is."""
    engine_tries: int = 0
    """How often time cut off the finding out."""
    base_env: dict[str, str] = field(default_factory=dict)
    """What commands inherit from the image (`container`) or from the backend (`local`)."""
    env: dict[str, str] = field(default_factory=dict)
    """The session's environment, over the base; replaced as a whole by `configure`."""
    user: str = "sandbox"
    """Name of the tool user, for `USER` and `LOGNAME`: the guest never asks NSS (security S11)."""


class Request:
    """One request, with getters that check what they return.

    A getter raises `OpError` INVALID_INPUT where the argument is missing or of
    another type: the daemon's own code made a mistake, or another program talks.
    """

    def __init__(self, machine: Machine, op: str, args: Facts, body: bytes = b"") -> None:
        self.machine = machine
        self.op = op
        self.args = args
        self.body = body
        self._cancel_lock = threading.Lock()
        self._cancelled = False
        self._on_cancel: list[Callable[[], None]] = []

    def text(self, name: str) -> str:
        value = self.args.get(name)
        if not isinstance(value, str):
            raise OpError("INVALID_INPUT", f"`{name}` must be text")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.args.get(name) is None else self.text(name)

    def integer(self, name: str, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
        value = self.args.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise OpError("INVALID_INPUT", f"`{name}` must be an integer")
        if not minimum <= value <= maximum:
            raise OpError("INVALID_INPUT", f"`{name}` must be from {minimum} to {maximum}")
        return value

    def optional_integer(self, name: str, minimum: int = 0, maximum: int = 2**63 - 1) -> int | None:
        return None if self.args.get(name) is None else self.integer(name, minimum, maximum)

    def seconds(self, name: str, maximum_s: float = 86_400.0) -> float:
        value = self.args.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise OpError("INVALID_INPUT", f"`{name}` must be a number of seconds")
        if not 0.0 <= value <= maximum_s:
            raise OpError("INVALID_INPUT", f"`{name}` must be from 0 to {maximum_s} seconds")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.args.get(name, False)
        if not isinstance(value, bool):
            raise OpError("INVALID_INPUT", f"`{name}` must be true or false")
        return value

    def on_cancel(self, action: Callable[[], None]) -> None:
        """Has `action` called when the call is cancelled, on the thread that reads requests.

        Called at once where it is cancelled already. Must not block.
        """
        with self._cancel_lock:
            if not self._cancelled:
                self._on_cancel.append(action)
                return
        action()

    def cancel(self) -> None:
        """Marks the request as cancelled and runs what asked to be told. Idempotent."""
        with self._cancel_lock:
            if self._cancelled:
                return
            self._cancelled = True
            actions, self._on_cancel = self._on_cancel, []
        for action in actions:
            action()

    @property
    def cancelled(self) -> bool:
        with self._cancel_lock:
            return self._cancelled

    def stop_if_cancelled(self, text: str = "Cancelled before anything was changed.") -> None:
        """Raises `OpError` CANCELLED_BY_CALLER with `text` once the call is cancelled."""
        if self.cancelled:
            raise OpError("CANCELLED_BY_CALLER", text)


Handler: TypeAlias = Callable[[Request], Answer]
Look: TypeAlias = Callable[[Request, bool], Answer | None]


@dataclass(frozen=True)
class Op:
    """A handler and the lane of threads that it runs on: `call`, `verb` or `control`."""

    handler: Handler
    lane: str


@dataclass(frozen=True)
class PollOp:
    """An op that may wait for something to happen; see `polls`.

    `look` never blocks. It answers, or returns None while there is nothing to say; its
    second argument says that the request's time (`wait_s`) is over, and then it answers.
    """

    look: Look
