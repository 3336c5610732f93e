"""Placement without locations: uniformly random over the writable bookies, or only on the bookie of this machine.

Pure, on any thread: the candidates and the source of randomness are arguments.

Source: docs/internals/client-protocol.md, sections 3 and 16 (default placement policy, local bookie policy).
"""

from __future__ import annotations

from collections.abc import Sequence

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import Adherence, AdherenceReport, ClusterView
from bookie_client.placement.rule_based import Level, RuleBasedPlacement
from bookie_client.placement.search import NoRule
from bookie_client.placement.topology import Location
from bookie_protocol.errors import BadRequest

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


class LocalBookiePlacement(RandomPlacement):
    """A policy that takes only `bookie_id`, for ensembles of one; a failed bookie is never replaced."""

    name = "local"

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id

    @property
    def rule(self) -> str:
        return f"{self.name}: bookie {self.bookie_id} only"

    def levels(self, quorums: Quorums, cluster: ClusterView, *, replacing: bool) -> Sequence[Level]:
        if quorums.ensemble != 1 and not replacing:
            raise BadRequest(f"placement on the local bookie makes ensembles of 1, not of {quorums.ensemble}")
        return super().levels(quorums, cluster, replacing=replacing)

    def check(self, ensemble: tuple[str, ...], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        others = [bookie for bookie in ensemble if bookie != self.bookie_id]
        if not others:
            return AdherenceReport(Adherence.MEETS_STRICT)
        return AdherenceReport(Adherence.FAIL, (f"{', '.join(others)}: not the local bookie {self.bookie_id}",))

    def unfit(self, bookie: str, location: Location | None) -> str | None:
        return None if bookie == self.bookie_id else f"not the local bookie {self.bookie_id}"
