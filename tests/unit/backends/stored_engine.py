"""An engine that holds files: what no real one can be made to answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sandboxd.backends.engine import Engine, EngineNotFound


class StoredEngine(Engine):
    """`files`: path to the archive that the engine sends for it."""

    def __init__(self, files: Mapping[str, Callable[[], Iterator[bytes]]]) -> None:
        # Nothing of the real one is used: it would look for an engine.
        self._files = files
        self.there: list[str] = []
        self.made = 0
        self.last_config: dict[str, Any] = {}

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        self.made += 1
        self.last_config = dict(config)
        self.there.append(name)
        return name

    async def export(
        self, container: str, path: str, take: Callable[[Iterator[bytes]], None]
    ) -> None:
        assert container in self.there
        if path not in self._files:
            raise EngineNotFound(404, path)
        take(self._files[path]())

    async def remove(self, container: str) -> None:
        self.there.remove(container)
