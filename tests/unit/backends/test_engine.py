"""Calls to an engine that a test plays over a real Unix socket."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends import engine_calls
from sandboxd.backends.engine import Engine, EngineNotFound, EngineRefused
from sandboxd.backends.engine_calls import EngineUnready
from sandboxd.errors import EngineDown, SandboxdError

Answer = Callable[[str, str], Awaitable[tuple[int, bytes]]]


class Figures:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.stuck: list[int] = []
        self.up: list[bool] = []
        """Every change."""

    def engine_call(self, call: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append((call, outcome))

    def engine_stuck(self, count: int) -> None:
        self.stuck.append(count)

    def engine_up(self, *, up: bool) -> None:
        if self.up[-1:] != [up]:
            self.up.append(up)


class PlayedEngine:
    """Answers HTTP as `answer` says; version negotiation works unless it is overridden."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.answer: Answer = self._unknown
        self.release = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                verb, path, _ = head.split(b"\r\n")[0].decode().split(" ")
                length = 0
                for row in head.lower().split(b"\r\n"):
                    if row.startswith(b"content-length:"):
                        length = int(row.split(b":")[1])
                await reader.readexactly(length)
                self.seen.append(f"{verb} {path}")
                status, body = await self._respond(verb, path)
                # As the engine does it, and as its library wants a stream to be.
                reply = (
                    f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
                    f"Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n"
                )
                writer.write(reply.encode() + body + b"\r\n0\r\n\r\n")
                await writer.drain()
        except (EOFError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _respond(self, verb: str, path: str) -> tuple[int, bytes]:
        if path.endswith("/version") or path == "/version":
            return 200, json.dumps({"ApiVersion": "1.41", "MinAPIVersion": "1.12"}).encode()
        return await self.answer(verb, path)

    @staticmethod
    async def _unknown(verb: str, path: str) -> tuple[int, bytes]:
        return 404, json.dumps({"message": f"no {verb} {path}"}).encode()

    async def hang(self, verb: str, path: str) -> tuple[int, bytes]:
        await self.release.wait()
        return 200, b"{}"

    def close(self) -> None:
        self.release.set()
        for writer in self._open:
            writer.transport.abort()


@pytest.fixture
def figures() -> Figures:
    return Figures()


@pytest.fixture
async def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlayedEngine]:
    path = tmp_path / "engine.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    engine = PlayedEngine()
    server = await asyncio.start_unix_server(engine.serve, path)
    yield engine
    engine.close()
    server.close()
    await server.wait_closed()


@pytest.fixture
async def engine(played: PlayedEngine, figures: Figures) -> AsyncIterator[Engine]:
    made = Engine(figures, short_s=0.5, pull_s=0.5)
    yield made
    made.close()


def join_engine_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("engine-"):
            thread.join(10)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - threads of the engine's tell
            await asyncio.sleep(0.01)


async def outcome_of(call: Awaitable[object]) -> str:
    """Name of what the call raised; nothing of it is kept."""
    try:
        await call
    except SandboxdError as error:
        return type(error).__name__
    return "ok"


async def test_version_is_negotiated(engine: Engine, figures: Figures) -> None:
    assert await engine.api_version() == (1, 41)
    assert figures.calls == [("version", "ok")]


async def test_missing_engine_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Figures
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    engine = Engine(figures, short_s=5, pull_s=5)
    with warnings.catch_warnings():
        # The library leaves a socket that could not be connected to the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        assert await outcome_of(engine.containers([])) == "EngineDown"
        await asyncio.to_thread(join_engine_threads)
        gc.collect()
    assert figures.calls[0] == ("list", "down")
    assert figures.up == [False]
    engine.close()


async def test_refusals_keep_their_status_and_words(
    engine: Engine, played: PlayedEngine, figures: Figures
) -> None:
    with pytest.raises(EngineNotFound):
        await engine.image("nothing")

    async def conflict(verb: str, path: str) -> tuple[int, bytes]:
        return 409, b'{"message": "the name is in use"}'

    played.answer = conflict
    with pytest.raises(EngineRefused) as refused:
        await engine.create("taken", {"Image": "x"})
    assert refused.value.status == 409
    assert "the name is in use" in refused.value.operator_text
    assert figures.calls == [("image_inspect", "not_found"), ("create", "refused")]


@pytest.mark.parametrize(
    "words",
    [
        'desc = "transport: Error while dialing dial unix:///run/containerd.sock: timeout"',
        "transport is closing: unavailable",
        "error reading from server: EOF: unavailable",
    ],
)
async def test_engine_whose_runtime_is_away_is_no_refusal_and_is_up(
    engine: Engine, played: PlayedEngine, figures: Figures, words: str
) -> None:
    """Seen: a start in the second in which containerd was away failed for good."""

    async def away(verb: str, path: str) -> tuple[int, bytes]:
        return 500, json.dumps({"message": words}).encode()

    played.answer = away
    assert await outcome_of(engine.start("c")) == "EngineUnready"
    assert issubclass(EngineUnready, EngineDown)
    assert figures.up == [True]


async def test_removal_of_what_is_gone_succeeds(engine: Engine) -> None:
    await engine.remove("gone")


async def test_stuck_call_is_left_behind_named_and_counted(
    engine: Engine, played: PlayedEngine, figures: Figures, caplog: pytest.LogCaptureFixture
) -> None:
    await engine.api_version()
    played.answer = played.hang
    begun = asyncio.get_running_loop().time()
    with pytest.raises(EngineDown, match="does not answer") as down:
        await engine.start("c")
    assert asyncio.get_running_loop().time() - begun < 3
    assert "`start`" in down.value.operator_text
    assert figures.stuck == [1]
    assert "stuck" in caplog.text
    # The others are not held up by it.
    played.answer = played._unknown
    with pytest.raises(EngineNotFound):
        await engine.image("nothing")
    played.release.set()
    async with asyncio.timeout(10):
        while figures.stuck != [1, 0]:  # noqa: ASYNC110 - a thread of the engine's tells
            await asyncio.sleep(0.01)


async def test_stuck_call_is_named_again_while_it_is_stuck_and_listed(
    engine: Engine,
    played: PlayedEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_calls, "STUCK_REPEAT_S", 0.1)
    await engine.api_version()
    played.answer = played.hang
    assert await outcome_of(engine.start("c-stuck")) == "EngineDown"

    def named() -> list[Any]:
        return [
            row.sandboxd_fields  # type: ignore[attr-defined]
            for row in caplog.records
            if row.getMessage() == "an engine call is stuck"
        ]

    await until(lambda: len(named()) >= 3)
    assert {(row["call"], row["target"], row["stuck"]) for row in named()} == {
        ("start", "c-stuck", 1)
    }
    assert named()[0]["seconds"] < named()[-1]["seconds"]
    (shown,) = [flight for flight in engine.calls_in_flight() if flight.overdue]
    assert (shown.call, shown.target) == ("start", "c-stuck")
    assert shown.seconds >= 0.5
    played.release.set()
    await until(lambda: not engine.calls_in_flight())
    count = len(named())
    await asyncio.sleep(0.3)
    assert len(named()) == count


async def test_log_names_what_holds_every_place_where_all_calls_are_stuck(
    engine: Engine, played: PlayedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    await engine.api_version()
    played.answer = played.hang
    starts = [engine.start(f"c-{number}") for number in range(engine_calls.SHORT_CALLS_MAX + 1)]
    outcomes = await asyncio.gather(*map(outcome_of, starts))
    assert set(outcomes) == {"EngineDown"}
    (row,) = [row for row in caplog.records if row.getMessage() == "all engine calls are stuck"]
    oldest = row.sandboxd_fields["oldest"]  # type: ignore[attr-defined]
    named = re.findall(r"start (c-[0-9]+) for [0-9]+ s", oldest)
    assert len(set(named)) == engine_calls.NAMED_MAX
    played.release.set()
    await until(lambda: not engine.calls_in_flight())


async def test_call_that_is_stuck_alone_takes_the_engine_down_for_nobody(
    engine: Engine, played: PlayedEngine, figures: Figures
) -> None:
    await engine.api_version()

    async def hang_on_start(verb: str, path: str) -> tuple[int, bytes]:
        if path.endswith("/start"):
            return await played.hang(verb, path)
        return await played._unknown(verb, path)

    played.answer = hang_on_start
    outcomes = await asyncio.gather(
        outcome_of(engine.start("c")), *[outcome_of(engine.image("none")) for _ in range(40)]
    )
    assert outcomes == ["EngineDown", *["EngineNotFound"] * 40]
    # Only the probe was asked for its word, and gave it.
    await until(lambda: ("ping", "not_found") in figures.calls)
    assert figures.up == [True]
    assert await outcome_of(engine.image("none")) == "EngineNotFound"


async def test_engine_that_is_away_fails_calls_at_once_and_is_noticed_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Figures
) -> None:
    monkeypatch.setattr(engine_calls, "PROBE_REST_S", 0.05)
    path = tmp_path / "engine.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    played = PlayedEngine()
    server = await asyncio.start_unix_server(played.serve, path)
    engine = Engine(figures, short_s=2, pull_s=2)
    assert await outcome_of(engine.image("none")) == "EngineNotFound"
    server.close()
    played.close()
    path.unlink()
    with warnings.catch_warnings():
        # As above.
        warnings.simplefilter("ignore", ResourceWarning)
        assert await outcome_of(engine.image("none")) == "EngineDown"
        assert not engine.up
        # Known to be away: no thread, no connection, no deadline.
        begun = asyncio.get_running_loop().time()
        asked = await asyncio.gather(*[outcome_of(engine.image("none")) for _ in range(200)])
        assert asked == ["EngineDown"] * 200
        assert asyncio.get_running_loop().time() - begun < 1
        assert len([call for call in figures.calls if call[0] == "image_inspect"]) == 2
        again = PlayedEngine()
        server = await asyncio.start_unix_server(again.serve, path)
        await until(lambda: engine.up)
        assert await outcome_of(engine.image("none")) == "EngineNotFound"
        assert figures.up == [True, False, True]
        gc.collect()
    engine.close()
    again.close()
    server.close()


async def test_engine_that_hangs_answers_all_who_wait_when_it_wakes(
    engine: Engine, played: PlayedEngine, figures: Figures
) -> None:
    await engine.api_version()
    played.answer = played.hang
    assert await outcome_of(engine.image("x")) == "EngineDown"
    await until(lambda: not engine.up)
    played.release.set()
    played.answer = played._unknown
    await until(lambda: engine.up)
    assert await outcome_of(engine.image("x")) == "EngineNotFound"
    assert figures.up == [True, False, True]


async def test_two_thousand_calls_leave_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Figures
) -> None:
    """sandbox-cases 53: the library has a history of sockets that stay open."""
    path = tmp_path / "engine.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    code = f"""
import asyncio, json, sys
from tests.unit.backends.test_engine import PlayedEngine
async def main():
    played = PlayedEngine()
    async def mixed(verb, path):
        if "broken" in path:
            raise ConnectionError
        if "/volumes" in path:
            return 200, json.dumps({{"Volumes": None}}).encode()
        return 404, b'{{"message": "no"}}'
    played.answer = mixed
    await asyncio.start_unix_server(played.serve, {str(path)!r})
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    serving = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    assert serving.stdout is not None
    await serving.stdout.readline()
    engine = Engine(figures, short_s=10, pull_s=10)
    monkeypatch.setattr(engine._calls, "_fell_silent", lambda text: None)
    try:
        await engine.api_version()
        before = descriptors()

        async def one(number: int) -> None:
            kinds: list[Callable[[], Awaitable[object]]] = [
                lambda: engine.image("none"),
                lambda: engine.volumes(["a=b"]),
                lambda: engine.remove("gone"),
                lambda: engine.container("broken"),
            ]
            await outcome_of(kinds[number % len(kinds)]())

        for _ in range(40):
            await asyncio.gather(*[one(number) for number in range(50)])
        gc.collect()
        # The library keeps as many connections as calls may run at a time.
        assert descriptors() <= before + engine_calls.SHORT_CALLS_MAX
        outcomes = Counter(figures.calls)
        assert outcomes[("inspect", "down")] == 480, outcomes
        assert outcomes[("volume_list", "ok")] == 520, outcomes
    finally:
        engine.close()
        serving.kill()
        await serving.wait()
        serving._transport.close()  # type: ignore[attr-defined]
    assert descriptors() <= before


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_cancelled_start_waits_until_the_call_has_settled(
    engine: Engine, played: PlayedEngine
) -> None:
    await engine.api_version()
    played.answer = played.hang
    starting = asyncio.create_task(engine.start("c"))
    async with asyncio.timeout(5):
        while not any("/start" in seen for seen in played.seen):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    starting.cancel()
    await asyncio.sleep(0.05)
    assert not starting.done()
    played.release.set()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_cancelled_question_ends_at_once(engine: Engine, played: PlayedEngine) -> None:
    await engine.api_version()
    played.answer = played.hang
    asking = asyncio.create_task(engine.image("x"))
    async with asyncio.timeout(5):
        while not any("/images/" in seen for seen in played.seen):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asking, 0.2)
    played.release.set()


async def test_pull_that_the_registry_refuses_carries_its_words(
    engine: Engine, played: PlayedEngine
) -> None:
    async def refuse(verb: str, path: str) -> tuple[int, bytes]:
        return 200, b'{"status": "Pulling"}\r\n{"error": "manifest unknown"}\r\n'

    played.answer = refuse
    with pytest.raises(EngineRefused) as refused:
        await engine.pull("example.org/nothing:1")
    assert "manifest unknown" in refused.value.operator_text
