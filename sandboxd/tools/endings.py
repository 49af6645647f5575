"""How a command met a limit: what may be said of it, and in which words (contract.md 4, 9).

That a limit was met comes from the host's view alone (security S4), as the memo's `met`:
`{"memory" | "pids": {"limit", "peak", "victim"}}`, each there where the kernel's counter rose
while the command ran. It may have risen for a command beside it. So an ending names the limit
only where the command itself shows it; otherwise the result just carries it.

Full storage has no counter: the guest says which of it is full.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.tools.facts import Count, Facts
from sandboxd.tools.wording import counted, plain

KILLED_CODE: Final = 128 + signal.SIGKILL
NO_FORK_CODE: Final = 254
"""What bash exits with where it cannot fork."""
_NO_FORK: Final = (
    "resource temporarily unavailable",
    "cannot fork",
    "can't fork",
    "can't start new thread",
    "create native thread",
    "new os thread",
    "eagain",
)
"""How programs say that no process or thread could be made: shells, Python, Java, Go, node."""
_NO_SPACE: Final = ("no space left on device", "disk quota exceeded", "enospc", "edquot")


class FullMount(Facts):
    """A mount that is full, as the guest found it when the command had failed."""

    mount: str = Field(min_length=1, max_length=4_096)
    size: Annotated[Count, Field(gt=0)]


@dataclass(frozen=True)
class Ran:
    """What an ending is judged by, of a command that ended by itself."""

    code: int
    """128 + n after signal n."""
    left_behind: bool
    """Whether processes of it live on."""
    text: str
    """Of its output, what is shown."""
    full: Sequence[FullMount]


@dataclass(frozen=True)
class Ending:
    """What a limit made of a command; `ending` is None where it cannot be attributed."""

    ending: tool_pb2.Ending | None = None
    limit: tool_pb2.Limit | None = None
    note: str = ""
    """A line for the model, without its brackets."""


def judge(ran: Ran, met: Mapping[str, Any]) -> Ending:
    """The ending of a command; the first limit that can be attributed counts."""
    shown = ran.text.lower()
    memory, pids = met.get("memory"), met.get("pids")
    if memory is not None and ran.code == KILLED_CODE:
        note = _memory_note(memory)
        return Ending(tool_pb2.ENDING_OOM_KILLED, _limit("memory", memory), note)
    if pids is not None and _could_not_fork(ran, shown):
        return Ending(tool_pb2.ENDING_PIDS_EXHAUSTED, _limit("pids", pids), pids_note(pids))
    if ran.full and ran.code and any(words in shown for words in _NO_SPACE):
        first = ran.full[0]
        note = (
            f"Storage is full: {plain(first.mount)} holds {_size(first.size)}. "
            "Remove files that are not needed, then try again."
        )
        limit = tool_pb2.Limit(kind="disk", limit=first.size)
        return Ending(tool_pb2.ENDING_DISK_FULL, limit, note)
    if memory is not None:
        return Ending(limit=_limit("memory", memory))
    if pids is not None:
        return Ending(limit=_limit("pids", pids))
    return Ending()


def pids_limit(met: Mapping[str, Any]) -> tool_pb2.Limit | None:
    """The process limit, where it was met."""
    pids = met.get("pids")
    return None if pids is None else _limit("pids", pids)


def pids_note(pids: Mapping[str, Any]) -> str:
    return (
        f"The limit of {counted(pids['limit'], 'process', 'processes')} was reached. "
        "End background processes that are not needed, or start fewer at a time."
    )


def _could_not_fork(ran: Ran, shown: str) -> bool:
    """Whether it shows that it failed to fork, and did not get over it.

    What left processes behind has not: a bomb's own shell may end well at once.
    """
    if ran.code == NO_FORK_CODE:
        return True
    return bool(ran.code or ran.left_behind) and any(words in shown for words in _NO_FORK)


def _memory_note(memory: Mapping[str, Any]) -> str:
    peak = memory["peak"]
    reached = "" if peak is None else f", peak {_mb(peak)} MB"
    return f"Command was killed: out of memory (limit {_mb(memory['limit'])} MB{reached})"


def _limit(kind: str, met: Mapping[str, Any]) -> tool_pb2.Limit:
    return tool_pb2.Limit(
        kind=kind, limit=met["limit"], peak=met["peak"], victim=plain(met["victim"], 64)
    )


def _mb(size_bytes: int) -> int:
    return size_bytes // limits.MIB


def _size(size_bytes: int) -> str:
    if size_bytes < limits.MIB:
        return counted(size_bytes, "byte")
    return f"{_mb(size_bytes)} MB"
