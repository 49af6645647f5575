"""Copies a sandbox's changes out to the host, or shows what would be copied."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, cast

from orchestrator.call_lines import size
from orchestrator.config import WorkspaceSettings
from orchestrator.escape import printable
from orchestrator.messages import ChangeFact, RefusedFact
from orchestrator.sandbox import FileVerbFailed, Sandbox
from orchestrator.workspace.host_tree import TAKEN, HostConflict, HostEntry, HostTree, Staged
from orchestrator.workspace.names import Parts, shown
from orchestrator.workspace.plan import Change, Plan, Tree, make_plan, to_read
from orchestrator.workspace.snapshot import Snapshot

REFUSED_SHOWN_MAX: Final = 1_000


class CopyOut:
    """One copy out. `changes` holds what was done, or would be in a dry run."""

    def __init__(
        self, host: HostTree, sandbox: Sandbox, settings: WorkspaceSettings, snapshot: Snapshot
    ) -> None:
        self._host = host
        self._sandbox = sandbox
        self._settings = settings
        self._snapshot = snapshot
        self.changes: list[ChangeFact] = []
        self.refused: list[RefusedFact] = []
        self.stayed: dict[str, int] = {}
        self.bytes = 0
        self._new: set[Parts] = set()
        self._going: set[Parts] = set()

    async def run(self, *, dry_run: bool) -> None:
        """Compares, then carries out what may be. Faults of single files are reported.

        Raises `SandboxFailed` where the sandbox is lost. However it ends, `changes` holds
        what was done, and nothing unfinished is left on the host.
        """
        try:
            await self._run(dry_run=dry_run)
        finally:
            more = len(self.refused) - REFUSED_SHOWN_MAX
            if more > 0:
                rest = RefusedFact(path="(others)", why=f"{more} more like these", conflict=True)
                self.refused = [*self.refused[:REFUSED_SHOWN_MAX], rest]

    async def _run(self, *, dry_run: bool) -> None:
        plan = await self._plan()
        self.refused, self.stayed = list(plan.refused), plan.stayed
        if len(plan.changes) > self._settings.out_changes_max:
            self._refuse_all(plan)
            return
        self._new = {
            step.parts for step in plan.changes if step.kind == "added" and step.what == "directory"
        }
        self._going = {step.parts for step in plan.changes if step.kind == "removed"}
        for change in plan.changes:
            try:
                if dry_run:
                    await self._check(change)
                    self._done(change)
                else:
                    await self._apply(change)
            except (HostConflict, FileVerbFailed) as error:
                self._refuse(change, str(error))
            except OSError as error:
                self._refuse(change, (error.strerror or str(error)).lower())

    # --- Comparing -----------------------------------------------------------

    async def _plan(self) -> Plan:
        tree = Tree()
        seen = 0
        take = self._settings.take_self_executing
        try:
            async with aclosing(cast("Any", self._sandbox.tree())) as entries:
                async for entry in entries:
                    seen += 1
                    if seen > self._settings.out_entries_max:
                        tree.complete = False
                        why = (
                            f"the sandbox holds more than {self._settings.out_entries_max} entries"
                        )
                        tree.refused.append(RefusedFact(path="(the rest)", why=why, conflict=True))
                        break
                    tree.add(entry, take_self_executing=take, known=self._snapshot)
        except FileVerbFailed as error:
            tree.complete = False
            tree.refused.append(RefusedFact(path="(the tree)", why=str(error), conflict=True))
        digests = await self._digests(tree)
        return make_plan(
            self._snapshot,
            tree,
            digests,
            file_bytes_max=self._settings.out_file_bytes_max,
            take_self_executing=take,
        )

    async def _digests(self, tree: Tree) -> dict[Parts, str]:
        gate = asyncio.Semaphore(self._settings.transfers_parallel_max)
        digests: dict[Parts, str] = {}

        async def read(parts: Parts) -> None:
            digest = hashlib.sha256()
            async with gate:
                try:
                    async with aclosing(self._content(parts, tree.entries[parts].size)) as pieces:
                        async for piece in pieces:
                            digest.update(piece)
                except FileVerbFailed:
                    # Unreadable, or larger than it said: as a change it will be reported.
                    digests[parts] = "?"
                else:
                    digests[parts] = digest.hexdigest()

        try:
            async with asyncio.TaskGroup() as group:
                for parts in to_read(self._snapshot, tree):
                    group.create_task(read(parts))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return digests

    def _content(self, parts: Parts, bytes_max: int) -> Any:
        content: AsyncIterator[bytes] = self._sandbox.read_file(shown(parts), bytes_max)
        return content

    # --- Carrying out --------------------------------------------------------

    async def _check(self, change: Change) -> None:
        """What `_apply` would find wrong on the host."""
        was = self._snapshot.host.get(change.parts)
        if change.what == "link" and change.kind != "removed":
            await asyncio.to_thread(
                self._host.refuse_detour, change.parts, change.target, self._going
            )
        current = await self._current(change)
        if change.what == "file" and change.kind in ("added", "changed"):
            # Where `_write` counts: what the comparison below refuses was read all the same.
            self._refuse_beyond_total(change.size)
            self.bytes += change.size
        if change.kind == "added":
            if (
                current is not None
                and not current.same_content(was)
                and not (change.what == "directory" and current.kind == "directory")
            ):
                raise HostConflict(TAKEN)
        elif change.what != "directory" and (current is None or not current.same_content(was)):
            raise HostConflict("it changed meanwhile")

    async def _current(self, change: Change) -> HostEntry | None:
        """What is now at the place of a change; None in a directory that the plan makes."""
        above = [change.parts[:depth] for depth in range(1, len(change.parts))]
        if any(parts in self._new for parts in above):
            return None
        current = await asyncio.to_thread(self._host.state, change.parts)
        if (
            current is None
            and above
            and await asyncio.to_thread(self._host.state, above[-1]) is None
        ):
            raise HostConflict("no such file or directory")
        return current

    def _refuse_beyond_total(self, more: int) -> None:
        if self.bytes + more > self._settings.out_bytes_max:
            bound = size(self._settings.out_bytes_max)
            raise HostConflict(f"with it the changes are over {bound} in all")

    async def _apply(self, change: Change) -> None:
        parts = change.parts
        was = self._snapshot.host.get(parts)
        if change.kind == "removed" and was is not None:
            await self._carry_out(change, self._host.remove, parts, was)
        elif change.kind == "mode" and change.mode is not None:
            await self._check(change)
            await self._carry_out(change, self._host.change_mode, parts, change.mode)
        elif change.what == "directory":
            await self._carry_out(change, self._host.make_directory, parts)
        elif change.what == "link":
            expected = was if change.kind == "changed" else None
            async with self._staged(self._host.stage_link, parts, change.target) as staged:
                await self._carry_out(change, self._host.commit, staged, parts, expected, None)
        else:
            await self._write(change)

    async def _write(self, change: Change) -> None:
        parts = change.parts
        was = self._snapshot.host.get(parts)
        expected = was if change.kind == "changed" else None
        mode = None if change.mode is None else self._host.allowed_mode(change.mode)
        file_bytes_max = self._settings.out_file_bytes_max
        async with self._staged(self._host.stage_file, parts) as staged:
            # By the announced size first, as a dry run does; then by what arrives.
            self._refuse_beyond_total(change.size)
            async with aclosing(self._content(parts, file_bytes_max)) as pieces:
                async for piece in pieces:
                    self._refuse_beyond_total(staged.size + len(piece))
                    await _to_its_end(staged.write, piece)
            self.bytes += staged.size
            await self._carry_out(change, self._host.commit, staged, parts, expected, mode)

    @asynccontextmanager
    async def _staged(self, stage: Callable[..., Staged], *given: Any) -> AsyncIterator[Staged]:
        made: list[Staged] = []
        try:
            await _to_its_end(lambda: made.append(stage(*given)))
            yield made[0]
        finally:
            for staged in made:
                await _to_its_end(staged.close)

    async def _carry_out(self, change: Change, step: Callable[..., None], *given: Any) -> None:
        def carry_out() -> None:
            step(*given)
            # In the same breath: an interrupt must not lose what was done.
            self._done(change)

        await _to_its_end(carry_out)

    # --- Reporting -----------------------------------------------------------

    def _done(self, change: Change) -> None:
        self.changes.append(
            ChangeFact(
                kind=change.kind, path=shown(change.parts), what=change.what, size=change.size
            )
        )

    def _refuse(self, change: Change, why: str) -> None:
        # What lies below is judged by what the host will hold, not by what was planned.
        (self._going if change.kind == "removed" else self._new).discard(change.parts)
        # A directory that still holds something of the host's own simply stays.
        conflict = not (change.kind == "removed" and change.what == "directory")
        self.refused.append(
            RefusedFact(path=shown(change.parts), why=printable(why), conflict=conflict)
        )

    def _refuse_all(self, plan: Plan) -> None:
        why = f"{len(plan.changes)} changes are over the bound of {self._settings.out_changes_max}"
        self.refused.append(RefusedFact(path="(everything)", why=why, conflict=True))


async def _to_its_end(work: Callable[..., None], *given: Any) -> None:
    """Runs blocking work in a thread; a cancelled task waits for its end.

    A thread cannot be stopped: what comes next must not meet it at work.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work, *given))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})
        raise
