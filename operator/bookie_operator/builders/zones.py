"""Zones: how many bookies each has.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie_operator.builders import naming
from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.world.model import ClusterView


@dataclass(frozen=True)
class ZoneShare:
    """The bookies of one StatefulSet."""

    zone: str
    """Zone in which its pods have to run; empty: anywhere."""
    label: str
    """Zone as in `zone`, but empty also where it is the only one: its StatefulSet is named as one without zones."""
    replicas: int


def spreads_over_zones(spec: BookieClusterSpec) -> bool:
    """Return whether there are several zones: then each has a StatefulSet."""
    return len(spec.placement.zones) > 1


def shares(cluster: ClusterView) -> tuple[ZoneShare, ...]:
    """One for each StatefulSet, in the order of `spec`. What zones do not claim is spread evenly over the others. One
    more have those that have more bookies already, then those whose names come first: the order of the list says
    nothing, and must never move a bookie."""
    spec, recorded = cluster.spec, cluster.status.recorded_replicas
    zones = spec.placement.zones
    if not spreads_over_zones(spec):
        only = zones[0].name if zones else ""
        return (ZoneShare(only, "", spec.replicas),)
    open_zones = [zone.name for zone in zones if zone.replicas is None]
    left = max(0, spec.replicas - sum(zone.replicas or 0 for zone in zones))
    each, more = divmod(left, len(open_zones)) if open_zones else (0, 0)
    open_zones.sort(key=lambda name: (-recorded.get(naming.stateful_set(cluster.name, name, recorded), 0), name))
    even = {name: each + (position < more) for position, name in enumerate(open_zones)}
    return tuple(
        ZoneShare(zone.name, zone.name, even[zone.name] if zone.replicas is None else zone.replicas) for zone in zones
    )
