"""Snapshots of closed ledgers, and ranges of them, that no bookie holds."""

from __future__ import annotations

from bookie_protocol.digest import DigestType
from bookie_protocol.versioned import UNSTORED
from pyspark_bookie.source.planning import LedgerSnapshot, Range

BOOKIES = ("a", "b", "c", "d")


def ledger(ledger_id, entries, average=1000, starts=(0,), ensemble=BOOKIES[:3]):
    return LedgerSnapshot(
        ledger_id=ledger_id,
        identity=UNSTORED,
        ensemble_size=len(ensemble),
        write_quorum_size=2,
        ack_quorum_size=2,
        ensembles=tuple((start, ensemble) for start in starts),
        is_closed=True,
        last_entry_id=entries - 1,
        length=entries * average,
        digest_type=DigestType.CRC32C,
    )


def ranges(sizes):
    """A range of a ledger of its own for each (first entry, number of entries, bytes of an entry)."""
    made = []
    for ledger_id, (first, entries, average) in enumerate(sizes):
        ledger = LedgerSnapshot(
            ledger_id=100 - ledger_id,
            identity=UNSTORED,
            ensemble_size=1,
            write_quorum_size=1,
            ack_quorum_size=1,
            ensembles=((0, ("bookie-1",)), (7, ("bookie-2",))),
            is_closed=True,
            last_entry_id=first + entries,
            length=average * (first + entries + 1),
            digest_type=DigestType.CRC32C,
        )
        made.append(Range(ledger, first, first + entries - 1))
    return made
