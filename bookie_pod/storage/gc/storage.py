"""What garbage collection needs of a storage engine: one ledger directory, or a whole engine.

Threads: the garbage collection thread calls all of it, beside reads, writes and flushes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from bookie_pod.storage.engines.interface import Consent
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.index.location_rows import EntryMove


class CollectedStorage(Protocol):
    """One space of entry logs with the index that points into it."""

    @property
    def logs(self) -> EntryLogger: ...

    @property
    def index_may_run_ahead(self) -> bool:
        """A power cut may leave rows of entries that were never acknowledged, which point beyond the end of a log."""
        ...

    def ledger_ids(self) -> Collection[int]:
        """Every ledger known here."""
        ...

    def has_ledger(self, ledger_id: int) -> bool: ...

    def is_fenced(self, ledger_id: int) -> bool:
        """Whether it is here and fenced."""
        ...

    def watch(self, ledger_ids: Collection[int]) -> None:
        """From now on it is noticed who puts entries of these ledgers, and of no others."""
        ...

    def delete_ledger(self, ledger_id: int, consent: Consent) -> None:
        """Forget the ledger, in memory at once; durable with the next `flush`. Nothing happens without `consent`, which
        is asked on the event loop, where entries are put."""
        ...

    def flush(self) -> None:
        """Make everything before this call durable. `StorageFault`."""
        ...

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        """Where the index says the entry is; 0 when it says nothing. `StorageFault`."""
        ...

    def rows(self, ledger_id: int) -> Iterator[tuple[int, int]]:
        """(entry id, location) of everything that the index has of a ledger; nothing of an unknown one.
        `StorageFault`."""
        ...

    def move(self, moves: Sequence[EntryMove]) -> int:
        """Point to the new places, where the index still names the old ones. How many moved.

        Durable on return, and so is every place that the index named before, though it may have been put by a move that
        failed: also without moves.
        """
        ...

    def settle(self) -> None:
        """What the index names from now on is not taken back any more, as it may be after a write that failed.
        `StorageFault`."""
        ...

    def compact_index(self) -> None:
        """Give back the space of deleted index rows."""
        ...
