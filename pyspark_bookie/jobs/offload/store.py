"""Offload records in the metadata service, by ledger id.

Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bookie_protocol.archive import KIND, OffloadRecord
from bookie_protocol.metadata_service.versioned import Versioned
from pyspark_bookie.jobs.framework.records import JobRecords
from pyspark_bookie.jobs.framework.records import TakenOver as TakenOver

if TYPE_CHECKING:
    from bookie_client.blocking import BlockingClient

Stored = Versioned[OffloadRecord]


class OffloadStore(JobRecords[OffloadRecord]):
    """The records of `offload`, by a client that is the caller's."""

    def __init__(self, client: BlockingClient) -> None:
        super().__init__(client, KIND, OffloadRecord.decode)

    def read(self, ledger_id: int) -> Stored | None:
        """None: there is no record. Raises `MetadataUnavailable`, `MetadataDamaged`."""
        return self.find(str(ledger_id))

    def current_uuid(self, ledger_id: int) -> str | None:
        """The attempt that a ledger's record names; None: there is no record. Raises as `read`."""
        stored = self.read(ledger_id)
        return None if stored is None else stored.value.uuid

    def ledger_ids(self) -> list[int]:
        """The ledgers of all records, ascending."""
        return sorted(int(key) for key in self.keys() if key.isascii() and key.isdigit())

    def read_all(self, ledger_ids: Sequence[int]) -> dict[int, OffloadRecord]:
        """The records of those of these ledgers that have one. Raises as `read`."""
        return {int(key): record for key, record in self.find_all([str(each) for each in ledger_ids]).items()}
