"""Calls to the container engine: the only module that knows its library.

Every call runs on a thread of its own and has a deadline. A thread cannot be
ended from outside, so a call that is over its deadline is left behind: its caller
gets `EngineDown`, the gauge of stuck calls rises until it ends, and the log names
it. Threads are daemonic: a stuck engine never holds up the daemon's exit. Short
and long calls (pull, export) have separate limits, so that a slow registry cannot
keep a sandbox from being ended.

Only lifecycle calls are here; nothing is executed or attached to, and nothing is
copied out of a container that has ever run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import docker
import docker.errors
import docker.utils
import requests
import urllib3

from sandboxd.errors import EngineDown, SandboxdError
from sandboxd.log import EventLog

API_VERSION_MIN: Final = (1, 40)
"""Docker 19.03. What is newer is used only where the engine has it."""
SHORT_CALLS_MAX: Final = 16
LONG_CALLS_MAX: Final = 4
LOG_TAIL_LINES: Final = 20
LOG_TAIL_CHARS_MAX: Final = 4_000
CLIENT_MARGIN_S: Final = 5
"""The library's own timeout comes after the deadline, and frees the thread."""
_LONG_SILENCE_S: Final = 120
"""Longest silence of the engine within a long call."""

DEFAULT_ADDRESS: Final = "unix:///var/run/docker.sock"
"""The library's own default."""

_Result = TypeVar("_Result")
_log = EventLog("engine")


class EngineRefused(SandboxdError):
    """The engine answered, and says no. `status` is the HTTP status.

    Its own words are the operator's: they may name paths of the host.
    """

    def __init__(self, status: int, operator_text: str) -> None:
        super().__init__("the container engine refuses", operator_text)
        self.status = status


class EngineNotFound(EngineRefused):
    """There is no such container or image."""


class EngineMetrics(Protocol):
    """Where the figures of engine calls go; `metrics.Metrics` is one."""

    def engine_call(self, call: str, outcome: str, seconds: float) -> None: ...

    def engine_stuck(self, count: int) -> None: ...


@dataclass(frozen=True)
class ContainerEntry:
    """One container as the engine lists it."""

    id: str
    labels: Mapping[str, str]
    running: bool


class Engine:
    """One container engine, found as `DOCKER_HOST` says."""

    def __init__(self, metrics: EngineMetrics, *, short_s: float, pull_s: float) -> None:
        """Asks nothing yet. `short_s` and `pull_s` are the deadlines of the two kinds."""
        self._metrics = metrics
        self._short_s = short_s
        self._pull_s = pull_s
        self._short = asyncio.Semaphore(SHORT_CALLS_MAX)
        self._long = asyncio.Semaphore(LONG_CALLS_MAX)
        self._client: Any = None
        self._long_client: Any = None
        self._client_lock = threading.Lock()
        self._stuck = 0

    # --- calls ----------------------------------------------------------------

    async def api_version(self) -> tuple[int, ...]:
        """Negotiates at the first use. Raises `EngineDown`."""

        def ask() -> tuple[int, ...]:
            # Read by hand: what the engine and the library both speak, highest first.
            return tuple(int(part) for part in str(self._api().api_version).split("."))

        return await self._call("version", ask)

    async def cpus(self) -> int:
        """CPUs of the engine's host."""
        return await self._call("info", lambda: int(self._api().info()["NCPU"]))

    async def image(self, name: str) -> dict[str, Any]:
        """Inspects an image. Raises `EngineNotFound`, `EngineDown`."""
        return await self._call("image_inspect", lambda: self._api().inspect_image(name))

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
            await self._call("pull", pull, long=True)
        finally:
            given_up.set()

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Makes a container of a raw configuration and gives its id."""

        def create() -> str:
            made = self._api().create_container_from_config(dict(config), name)
            return str(made["Id"])

        return await self._call("create", create, settled=True)

    async def start(self, container: str) -> None:
        await self._call("start", lambda: self._api().start(container), settled=True)

    async def container(self, container: str) -> dict[str, Any]:
        """Inspects a container. Raises `EngineNotFound`, `EngineDown`."""
        return await self._call("inspect", lambda: self._api().inspect_container(container))

    async def remove(self, container: str) -> None:
        """Ends and removes a container with its anonymous volumes; gone already is fine."""
        with contextlib.suppress(EngineNotFound):
            await self._call(
                "remove",
                lambda: self._api().remove_container(container, v=True, force=True),
                settled=True,
            )

    async def containers(self, labels: list[str]) -> list[ContainerEntry]:
        """All containers, running or not, that have every one of the `key=value` labels."""

        def ask() -> list[ContainerEntry]:
            rows = self._api().containers(all=True, filters={"label": labels})
            return [
                ContainerEntry(row["Id"], row["Labels"] or {}, row["State"] == "running")
                for row in rows
            ]

        return await self._call("list", ask)

    async def log_tail(self, container: str) -> str:
        """The last lines that the container's first process printed."""

        def ask() -> str:
            raw: bytes = self._api().logs(container, tail=LOG_TAIL_LINES)
            return raw.decode("utf-8", "replace")[-LOG_TAIL_CHARS_MAX:].strip()

        return await self._call("logs", ask)

    async def export(
        self, container: str, path: str, take: Callable[[Iterator[bytes]], None]
    ) -> None:
        """Streams a folder of a container that never ran, as tar, to `take` on its thread."""

        def export() -> None:
            chunks, _ = self._api(long=True).get_archive(container, path)
            take(chunks)

        await self._call("export", export, long=True)

    def close(self) -> None:
        """Closes idle connections. Calls that still run end by their own timeouts."""
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

    # --- threads and deadlines ------------------------------------------------

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
        work: Callable[[], _Result],
        *,
        long: bool = False,
        settled: bool = False,
    ) -> _Result:
        """Runs `work` on a thread.

        `settled`: a caller that is cancelled still waits until the call has ended
        or is overdue: only then is it known what it did, and can be undone.
        """
        task = asyncio.ensure_future(self._timed(name, work, long))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Its outcome is asked for, so that nobody reports it as never retrieved.
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            if settled and not task.done():
                await asyncio.wait({task})
            raise

    async def _timed(self, name: str, work: Callable[[], _Result], long: bool) -> _Result:
        begun = time.monotonic()
        outcome = "down"
        try:
            result = await self._on_thread(name, work, long)
            outcome = "ok"
            return result
        except EngineRefused as error:
            outcome = "not_found" if isinstance(error, EngineNotFound) else "refused"
            raise
        finally:
            self._metrics.engine_call(name, outcome, time.monotonic() - begun)

    async def _on_thread(self, name: str, work: Callable[[], _Result], long: bool) -> _Result:
        deadline_s = self._pull_s if long else self._short_s
        slots = self._long if long else self._short
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Result] = loop.create_future()
        started = overdue = False

        def settle(result: _Result | None, error: Exception | None) -> None:
            slots.release()
            if overdue:
                # Its caller was told that the engine is down: nobody asks for the outcome.
                self._count_stuck(-1)
                _log.info("an overdue engine call has ended", call=name)
                return
            if not done.done():
                if error is None:
                    done.set_result(result)  # type: ignore[arg-type]
                else:
                    done.set_exception(error)

        def run() -> None:
            result: _Result | None = None
            error: Exception | None = None
            try:
                result = _translated(work)
            except Exception as raised:  # noqa: BLE001 - handed over to the caller whole
                error = raised
            # The loop is closed where the daemon has ended meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)

        try:
            async with asyncio.timeout(deadline_s):
                await slots.acquire()
                started = True
                threading.Thread(target=run, name=f"engine-{name}", daemon=True).start()
                return await asyncio.shield(done)
        except TimeoutError:
            if started and not done.done():
                overdue = True
                self._count_stuck(1)
                _log.error("an engine call is stuck", call=name, seconds=deadline_s)
            elif not started:
                _log.error("all engine calls are stuck", call=name, seconds=deadline_s)
            raise EngineDown(f"`{name}` did not end within {deadline_s:g} s") from None

    def _count_stuck(self, change: int) -> None:
        self._stuck += change
        self._metrics.engine_stuck(self._stuck)


def _translated(work: Callable[[], _Result]) -> _Result:
    """Runs `work` and turns the library's errors into this module's."""
    try:
        return work()
    except docker.errors.NotFound as error:
        raise EngineNotFound(404, str(error.explanation or error)) from None
    except docker.errors.APIError as error:
        status = error.response.status_code if error.response is not None else 500
        raise EngineRefused(status, str(error.explanation or error)) from None
    except (
        docker.errors.DockerException,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
    ) as error:
        raise EngineDown(f"`{engine_address()}`: {_cause(error)}") from None


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
