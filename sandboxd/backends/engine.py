"""Calls to the container engine: the only module that knows its library.

Each runs as `engine_calls.py` says: on a thread, with a deadline, and not at all
while the engine is known to be down.

Only lifecycle calls are here; nothing is executed or attached to, and nothing is
copied out of a container that has ever run.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import docker
import docker.errors
import docker.utils
import requests
import urllib3

from sandboxd import fault_points
from sandboxd.backends.engine_calls import (
    LONG_CALLS_MAX,
    SHORT_CALLS_MAX,
    CallInFlight,
    EngineCalls,
    EngineMetrics,
    EngineNotFound,
    EngineRefused,
    EngineUnready,
)
from sandboxd.errors import EngineDown

__all__ = [
    "API_VERSION_MIN",
    "ContainerEntry",
    "Engine",
    "EngineMetrics",
    "EngineNotFound",
    "EngineRefused",
    "LabelledEntry",
    "engine_address",
]

API_VERSION_MIN: Final = (1, 40)
"""Docker 19.03. What is newer is used only where the engine has it."""
LOG_TAIL_LINES: Final = 20
LOG_TAIL_CHARS_MAX: Final = 4_000
CLIENT_MARGIN_S: Final = 5
"""The library's own timeout comes after the deadline, and frees the thread."""
_LONG_SILENCE_S: Final = 120
"""Longest silence of the engine within a long call."""

DEFAULT_ADDRESS: Final = "unix:///var/run/docker.sock"
"""The library's own default."""

_SERVER_ERROR: Final = 500
_RUNTIME_AWAY: Final = re.compile(r"containerd\.sock\b|transport is closing|: unavailable\s*\Z")
"""The engine's words where its containerd is away, which says nothing of what was asked."""

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ContainerEntry:
    """One container as the engine lists it."""

    id: str
    labels: Mapping[str, str]
    running: bool


@dataclass(frozen=True)
class LabelledEntry:
    """One volume or network as the engine lists it."""

    id: str
    """A volume's name, a network's id."""
    labels: Mapping[str, str]


class Engine:
    """One container engine, found as `DOCKER_HOST` says."""

    def __init__(self, metrics: EngineMetrics, *, short_s: float, pull_s: float) -> None:
        """Asks nothing yet. `short_s` and `pull_s` are the deadlines of the two kinds."""
        self._short_s = short_s
        self._calls = EngineCalls(metrics, _translating(self._ping), short_s=short_s, long_s=pull_s)
        self._client: Any = None
        self._long_client: Any = None
        self._client_lock = threading.Lock()

    @property
    def up(self) -> bool:
        """Whether the engine answered when it was asked last."""
        return self._calls.up

    def calls_in_flight(self) -> list[CallInFlight]:
        """What the engine has been asked and has not answered, oldest first."""
        return self._calls.in_flight()

    # --- calls ----------------------------------------------------------------

    async def api_version(self) -> tuple[int, ...]:
        """Negotiates at the first use. Raises `EngineDown`."""

        def ask() -> tuple[int, ...]:
            # Read by hand: what the engine and the library both speak, highest first.
            return tuple(int(part) for part in str(self._api().api_version).split("."))

        return await self._call("version", "", ask)

    async def cpus(self) -> int:
        """CPUs of the engine's host."""
        return await self._call("info", "", lambda: int(self._api().info()["NCPU"]))

    async def image(self, name: str) -> dict[str, Any]:
        """Inspects an image. Raises `EngineNotFound`, `EngineDown`."""
        return await self._call("image_inspect", name, lambda: self._api().inspect_image(name))

    async def pull(self, name: str) -> None:
        """Raises `EngineRefused` with the engine's words, or `EngineDown`."""
        given_up = threading.Event()

        def pull() -> None:
            repository, tag = docker.utils.parse_repository_tag(name)
            events = self._api(long=True).pull(
                repository, tag=tag or "latest", stream=True, decode=True
            )
            refused = ""
            # Read to its end also after an error: the connection is given back by that.
            for event in events:
                if given_up.is_set():
                    return
                refused = refused or str(event.get("error", ""))
            if refused:
                raise EngineRefused(500, refused)

        try:
            await self._call("pull", name, pull, long=True)
        finally:
            given_up.set()

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Makes a container of a raw configuration and gives its id."""

        def create() -> str:
            made = self._api().create_container_from_config(dict(config), name)
            return str(made["Id"])

        met = fault_points.around("engine.create", create, EngineDown)
        return await self._call("create", name, met, settled=True)

    async def start(self, container: str) -> None:
        met = fault_points.around("engine.start", lambda: self._api().start(container), EngineDown)
        await self._call("start", container, met, settled=True)

    async def container(self, container: str) -> dict[str, Any]:
        """Inspects a container. Raises `EngineNotFound`, `EngineDown`."""
        return await self._call(
            "inspect", container, lambda: self._api().inspect_container(container)
        )

    async def remove(self, container: str) -> None:
        """Ends and removes a container with its anonymous volumes; gone already is fine."""
        met = fault_points.around(
            "engine.remove",
            lambda: self._api().remove_container(container, v=True, force=True),
            EngineDown,
        )
        with contextlib.suppress(EngineNotFound):
            await self._call("remove", container, met, settled=True)

    async def containers(self, labels: list[str]) -> list[ContainerEntry]:
        """All containers, running or not, that have every one of the `key=value` labels."""

        def ask() -> list[ContainerEntry]:
            rows = self._api().containers(all=True, filters={"label": labels})
            return [
                ContainerEntry(row["Id"], row["Labels"] or {}, row["State"] == "running")
                for row in rows
            ]

        return await self._call("list", "", ask)

    async def log_tail(self, container: str) -> str:
        """The last lines that the container's first process printed."""

        def ask() -> str:
            raw: bytes = self._api().logs(container, tail=LOG_TAIL_LINES)
            return raw.decode("utf-8", "replace")[-LOG_TAIL_CHARS_MAX:].strip()

        return await self._call("logs", container, ask)

    async def export(
        self, container: str, path: str, take: Callable[[Iterator[bytes]], None]
    ) -> None:
        """Streams a folder of a container that never ran, as tar, to `take` on its thread."""

        def export() -> None:
            chunks, _ = self._api(long=True).get_archive(container, path)
            take(chunks)

        await self._call("export", container, export, long=True)

    async def volumes(self, labels: list[str]) -> list[LabelledEntry]:
        """All volumes that have every one of the `key=value` labels."""

        def ask() -> list[LabelledEntry]:
            rows = self._api().volumes(filters={"label": labels})["Volumes"] or []
            return [LabelledEntry(row["Name"], row["Labels"] or {}) for row in rows]

        return await self._call("volume_list", "", ask)

    async def networks(self, labels: list[str]) -> list[LabelledEntry]:
        """All networks that have every one of the `key=value` labels."""

        def ask() -> list[LabelledEntry]:
            rows = self._api().networks(filters={"label": labels})
            return [LabelledEntry(row["Id"], row["Labels"] or {}) for row in rows]

        return await self._call("network_list", "", ask)

    async def remove_volume(self, name: str) -> None:
        """Gone already is fine. Raises `EngineRefused` where a container still has it."""
        with contextlib.suppress(EngineNotFound):
            await self._call("volume_remove", name, lambda: self._api().remove_volume(name))

    async def remove_network(self, network: str) -> None:
        """Gone already is fine. Raises `EngineRefused` where a container is still in it."""
        with contextlib.suppress(EngineNotFound):
            await self._call("network_remove", network, lambda: self._api().remove_network(network))

    def close(self) -> None:
        """Closes idle connections. Calls that still run end by their own timeouts."""
        self._calls.close()
        if not self._client_lock.acquire(blocking=False):
            # A thread asks an engine that hangs: the event loop must not wait with it.
            return
        try:
            for client in (self._client, self._long_client):
                if client is not None:
                    client.close()
            self._client = self._long_client = None
        finally:
            self._client_lock.release()

    # --- the library ----------------------------------------------------------

    def _ping(self) -> None:
        self._api().ping()

    def _api(self, *, long: bool = False) -> Any:
        """The library's client, made at first use: its constructor asks the engine."""
        with self._client_lock:
            found = self._long_client if long else self._client
            if found is None:
                found = docker.APIClient(
                    version="auto",
                    timeout=_LONG_SILENCE_S if long else int(self._short_s) + CLIENT_MARGIN_S,
                    max_pool_size=LONG_CALLS_MAX if long else SHORT_CALLS_MAX,
                    **docker.utils.kwargs_from_env(),
                )
                if long:
                    self._long_client = found
                else:
                    self._client = found
            return found

    async def _call(
        self,
        name: str,
        target: str,
        work: Callable[[], _Result],
        *,
        long: bool = False,
        settled: bool = False,
    ) -> _Result:
        return await self._calls.run(name, target, _translating(work), long=long, settled=settled)


def _translating(work: Callable[[], _Result]) -> Callable[[], _Result]:
    """`work`, with the library's errors turned into this module's.

    Raised outside of the handlers: an error that kept the library's as its context would
    keep the library's sockets open for as long as somebody holds it.
    """

    def translated() -> _Result:
        failed: EngineDown | EngineRefused
        try:
            return work()
        except docker.errors.NotFound as error:
            failed = EngineNotFound(404, str(error.explanation or error))
        except docker.errors.APIError as error:
            status = error.response.status_code if error.response is not None else 500
            text = str(error.explanation or error)
            failed = EngineRefused(status, text)
            if status >= _SERVER_ERROR and _RUNTIME_AWAY.search(text):
                failed = EngineUnready(text)
        except (
            docker.errors.DockerException,
            requests.exceptions.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
        ) as error:
            failed = EngineDown(f"`{engine_address()}`: {_cause(error)}")
        raise failed

    return translated


def engine_address() -> str:
    """Where the engine is asked, as the operator's environment says."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS


def _cause(error: BaseException) -> str:
    """What the operating system said, where it lies beneath the libraries' words."""
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting:
        at = waiting.pop(0)
        if not isinstance(at, BaseException) or id(at) in seen:
            continue
        seen.add(id(at))
        if isinstance(at, OSError) and isinstance(at.strerror, str):
            return at.strerror.lower()
        waiting += [*at.args, getattr(at, "reason", None), at.__cause__, at.__context__]
    return str(error)
