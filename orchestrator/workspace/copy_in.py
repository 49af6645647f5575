"""Copies a folder of the host into a sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import BinaryIO, Final

from orchestrator.config import WorkspaceSettings
from orchestrator.errors import WorkspaceError
from orchestrator.escape import printable
from orchestrator.messages import RefusedFact
from orchestrator.sandbox import FileVerbFailed, Sandbox
from orchestrator.workspace.host_tree import PIECE_BYTES, HostConflict, HostEntry, HostTree
from orchestrator.workspace.names import BadName, Parts, link_fault, parse, shown
from orchestrator.workspace.snapshot import InSandbox, Snapshot

LINKS_PER_COMMAND_MAX: Final = 200


async def copy_in(tree: HostTree, sandbox: Sandbox, settings: WorkspaceSettings) -> Snapshot:
    """Copies everything but special files, and links that lead outside; names those.

    `.git` goes in, so that git works inside. Raises `WorkspaceError` where the
    folder is over a bound or cannot be read or written.
    """
    snapshot = Snapshot()
    try:
        await asyncio.to_thread(_survey, tree, settings, snapshot)
        await _directories(sandbox, snapshot)
        await _files(tree, sandbox, settings, snapshot)
        await _links(sandbox, snapshot)
        await _remember(sandbox, snapshot)
    except OSError as error:
        where = f"`{_text(os.fsdecode(error.filename))}`: " if error.filename else ""
        raise WorkspaceError(f"cannot read the workspace: {where}{error.strerror}") from None
    except FileVerbFailed as error:
        raise WorkspaceError(f"cannot copy the workspace in: {error} ({error.reason})") from None
    return snapshot


def _survey(tree: HostTree, settings: WorkspaceSettings, snapshot: Snapshot) -> None:
    total = 0
    found: dict[Parts, HostEntry] = {}
    for raw, entry in tree.walk():
        path = raw.decode(errors="surrogateescape")
        try:
            parts = parse(raw)
        except BadName as error:
            snapshot.left.append(RefusedFact(path=_text(path), why=str(error)))
            continue
        if entry.kind == "special":
            snapshot.left.append(RefusedFact(path=path, why="it is a FIFO, socket or device"))
            continue
        found[parts] = entry
        total += entry.size
        if len(found) > settings.files_max:
            raise WorkspaceError(f"the workspace holds more than {settings.files_max} entries")
        if total > settings.bytes_max:
            raise WorkspaceError(f"the workspace holds more than {settings.bytes_max} bytes")
    links = {parts for parts, entry in found.items() if entry.kind == "link"}
    for parts in links:
        fault = link_fault(parts, _text(found[parts].target), links - {parts})
        # Inside, a link through other links is harmless; only one that leads out is not.
        if fault is not None and "through another" not in fault and "into .git" not in fault:
            snapshot.left.append(RefusedFact(path=shown(parts), why=fault))
            del found[parts]
    snapshot.host = found


async def _directories(sandbox: Sandbox, snapshot: Snapshot) -> None:
    made_with_files = {
        parts[:depth]
        for parts, entry in snapshot.host.items()
        if entry.kind == "file"
        for depth in range(1, len(parts))
    }
    # A directory is made with its parents: only the deepest need asking for.
    asked = {
        parts
        for parts, entry in snapshot.host.items()
        if entry.kind == "directory" and parts not in made_with_files
    }
    parents = {parts[:depth] for parts in asked for depth in range(1, len(parts))}
    for parts in sorted(asked - parents):
        await sandbox.make_directory(shown(parts))


async def _files(
    tree: HostTree, sandbox: Sandbox, settings: WorkspaceSettings, snapshot: Snapshot
) -> None:
    gate = asyncio.Semaphore(settings.transfers_parallel_max)
    files = [parts for parts, entry in snapshot.host.items() if entry.kind == "file"]

    async def send(parts: Parts) -> None:
        async with gate:
            entry = snapshot.host[parts]
            sent = _Sent(settings.bytes_max)
            try:
                file = await asyncio.to_thread(tree.open_file, parts)
            except (PermissionError, FileNotFoundError, HostConflict) as error:
                snapshot.left.append(RefusedFact(path=shown(parts), why=_why(error)))
                del snapshot.host[parts]
                return
            with file:
                version = await sandbox.write_file(
                    shown(parts), sent.pieces(file), entry.mode & 0o777
                )
            snapshot.host[parts] = replace(entry, size=sent.size, digest=sent.digest)
            snapshot.sandbox[parts] = InSandbox(entry.mode & 0o777, version)
            snapshot.bytes += sent.size

    try:
        async with asyncio.TaskGroup() as group:
            for parts in files:
                group.create_task(send(parts))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


class _Sent:
    """Counts and digests a file while it is sent: the file may change meanwhile."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    async def pieces(self, file: BinaryIO) -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            self._hash.update(piece)
            self.size += len(piece)
            if self.size > self._bytes_max:
                raise WorkspaceError("a file of the workspace grows while it is copied")
            yield piece


async def _links(sandbox: Sandbox, snapshot: Snapshot) -> None:
    links = [
        (parts, entry.target) for parts, entry in snapshot.host.items() if entry.kind == "link"
    ]
    for at in range(0, len(links), LINKS_PER_COMMAND_MAX):
        batch = links[at : at + LINKS_PER_COMMAND_MAX]
        if await sandbox.make_links([(shown(parts), target) for parts, target in batch]):
            continue
        for parts, _ in batch:
            snapshot.left.append(
                RefusedFact(path=shown(parts), why="the sandbox could not make the link")
            )
            del snapshot.host[parts]


async def _remember(sandbox: Sandbox, snapshot: Snapshot) -> None:
    """Keeps how the sandbox shows what it was given: later it is compared with itself."""
    async for entry in sandbox.tree():
        parts = tuple(os.fsdecode(entry.raw_path).split("/"))
        if parts in snapshot.host:
            known = snapshot.sandbox.get(parts)
            version = entry.version or (known.version if known else "")
            snapshot.sandbox[parts] = InSandbox(entry.mode, version)


def _why(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def _text(name: str) -> str:
    return printable(name)
