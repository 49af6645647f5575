"""All rules, in the order in which they are judged and shown."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Final

from sandbox_adapter.conformance import vectors
from sandbox_adapter.conformance.rule import Rule
from sandbox_adapter.conformance.rules import (
    adapter,
    bash,
    bash_endings,
    bash_jobs,
    bash_output,
    calls,
    calls_at_once,
    calls_cancel,
    edit,
    edit_reference,
    endings,
    files,
    glob,
    grep,
    grep_patterns,
    grep_trees,
    input_bounds,
    input_envelopes,
    input_paths,
    inputs,
    isolation,
    isolation_limits,
    ledger,
    processes,
    processes_start,
    processes_streams,
    processes_terminal,
    read,
    read_paths,
    session_times,
    sessions,
    versions,
    watch,
    watch_places,
    write,
    write_races,
)

MODULES: Final[tuple[ModuleType, ...]] = (
    *(adapter, sessions, session_times, calls, calls_at_once, calls_cancel, ledger),
    *(
        read,
        read_paths,
        write,
        write_races,
        edit,
        edit_reference,
        versions,
        bash,
        grep,
        grep_patterns,
        grep_trees,
        glob,
        inputs,
    ),
    *(input_bounds, input_envelopes, input_paths),
    *(bash_output, bash_jobs, bash_endings, endings),
    files,
    *(watch, watch_places),
    *(processes, processes_start, processes_streams, processes_terminal),
    *(isolation, isolation_limits),
)
VECTORS: Final = ("read.json", "write.json", "edit.json", "bash.json", "grep.json", "glob.json")


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule. Raises `ValueError` where two share an id."""
    found = list(_declared())
    for name in VECTORS:
        found += vectors.load(name)
    # By area, in the order in which the areas first appear; stable within.
    areas = list(dict.fromkeys(rule.area for rule in found))
    found.sort(key=lambda rule: areas.index(rule.area))
    seen: set[str] = set()
    for rule in found:
        if rule.id in seen:
            raise ValueError(f"two rules have the id {rule.id}")
        seen.add(rule.id)
    return tuple(found)


def _declared() -> Iterator[Rule]:
    """Rules of the modules: values of a module's own, and lists of them named RULES."""
    for module in MODULES:
        for value in vars(module).values():
            if isinstance(value, Rule):
                yield value
        yield from getattr(module, "RULES", ())
