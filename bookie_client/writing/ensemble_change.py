"""The metadata side of replacing failed bookies, and of closing: pure functions over `LedgerMetadata`.

Invariants
- A new segment starts at LAC + 1, so it never covers an acknowledged entry; a segment that starts there
  already is replaced in place, and earlier ones are never touched.
- A replacement is never a failed bookie nor a member of the ensemble.
- A ledger that is in recovery or closed by somebody else is never changed back.

Source: reference client protocol, sections 7.3 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import ClusterView, Placement, PlacementPolicy, ReplacementRequest
from bookie_protocol.errors import LedgerClosed, LedgerFenced, MetadataVersionConflict
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState


def replace_bookies(
    ensemble: tuple[str, ...],
    failed: Mapping[int, str],
    quorums: Quorums,
    cluster: ClusterView,
    policy: PlacementPolicy,
    random: Random,
) -> Placement:
    """The ensemble with as many failed members replaced as there are spare bookies; the same one if there are
    none."""
    return policy.replacement(
        ReplacementRequest(ensemble=ensemble, failed=failed, quorums=quorums, cluster=cluster, random=random)
    )


def check_open(metadata: LedgerMetadata) -> None:
    """Raises `LedgerClosed` or `LedgerFenced` when somebody else is recovering the ledger or has done so."""
    if metadata.state is LedgerState.CLOSED:
        raise LedgerClosed(
            f"ledger {metadata.ledger_id} was closed by another client at entry {metadata.last_entry_id}"
        )
    if metadata.state is LedgerState.IN_RECOVERY:
        raise LedgerFenced(f"ledger {metadata.ledger_id} is being recovered by another client")


def change_needed(metadata: LedgerMetadata, failed: Mapping[int, str]) -> bool:
    """Whether a failed bookie is still in the last ensemble. Raises as `check_open`."""
    check_open(metadata)
    return any(metadata.last_ensemble[position] == bookie for position, bookie in failed.items())


def with_new_ensemble(metadata: LedgerMetadata, lac: int, ensemble: tuple[str, ...]) -> LedgerMetadata:
    """The metadata with `ensemble` from entry LAC + 1 on."""
    last = metadata.first_entry_ids[-1]
    if last > lac + 1:
        raise MetadataVersionConflict(
            f"ledger {metadata.ledger_id}: its last segment starts at entry {last}, above the next entry {lac + 1} of"
            " this writer; somebody else changed it"
        )
    return metadata.with_ensemble(lac + 1, ensemble)


def close_needed(metadata: LedgerMetadata, last_entry: int, length: int) -> bool:
    """Whether CLOSED is still to be written.

    Raises `MetadataVersionConflict` when the ledger was closed at another end.
    """
    if metadata.state is not LedgerState.CLOSED:
        return True
    if (metadata.last_entry_id, metadata.length) == (last_entry, length):
        return False
    raise MetadataVersionConflict(
        f"ledger {metadata.ledger_id} was closed by another client at entry {metadata.last_entry_id}"
        f" ({metadata.length} bytes), this writer's end is entry {last_entry} ({length} bytes)"
    )
