"""What the handles of one client share. Event loop only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

from bookie_client.batch_support import BatchSupport
from bookie_client.bookies import Bookies
from bookie_client.connection.health import BookieHealth
from bookie_client.connection.operations import BookieOperations
from bookie_client.connection.pool import ChannelPool
from bookie_client.options import ClientOptions
from bookie_client.placement.inputs import PlacementInputs
from bookie_client.placement.policy import ClusterView, PlacementPolicy
from bookie_client.placement.topology import Topology
from bookie_protocol.metadata_service.interface import LedgerStore


@dataclass(slots=True)
class ClientContext:
    """Belongs to one client and its event loop. `random` decides placement: a simulation passes a seeded
    one."""

    options: ClientOptions
    ledgers: LedgerStore
    bookies: Bookies
    pool: ChannelPool
    placement_inputs: PlacementInputs
    random: Random = field(default_factory=Random)
    open_handles: set[Callable[[], Awaitable[None]]] = field(default_factory=set)
    """How to end each handle that is still open when the client closes."""
    transactions: Iterator[int] = field(default_factory=lambda: count(1))
    """Transaction ids: one sequence for the whole client, so that one frame serves several connections."""
    batch_support: BatchSupport = field(default_factory=BatchSupport)
    """Which bookies serve batch reads."""
    damaged_replicas: Counter[str] = field(default_factory=Counter)
    """How many replicas with a wrong digest each bookie gave to any reader of this client."""
    operations: BookieOperations = field(init=False)
    """Single requests, awaited."""

    def __post_init__(self) -> None:
        self.operations = BookieOperations(self.pool, self.transactions)

    @property
    def health(self) -> BookieHealth:
        """What was seen of each bookie."""
        return self.pool.health

    def avoided_bookies(self) -> frozenset[str]:
        """Bookies that new data goes to only when the others do not suffice."""
        return self.health.failed_lately() | self.health.quarantined()

    async def free_bytes(self, bookie: str) -> int:
        """Free disk space of a bookie. Raises what operations on bookies raise."""
        return (await self.operations.bookie_info(bookie)).free_bytes

    @property
    def placement(self) -> PlacementPolicy:
        """Who chooses bookies."""
        return self.placement_inputs.policy

    @property
    def topology(self) -> Topology:
        """Where bookies and this client stand, as last known."""
        return self.placement_inputs.topology

    async def cluster_view(self) -> ClusterView:
        """The bookies as a placement policy has to see them now. Raises `MetadataError`."""
        return await self.placement_inputs.view()
