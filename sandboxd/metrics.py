"""Metrics of the daemon, for Prometheus.

A registry of its own, so that nothing of another library shows, and an HTTP
server of its own on loopback. Labels come from bounded sets: names of tools,
endings, states, phases, engine calls. No tenant, session, path or text that a
client or a session chose is ever a label (security S19).
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)

from sandboxd.errors import EXIT_ADDRESS, StartupError

_CALL_BUCKETS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0, 3600.0,
)  # fmt: skip
_PHASE_BUCKETS_S: Final = (
    0.001,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
_STATES: Final = ("CREATING", "READY", "RESTARTING", "FAILED", "DELETED")
_PHASES: Final = frozenset({"admit", "pull", "create", "start", "guest_ready"})


class Metrics:
    """Everything that the daemon measures. Methods are cheap and never raise."""

    def __init__(self) -> None:
        # The library's time of creation would double the number of series.
        disable_created_metrics()
        self.registry = CollectorRegistry(auto_describe=True)
        registry = self.registry
        self._build = Gauge(
            "sandboxd_build_info", "1, with the version.", ["version", "backend"], registry=registry
        )
        self._call_seconds = Histogram(
            "sandboxd_call_seconds",
            "Time that a tool call ran, without its wait in the queue.",
            ["tool", "ending"],
            buckets=_CALL_BUCKETS_S,
            registry=registry,
        )
        self._call_errors = Counter(
            "sandboxd_call_errors", "Calls whose tool failed.", ["tool"], registry=registry
        )
        self._replays = Counter(
            "sandboxd_call_replays",
            "Calls answered with the result of an earlier request.",
            registry=registry,
        )
        self._resumed = Counter(
            "sandboxd_calls_resumed",
            "Calls that an earlier daemon left running, by what came of them.",
            ["ending"],
            registry=registry,
        )
        self._queue_seconds = Histogram(
            "sandboxd_call_queue_seconds",
            "Time that a call waited for its turn.",
            buckets=_CALL_BUCKETS_S,
            registry=registry,
        )
        self._truncations = Counter(
            "sandboxd_truncations", "Results that were cut.", ["tool"], registry=registry
        )
        self._lock_seconds = Histogram(
            "sandboxd_lock_wait_seconds",
            "Time that a file operation waited for the file's lock, as the guest says.",
            buckets=_CALL_BUCKETS_S,
            registry=registry,
        )
        self._sessions = Gauge(
            "sandboxd_sessions", "Sessions by state.", ["state"], registry=registry
        )
        self._phase_seconds = Histogram(
            "sandboxd_session_phase_seconds",
            "Time of each phase of a session's start.",
            ["phase"],
            buckets=_PHASE_BUCKETS_S,
            registry=registry,
        )
        self._creates = Counter(
            "sandboxd_session_creates",
            "Sessions asked for, by outcome: the reason, or OK.",
            ["outcome"],
            registry=registry,
        )
        self._restarts = Counter(
            "sandboxd_session_restarts", "Containers started anew.", registry=registry
        )
        self._ends = Counter(
            "sandboxd_session_ends", "Sessions that ended, by cause.", ["cause"], registry=registry
        )
        self._engine_seconds = Histogram(
            "sandboxd_engine_call_seconds",
            "Time of calls to the container engine.",
            ["call", "outcome"],
            buckets=_PHASE_BUCKETS_S,
            registry=registry,
        )
        self._engine_stuck = Gauge(
            "sandboxd_engine_calls_stuck",
            "Calls to the engine that are over their deadline and still run.",
            registry=registry,
        )
        self._engine_up = Gauge(
            "sandboxd_engine_up",
            "1 where the container engine answered when it was asked last, 0 where it did not, "
            "NaN where it was never asked.",
            registry=registry,
        )
        self._engine_up.set(math.nan)
        self._rpc_seconds = Histogram(
            "sandboxd_rpc_seconds",
            "Time of RPCs.",
            ["method", "code"],
            buckets=_CALL_BUCKETS_S,
            registry=registry,
        )
        self._streams_open = Gauge(
            "sandboxd_rpc_streams_open",
            "Streams that are open, those that wait for their client included.",
            ["method"],
            registry=registry,
        )
        self._sweep_failures = Counter(
            "sandboxd_sweep_failures",
            "Steps of the sweeper that failed and will be repeated.",
            ["step"],
            registry=registry,
        )
        for state in _STATES:
            self._sessions.labels(state)

    def build_info(self, version: str, backend: str) -> None:
        self._build.labels(version, backend).set(1)

    def call_ended(
        self, tool: str, ending: str, seconds: float, *, is_error: bool, truncated: bool
    ) -> None:
        """One call ran to its ending; `ending` without the enum's prefix."""
        self._call_seconds.labels(tool, ending).observe(seconds)
        if is_error:
            self._call_errors.labels(tool).inc()
        if truncated:
            self._truncations.labels(tool).inc()

    def call_resumed(self, ending: str) -> None:
        self._resumed.labels(ending).inc()

    def call_replayed(self) -> None:
        self._replays.inc()

    def call_waited(self, seconds: float) -> None:
        self._queue_seconds.observe(seconds)

    def lock_waited(self, seconds: float) -> None:
        """`seconds` comes from a guest: only a plausible number is counted (security S8)."""
        if 0.0 <= seconds <= 86_400.0:
            self._lock_seconds.observe(seconds)

    def session_states(self, counts: dict[str, int]) -> None:
        for state in _STATES:
            self._sessions.labels(state).set(counts.get(state, 0))

    def session_phase(self, phase: str, seconds: float) -> None:
        self._phase_seconds.labels(phase if phase in _PHASES else "other").observe(seconds)

    def session_create(self, outcome: str) -> None:
        self._creates.labels(outcome).inc()

    def session_restart(self) -> None:
        self._restarts.inc()

    def session_end(self, cause: str) -> None:
        self._ends.labels(cause).inc()

    def engine_call(self, call: str, outcome: str, seconds: float) -> None:
        """One call to the container engine; both labels are names in the daemon's code."""
        self._engine_seconds.labels(call, outcome).observe(seconds)

    def engine_stuck(self, count: int) -> None:
        self._engine_stuck.set(count)

    def engine_up(self, *, up: bool) -> None:
        self._engine_up.set(1 if up else 0)

    def rpc_ended(self, method: str, code: str, seconds: float) -> None:
        self._rpc_seconds.labels(method, code).observe(seconds)

    def stream_opened(self, method: str) -> None:
        """Pair with `stream_ended`."""
        self._streams_open.labels(method).inc()

    def stream_ended(self, method: str) -> None:
        self._streams_open.labels(method).dec()

    def sweep_failure(self, step: str) -> None:
        self._sweep_failures.labels(step).inc()


class MetricsServer:
    """Serves a registry over HTTP on a loopback address until it is closed."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        """Listens at once. Raises `StartupError` (EXIT_ADDRESS) where it cannot."""
        try:
            started = start_http_server(port, addr=host, registry=metrics.registry)
        except OSError as error:
            raise StartupError(
                f"cannot serve metrics on `{host}:{port}`: {error.strerror or error}", EXIT_ADDRESS
            ) from None
        self._server: WSGIServer = started[0]
        self._thread: threading.Thread = started[1]
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stops serving and gives the port back. Blocks for a poll interval at most."""
        with contextlib.suppress(OSError):
            self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2.0)
