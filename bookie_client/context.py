"""The state that the handles of one client share, and the bookies that are known to serve batch reads.

Invariants
- A bookie that refused a batch read is not asked for one again before `RETRY_SECONDS` have passed: it may be upgraded
  meanwhile.
- Only its own word counts (it does not know the request, or answers nonsense), never a failure that a bookie
  which serves batch reads may have as well.

What is known is bounded by the number of bookies. Event loop only.

Source: docs/internals/client-protocol.md, section 11.5; docs/internals/wire-protocol.md, sections 3.2 and 11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from math import inf
from random import Random
from typing import TYPE_CHECKING, Final

from bookie_client.bookies import Bookies
from bookie_client.connection.health import BookieHealth
from bookie_client.connection.operations import BookieOperations
from bookie_client.connection.pool import ChannelPool
from bookie_client.options import ClientOptions
from bookie_client.placement.inputs import PlacementInputs
from bookie_client.placement.policy import ClusterView, PlacementPolicy
from bookie_client.placement.topology import Topology
from bookie_protocol.errors import BadRequest, BadVersion, PodkeeperError, ProtocolViolation
from bookie_protocol.metadata_service.tree.ledgers import LedgerStore

if TYPE_CHECKING:
    from bookie_client.tracing import CallTraces

RETRY_SECONDS: Final = 120.0


class BatchSupport:
    """The support for batch reads that one client has learnt of each bookie. Times are seconds of the event loop's
    clock."""

    def __init__(self) -> None:
        self._asked_again_at: dict[str, float] = {}
        """`-inf`: served a batch read, and did not refuse one since."""

    @cached_property
    def stepped(self) -> BatchSupport:
        """The same of batch reads with a step."""
        return BatchSupport()

    def may_ask(self, bookie: str, now: float) -> bool:
        """False while the bookie counts as one that cannot."""
        return now >= self._asked_again_at.get(bookie, -inf)

    def is_proven(self, bookie: str) -> bool:
        """Return True if the bookie has served a batch read."""
        return self._asked_again_at.get(bookie) == -inf

    def served(self, bookie: str) -> None:
        """It answered a batch read with entries."""
        self._asked_again_at[bookie] = -inf

    def judge(self, bookie: str, error: PodkeeperError, now: float) -> bool:
        """Learn from a failed batch read; True if the bookie cannot do it, so that single reads may do
        better."""
        if not isinstance(error, BadRequest | BadVersion | ProtocolViolation):
            return False
        self._asked_again_at[bookie] = now + RETRY_SECONDS
        return True


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
    """Functions that close the handles that are still open when the client closes."""
    transactions: Iterator[int] = field(default_factory=lambda: count(1))
    """Transaction ids: one sequence for the whole client, so that one frame serves several connections."""
    batch_support: BatchSupport = field(default_factory=BatchSupport)
    """Which bookies serve batch reads."""
    damaged_replicas: Counter[str] = field(default_factory=Counter)
    """Number of replicas with a wrong digest that each bookie returned to any reader of this client."""
    operations: BookieOperations = field(init=False)
    """Single requests, awaited."""
    traces: CallTraces | None = field(init=False, default=None)
    """Spans of calls, if the options have a tracer."""

    def __post_init__(self) -> None:
        self.operations = BookieOperations(self.pool, self.transactions)
        if self.options.tracer is not None:
            from bookie_client.tracing import CallTraces

            self.traces = CallTraces(self.options.tracer, self.options.protocol_version)

    @property
    def health(self) -> BookieHealth:
        """Return the health records of the bookies."""
        return self.pool.health

    async def free_bytes(self, bookie: str) -> int:
        """Free disk space of a bookie. Raises what operations on bookies raise."""
        return (await self.operations.bookie_info(bookie)).free_bytes

    @property
    def placement(self) -> PlacementPolicy:
        """Return the placement policy that chooses bookies."""
        return self.placement_inputs.policy

    @property
    def topology(self) -> Topology:
        """Return the last known network locations of the bookies and of this client."""
        return self.placement_inputs.topology

    async def cluster_view(self) -> ClusterView:
        """Return the bookies as a placement policy has to see them now. Raises `MetadataError`."""
        return await self.placement_inputs.view()
