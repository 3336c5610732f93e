"""Uniformly random placement over the writable bookies.

Pure: the candidates and the source of randomness are arguments.

Source: reference client protocol, sections 3 and 16 (default placement policy).
"""

from __future__ import annotations

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import (
    Adherence,
    AdherenceReport,
    ClusterView,
    EnsembleRequest,
    Placement,
    ReplacementRequest,
)
from bookie_protocol.errors import NotEnoughBookies

_MEETS = AdherenceReport(Adherence.MEETS_STRICT)


class RandomPlacement:
    """Every writable bookie is as likely as any other."""

    name = "random"

    def new_ensemble(self, request: EnsembleRequest) -> Placement:
        size = request.quorums.ensemble
        candidates = _candidates(request.cluster)
        if len(candidates) < size:
            # Quarantined bookies are better than none.
            candidates = _candidates(request.cluster, with_quarantined=True)
        if len(candidates) < size:
            raise NotEnoughBookies(
                f"an ensemble of {size} needs {size} writable bookies and there are {len(candidates)}"
                f" ({', '.join(candidates) or 'none'}); start more bookies or ask for a smaller ensemble"
            )
        return Placement(tuple(request.random.sample(candidates, size)), _MEETS)

    def replacement(self, request: ReplacementRequest) -> Placement:
        members = list(request.ensemble)
        taken = set(request.ensemble) | set(request.failed.values())
        unfilled = {}
        for position, bookie in sorted(request.failed.items()):
            if members[position] != bookie:
                continue
            spares = [b for b in _candidates(request.cluster) if b not in taken]
            if not spares:
                spares = [b for b in _candidates(request.cluster, with_quarantined=True) if b not in taken]
            if not spares:
                unfilled[position] = "no spare bookie is writable"
                continue
            members[position] = request.random.choice(spares)
            taken.add(members[position])
        return Placement(tuple(members), _MEETS, unfilled=unfilled)

    def check(self, ensemble: tuple[str, ...], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        return _MEETS


def _candidates(cluster: ClusterView, *, with_quarantined: bool = False) -> list[str]:
    # Sorted, so that one seed gives one choice whatever order the metadata service lists bookies in.
    refused = cluster.excluded.keys() if with_quarantined else cluster.excluded.keys() | cluster.quarantined
    return sorted(cluster.writable.difference(refused))
