"""What a model is to the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from orchestrator.messages import ModelRequest, Reply


@dataclass(frozen=True)
class Fragment:
    """A piece of a reply, as it arrives. Void when its attempt fails."""

    kind: Literal["text", "reasoning"]
    text: str


OnFragment = Callable[[Fragment], None]


class Model(Protocol):
    """One attempt at one model call."""

    async def complete(
        self, request: ModelRequest, on_fragment: OnFragment, *, streamed: bool
    ) -> Reply:
        """Sends the request and returns the complete reply.

        A reply is complete only when the server's terminal mark was seen; an end
        without it is an error, whatever came before. Where it is not `streamed` it
        comes as one piece. Raises `ModelError`; never repeats by itself (`retry.py`
        does). `on_fragment` must not block.
        """
        ...
