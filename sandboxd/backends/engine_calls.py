"""How calls to the container engine run: threads, deadlines, a watch, up or down.

Every call runs on a thread of its own and has a deadline. A thread cannot be
ended from outside, so a call that is over its deadline is left behind: its caller
gets `EngineDown`, the gauge of stuck calls rises until it ends, and the log names
it, again every `STUCK_REPEAT_S`. Threads are daemonic: a stuck engine never holds
up the daemon's exit. Short and long calls (pull, export) have separate limits, so
that a slow registry cannot keep a sandbox from being ended.

An engine that does not answer is asked by one probe alone, every `PROBE_REST_S`.
Meanwhile other calls fail at once: nobody waits for a deadline that is known to
pass, and the first answer opens the way for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from sandboxd.errors import EngineDown, SandboxdError
from sandboxd.log import EventLog

SHORT_CALLS_MAX: Final = 16
LONG_CALLS_MAX: Final = 4
STUCK_REPEAT_S: Final = 60.0
"""How often the log names a call that is still stuck."""
NAMED_MAX: Final = 8
"""Calls that the log names where all are stuck: the oldest."""
PROBE_REST_S: Final = 1.0
"""Between two questions whether an engine that was away is back."""
PROBE: Final = "ping"

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


class EngineUnready(EngineDown):
    """The engine answers, and says that what it needs below itself does not."""


class EngineMetrics(Protocol):
    """Where the figures of engine calls go; `metrics.Metrics` is one."""

    def engine_call(self, call: str, outcome: str, seconds: float) -> None: ...

    def engine_stuck(self, count: int) -> None: ...

    def engine_up(self, *, up: bool) -> None: ...


@dataclass(frozen=True)
class CallInFlight:
    """A call that has been given to the engine and has not ended."""

    call: str
    target: str
    """The container, image or name that it is about; empty where it is about none."""
    seconds: float
    """Since it began."""
    overdue: bool
    """Over its deadline: nobody waits for it any more."""

    def __str__(self) -> str:
        return f"{self.call} {self.target}".rstrip() + f" for {self.seconds:.0f} s"


class EngineCalls:
    """Runs blocking questions to one engine. Used on one event loop."""

    def __init__(
        self,
        metrics: EngineMetrics,
        probe: Callable[[], None],
        *,
        short_s: float,
        long_s: float,
    ) -> None:
        """`probe` asks the engine the cheapest question; it raises as every `work` does."""
        self._metrics = metrics
        self._probe = probe
        self._short_s = short_s
        self._long_s = long_s
        self._short = asyncio.Semaphore(SHORT_CALLS_MAX)
        self._long = asyncio.Semaphore(LONG_CALLS_MAX)
        self._flights: set[_Flight] = set()
        self._down_text: str | None = None
        self._down_since = 0.0
        self._answered_at = -1.0
        self._probing: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def up(self) -> bool:
        """Whether the engine answered when it was asked last."""
        return self._down_text is None

    def in_flight(self) -> list[CallInFlight]:
        """What is under way, oldest first: what an operator asks when the engine is slow."""
        now = time.monotonic()
        return [
            CallInFlight(flight.call, flight.target, now - flight.begun, flight.overdue)
            for flight in sorted(self._flights, key=lambda flight: flight.begun)
        ]

    def close(self) -> None:
        """Ends the probe and the watch. Calls that run end by their own timeouts. Idempotent."""
        self._closed = True
        if self._probing is not None:
            self._probing.cancel()
        for flight in self._flights:
            flight.unwatch()

    async def run(
        self,
        call: str,
        target: str,
        work: Callable[[], _Result],
        *,
        long: bool = False,
        settled: bool = False,
    ) -> _Result:
        """Runs `work`, which raises `EngineRefused` or `EngineDown`, on a thread.

        `call` is a name in the daemon's code, `target` what the call is about.
        `settled`: a caller that is cancelled still waits until the call has ended
        or is overdue: only then is it known what it did, and can be undone.

        Raises what `work` raises, and `EngineDown` where it is overdue or the
        engine is known to be down.
        """
        if self._down_text is not None:
            self._keep_probing()
            raise EngineDown(self._down_text)
        task = asyncio.ensure_future(self._timed(_Flight(call, target), work, long))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Its outcome is asked for, so that nobody reports it as never retrieved.
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            if settled and not task.done():
                await asyncio.wait({task})
            raise

    async def _timed(self, flight: _Flight, work: Callable[[], _Result], long: bool) -> _Result:
        outcome = "down"
        try:
            result = await self._on_thread(flight, work, long)
            outcome = "ok"
            self._answered()
            return result
        except EngineRefused as error:
            outcome = "not_found" if isinstance(error, EngineNotFound) else "refused"
            self._answered()
            raise
        except EngineUnready:
            self._answered()
            raise
        except EngineDown as error:
            if flight.late and flight.call != PROBE:
                # It may be this call alone that is stuck: the probe will tell.
                self._keep_probing()
            elif self._answered_at < flight.begun:
                self._fell_silent(error.operator_text)
            raise
        finally:
            self._metrics.engine_call(flight.call, outcome, time.monotonic() - flight.begun)

    async def _on_thread(self, flight: _Flight, work: Callable[[], _Result], long: bool) -> _Result:
        deadline_s = self._long_s if long else self._short_s
        slots = self._long if long else self._short
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Result] = loop.create_future()
        # Where the probe is ended nobody asks for the outcome, and that is no fault.
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        started = False

        def settle(result: _Result | None, error: Exception | None) -> None:
            slots.release()
            self._landed(flight)
            # A caller that was told that the engine is down asks for no outcome.
            if not flight.overdue and not done.done():
                if error is None:
                    done.set_result(result)  # type: ignore[arg-type]
                else:
                    done.set_exception(error)

        def run() -> None:
            result: _Result | None = None
            error: Exception | None = None
            try:
                result = work()
            except Exception as raised:  # noqa: BLE001 - handed over to the caller whole
                error = raised
            # The loop is closed where the daemon has ended meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)

        try:
            async with asyncio.timeout(deadline_s):
                await slots.acquire()
                started = True
                self._flights.add(flight)
                threading.Thread(target=run, name=f"engine-{flight.call}", daemon=True).start()
                return await asyncio.shield(done)
        except TimeoutError:
            flight.late = True
            if started and not done.done():
                flight.overdue = True
                self._count_stuck()
                self._name_stuck(flight)
            elif not started:
                _log.error(
                    "all engine calls are stuck",
                    call=flight.call,
                    seconds=deadline_s,
                    oldest=", ".join(map(str, self.in_flight()[:NAMED_MAX])),
                )
            what = f"`{flight.call}` of `{flight.target}`" if flight.target else f"`{flight.call}`"
            raise EngineDown(f"{what} did not end within {deadline_s:g} s") from None

    # --- stuck calls ----------------------------------------------------------

    def _landed(self, flight: _Flight) -> None:
        self._flights.discard(flight)
        flight.unwatch()
        if flight.overdue:
            self._count_stuck()
            _log.info(
                "an overdue engine call has ended",
                call=flight.call,
                target=flight.target,
                seconds=time.monotonic() - flight.begun,
            )

    def _name_stuck(self, flight: _Flight) -> None:
        _log.error(
            "an engine call is stuck",
            call=flight.call,
            target=flight.target,
            seconds=time.monotonic() - flight.begun,
            stuck=sum(other.overdue for other in self._flights),
        )
        if not self._closed:
            loop = asyncio.get_running_loop()
            flight.watch = loop.call_later(STUCK_REPEAT_S, self._name_stuck, flight)

    def _count_stuck(self) -> None:
        self._metrics.engine_stuck(sum(flight.overdue for flight in self._flights))

    # --- up or down -----------------------------------------------------------

    def _answered(self) -> None:
        self._answered_at = time.monotonic()
        if self._down_text is not None:
            _log.info("the engine answers again", seconds=self._answered_at - self._down_since)
        self._down_text = None
        self._metrics.engine_up(up=True)

    def _fell_silent(self, text: str) -> None:
        self._metrics.engine_up(up=False)
        if self._down_text is None:
            self._down_since = time.monotonic()
            _log.error("the engine does not answer", detail=text)
        self._down_text = text
        self._keep_probing()

    def _keep_probing(self) -> None:
        if not self._closed and (self._probing is None or self._probing.done()):
            self._probing = asyncio.create_task(self._probe_until_up())

    async def _probe_until_up(self) -> None:
        while True:
            # At once: a single connection that broke must not keep everybody waiting. And with
            # the whole deadline: an engine that is starting takes the connection first and
            # answers when it is ready, and then this is how it is noticed.
            with contextlib.suppress(EngineDown, EngineRefused):
                await self._timed(_Flight(PROBE, ""), self._probe, False)
            if self._down_text is None:
                return
            await asyncio.sleep(PROBE_REST_S)


class _Flight:
    """One call, from its thread's start until the thread ends."""

    def __init__(self, call: str, target: str) -> None:
        self.call = call
        self.target = target
        self.begun = time.monotonic()
        self.late = False
        """Its caller was told that it did not end in time, or did not begin."""
        self.overdue = False
        """It is late and still runs."""
        self.watch: asyncio.TimerHandle | None = None

    def unwatch(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None
