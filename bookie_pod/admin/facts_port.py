"""What an operator of the cluster decides by, in one answer each: the port, and the facts that it hands over.

Invariants
- Every fact is read from the metadata service for this very answer. What cannot be read is an error of the whole
  answer: no number stands for "not known".

Threads: event loop.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol

from bookie_protocol.admin_api.cluster import ClusterFacts
from bookie_protocol.admin_api.decommission import DrainProof


class FactsPort(Protocol):
    """Facts about the cluster. `MetadataError`: they cannot be read."""

    async def cluster(self) -> ClusterFacts: ...
    async def proof(self, bookie_id: str, accepted_losses: AbstractSet[int]) -> DrainProof:
        """`accepted_losses`: ledgers whose data was given up."""
        ...
