"""What a rule is, and how one is declared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, Literal

from sandbox_adapter.conformance.place import Place
from sandbox_adapter.v1 import adapter_pb2

Level = Literal["core", "full"]
Check = Callable[[Place], Awaitable[None]]

RULE_TIMEOUT_S: Final = 60.0
"""Time that judging one rule may take; an adapter that hangs fails the rule."""

PROCESSES: Final = adapter_pb2.CAPABILITY_PROCESSES
PTY: Final = adapter_pb2.CAPABILITY_PTY
WATCH_CALL: Final = adapter_pb2.CAPABILITY_WATCH_CALL
FILES: Final = adapter_pb2.CAPABILITY_FILES
ISOLATED: Final = adapter_pb2.CAPABILITY_ISOLATED
SIX_TOOLS: Final = adapter_pb2.CAPABILITY_SIX_TOOLS
CONFIRMED_CANCEL: Final = adapter_pb2.CAPABILITY_CONFIRMED_CANCEL


@dataclass(frozen=True)
class Rule:
    """One promise of the contract, with the code that judges it.

    `id` is `AREA.NAME` and never changes its meaning: reports and lists of known
    differences name it.
    """

    id: str
    title: str
    """What must hold, in one line."""
    check: Check
    level: Level = "core"
    cases: tuple[str, ...] = ()
    """What it is evidence for: cases of tools (`R1`), sections of the contract (`contract 4`)."""
    needs: frozenset[adapter_pb2.Capability] = frozenset()
    alone: bool = False
    """Whether it gets a session of its own, because it may harm the one that others use."""
    timeout_s: float = RULE_TIMEOUT_S

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]


def rule(
    rule_id: str,
    *,
    cases: Collection[str] = (),
    level: Level = "core",
    needs: Collection[adapter_pb2.Capability] = (SIX_TOOLS,),
    alone: bool = False,
    harmful: bool = False,
    timeout_s: float = RULE_TIMEOUT_S,
) -> Callable[[Check], Rule]:
    """Makes a rule of a coroutine function; the first line of its docstring is the title.

    `harmful`: it could hurt a machine that the adapter does not isolate, so it runs
    only where ISOLATED is claimed, in a session of its own. The function raises
    `Broken` or `Uncheckable`, and returns where the rule holds.
    """

    def declare(check: Check) -> Rule:
        title = (check.__doc__ or "").strip().partition("\n")[0]
        if not title:
            raise TypeError(f"rule {rule_id} has no docstring to take its title from")
        return Rule(
            id=rule_id,
            title=title,
            check=check,
            level=level,
            cases=tuple(cases),
            needs=frozenset(needs) | ({ISOLATED} if harmful else frozenset()),
            alone=alone or harmful,
            timeout_s=timeout_s,
        )

    return declare
