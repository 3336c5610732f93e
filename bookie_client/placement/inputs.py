"""The inputs of a placement policy: the writable bookies, their locations and their free space.

Invariants
- A decision never waits longer than `LOOKUP_SECONDS` for locations, and never fails for want of them: a bookie that
  cannot be located is unknown, and the source is asked for it again the next time.
- The last known location of a bookie that left is kept (its ensembles still name it); at most `MAX_REMEMBERED` are.
- A bookie that comes back is located again: it may be elsewhere. The source is asked by one task at a time.

Event loop only.

Source: docs/internals/client-protocol.md, section 16.1.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from socket import gethostname
from typing import Final

from bookie_client.bookies import Bookies
from bookie_client.connection.health import BookieHealth
from bookie_client.placement.options import PlacementOptions, make_policy, make_source
from bookie_client.placement.policy import ClusterView, Placement, PlacementPolicy
from bookie_client.placement.sources import TopologySource
from bookie_client.placement.topology import UNKNOWN_TOPOLOGY, Location, Topology, parse_location
from bookie_client.placement.weighted import AskFreeBytes, FreeSpace, WeightedPlacement
from bookie_protocol.errors import MetadataError, PodkeeperError
from bookie_protocol.logs import get_logger

_log = get_logger(__name__)

PlacementChoice = PlacementPolicy | PlacementOptions | str
"""A policy of one's own, options, or the name of a policy."""
LOOKUP_SECONDS: Final = 2.0
MAX_REMEMBERED: Final = 10_000


class PlacementInputs:
    """The policy of one client and what it is fed with; `open` and `start` before use.

    Raises `BadRequest` for a choice that makes no sense.
    """

    def __init__(self, choice: PlacementChoice) -> None:
        if isinstance(choice, str):
            choice = PlacementOptions(policy=choice)
        if isinstance(choice, PlacementOptions):
            self.options, self.policy = choice, make_policy(choice)
        else:
            self.options, self.policy = PlacementOptions(), choice
        self._source = make_source(self.options)
        self._bookies: Bookies | None = None
        self._health: BookieHealth | None = None
        self._tracker: TopologyTracker | None = None
        self._free_space: FreeSpace | None = None
        self._told: set[tuple[str, ...]] = set()  # bounded: policies have few levels

    async def open(self) -> None:
        """Look at the configured source. Raises `BadRequest` for a topology file or script that cannot be used."""
        if self.options.needs_locations:
            await self._source.open()

    async def start(self, bookies: Bookies, health: BookieHealth, ask_free_bytes: AskFreeBytes) -> None:
        """Begin to follow. `health` tells which bookies fail or do not answer."""
        options = self.options
        self._bookies, self._health = bookies, health
        if options.needs_locations:
            local = parse_location(options.local_location) if options.local_location else None
            self._tracker = TopologyTracker(
                self._source, bookies, local=local, refresh_interval=options.topology_refresh
            )
            await self._tracker.start()
        if isinstance(self.policy, WeightedPlacement):
            self._free_space = FreeSpace(
                bookies,
                ask_free_bytes,
                interval=options.free_space_interval,
                retry_interval=options.free_space_retry_interval,
            )
            self._free_space.start()

    async def close(self) -> None:
        """Stop following. Calling it again is fine."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            await tracker.close()
        free_space, self._free_space = self._free_space, None
        if free_space is not None:
            await free_space.close()

    @property
    def topology(self) -> Topology:
        """Return the last known network locations; sends no request."""
        return self._tracker.topology if self._tracker is not None else UNKNOWN_TOPOLOGY

    def tell_relaxed(self, placement: Placement) -> None:
        """Log the rules that were relaxed, each combination once.

        Log nothing while no location is known: there is nothing to spread over, and no rule can be meant."""
        if placement.relaxed and placement.relaxed not in self._told and self.topology.locations:
            self._told.add(placement.relaxed)
            _log.warning("placement rules relaxed", relaxed=placement.relaxed, rule=self.policy.rule)

    async def locate(self) -> None:
        """Locate the current bookies, if this client knows its own location: reads prefer near copies, but look up no
        locations.

        Does not raise: without locations the order of the striping is used."""
        if self.topology.local is not None:
            with suppress(MetadataError):
                await self.view()

    async def view(self) -> ClusterView:
        """Return the bookies now. Raises the registry's `MetadataError`."""
        if self._bookies is None or self._health is None:
            raise RuntimeError("placement inputs are used before `start`")
        writable = await self._bookies.writable()
        read_only = self._bookies.known_read_only - writable
        topology = self.topology
        if self._tracker is not None:
            topology = await self._tracker.current(writable | read_only)
        return ClusterView(
            writable=writable,
            read_only=read_only,
            quarantined=self._health.quarantined(),
            unreachable=self._health.failed_lately(),
            topology=topology,
            free_bytes=dict(self._free_space.known) if self._free_space is not None else {},
        )


class TopologyTracker:
    """`local`: this client's own location; None: as the source knows this host. `refresh_interval` in seconds."""

    def __init__(
        self,
        source: TopologySource,
        infos: Bookies,
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
            await asyncio.wait([self._look])

    async def current(self, bookies: frozenset[str]) -> Topology:
        """Return the topology with these bookies located, as far as they can be located soon."""
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
                _log.warning("network locations cannot be looked up; the last known ones are used", error=str(error))
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
