"""Facts, without a cluster behind it: a test sets what it says."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from msgspec.structs import replace

from bookie_pod.roles import NOBODY, Caller
from bookie_protocol.admin_api.cluster import ClusterFacts
from bookie_protocol.admin_api.decommission import DrainProof

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
    unchecked=["c:1"],
)
PROOF = DrainProof(
    bookie_id="d:1",
    ledgers=0,
    open_ledgers=0,
    marks=0,
    accepted_losses=0,
    first_ledgers=[],
    registered=False,
    auditor=FACTS.auditor,
    last_audit_ms=FACTS.last_audit_ms,
    instance_id=FACTS.instance_id,
    ledgers_seen=40,
    begun_ms=1_700_000_000_001,
)


@dataclass
class FakeFacts:
    found: ClusterFacts = field(default_factory=lambda: FACTS)
    fault: Exception | None = None
    asked: list[tuple[str, set[int]]] = field(default_factory=list)

    async def cluster(self) -> ClusterFacts:
        if self.fault is not None:
            raise self.fault
        return self.found

    async def proof(self, bookie_id: str, accepted_losses: AbstractSet[int], caller: Caller = NOBODY) -> DrainProof:
        self.asked.append((bookie_id, set(accepted_losses)))
        if self.fault is not None:
            raise self.fault
        return replace(PROOF, bookie_id=bookie_id)
