"""The progress of the transfer of a ledger: a record of kind `transfer` in the target cluster's metadata service.

Its key is the name of the transfer and the ledger's id at its source.

    WRITING    an attempt writes the ledger `target_id`, whose custom metadata carries its uuid
    COMPLETE   that ledger is closed, was read again and holds what the source has

Invariants
- The id is in the record before the ledger is created: what a dead attempt has left is found by the record.
- A record changes by compare-and-set only.

Pure; any thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from bookie_protocol.archive import Counts
from bookie_protocol.errors import UNREADABLE, MetadataDamaged
from bookie_protocol.shown import one_line

KIND: Final = "transfer"
"""The kind of the records."""
TRANSFER_KEY: Final = "podkeeper/transfer"
"""Custom metadata of ledgers made by a transfer: its name and the attempt's uuid, with a colon in between."""
_VERSION: Final = 1


class TransferState(Enum):
    """See the module."""

    WRITING = "WRITING"
    COMPLETE = "COMPLETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRecord:
    """`counts`: what the target ledger holds, once COMPLETE. `life`: tells the ledger at the source from another one of
    its number; None in records of older versions."""

    name: str
    source_id: int
    state: TransferState
    target_id: int
    uuid: str
    counts: Counts | None = None
    life: str | None = None

    @property
    def key(self) -> str:
        return record_key(self.name, self.source_id)

    @property
    def tag(self) -> bytes:
        """Return the tag that marks the ledger of this attempt."""
        return f"{self.name}:{self.uuid}".encode()

    def complete(self, counts: Counts) -> TransferRecord:
        if self.state is not TransferState.WRITING:
            raise ValueError(f"the transfer of ledger {self.source_id} is {self.state.value}")
        return replace(self, state=TransferState.COMPLETE, counts=counts)

    def encode(self) -> bytes:
        row = {
            "v": _VERSION,
            "name": self.name,
            "source_id": self.source_id,
            "state": self.state.value,
            "target_id": self.target_id,
            "uuid": self.uuid,
            "counts": None if self.counts is None else self.counts.as_json(),
            "life": self.life,
        }
        return json.dumps(row).encode()

    @classmethod
    def decode(cls, data: bytes) -> TransferRecord:
        """Raises `MetadataDamaged`."""
        try:
            row: dict[str, Any] = json.loads(data)
            if row["v"] != _VERSION:
                raise ValueError(f"version {row['v']}")
            return cls(
                name=str(row["name"]),
                source_id=int(row["source_id"]),
                state=TransferState(row["state"]),
                target_id=int(row["target_id"]),
                uuid=str(row["uuid"]),
                counts=None if row["counts"] is None else Counts.from_json(row["counts"]),
                life=row.get("life"),
            )
        except UNREADABLE as error:
            raise MetadataDamaged(f"a record of kind {KIND} cannot be read: {one_line(repr(error))}") from None


def record_key(name: str, source_id: int) -> str:
    return f"{name}.{source_id}"
