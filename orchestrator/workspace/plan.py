"""Compares the sandbox's tree with what was copied in. Pure.

The order of a plan is what makes it safe to carry out: removals first, so that a
place is free before something else takes it; then directories, files and modes;
links last, so that nothing is ever written through a link that this plan made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.messages import RefusedFact
from orchestrator.sandbox import TreeEntry
from orchestrator.workspace.names import BadName, Parts, link_fault, parse, shown, stays
from orchestrator.workspace.snapshot import Snapshot


@dataclass(frozen=True)
class Change:
    """One step."""

    kind: Literal["added", "changed", "removed", "mode"]
    parts: Parts
    what: Literal["file", "directory", "link"]
    size: int = 0
    mode: int | None = None
    """None: that of the file that is replaced."""
    target: str = ""


@dataclass
class Plan:
    """Steps in the order in which they are taken, and what is not taken."""

    changes: list[Change] = field(default_factory=list)
    refused: list[RefusedFact] = field(default_factory=list)
    stayed: dict[str, int] = field(default_factory=dict)


@dataclass
class Tree:
    """The sandbox's tree, names checked."""

    entries: dict[Parts, TreeEntry] = field(default_factory=dict)
    refused: list[RefusedFact] = field(default_factory=list)
    stayed: dict[str, int] = field(default_factory=dict)
    complete: bool = True
    """False where parts of it could not be read: then nothing counts as removed."""

    def add(self, entry: TreeEntry, *, take_self_executing: bool, known: Snapshot) -> None:
        """Takes an entry, or says why not."""
        try:
            parts = parse(entry.raw_path)
        except BadName as error:
            name = entry.raw_path[:200].decode(errors="backslashreplace")
            self.refused.append(RefusedFact(path=name, why=str(error), conflict=True))
            return
        kind = stays(parts, take_self_executing=take_self_executing)
        if kind is None:
            self.entries[parts] = entry
        elif entry.kind != "directory" and not _unchanged(parts, entry, known):
            self.stayed[kind] = self.stayed.get(kind, 0) + 1


def _unchanged(parts: Parts, entry: TreeEntry, known: Snapshot) -> bool:
    was, shown_as = known.host.get(parts), known.sandbox.get(parts)
    if was is None or was.kind != entry.kind:
        return False
    if shown_as is not None and shown_as.version and entry.version:
        return shown_as.version == entry.version
    return was.kind != "file" or was.size == entry.size


def to_read(snapshot: Snapshot, tree: Tree) -> list[Parts]:
    """Files whose content must be read to know whether it changed."""
    return [
        parts
        for parts, entry in tree.entries.items()
        if entry.kind == "file"
        and (was := snapshot.host.get(parts)) is not None
        and was.kind == "file"
        and was.size == entry.size
        and not _same_version(snapshot, parts, entry)
    ]


def _same_version(snapshot: Snapshot, parts: Parts, entry: TreeEntry) -> bool:
    known = snapshot.sandbox.get(parts)
    return known is not None and bool(known.version) and known.version == entry.version


def make_plan(
    snapshot: Snapshot,
    tree: Tree,
    digests: Mapping[Parts, str],
    *,
    file_bytes_max: int,
    take_self_executing: bool,
) -> Plan:
    """The plan. `digests` holds those of `to_read`."""
    plan = Plan(refused=list(tree.refused), stayed=dict(tree.stayed))
    links = {parts for parts, entry in tree.entries.items() if entry.kind == "link"}
    barred: set[Parts] = set()
    directories: list[Change] = []
    files: list[Change] = []
    modes: list[Change] = []
    new_links: list[Change] = []
    replaced: set[Parts] = set()
    for parts, entry in tree.entries.items():
        fault = _fault(parts, entry, links, file_bytes_max)
        was = snapshot.host.get(parts)
        same_kind = was is not None and was.kind == entry.kind
        if fault is not None:
            if not (same_kind and entry.kind == "link" and was and was.target == entry.link_target):
                plan.refused.append(RefusedFact(path=shown(parts), why=fault, conflict=True))
            barred.add(parts)
            continue
        if was is not None and not same_kind:
            replaced.add(parts)
        verb: Literal["added", "changed"] = "changed" if same_kind else "added"
        if entry.kind == "directory":
            if not same_kind:
                directories.append(Change("added", parts, "directory"))
        elif entry.kind == "link":
            if not (same_kind and was and was.target == entry.link_target):
                new_links.append(Change(verb, parts, "link", target=entry.link_target))
        elif not same_kind:
            files.append(Change("added", parts, "file", entry.size, entry.mode))
        else:
            content, mode = _file_changes(snapshot, parts, entry, digests)
            new_mode = entry.mode if mode else None
            if content:
                files.append(Change("changed", parts, "file", entry.size, new_mode))
            elif mode:
                modes.append(Change("mode", parts, "file", mode=entry.mode))
    removed = _removed(snapshot, tree, barred, replaced, plan, take_self_executing)
    plan.changes = removed + sorted(directories, key=_place) + sorted(files, key=_place)
    plan.changes += sorted(modes, key=_place) + sorted(new_links, key=_place)
    return plan


def _fault(parts: Parts, entry: TreeEntry, links: set[Parts], file_bytes_max: int) -> str | None:
    if any(parts[:depth] in links for depth in range(1, len(parts))):
        return "it lies under a link"
    if entry.kind == "special":
        return "it is a FIFO, socket or device"
    if entry.kind == "link":
        return link_fault(parts, entry.link_target, links)
    if entry.kind == "file" and entry.size > file_bytes_max:
        return f"it is larger than {file_bytes_max} bytes"
    return None


def _file_changes(
    snapshot: Snapshot, parts: Parts, entry: TreeEntry, digests: Mapping[Parts, str]
) -> tuple[bool, bool]:
    """Whether content and mode differ from what was copied in."""
    was, known = snapshot.host[parts], snapshot.sandbox.get(parts)
    mode = known is not None and (known.mode ^ entry.mode) & 0o777 != 0
    if _same_version(snapshot, parts, entry):
        return False, mode
    content = was.size != entry.size or digests.get(parts, was.digest) != was.digest
    return content, mode


def _removed(
    snapshot: Snapshot,
    tree: Tree,
    barred: set[Parts],
    replaced: set[Parts],
    plan: Plan,
    take_self_executing: bool,
) -> list[Change]:
    removed: list[Change] = []
    for parts, was in snapshot.host.items():
        if stays(parts, take_self_executing=take_self_executing) is not None:
            continue
        if was.kind == "special" or (parts in tree.entries and parts not in replaced):
            continue
        # What took the place of a parent was refused, so the host keeps that parent whole.
        if any(parts[:depth] in barred for depth in range(1, len(parts))):
            continue
        if not tree.complete:
            why = "it seems removed, but the sandbox's tree could not be read whole"
            plan.refused.append(RefusedFact(path=shown(parts), why=why, conflict=True))
            continue
        removed.append(Change("removed", parts, was.kind, was.size))
    # Deepest first; files and links before directories of the same depth.
    return sorted(
        removed, key=lambda step: (-len(step.parts), step.what == "directory", step.parts)
    )


def _place(change: Change) -> tuple[int, Parts]:
    return len(change.parts), change.parts
