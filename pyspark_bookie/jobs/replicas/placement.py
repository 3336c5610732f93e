"""Which closed ledgers break the placement policy.

A finding is only what could be otherwise: an ensemble for which the policy knows a better one among the bookies of now.
In a cluster of one rack every ensemble breaks a rule about racks; those are counted, and nothing more.

Event loop only.

Source: docs/internals/auto-recovery.md, section 4.2.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from bookie_client.client import Client
from bookie_client.distribution import Quorums
from bookie_client.placement.policy import Adherence, ClusterView, ReplacementRequest
from bookie_client.replication.fragments import Fragment, fragments
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.jobs.replicas.findings import Finding, Verdict

POLICIES: Final = ("none", "random", "rack-aware", "region-aware", "zone-aware")
"""Policies that an inspection can check ensembles against."""
MAX_REMEMBERED: Final = 10_000
"""Ensembles whose verdict is kept: most ledgers share theirs with others."""


class _Verdict(NamedTuple):
    fails: bool
    can_be_mended: bool
    why: str


@asynccontextmanager
async def placement_check(
    client: Client, policy: str | None, access: AccessOptions
) -> AsyncIterator[PlacementCheck | None]:
    """A check against this policy, None for none; a policy that is not the one by which `client` places, as `access`
    says, needs a client more. Raises `MetadataUnavailable`, `BadRequest`, `PodkeeperSparkError` (OPTION)."""
    if policy is None:
        yield None
    elif policy == access.placement:
        yield await PlacementCheck.of(client)
    else:
        other = replace(access.placement_options(), policy=policy)
        async with Client(access.metadata_service_uri, access.client_options(), placement=other) as placed:
            yield await PlacementCheck.of(placed)


class PlacementCheck:
    """Checks ledgers against one view of the cluster."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view
        self._known: dict[tuple[Ensemble, Quorums], _Verdict] = {}
        self.without_remedy = 0
        """Segments that fail and that no exchange of bookies mends."""

    @classmethod
    async def of(cls, client: Client) -> PlacementCheck:
        """Return the check with the bookies of now. Raises `MetadataUnavailable`."""
        return cls(client, await client.cluster_view())

    def findings(self, metadata: LedgerMetadata) -> Iterator[Finding]:
        """One for each segment with entries whose ensemble fails; none of a ledger that is not closed."""
        if not metadata.is_closed:
            return
        quorums = Quorums.of(metadata)
        for fragment in fragments(metadata.ledger_id, metadata, -1):
            if not fragment.count:
                continue
            verdict = self._judge(fragment, quorums)
            self.without_remedy += verdict.fails and not verdict.can_be_mended
            if verdict.fails and verdict.can_be_mended:
                yield Finding(
                    metadata.ledger_id,
                    fragment.first_entry,
                    fragment.first_entry,
                    fragment.last_entry,
                    fragment.count,
                    ",".join(fragment.ensemble),
                    -1,
                    Verdict.MISPLACED,
                    verdict.why,
                )

    def _judge(self, fragment: Fragment, quorums: Quorums) -> _Verdict:
        key = fragment.ensemble, quorums
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._judged(fragment.ensemble, quorums)
        return known

    def _judged(self, ensemble: Ensemble, quorums: Quorums) -> _Verdict:
        policy = self._client.placement
        report = policy.check(ensemble, quorums, self._view)
        if report.adherence is not Adherence.FAIL:
            return _Verdict(False, False, "")
        request = ReplacementRequest(
            ensemble=ensemble, failed={}, quorums=quorums, cluster=self._view, random=self._client.context.random
        )
        mended = policy.mend(request).report.adherence is not Adherence.FAIL
        return _Verdict(True, mended, "; ".join(report.problems) or policy.rule)
