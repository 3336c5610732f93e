"""The port of facts, without a cluster behind it: a test sets what it says."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from bookie_pod.server.http.admin.facts_port import ClusterFacts, DrainProof

FACTS = ClusterFacts(
    instance_id="i-1",
    writable=["a:1", "b:1"],
    read_only=["c:1"],
    cookies=["a:1", "b:1", "c:1", "d:1"],
    under_replicated=7,
    auditor="a:1",
    last_audit_ms=1_700_000_000_000,
    autorecovery_enabled=True,
    lost_bookie_recovery_delay_seconds=300,
    unrecoverable=0,
)


@dataclass
class FakeFactsPort:
    found: ClusterFacts = FACTS
    fault: Exception | None = None
    asked: list[tuple[str, set[int]]] = field(default_factory=list)

    async def cluster(self) -> ClusterFacts:
        if self.fault is not None:
            raise self.fault
        return self.found

    async def proof(self, bookie_id: str, accepted_losses: AbstractSet[int]) -> DrainProof:
        self.asked.append((bookie_id, set(accepted_losses)))
        if self.fault is not None:
            raise self.fault
        found = self.found
        return DrainProof(
            bookie_id,
            0,
            0,
            0,
            0,
            [],
            0,
            [],
            False,
            found.auditor,
            found.last_audit_ms,
            found.instance_id,
            40,
            1_700_000_000_001,
        )
