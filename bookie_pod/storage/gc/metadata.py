"""What garbage collection asks the metadata service, as blocking calls.

Invariants
- "It does not exist" and "could not tell" never share an answer: the first is None, the second a `MetadataError`.

Threads: the garbage collection thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final, Protocol

from bookie_protocol.errors import MetadataError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerRange

READS_PER_REQUEST: Final = 64
"""Ledgers whose metadata are read together: as many as go into one request to ZooKeeper."""

StillHeld = Callable[[], bool]
"""Whether a lock is held still, as far as its holder knows."""


class GcMetadata(Protocol):
    """The metadata service as the collection sees it. Every call may raise `MetadataError`."""

    bookie_id: str

    def check_instance(self) -> None:
        """Raises `MetadataError` unless this is still the cluster that this bookie's cookie names: a wiped or another
        service must not make every ledger garbage."""
        ...

    def ranges(self) -> Iterator[LedgerRange]:
        """Every ledger of the cluster in ascending spans without gaps."""
        ...

    def read(self, ledger_id: int) -> LedgerMetadata | None:
        """The ledger's metadata; None when the service answered that there is no such ledger."""
        ...

    def read_many(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, LedgerMetadata | MetadataError | None]]:
        """What `read` answers or raises for each, in this order. A bounded number is drawn from `ledger_ids`, and asked
        for at once, before the first of them is answered."""
        ...

    def re_replication_lock(self, ledger_id: int) -> AbstractContextManager[StillHeld | None]:
        """Holds the ledger's under-replication lock; None when it is being re-replicated by somebody. The lock ends
        with its session, which may be before the block does: ask what it gives before anything is done for good."""
        ...

    def is_whole_elsewhere(self, ledger_id: int) -> bool:
        """Whether every bookie that the metadata of a closed ledger name is registered, and has the copies that it
        should have. False also if one of them cannot tell."""
        ...
