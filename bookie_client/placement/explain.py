"""A dry run of placement that explains itself: who was taken, and why everybody else was not.

The same policy, view and seed give the very choice that a client would have made.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import Adherence, AdherenceReport, ClusterView, EnsembleRequest, PlacementPolicy
from bookie_client.placement.topology import Location, format_location
from bookie_protocol.errors import Refused


class Fate(Enum):
    """The outcome for a bookie."""

    TAKEN = "taken"
    NOT_DRAWN = "not drawn"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class CandidateFate:
    """One bookie of the cluster. `position`: its place in the ensemble, if it has one."""

    bookie: str
    location: Location | None
    fate: Fate
    reason: str
    position: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole account of a placement; `str()` prints it.

    `error`: why there is no ensemble. `report` is None also if a rule of racks fails because no bookie's location is
    known, so that nothing can be judged."""

    policy: str
    rule: str
    quorums: Quorums
    ensemble: tuple[str, ...]
    candidates: tuple[CandidateFate, ...]
    report: AdherenceReport | None = None
    relaxed: tuple[str, ...] = ()
    error: str | None = None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the explanation for people: one line for each bookie, then what holds and what was given up."""
        quorums = self.quorums
        lines = [f"policy   {self.rule}", f"quorums  {quorums.ensemble}/{quorums.write}/{quorums.ack}"]
        lines += [f"error    {self.error}"] if self.error else [f"ensemble {', '.join(self.ensemble)}"]
        if self.report is not None:
            lines.append(f"adheres  {self.report.adherence.value}")
            lines += [f"         {problem}" for problem in self.report.problems]
        elif not self.error:
            lines.append("adheres  unknown: no racks are known, so any bookies do")
        lines += [f"relaxed  {text}" for text in self.relaxed]
        return lines + _table(self.candidates)


def explain(policy: PlacementPolicy, request: EnsembleRequest) -> Explanation:
    """Return what `policy.new_ensemble(request)` does, and why. It draws from `request.random` in the same way."""
    placement, error = None, None
    try:
        placement = policy.new_ensemble(request)
    except Refused as refused:
        error = str(refused)
    ensemble = placement.ensemble if placement is not None else ()
    quorums, cluster = request.quorums, request.cluster
    refusals = policy.refusals(cluster)
    fates = []
    for bookie in cluster.writable | cluster.read_only | cluster.excluded.keys() | set(ensemble):
        position = ensemble.index(bookie) if bookie in ensemble else None
        fate, reason = Fate.TAKEN, "chosen"
        if position is None:
            fate, reason = _outsider(bookie, ensemble, refusals, policy, quorums, cluster)
        location, free = cluster.topology.location(bookie), cluster.free_bytes.get(bookie)
        fates.append(CandidateFate(bookie, location, fate, reason, position, free))
    order = list(Fate)
    fates.sort(key=lambda one: (order.index(one.fate), one.position or 0, one.bookie))
    known = Explanation(policy.name, policy.rule, quorums, ensemble, tuple(fates), error=error)
    if placement is None:
        return known
    failed = placement.report.adherence is Adherence.FAIL
    if failed and all(one.location is None for one in fates):
        return known
    return replace(known, report=placement.report, relaxed=placement.relaxed)


def explain_cluster(policy: PlacementPolicy, quorums: Quorums, cluster: ClusterView, seed: int = 0) -> Explanation:
    """Return what a client would do for a new ledger with this seed."""
    return explain(policy, EnsembleRequest(quorums=quorums, cluster=cluster, random=Random(seed)))


def _outsider(
    bookie: str,
    ensemble: tuple[str, ...],
    refusals: Mapping[str, str],
    policy: PlacementPolicy,
    quorums: Quorums,
    cluster: ClusterView,
) -> tuple[Fate, str]:
    if bookie in refusals:
        return Fate.REFUSED, refusals[bookie]
    objections = []
    for position in range(len(ensemble)):
        objection = policy.objection(ensemble, position, bookie, quorums, cluster)
        # A relaxed rule refuses the member too, so it cannot be the reason for refusing this bookie.
        if objection is None or policy.objection(ensemble, position, ensemble[position], quorums, cluster) is not None:
            return Fate.NOT_DRAWN, _standing(bookie, cluster)
        objections.append(objection)
    if not objections:
        return Fate.NOT_DRAWN, "a candidate"
    return Fate.REFUSED, f"next to the others: {objections[0]}"


def _standing(bookie: str, cluster: ClusterView) -> str:
    if bookie in cluster.unreachable:
        return "it does not answer, and the others suffice"
    return "quarantined, and the others suffice" if bookie in cluster.quarantined else "it could have been"


def _table(candidates: tuple[CandidateFate, ...]) -> list[str]:
    rows = [
        (
            one.fate.value if one.position is None else f"{one.fate.value} [{one.position}]",
            one.bookie,
            format_location(one.location) if one.location else "place not known",
            "" if one.free_bytes is None else f"{one.free_bytes} B free",
            one.reason,
        )
        for one in candidates
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    return ["  ".join((*map(str.ljust, row[:4], widths), row[4])).rstrip() for row in rows]
