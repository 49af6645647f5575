"""A whole orchestrator in a test: a real adapter, a real model server, the real log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator import app
from orchestrator.config import RunSettings, run_settings
from orchestrator.events import CallEnded, Event, Settled
from orchestrator.messages import Outcome
from orchestrator.models.script import Script
from orchestrator.models.scripted import ScriptedModel
from tests.unit.orchestrator.folder_adapter import FolderAdapter


@dataclass
class World:
    """Everything around one run."""

    folder: Path
    adapter: FolderAdapter
    events: list[Event] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings, over the world's own."""
    model_settings: dict[str, Any] = field(default_factory=dict)
    server: ScriptedModel | None = None

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def log(self) -> Path:
        return self.folder / "log.sqlite3"

    def run_settings(self, base_url: str) -> RunSettings:
        model = {"name": "scripted", "base_url": base_url, "backoff_s": 0.01}
        return run_settings(
            {
                "task": "do it",
                "sandbox": self.adapter.target,
                "log": self.log,
                "model": {**model, **self.model_settings},
                "sandbox_connect_s": 2,
                **self.settings,
            }
        )

    async def run(self, turns: Sequence[Any], **script: Any) -> int:
        """One run with a model that follows `turns`."""
        parsed = Script.model_validate({"turns": turns, **script})
        async with ScriptedModel(parsed, "127.0.0.1", 0) as self.server:
            return await app.run(self.run_settings(self.server.base_url), self.events.append)

    @property
    def outcomes(self) -> list[tuple[str, Outcome]]:
        """(tool, outcome) in the order in which calls ended."""
        return [(e.call.name, e.outcome) for e in self.events if isinstance(e, CallEnded)]

    @property
    def settled(self) -> Settled:
        (settled,) = [event for event in self.events if isinstance(event, Settled)]
        return settled


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "box").mkdir()
    (tmp_path / "workspace").mkdir()
    async with FolderAdapter(tmp_path / "box", tmp_path / "s") as adapter:
        yield World(tmp_path, adapter)
