"""Ledgers that a test makes up, and the progress of a query that follows them."""

from __future__ import annotations

from dataclasses import replace

from bookie_protocol.versioned import Identity, LedgerLife
from pyspark_bookie.common.options import parse
from pyspark_bookie.source.options import StreamingOptions
from pyspark_bookie.source.streaming.ledger_view import Extent, LedgersView
from pyspark_bookie.source.streaming.ledgers import LedgersProgress
from tests.unit.pyspark_bookie.source.snapshots import ranges


class Tails:
    def __init__(self, *extents):
        self.extents = extents
        self.missing = frozenset()
        self.told = {}
        """Last entries that bookies tell of open ledgers."""
        self.in_archive = ()
        self.lives = {}
        """Identity and token of ledgers that were replaced since they were looked at."""

    def view(self, *, fresh=False):
        return LedgersView(self.extents, self.missing)

    def snapshots(self, ledger_ids):
        snapshot = ranges([(0, 50, 1)])[0].ledger
        made = {}
        for each in self.extents:
            if each.ledger_id in ledger_ids:
                last = self.told.get(each.ledger_id, each.entries - 1)
                life = each.life or LedgerLife(each.ledger_id, snapshot.identity.creation)
                identity, token = self.lives.get(each.ledger_id, (Identity(0, life.creation), life.token))
                made[each.ledger_id] = replace(
                    snapshot,
                    ledger_id=each.ledger_id,
                    last_entry_id=last,
                    is_closed=each.is_closed,
                    identity=identity,
                    token=token,
                )
        return made

    def archived(self, ledger_ids):
        snapshot = ranges([(0, 50, 1)])[0].ledger
        return {
            each.ledger_id: replace(
                snapshot, ledger_id=each.ledger_id, last_entry_id=each.entries - 1, length=each.nbytes, archive=object()
            )
            for each in self.in_archive
            if each.ledger_id in ledger_ids
        }


def closed(ledger_id, entries, life=None):
    """`life`: (creation, token)."""
    which = None if life is None else LedgerLife(ledger_id, *life)
    return Extent(ledger_id, entries, entries * 10, is_closed=True, life=which)


def opened(ledger_id, entries):
    return Extent(ledger_id, entries, entries * 10, is_closed=False)


def progress(*extents, **options):
    given = {"metadataServiceUri": "zk://nowhere/ledgers", "scope": "all", **options}
    given = {name: value for name, value in given.items() if value is not None}
    tails = Tails(*extents)
    return LedgersProgress(parse(given, StreamingOptions), tails), tails
