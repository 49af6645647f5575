"""What the guest says of processes, checked (`guest/README.md`); hostile until it has passed."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from sandboxd.tools.facts import Count, Facts

_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_Pid = Annotated[int, Field(ge=1, lt=2**31)]
_Word = Annotated[str, Field(max_length=1_024)]
_Seconds = Annotated[float, Field(ge=0, le=1e9)]


class StandFacts(Facts):
    """How a process stands."""

    pid: _Pid
    running: bool
    exit_code: Annotated[int, Field(ge=0, le=255)] | None
    signal: Annotated[int, Field(ge=1, le=64)] | None
    ended_s: _Seconds | None
    """Seconds since its end."""

    @property
    def code(self) -> int | None:
        """Exit code as clients see it. None for a job whose end nobody could ask for."""
        return self.exit_code if self.signal is None else 128 + self.signal


class StartedFacts(StandFacts):
    created: bool


class JobFacts(StandFacts):
    """A background job of a tool call."""

    call_id: Annotated[str, Field(pattern=_ID)]
    argv: tuple[_Word, ...] = Field(max_length=1_024, strict=False)
    age_s: _Seconds


class ListedFacts(StandFacts):
    """A process of a list; what follows is there for jobs alone."""

    process_id: Annotated[str, Field(pattern=_ID)]
    call_id: Annotated[str, Field(pattern=_ID)] | None = None
    argv: tuple[_Word, ...] = Field(default=(), max_length=1_024, strict=False)
    age_s: _Seconds = 0.0


class PageFacts(Facts):
    processes: Annotated[list[ListedFacts], Field(max_length=64)]
    next: Count | None


class OutputFacts(Facts):
    offset: Count
    dropped: Count
    end: Count
    closed: bool


class InputFacts(Facts):
    written: Count
    closed: bool


class DeliveredFacts(Facts):
    delivered: bool
