"""The phases of a sandbox's start, announced and timed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


class Phases:
    """Seconds of each phase that has ended, in order."""

    def __init__(self, on_phase: Callable[[str], None]) -> None:
        self._on_phase = on_phase
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Announces `name` at its start and keeps its time where it succeeds."""
        self._on_phase(name)
        begun = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begun
