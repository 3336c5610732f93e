"""Restoring the replicas of one fragment: new copies on other bookies, or again on the bookie that lost them.

    checker = LedgerChecker(client)
    replicator = FragmentReplicator(client)
    for report in (await checker.check(ledger_id)).bad_fragments:
        await replicator.replicate(report.fragment, report.bad)

Invariants
- Data first, metadata last: the ensemble is exchanged, by compare-and-set, only after every entry that striping puts on
  a target was acknowledged by it as durable, and its last one was read back.
- Copies are the bytes of a replica whose digest was verified: header, LAC and length are those of the writer.
- A fragment that its writer may still change is never copied (`LedgerNotClosed`).
- An entry counts as unreadable only when every bookie of its write set was asked, those to be replaced among them. Then
  nothing of the fragment is exchanged, and the ledger stays as it was.
- What is under way is bounded in bytes, over all fragments that one replicator copies at the same time.

Surplus copies of an attempt that failed are removed by the garbage collection of the bookies that hold them. Event loop
only.

Source: reference auto-recovery, section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from bookie_client.client import Client
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import Ensemble

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far one fragment is. `entries_total`: different entries that some target needs; `nbytes` as stored."""

    ledger_id: int
    first_entry: int
    entries: int
    entries_total: int
    nbytes: int


ProgressListener = Callable[[CopyProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions:
    """How a replicator copies."""

    entry_batch_size: int = 2_000
    """Most entries of one read (`rereplicationEntryBatchSize`, whose default is 10). Several reads are under way."""
    max_bytes_in_flight: int = 32 * MIB
    """Bytes read and not yet stored everywhere, over all fragments of this replicator."""
    throttle: ReplicationThrottle = field(default_factory=ReplicationThrottle)
    batch_reads: bool = True
    """Read many entries by one request, where ensemble size = write quorum (`recoveryBatchReadEnabled`)."""
    progress: ProgressListener | None = None
    """Told after each piece."""
    digest: DigestType = DigestType.CRC32C
    """For ledgers that recorded none: their copies are made without verification, see `access`."""
    password: bytes = b""
    """For ledgers that recorded none."""


@dataclass(frozen=True, slots=True)
class ReplicationResult:
    """What was done. `ensemble`: the segment's, as stored now; `entries`, `nbytes`: of all copies that were made."""

    ensemble: Ensemble
    entries: int
    nbytes: int


class FragmentReplicator:
    """Copies fragments, any number at the same time, within one budget of bytes."""

    def __init__(self, client: Client, options: ReplicationOptions | None = None) -> None:
        self._client = client
        self.options = options or ReplicationOptions()

    async def replicate(
        self,
        fragment: Fragment,
        bad: Mapping[int, str],
        *,
        in_place: Collection[int] = (),
        excluded: Mapping[str, str] | None = None,
        progress: ProgressListener | None = None,
    ) -> ReplicationResult:
        """Make new copies of what striping puts on the bad positions (position -> bookie), and exchange them.

        `in_place`: positions of `bad` whose bookie is registered, writable and lost its copies: it is filled again, and
        the metadata stay as they are. `excluded`: bookies that are no targets, and why, beside those being
        decommissioned. A bad bookie is asked for entries too, when no other has them.

        Raises `LedgerNotClosed` (the fragment may still grow), `NotEnoughBookies` (no spare), `EntriesUnreadable` (it
        names them; nothing was exchanged), `BookieUnavailable` and other errors of a target, `MetadataVersionConflict` (the
        segment is not what it was: check again), `NoSuchLedger` (deleted), `MetadataUnavailable`.
        """
        raise AssertionError("committed for its signature")

    async def mend(
        self, fragment: Fragment, bad: Mapping[int, str] | None = None, *, progress: ProgressListener | None = None
    ) -> ReplicationResult:
        """Exchange as few bookies as it takes for the ensemble to obey the placement policy, and the bad ones.

        Does nothing if it obeys already. Raises as `replicate`; `NotEnoughBookies` also when no exchange helps.
        """
        raise AssertionError("committed for its signature")

    async def unreadable(self, fragment: Fragment, entry_ids: Collection[int]) -> tuple[int, ...]:
        """Which of these entries no replica gives at present: before a fragment is tried again as a whole."""
        raise AssertionError("committed for its signature")
