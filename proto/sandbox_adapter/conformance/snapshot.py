"""What is on disk below a rule's folder, so that a rule can say that nothing changed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from sandbox_adapter import errors
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.v1 import file_pb2

CONTENT_BYTES_MAX: Final = 64 * 1024
"""Largest file whose bytes are compared; of larger ones the size and times are."""

Snapshot = Mapping[str, Any]
"""By path below the folder: kind, mode, size, time, and the content."""


async def taken(place: Place, *, contents: bool = True) -> Snapshot:
    """What is in the folder now, without the folder itself; empty where there is none.

    `contents`: with the bytes of small files. Without them it costs one request.
    """
    if not place.has_files:
        return await _by_shell(place)
    found: dict[str, Any] = {}
    try:
        async for batch in place.client.files.list(place.session_id, place.folder, recursive=True):
            for entry in batch.entries:
                content = await _content(place, entry) if contents else None
                found[entry.path] = (*_facts(entry.stat), content)
    except errors.FileNotFound:
        return {}
    return found


def same(before: Snapshot, after: Snapshot) -> None:
    """Raises `Broken` for the first path that is new, gone or different."""
    for path in sorted({*before, *after}):
        expect.holds(path in after, f"{path} is gone, and nothing may have changed")
        expect.holds(path in before, f"{path} is new, and nothing may have changed")
        expect.equal(after[path], before[path], f"{path} afterwards, and nothing may have changed")


def _facts(stat: file_pb2.FileStat) -> tuple[Any, ...]:
    kind = file_pb2.FileKind.Name(stat.kind).removeprefix("FILE_KIND_")
    size = stat.size if stat.kind == file_pb2.FILE_KIND_FILE else 0
    return kind, f"{stat.mode:o}", size, stat.modified_at.ToNanoseconds(), stat.link_target


async def _content(place: Place, entry: file_pb2.DirectoryEntry) -> bytes | None:
    if entry.stat.kind != file_pb2.FILE_KIND_FILE or entry.stat.size > CONTENT_BYTES_MAX:
        return None
    try:
        return await place.content(entry.path)
    except errors.FileFault:
        return None


async def _by_shell(place: Place) -> Snapshot:
    await place.require("find", "stat", "sort", "cksum")
    folder = shlex.quote(place.folder)
    # Tried on the folder first: a command that cannot do this would show nothing, twice.
    # What the user may not look into has no lines, before and after.
    text = await place.look(
        f"if cd {folder} 2>/dev/null; then\n"
        "find . -prune -exec stat -c '%n|%f %s %Y' {} + > /dev/null || exit 127\n"
        "find . ! -name . -exec stat -c '%n|%f %s %Y' {} + 2>/dev/null | sort\n"
        "find . -type f -exec cksum {} + 2>/dev/null | sort\n"
        "fi"
    )
    return {"the folder": text} if text else {}
