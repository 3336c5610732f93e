"""Zones: how many bookies each has.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie_operator.crds.cluster_spec import BookieClusterSpec


@dataclass(frozen=True)
class ZoneShare:
    """The bookies of one StatefulSet."""

    zone: str
    """Where its pods have to run; empty: anywhere."""
    label: str
    """As `zone`, but empty also where it is the only one: its StatefulSet is named as one without zones."""
    replicas: int


def spreads_over_zones(spec: BookieClusterSpec) -> bool:
    """Whether there are several zones: then each has a StatefulSet."""
    return len(spec.placement.zones) > 1


def shares(spec: BookieClusterSpec) -> tuple[ZoneShare, ...]:
    """One for each StatefulSet, in the order of `spec`. What zones do not claim is spread evenly over the others; the
    first ones get one more."""
    zones = spec.placement.zones
    if not spreads_over_zones(spec):
        only = zones[0].name if zones else ""
        return (ZoneShare(only, "", spec.replicas),)
    open_zones = [zone.name for zone in zones if zone.replicas is None]
    left = max(0, spec.replicas - sum(zone.replicas or 0 for zone in zones))
    each, more = divmod(left, len(open_zones)) if open_zones else (0, 0)
    even = {name: each + (position < more) for position, name in enumerate(open_zones)}
    return tuple(
        ZoneShare(zone.name, zone.name, even[zone.name] if zone.replicas is None else zone.replicas) for zone in zones
    )
