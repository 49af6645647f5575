"""How containers end: the cgroup first, then the engine, then it is seen gone (security S3)."""

from __future__ import annotations

import asyncio
from typing import Final

from sandboxd import fault_points
from sandboxd.backends.cgroups import ContainerCgroup, cgroup_of
from sandboxd.backends.engine import Engine, EngineNotFound, EngineRefused
from sandboxd.errors import SandboxdError

KILL_S: Final = 5.0
"""Time for a cgroup's sweep; the engine gets its turn afterwards in any case."""
GONE_S: Final = 10.0
"""Time from the engine's removal until container and cgroup are gone."""
GONE_POLL_S: Final = 0.02
_CONFLICT: Final = 409


async def end_containers(
    engine: Engine, labels: list[str], known: ContainerCgroup | None = None
) -> None:
    """Ends every container that has the labels. Safe to repeat.

    `known` is the cgroup of the one that this daemon has started or adopted: it is
    swept before the engine is asked for anything, and so also where that is down.
    Raises `EngineDown`, and `SandboxdError` where something is still there.
    """
    if known is not None:
        await asyncio.to_thread(known.kill, KILL_S)
    try:
        for entry in await engine.containers(labels):
            cgroup = known
            if cgroup is None or cgroup.container_id != entry.id:
                cgroup = await _sweep(engine, entry.id)
            await _remove(engine, entry.id, cgroup)
    except EngineRefused as error:
        raise SandboxdError(
            "the engine does not end a sandbox", f"container with {labels}: {error.operator_text}"
        ) from None


async def _sweep(engine: Engine, container: str) -> ContainerCgroup:
    pid = 0
    try:
        pid = int((await engine.container(container))["State"].get("Pid") or 0)
    except EngineNotFound:
        pass
    cgroup = await asyncio.to_thread(cgroup_of, container, pid)
    await asyncio.to_thread(cgroup.kill, KILL_S)
    return cgroup


async def _remove(engine: Engine, container: str, cgroup: ContainerCgroup) -> None:
    await fault_points.reach("delete.killed")
    try:
        await engine.remove(container)
    except EngineRefused as error:
        # Somebody else's removal is under way: what counts is that it comes to its end.
        if error.status != _CONFLICT:
            raise
    try:
        async with asyncio.timeout(GONE_S):
            while not await _gone(engine, container, cgroup):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(GONE_POLL_S)
    except TimeoutError:
        raise SandboxdError(
            "a sandbox could not be ended",
            f"container {container} or its cgroup is still there after {GONE_S:g} s",
        ) from None


async def _gone(engine: Engine, container: str, cgroup: ContainerCgroup) -> bool:
    try:
        await engine.container(container)
    except EngineNotFound:
        await asyncio.to_thread(cgroup.remove_empty)
        return cgroup.gone
    return False


async def oom_killed(engine: Engine, container: str) -> bool:
    """Whether the engine saw a container's cgroup run out of memory. Raises `EngineDown`."""
    try:
        return bool((await engine.container(container))["State"].get("OOMKilled"))
    except (EngineNotFound, EngineRefused):
        return False
