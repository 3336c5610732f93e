"""The topology as the client knows it now: asks a source, remembers what it said, and looks again.

Invariants
- A decision never waits longer than `LOOKUP_SECONDS` for locations, and never fails for want of them: a bookie that
  cannot be located is unknown, and asked for again at the next look.
- The last known location of a bookie that left is kept (its ensembles still name it); at most `MAX_REMEMBERED` are.
- A bookie that comes back is located anew: it may stand elsewhere.
- One look at a time.

Event loop only.

Source: reference client protocol, section 16.1.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from socket import gethostname
from typing import Final

from bookie_client.logs import get_logger
from bookie_client.placement.sources.source import BookieInfos, TopologySource
from bookie_client.placement.topology import UNKNOWN_TOPOLOGY, Location, Topology
from bookie_protocol.errors import PodkeeperError

_log = get_logger(__name__)

LOOKUP_SECONDS: Final = 2.0
MAX_REMEMBERED: Final = 10_000


class TopologyTracker:
    """`local`: this client's own location; None: as the source knows this host. `refresh_interval` in seconds."""

    def __init__(
        self,
        source: TopologySource,
        infos: BookieInfos,
        *,
        local: Location | None = None,
        refresh_interval: float = 10.0,
    ) -> None:
        self._source = source
        self._infos = infos
        self._own = local
        self._refresh_interval = refresh_interval
        self._located: frozenset[str] = frozenset()
        self._look: asyncio.Task[None] | None = None
        self._next_look = 0.0
        self._failing = False
        self.topology: Topology = UNKNOWN_TOPOLOGY

    async def start(self) -> None:
        """Find this client's own location. The source is open."""
        if self._own is None:
            try:
                async with asyncio.timeout(LOOKUP_SECONDS):
                    self._own = await self._source.locate_host(gethostname())
            except (PodkeeperError, TimeoutError) as error:
                _log.warning("this host cannot be located", error=str(error) or "timed out")
        self.topology = Topology({}, self._own)

    async def close(self) -> None:
        """Stop looking."""
        if self._look is not None:
            self._look.cancel()
            with suppress(asyncio.CancelledError):
                await self._look

    async def current(self, bookies: frozenset[str]) -> Topology:
        """The topology with these bookies located, as far as that can be told soon."""
        if not bookies <= self._located:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOKUP_SECONDS):
                    await self._look_for(bookies)
        elif asyncio.get_running_loop().time() >= self._next_look:
            self._start_look(bookies)
        self._located &= bookies
        return self.topology

    async def _look_for(self, bookies: frozenset[str]) -> None:
        if self._look is not None and not self._look.done():
            await asyncio.shield(self._look)  # it may have begun without these
        if not bookies <= self._located:
            await asyncio.shield(self._start_look(bookies))

    def _start_look(self, bookies: frozenset[str]) -> asyncio.Task[None]:
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().create_task(self._locate(bookies), name="network topology")
        return self._look

    async def _locate(self, bookies: frozenset[str]) -> None:
        self._next_look = asyncio.get_running_loop().time() + self._refresh_interval
        try:
            found = await self._source.locate(bookies, self._infos)
        except PodkeeperError as error:
            if not self._failing:
                _log.warning("network locations cannot be told; the last known ones are used", error=str(error))
            self._failing = True
            return
        self._failing = False
        self._located = bookies
        gone = {bookie: place for bookie, place in self.topology.locations.items() if bookie not in bookies}
        locations = {**gone, **found}
        for bookie in list(locations)[: max(0, len(locations) - MAX_REMEMBERED)]:
            del locations[bookie]
        if locations != self.topology.locations:
            self.topology = Topology(locations, self._own)
