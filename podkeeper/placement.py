"""Placement: which bookies a new ledger or a replacement goes to, why, and what a policy of your own is asked."""

from bookie_client.distribution import Quorums
from bookie_client.placement.explain import Explanation, explain_cluster
from bookie_client.placement.options import PlacementOptions
from bookie_client.placement.policy import (
    Adherence,
    AdherenceReport,
    ClusterView,
    EnsembleRequest,
    Placement,
    PlacementPolicy,
    ReplacementRequest,
)
from bookie_client.placement.topology import Location, Topology, format_location, parse_location

__all__ = [
    "Adherence",
    "AdherenceReport",
    "ClusterView",
    "EnsembleRequest",
    "Explanation",
    "Location",
    "Placement",
    "PlacementOptions",
    "PlacementPolicy",
    "Quorums",
    "ReplacementRequest",
    "Topology",
    "explain_cluster",
    "format_location",
    "parse_location",
]
