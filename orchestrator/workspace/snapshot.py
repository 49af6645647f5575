"""What was copied in: the measure of every change on its way out."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.messages import RefusedFact
from orchestrator.workspace.host_tree import HostEntry
from orchestrator.workspace.names import Parts


@dataclass(frozen=True)
class InSandbox:
    """How the sandbox showed an entry right after it was copied in."""

    mode: int
    version: str
    """Empty: the adapter gave none."""


@dataclass
class Snapshot:
    """The entries that were copied in, as the host had them, and as the sandbox showed them.

    Whatever is not here was not copied, and is never removed from the host.
    """

    host: dict[Parts, HostEntry] = field(default_factory=dict)
    sandbox: dict[Parts, InSandbox] = field(default_factory=dict)
    left: list[RefusedFact] = field(default_factory=list)
    bytes: int = 0

    @property
    def files(self) -> int:
        return sum(entry.kind == "file" for entry in self.host.values())
