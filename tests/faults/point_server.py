"""The test's end of the daemon's fault points: it decides where the daemon stands still.

See `sandboxd/fault_points.py` for the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

from sandboxd.fault_points import POINTS


class Hold:
    """One stop at one point: `reached` is set when the daemon stands there."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.reached = asyncio.Event()
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def answer(self, text: str = "go") -> None:
        """Lets the daemon go on, as the text says. Only the first answer counts."""
        if not self._answer.done():
            self._answer.set_result(text)

    async def wait_for_answer(self) -> str:
        return await asyncio.shield(self._answer)


class PointServer:
    """Lets every daemon pass every point, but one that is told to stop at the next one armed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.met: Counter[str] = Counter()
        """How often each point was come to."""
        self._armed: Hold | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def close(self) -> None:
        self.disarm()
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def arm(self, point: str) -> Hold:
        """The daemon's next arrival at the point is held until the hold is answered."""
        if point not in POINTS:
            raise KeyError(point)
        self.disarm()
        self._armed = Hold(point)
        return self._armed

    def disarm(self) -> None:
        """Nothing is held any more."""
        if self._armed is not None:
            self._armed.answer()
        self._armed = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            # The daemon may die at any moment of this.
            with contextlib.suppress(OSError):
                point = (await reader.readline()).decode().strip()
                self.met[point] += 1
                writer.write((await self._say(point)).encode() + b"\n")
                await writer.drain()
        finally:
            self._serving.discard(task)
            writer.close()

    async def _say(self, point: str) -> str:
        hold = self._armed
        if hold is None or hold.point != point or hold.reached.is_set():
            return "go"
        hold.reached.set()
        return await hold.wait_for_answer()
