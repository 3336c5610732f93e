"""What the steps of one recovery share.

Immutable. Event loop only, as the context in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.reading.lac import quorums_of
from bookie_protocol.digest import DigestManager
from bookie_protocol.ledger_metadata.model import LedgerMetadata


@dataclass(frozen=True, slots=True)
class RecoveryParts:
    """`metadata`: as they were when the ledger was marked; the recovery reads by them until its end, whatever it
    replaces itself. `master_key` goes with every request that fences."""

    context: ClientContext
    metadata: LedgerMetadata
    digest: DigestManager
    master_key: bytes = field(repr=False)
    quorums: Quorums = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "quorums", quorums_of(self.metadata))

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id
