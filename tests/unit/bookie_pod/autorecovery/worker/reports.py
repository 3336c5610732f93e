"""Reports of checks, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bookie_client.replication.check import FragmentReport, LedgerReport, ReplicaFinding, ReplicaVerdict
from bookie_client.replication.fragments import fragments
from bookie_protocol.errors import PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Identity, Versioned

LEDGER = 5
Verdicts = Mapping[str, ReplicaVerdict]


def metadata_of(
    segments: Mapping[int, Sequence[str]], last_entry: int | None = 99, ack_quorum: int = 2
) -> LedgerMetadata:
    """`last_entry` None: the ledger is open."""
    ensembles = {first: tuple(ensemble) for first, ensemble in segments.items()}
    size = len(next(iter(ensembles.values())))
    made = LedgerMetadata(
        ledger_id=LEDGER,
        ensemble_size=size,
        write_quorum_size=size,
        ack_quorum_size=min(ack_quorum, size),
        ensembles=ensembles,
    )
    return made if last_entry is None else made.closed(last_entry, 1000)


def report_of(
    metadata: LedgerMetadata,
    verdicts: Verdicts | None = None,
    lac: int = 99,
    lac_error: PodkeeperError | None = None,
    entries: Mapping[str, int] | None = None,
) -> LedgerReport:
    """`verdicts`: those of bookies that are not GOOD; `entries`: which entry showed them."""
    found = []
    for fragment in fragments(LEDGER, metadata, lac):
        findings = tuple(
            ReplicaFinding(
                position, bookie, (verdicts or {}).get(bookie, ReplicaVerdict.GOOD), (entries or {}).get(bookie)
            )
            for position, bookie in enumerate(fragment.ensemble)
        )
        found.append(FragmentReport(fragment, findings))
    return LedgerReport(LEDGER, Versioned(metadata, Identity(0, 1)), lac, tuple(found), lac_error)
