"""Builds the daemon and ends it: the only place that picks classes.

`serve` reads as the list of what is started; everything that starts registers
its end at once, so that a start that fails half-way ends what it began. The
order of the shutdown is that of architecture.md: not serving, nothing new, grace
for what runs, the ledger, the socket, and the sandboxes stay unless told
otherwise.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from sandboxd import __version__, limits, log
from sandboxd.backends.base import Backend
from sandboxd.config import GVISOR_PIDS_MIN, Settings, short_of_pids
from sandboxd.errors import EXIT_CONFIG, EXIT_UNSAFE, StartupError
from sandboxd.metrics import Metrics, MetricsServer
from sandboxd.rpc import address
from sandboxd.rpc.adapter_service import AdapterService
from sandboxd.rpc.file_service import FileService
from sandboxd.rpc.process_service import ProcessService
from sandboxd.rpc.server import Server, Services
from sandboxd.rpc.session_service import SessionService
from sandboxd.rpc.tool_service import ToolService
from sandboxd.sessions.calls import Calls
from sandboxd.sessions.directory import Directory
from sandboxd.sessions.ends import Ends
from sandboxd.sessions.execution import Execution
from sandboxd.sessions.ledger import Ledger
from sandboxd.sessions.manager import SessionManager
from sandboxd.sessions.process_table import ProcessTable
from sandboxd.sessions.processes import Processes
from sandboxd.sessions.records import EndCause
from sandboxd.sessions.session_table import SessionTable
from sandboxd.sessions.starts import Starts
from sandboxd.sessions.store import Store
from sandboxd.sessions.sweeper import Sweeper
from sandboxd.sessions.verbs import Verbs
from sandboxd.sessions.watches import Watches
from sandboxd.tools.registry import Registry, six_tools

_LOG: Final = log.EventLog("app")
SOCKET_GRACE_S: Final = 2.0
"""After running calls had their grace: time for answers to leave before the socket closes."""
DELETE_S_MAX: Final = 60.0
"""Longest time that `on_shutdown = "delete"` takes; the next daemon finishes the rest."""
FORCED_S_MAX: Final = 5.0
"""After a second signal: time until the process is gone, whatever hangs. Also the longest
wait for tasks that were told to end."""
EXIT_FORCED: Final = 1
LOCAL_WARNING: Final = """\
sandboxd: WARNING: the local backend isolates nothing. Every command of every session runs as
sandboxd: WARNING: an ordinary process of this user, with its files, its network and its keys.
sandboxd: WARNING: It is for development. Never let a model or a stranger near it."""

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Parts:
    """The rooms above the backend, joined."""

    directory: Directory
    manager: SessionManager
    calls: Calls
    watches: Watches
    sweeper: Sweeper
    server: Server


async def serve(settings: Settings, announce: Announce, warn: Announce) -> int:
    """Runs the daemon until a signal ends it. Returns the exit code.

    `announce` gets one line when requests are served, `warn` what an operator must
    see in any case. Raises `StartupError` where the daemon cannot start.
    """
    listen, metrics_at = _addresses(settings)
    if settings.backend == "local":
        _require_unsafe_local(settings, warn)
    else:
        _warn_of_pids(settings)
    signals = _Signals()
    metrics = Metrics()
    metrics.build_info(__version__, settings.backend)
    async with AsyncExitStack() as ending:
        metrics_text = "off"
        if metrics_at is not None:
            endpoint = MetricsServer(metrics, metrics_at.host, metrics_at.port)
            ending.push_async_callback(asyncio.to_thread, endpoint.close)
            metrics_text = address.Address(None, metrics_at.host, endpoint.port).text
        store = Store(settings.state_dir)
        await store.open()
        ending.push_async_callback(store.close)
        boot_id = f"b{uuid.uuid4().hex}"
        backend = build_backend(settings, metrics, boot_id)
        ending.push_async_callback(backend.stop)
        await backend.start()
        parts = build(settings, metrics, store, backend, six_tools(settings.bash), boot_id)
        ending.push_async_callback(_let_go, parts)
        await parts.sweeper.recover()
        ending.push_async_callback(_stop_server, parts, signals)
        text = await parts.server.start(listen)
        sweeping = asyncio.create_task(parts.sweeper.run())
        ending.push_async_callback(_cancel, sweeping)
        line = f"listening on {text} ({backend.name}), metrics on {metrics_text}"
        announce(f"sandboxd {__version__} ready: {line}")
        _LOG.info("ready", listen=text, backend=backend.name, ledger_id=store.ledger_id)
        await signals.first()
        _LOG.info("shutting down", sandboxes=settings.on_shutdown)
        await signals.unless_forced(_drain(settings, parts))
    _LOG.info("stopped")
    return EXIT_FORCED if signals.forced else 0


def build(
    settings: Settings,
    metrics: Metrics,
    store: Store,
    backend: Backend,
    tools: Registry,
    boot_id: str,
) -> Parts:
    """Joins the rooms above a backend whose store is open. `boot_id` names this run."""
    table = SessionTable(store)
    ledger = Ledger(store, result_bytes_max=limits.RESULT_BYTES_MAX, rows_max=limits.CALL_ROWS_MAX)
    directory = Directory(table, metrics, settings.sessions_max)
    execution = Execution(ledger, tools, metrics)
    calls = Calls(directory, ledger, tools, execution, metrics, store.digest_key)
    starts = Starts(
        backend, table, directory, metrics, settings.creates_parallel_max, calls.reconcile
    )
    process_table = ProcessTable(store)
    watches = Watches(directory, ledger, calls)
    ends = Ends(backend, table, ledger, process_table, directory, metrics)
    manager = SessionManager(settings, table, directory, starts, ends, metrics, store.digest_key)
    sweeper = Sweeper(
        backend, table, ledger, directory, calls, starts, ends, metrics, settings.sweep_interval_s
    )
    services = Services(
        adapter=AdapterService(settings, backend, directory, boot_id, lambda: store.ledger_id),
        session=SessionService(manager),
        tool=ToolService(calls, watches, tools, boot_id, lambda: store.ledger_id),
        file=FileService(Verbs(directory), metrics),
        process=ProcessService(Processes(directory, process_table, store.digest_key)),
    )
    return Parts(directory, manager, calls, watches, sweeper, Server(services, metrics))


def build_backend(settings: Settings, metrics: Metrics, boot_id: str) -> Backend:
    """The backend that the settings name."""
    # Imported here, so that neither backend needs what only the other uses.
    if settings.backend == "local":
        from sandboxd.backends.local import LocalBackend

        return LocalBackend(settings, boot_id)
    from sandboxd.backends.docker import DockerBackend

    return DockerBackend(settings, metrics, boot_id)


def _addresses(settings: Settings) -> tuple[address.Address, address.Address | None]:
    listen = address.parse(settings.listen, setting="listen")
    if settings.metrics == "off":
        return listen, None
    metrics_at = address.parse(settings.metrics, setting="metrics")
    if metrics_at.path is not None:
        raise StartupError("`metrics` must be `HOST:PORT` or `off`", EXIT_CONFIG)
    return listen, metrics_at


def _require_unsafe_local(settings: Settings, warn: Announce) -> None:
    if not settings.allow_unsafe_local:
        raise StartupError(
            "the local backend isolates nothing; it needs `--allow-unsafe-local`", EXIT_UNSAFE
        )
    warn(LOCAL_WARNING)


def _warn_of_pids(settings: Settings) -> None:
    for profile in short_of_pids(settings):
        _LOG.warning(
            "pids is low: gVisor's own threads count, a busy session will lose its sandbox",
            profile=profile.name,
            runtime=profile.runtime,
            pids=profile.pids,
            pids_at_least=GVISOR_PIDS_MIN,
        )


async def _drain(settings: Settings, parts: Parts) -> None:
    """From serving to nothing that runs, in the documented order."""
    end = time.monotonic() + settings.shutdown_grace_s
    await parts.server.announce_end()
    parts.directory.draining = True
    parts.calls.withdraw_queued()
    delete = settings.on_shutdown == "delete"
    late = await parts.calls.drain(settings.shutdown_grace_s)
    parts.watches.end()
    if late:
        _LOG.warning("calls outlived the grace period: the next daemon goes on", calls=late)
    creating = [live for live in parts.directory.all() if not live.created.done()]
    if creating:
        wait_s = max(0.0, end - time.monotonic())
        await asyncio.wait([live.created for live in creating], timeout=wait_s)
        # Given up while their callers are still there to be told.
        lives = (live.life_task for live in creating if not live.created.done())
        await _end_tasks({task for task in lives if task is not None})
    if delete:
        left = await parts.manager.delete_all(EndCause.SHUTDOWN, DELETE_S_MAX)
        if left:
            _LOG.warning("sessions are left for the next daemon to remove", sessions=left)


async def _stop_server(parts: Parts, signals: _Signals) -> None:
    parts.calls.let_go()
    await parts.server.stop(0.0 if signals.forced else SOCKET_GRACE_S)


async def _let_go(parts: Parts) -> None:
    """Ends every task of the sessions, so that nothing restarts what the backend lets go."""
    tasks = {
        task
        for live in parts.directory.all()
        for task in (live.life_task, live.end_task)
        if task is not None
    }
    tasks |= {
        call.task
        for live in parts.directory.all()
        for call in live.calls.values()
        if call.task is not None
    }
    await _end_tasks(tasks)
    await parts.sweeper.save_uses()


async def _end_tasks(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=FORCED_S_MAX)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("the sweeper broke off", cause=error)


class _Signals:
    """SIGTERM and SIGINT: the first asks for the end, the second forces it."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._force = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal)

    @property
    def forced(self) -> bool:
        return self._force.is_set()

    async def first(self) -> None:
        await self._asked.wait()

    async def unless_forced(self, work: Coroutine[Any, Any, None]) -> None:
        """Waits for `work`, or cancels it at the second signal."""
        task = asyncio.create_task(work)
        force = asyncio.create_task(self._force.wait())
        await asyncio.wait({task, force}, return_when=asyncio.FIRST_COMPLETED)
        force.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        elif (error := task.exception()) is not None:
            _LOG.error("the shutdown met a fault", cause=error)

    def _on_signal(self) -> None:
        if not self._asked.is_set():
            self._asked.set()
        elif not self._force.is_set():
            _LOG.warning("forced by a second signal")
            self._force.set()
            # What hangs by then hangs for good: the ledger is durable as it is.
            self._loop.call_later(FORCED_S_MAX, os._exit, EXIT_FORCED)


def print_line(line: str) -> None:
    """One line to standard error, at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
