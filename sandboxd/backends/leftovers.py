"""What exists of this worker on its engine and its host, by the resource that it belongs to.

The sweeper compares it with the sessions there are. Only what bears the worker's own
label, or lies in its own state folder, is ever looked at: other daemons of the same
engine have other labels and other folders.

Asked every few seconds, so it costs one call to the engine, for containers. Volumes and
networks are listed at the start and then once in `LABELLED_REST_S`.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxd.backends.docker_spec import LABEL_RESOURCE, LABEL_WORKER
from sandboxd.backends.engine import Engine, EngineRefused, LabelledEntry
from sandboxd.backends.folders import SessionFolders
from sandboxd.errors import SandboxdError
from sandboxd.log import EventLog

LABELLED_REST_S: Final = 60.0

_log = EventLog("backends")


@dataclass(frozen=True)
class _Labelled:
    """A volume or network of ours."""

    kind: str
    id: str
    remove: Callable[[str], Awaitable[None]]


class Leftovers:
    """Finds what bears one worker's label or lies in its folders, and removes by resource."""

    def __init__(self, engine: Engine, folders: SessionFolders, worker: str) -> None:
        self._engine = engine
        self._folders = folders
        self._labels = [f"{LABEL_WORKER}={worker}"]
        self._labelled: dict[str, list[_Labelled]] = {}
        self._listed_at: float | None = None

    async def resources(self) -> set[str]:
        """Ids of resources of which anything is there. Raises `EngineDown`, `EngineRefused`."""
        containers = await self._engine.containers(self._labels)
        found = {entry.labels.get(LABEL_RESOURCE, "") for entry in containers}
        found |= await asyncio.to_thread(self._folders.names)
        now = time.monotonic()
        if self._listed_at is None or now - self._listed_at >= LABELLED_REST_S:
            try:
                await self._list_labelled()
            except EngineRefused as error:
                # Such as a driver of volumes that fails: no reason to leave containers behind.
                _log.warning("volumes and networks are not listed", why=error.operator_text)
            self._listed_at = now
        return (found | self._labelled.keys()) - {""}

    async def remove_labelled(self, resource_id: str) -> None:
        """Removes the volumes and networks of a resource whose containers have ended.

        Raises `EngineDown`, and `SandboxdError` where something is left.
        """
        refused = ""
        for entry in self._labelled.get(resource_id, []):
            try:
                await entry.remove(entry.id)
            except EngineRefused as error:
                refused = refused or f"{entry.kind} `{entry.id}`: {error.operator_text}"
        # What is left is found by the next listing.
        self._labelled.pop(resource_id, None)
        if refused:
            raise SandboxdError("the engine keeps something of a sandbox", refused)

    async def _list_labelled(self) -> None:
        self._labelled = {}
        self._note("volume", await self._engine.volumes(self._labels), self._engine.remove_volume)
        self._note(
            "network", await self._engine.networks(self._labels), self._engine.remove_network
        )

    def _note(
        self, kind: str, entries: list[LabelledEntry], remove: Callable[[str], Awaitable[None]]
    ) -> None:
        for entry in entries:
            resource_id = entry.labels.get(LABEL_RESOURCE, "")
            self._labelled.setdefault(resource_id, []).append(_Labelled(kind, entry.id, remove))


def remove_half_made(state_dir: Path) -> None:
    """Removes what a daemon that died was about to rename: half a toolbox, a file of an id.

    Only while the state folder is locked and before anything is made. Raises OSError.
    """
    for path in state_dir.glob("toolbox/.*"):
        shutil.rmtree(path)
    for name in ("worker-id", "session-uid"):
        for path in state_dir.glob(f".{name}.*"):
            path.unlink()
