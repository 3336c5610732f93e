"""Uniformly random placement over the writable bookies.

Pure: the candidates and the source of randomness are arguments.

Source: reference client protocol, sections 3 and 16 (default placement policy).
"""

from __future__ import annotations

from collections.abc import Sequence

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import Adherence, AdherenceReport, ClusterView
from bookie_client.placement.rule_based import Level, RuleBasedPlacement
from bookie_client.placement.search import NoRule
from bookie_client.placement.topology import Location

_ANYBODY = (Level(NoRule()),)
_MEETS = AdherenceReport(Adherence.MEETS_STRICT)


class RandomPlacement(RuleBasedPlacement):
    """Every writable bookie is as likely as any other."""

    name = "random"

    @property
    def rule(self) -> str:
        return "random: any writable bookies"

    def label(self, location: Location | None) -> Location:
        return ()

    def levels(self, quorums: Quorums, cluster: ClusterView, *, replacing: bool) -> Sequence[Level]:
        return _ANYBODY

    def verdict(self, labels: Sequence[Location], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        return _MEETS
