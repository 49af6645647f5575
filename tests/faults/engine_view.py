"""What the suite asks of its own engine, and does to containers behind the daemon's back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import docker
import docker.errors

from sandboxd.backends.docker_spec import LABEL_RESOURCE, LABEL_WORKER

IMAGE = "sandboxd/base:dev"
ANSWER_S_MAX = 60


@dataclass(frozen=True)
class Container:
    """One container of a daemon under test."""

    id: str
    resource_id: str
    running: bool


class EngineView:
    """Asynchronous and complete enough for the suite. Usable across restarts of the engine."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._client = docker.APIClient(base_url=host, timeout=ANSWER_S_MAX, version="1.41")

    def close(self) -> None:
        self._client.close()

    async def containers(self, worker: str) -> list[Container]:
        """All containers, running or not, with the label of a worker."""

        def ask() -> list[Container]:
            rows = self._client.containers(all=True, filters={"label": f"{LABEL_WORKER}={worker}"})
            return [
                Container(row["Id"], row["Labels"][LABEL_RESOURCE], row["State"] == "running")
                for row in rows
            ]

        return await asyncio.to_thread(ask)

    async def kill(self, container: str) -> None:
        """SIGKILL to its first process; one that has ended is left alone."""

        def ask() -> None:
            try:
                self._client.kill(container, signal="SIGKILL")
            except docker.errors.APIError as error:
                if error.response is None or error.response.status_code not in (404, 409):
                    raise

        await asyncio.to_thread(ask)

    async def pid(self, container: str) -> int:
        """The host's number of its first process, 0 where it does not run."""

        def ask() -> int:
            facts: dict[str, Any] = self._client.inspect_container(container)
            return int(facts["State"].get("Pid") or 0)

        return await asyncio.to_thread(ask)

    async def make_orphan(self, worker: str, resource_id: str) -> str:
        """A container with a worker's label that belongs to none of its sessions; never started."""

        def ask() -> str:
            made = self._client.create_container(
                IMAGE,
                command=["true"],
                labels={LABEL_WORKER: worker, LABEL_RESOURCE: resource_id},
                network_disabled=True,
            )
            return str(made["Id"])

        return await asyncio.to_thread(ask)

    async def things(self) -> set[str]:
        """Names of all networks and volumes of the engine."""

        def ask() -> set[str]:
            networks = {f"network {row['Name']}" for row in self._client.networks()}
            volumes = {f"volume {row['Name']}" for row in self._client.volumes()["Volumes"] or []}
            return networks | volumes

        return await asyncio.to_thread(ask)
