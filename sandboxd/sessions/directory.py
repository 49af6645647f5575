"""The sessions that this daemon holds, and the one way to find them."""

from __future__ import annotations

from collections import Counter

from sandboxd.errors import Draining, SessionDeleted, SessionsExhausted, SessionUnknown
from sandboxd.metrics import Metrics
from sandboxd.sessions.live import LiveSession
from sandboxd.sessions.records import SessionKey, State
from sandboxd.sessions.session_table import SessionTable


class Directory:
    """Sessions by tenant and id, from the reservation of a place until nothing of them is left."""

    def __init__(self, table: SessionTable, metrics: Metrics, sessions_max: int) -> None:
        self._table = table
        self._metrics = metrics
        self.sessions_max = sessions_max
        self.draining = False
        self._live: dict[SessionKey, LiveSession] = {}

    def __len__(self) -> int:
        return len(self._live)

    def all(self) -> list[LiveSession]:
        return list(self._live.values())

    def get(self, key: SessionKey) -> LiveSession | None:
        return self._live.get(key)

    async def find(self, key: SessionKey) -> LiveSession:
        """The session of this caller. Raises `SessionUnknown` or `SessionDeleted`."""
        live = self._live.get(key)
        if live is None:
            if await self._table.tombstone(key):
                raise SessionDeleted(key.session_id)
            # It may have come while the table was asked.
            live = self._live.get(key)
            if live is None:
                raise SessionUnknown(key.session_id)
        if live.record.state is State.DELETED:
            raise SessionDeleted(key.session_id)
        return live

    def admit(self, live: LiveSession) -> None:
        """Takes a place for a new session, between two awaits, so no two get the last one.

        Raises `Draining` or `SessionsExhausted`.
        """
        if self.draining:
            raise Draining
        if len(self._live) >= self.sessions_max:
            raise SessionsExhausted(self.sessions_max)
        self.put(live)

    def put(self, live: LiveSession) -> None:
        self._live[live.record.key] = live
        self.count()

    def drop(self, live: LiveSession) -> None:
        if self._live.get(live.record.key) is live:
            del self._live[live.record.key]
        self.count()

    def count(self) -> None:
        """Tells the metrics how many sessions are in which state."""
        self._metrics.session_states(Counter(live.record.state.value for live in self.all()))

    def resource_ids(self) -> set[str]:
        """What belongs to a session, the one that is about to be made included."""
        return {live.record.resource_id for live in self._live.values()}

    async def announce(self, live: LiveSession, epoch: int | None) -> None:
        """Refuses a stale epoch; returns once this one is durable. Raises `EpochStale`.

        Where it cannot be saved this fails, and so does whoever repeats it, until it can.
        """
        if epoch is not None and live.check_epoch(epoch):
            await self._table.save_terms(live.record)
            # Its row had this epoch, or a greater one.
            live.saved_epoch = max(live.saved_epoch or 0, epoch)
