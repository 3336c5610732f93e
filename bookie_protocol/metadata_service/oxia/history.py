"""What has happened in the shards of a namespace: how far each has been heard, and the watches that hear it.

Invariants
- The notifications of a shard are heard from the place at which our session there began, without a gap. A stream that
  broke goes on behind the last place that was heard.
- Oxia forgets notifications after a while, and says nothing of those that it left out. So after a silence of
  `LONGEST_SILENCE` all watches fire, and so they do for a shard that answers from an earlier place than before: it was
  put back to an older state. A server that wrongly believes that it leads the shard is recognised by a write.
- `Session.position` is the sum of the places: it grows with the changes of all clients, and when a shard is split.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from bookie_protocol.errors import InvalidConfiguration, MetadataUnavailable
from bookie_protocol.lasting import lasting_task
from bookie_protocol.metadata_service.interface import Session
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia.connection import OxiaConnection, SessionGone
from bookie_protocol.metadata_service.oxia.sessions import ShardSessions
from bookie_protocol.metadata_service.oxia.watches import Watches
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost

LONGEST_SILENCE: Final = 30.0
"""Seconds of a break. Oxia keeps notifications for an hour by default."""
_CHANGES_OF_NAMES: Final = (messages.KEY_CREATED, messages.KEY_DELETED)

_log = logging.getLogger(__name__)


class History:
    """The history that one tree hears. It calls `doubt` when a session may have ended."""

    def __init__(self, connection: OxiaConnection, session: Session, doubt: Callable[[], None]) -> None:
        self._connection = connection
        self._session = session
        self._doubt = doubt
        self._places: dict[int, int] = {}
        self._changed = asyncio.Event()
        self.watches = Watches()

    def begin(self, sessions: ShardSessions) -> None:
        """Go on where these sessions began: each is a write, and so the newest change of its shard."""
        for shard, place in sessions.ids.items():
            if place < self._places.get(shard, -1):
                self._went_back(shard, place)
        self._places = dict(sessions.ids)
        self._note()

    async def adopt(self, sessions: ShardSessions, within: float) -> None:
        """Hear the shards of now: some came of others, which are gone. `MetadataUnavailable`: to be repeated."""
        for shard in sessions.ids.keys() - self._places.keys():
            self._places[shard] = await self._connection.position(shard, within)
        self._places = {shard: self._places[shard] for shard in sessions.ids}
        self.watches.fire_all()
        self._changed.set()

    def hears(self, sessions: ShardSessions) -> bool:
        """Return True if these are the shards that are heard."""
        return self._places.keys() == sessions.ids.keys()

    async def listen(self, sessions: ShardSessions, pause: float) -> None:
        """Hear all shards, until cancelled."""
        hearing: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                self._changed.clear()
                for shard in hearing.keys() - self._places.keys():
                    hearing.pop(shard).cancel()
                for shard in self._places.keys() - hearing.keys():
                    hearing[shard] = lasting_task(self._hear(shard, sessions, pause), f"notifications of shard {shard}")
                await self._changed.wait()
        finally:
            for task in hearing.values():
                task.cancel()
            if hearing:
                await asyncio.wait(hearing.values())

    # --- inside ----------------------------------------------------------------------------------------------

    async def _hear(self, shard: int, sessions: ShardSessions, pause: float) -> None:
        loop = asyncio.get_running_loop()
        silent_since: float | None = None
        while True:
            with suppress(MetadataUnavailable, InvalidConfiguration):
                if silent_since is not None:
                    await self._check_place(shard, sessions, loop.time() - silent_since)
                async for batch in self._connection.notifications(shard, self._place_in(shard)):
                    silent_since = None
                    self._take(shard, batch, sessions)
            silent_since = silent_since or loop.time()
            self._doubt()
            await asyncio.sleep(pause)

    async def _check_place(self, shard: int, sessions: ShardSessions, silence: float) -> None:
        within = self._session.default_timeout
        place = await self._connection.position(shard, within)
        if place < self._place_in(shard):
            try:
                await sessions.touch_in(shard, within)  # it may believe to lead what another leads
            except SessionGone:  # the leader says so: it may have been put back behind the beginning of our session
                self._doubt()
            place = await self._connection.position(shard, within)
        if place < self._place_in(shard):
            self._went_back(shard, place)
            self._places[shard] = place
        elif silence > LONGEST_SILENCE:
            self._places[shard] = place
            self.watches.fire_all()

    def _take(self, shard: int, batch: messages.NotificationBatch, sessions: ShardSessions) -> None:
        self._places[shard] = max(self._place_in(shard), batch.offset)
        self._note()
        for key, notification in batch.notifications.items():
            if notification.type == messages.KEY_RANGE_DELETED:
                self.watches.fire_all()
                self._doubt()
                continue
            if notification.type == messages.KEY_DELETED and sessions.is_canary(key):
                self._doubt()
            self.watches.hear(key, names=notification.type in _CHANGES_OF_NAMES)

    def _place_in(self, shard: int) -> int:
        """Return how far the shard was heard. `ConnectionLost`: it was split, so its hearing is about to end."""
        place = self._places.get(shard)
        if place is None:
            raise ConnectionLost(f"shard {shard} of Oxia is there no longer: it was split")
        return place

    def _note(self) -> None:
        self._session.answered(sum(place + 1 for place in self._places.values()), self._session.asks())

    def _went_back(self, shard: int, place: int) -> None:
        _log.error(
            "shard %d of Oxia answers from an older state than before, %d and not %d: it counts as one that was put"
            " back",
            *(shard, place, self._places[shard]),
        )
        self._session.went_back_to = sum(self._places.values()) - self._places[shard] + place
        self.watches.fire_all()
