"""The only place that picks classes: what a run consists of, in order, and its one outcome."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.config import RunSettings
from orchestrator.context import system_prompt
from orchestrator.errors import (
    EXIT_COMPLETED,
    EXIT_CONFLICTS,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    CeilingReached,
    ModelError,
    OrchestratorError,
    UsageError,
)
from orchestrator.escape import printable
from orchestrator.events import (
    CopiedIn,
    CopiedOut,
    RunStarted,
    SandboxReady,
    Settled,
    SystemPrompt,
    UserSaid,
    Watch,
)
from orchestrator.loop import Journal, Loop
from orchestrator.messages import Usage
from orchestrator.models.chat_completions import ChatCompletions
from orchestrator.models.script import load_script
from orchestrator.models.scripted import ScriptedModel
from orchestrator.sandbox import Sandbox, call_id, conversation_id
from orchestrator.store.sqlite import SqliteLog
from orchestrator.workspace.copy_in import copy_in
from orchestrator.workspace.copy_out import CopyOut
from orchestrator.workspace.host_tree import HostTree
from orchestrator.workspace.snapshot import Snapshot


async def run(settings: RunSettings, watch: Watch) -> int:
    """One run, from the task to its outcome. Returns the exit code.

    Raises `StoreError` where there is no log to write to; every other failure is an
    outcome. Cancelled, it ends its calls and its sandbox, records that, and lets the
    cancellation pass.
    """
    log = await SqliteLog.open(settings.log)
    try:
        return await _Run(settings, Journal(log, conversation_id(), watch)).settle()
    finally:
        await log.close()


class _Run:
    def __init__(self, settings: RunSettings, journal: Journal) -> None:
        self._settings = settings
        self._journal = journal
        self._loop: Loop | None = None
        self._begun = time.monotonic()

    async def settle(self) -> int:
        try:
            exit_code = await self._work()
        except OrchestratorError as error:
            await self._settled("failed", error.exit_code, str(error), error.hint)
            return error.exit_code
        except asyncio.CancelledError:
            await self._settled("aborted", EXIT_INTERRUPTED, "interrupted")
            raise
        except Exception as error:
            await self._settled("failed", EXIT_INTERNAL, f"internal error: {error}")
            raise
        if exit_code == EXIT_CONFLICTS:
            await self._settled("completed", exit_code, "some changes were not taken over")
        else:
            await self._settled("completed", exit_code)
        return exit_code

    async def _settled(self, outcome: str, exit_code: int, error: str = "", hint: str = "") -> None:
        loop = self._loop
        await self._journal.write(
            Settled.model_validate(
                {
                    "outcome": outcome,
                    "exit_code": exit_code,
                    "error": error,
                    "hint": hint,
                    "model_calls": loop.model_calls if loop else 0,
                    "tool_calls": loop.tool_calls if loop else 0,
                    "usage": loop.usage if loop else Usage(),
                    "duration_s": time.monotonic() - self._begun,
                }
            )
        )

    async def _work(self) -> int:
        settings, journal = self._settings, self._journal
        await journal.write(
            RunStarted(
                model=settings.model.name,
                workspace=printable(str(settings.workspace or "")),
                dry_run=settings.dry_run,
                model_calls_max=settings.model_calls_max,
            )
        )
        with ExitStack() as folders:
            # Opened first: a wrong path should not cost a container.
            tree = (
                folders.enter_context(HostTree(settings.workspace)) if settings.workspace else None
            )
            async with AsyncExitStack() as stack:
                sandbox = await stack.enter_async_context(
                    Sandbox(settings.sandbox, settings.profile, settings.sandbox_connect_s)
                )
                model = await stack.enter_async_context(ChatCompletions(settings.model, call_id))
                await journal.write(
                    SandboxReady(
                        sandbox=sandbox.facts,
                        tools=sandbox.tools,
                        boot_id=sandbox.boot_id,
                        ledger_id=sandbox.ledger_id,
                    )
                )
                snapshot = await self._copy_in(tree, sandbox) if tree else None
                await self._open_conversation(sandbox)
                self._loop = Loop(settings, model, sandbox, sandbox.tools, journal)
                failure: OrchestratorError | None = None
                try:
                    await self._loop.run()
                except (ModelError, CeilingReached) as error:
                    # The sandbox is well, so what was done so far is not thrown away.
                    failure = error
                taken = True
                if tree is not None and snapshot is not None:
                    taken = await self._copy_out(tree, sandbox, snapshot)
                if failure is not None:
                    raise failure
                return EXIT_COMPLETED if taken else EXIT_CONFLICTS

    async def _open_conversation(self, sandbox: Sandbox) -> None:
        today = datetime.now(UTC).date().isoformat()
        await self._journal.write(
            SystemPrompt(text=system_prompt(sandbox.working_directory, today)),
            UserSaid(text=self._settings.task),
        )

    async def _copy_in(self, tree: HostTree, sandbox: Sandbox) -> Snapshot:
        begun = time.monotonic()
        snapshot = await copy_in(tree, sandbox, self._settings.files)
        await self._journal.write(
            CopiedIn(
                files=snapshot.files,
                bytes=snapshot.bytes,
                duration_s=time.monotonic() - begun,
                left=tuple(snapshot.left[:1_000]),
            )
        )
        return snapshot

    async def _copy_out(self, tree: HostTree, sandbox: Sandbox, snapshot: Snapshot) -> bool:
        """True where everything was taken over, or would be."""
        begun = time.monotonic()
        out = CopyOut(tree, sandbox, self._settings.files, snapshot)
        try:
            await out.run(dry_run=self._settings.dry_run)
        finally:
            # What was done before a failure or an interrupt is in the workspace, too.
            await self._journal.write(
                CopiedOut(
                    dry_run=self._settings.dry_run,
                    changes=tuple(out.changes),
                    refused=tuple(out.refused),
                    left=tuple(f"{count} {kind}" for kind, count in sorted(out.stayed.items())),
                    bytes=out.bytes,
                    duration_s=time.monotonic() - begun,
                )
            )
        return not any(fact.conflict for fact in out.refused)


async def serve_script(script: Path, listen: str) -> int:
    """Serves a scripted model until it is cancelled. Says on stdout where."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"`{listen}` is no HOST:PORT")
    async with ScriptedModel(load_script(script), host.strip("[]"), int(port)) as server:
        sys.stdout.write(f"scripted model ready at {server.base_url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
    return EXIT_COMPLETED
