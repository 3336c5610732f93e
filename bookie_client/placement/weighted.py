"""Placement weighted by free disk space: a wrapper around any policy.

The wrapped policy's rules decide who may be chosen; among those that it likes equally, a bookie is drawn in
proportion to its weight, its free bytes. A weight is at most `max_multiple` times the median, so that an empty new
bookie does not get everything; a full one, or one that did not tell, counts as the smallest that is known.

Pure; any thread.

Source: reference client protocol, section 16.5.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from statistics import median

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import (
    AcknowledgementRule,
    AdherenceReport,
    ClusterView,
    EnsembleRequest,
    Placement,
    PlacementPolicy,
    ReplacementRequest,
)
from bookie_client.placement.topology import Topology
from bookie_protocol.errors import BadRequest


class WeightedPlacement:
    """`max_multiple`: `bookieMaxMultipleForWeightBasedPlacement`; 0 for no limit."""

    def __init__(self, policy: PlacementPolicy, *, max_multiple: float = 3.0) -> None:
        if max_multiple < 0:
            raise BadRequest(f"bookieMaxMultipleForWeightBasedPlacement must not be negative: {max_multiple}")
        self.policy = policy
        self.max_multiple = max_multiple

    @property
    def name(self) -> str:
        return f"{self.policy.name}, weighted"

    @property
    def rule(self) -> str:
        return f"{self.policy.rule}; weighted by free disk space"

    def new_ensemble(self, request: EnsembleRequest) -> Placement:
        return self.policy.new_ensemble(replace(request, cluster=self._weighted(request.cluster)))

    def replacement(self, request: ReplacementRequest) -> Placement:
        return self.policy.replacement(replace(request, cluster=self._weighted(request.cluster)))

    def mend(self, request: ReplacementRequest) -> Placement:
        return self.policy.mend(replace(request, cluster=self._weighted(request.cluster)))

    def check(self, ensemble: tuple[str, ...], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        return self.policy.check(ensemble, quorums, cluster)

    def refusals(self, cluster: ClusterView) -> Mapping[str, str]:
        return self.policy.refusals(cluster)

    def objection(
        self, ensemble: tuple[str, ...], position: int, bookie: str, quorums: Quorums, cluster: ClusterView
    ) -> str | None:
        return self.policy.objection(ensemble, position, bookie, quorums, cluster)

    def acknowledgements_suffice(self, bookies: frozenset[str], quorums: Quorums, topology: Topology) -> bool:
        inner = self.policy
        return not isinstance(inner, AcknowledgementRule) or inner.acknowledgements_suffice(bookies, quorums, topology)

    def _weighted(self, cluster: ClusterView) -> ClusterView:
        candidates = cluster.writable - cluster.excluded.keys()
        return replace(cluster, weights=weights_of(candidates, cluster.free_bytes, self.max_multiple))


def weights_of(bookies: Collection[str], free_bytes: Mapping[str, int], max_multiple: float) -> Mapping[str, float]:
    """The weight of each bookie; empty (all alike) when nobody's free space is known."""
    known = {bookie: free_bytes.get(bookie, 0) for bookie in bookies}
    told = [free for free in known.values() if free > 0]
    if not told:
        return {}
    smallest = min(told)
    weights = {bookie: float(free if free > 0 else smallest) for bookie, free in known.items()}
    if max_multiple:
        most = max_multiple * median(weights.values())
        weights = {bookie: min(weight, most) for bookie, weight in weights.items()}
    return weights
