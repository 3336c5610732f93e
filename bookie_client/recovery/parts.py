"""What the steps of one recovery share.

Immutable. Event loop only, as the context in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.reading.lac import quorums_of
from bookie_client.reading.lac_vote import is_negative
from bookie_protocol.digest import DigestManager
from bookie_protocol.errors import LedgerStateUnknown, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata


@dataclass(frozen=True, slots=True)
class RecoveryParts:
    """`metadata`: as they were when the ledger was marked; the recovery reads by them until its end, whatever it
    replaces itself. `master_key` goes with every request that fences."""

    context: ClientContext
    metadata: LedgerMetadata
    digest: DigestManager
    master_key: bytes = field(repr=False)
    distrusted: frozenset[str] = frozenset()
    """Bookies that are known to have lost entries of the ledger: what they deny counts as unknown."""
    quorums: Quorums = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "quorums", quorums_of(self.metadata))

    def weighed(self, bookie: str, error: PodkeeperError) -> PodkeeperError:
        """What a bookie's answer is worth: a distrusted one's "no" is no promise."""
        if bookie in self.distrusted and is_negative(error):
            return LedgerStateUnknown(
                f"bookie {bookie} lost entries of ledger {self.ledger_id}: its no counts for nothing"
            )
        return error

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id
