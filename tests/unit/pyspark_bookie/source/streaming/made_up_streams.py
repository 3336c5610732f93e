"""A stream whose manifest a test makes up, and the progress of a query that follows it."""

from __future__ import annotations

from dataclasses import replace

from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import StreamLedger, StreamSettings
from bookie_protocol.versioned import UNSTORED
from pyspark_bookie.common.options import parse
from pyspark_bookie.source.options import StreamingOptions
from pyspark_bookie.source.streaming.open_tails import OpenTail
from pyspark_bookie.source.streaming.stream_view import StreamView
from pyspark_bookie.source.streaming.streams import StreamsProgress
from tests.unit.pyspark_bookie.source.snapshots import ranges


def view(sizes, tail=None, *, base=0, first_id=100, **others):
    """A stream of closed ledgers of these sizes, in descending order of ids, and perhaps an open one."""
    ledgers, ordinal = [], base
    for place, entries in enumerate(sizes):
        ledgers.append(StreamLedger(first_id - place, ordinal, entries, entries * 10, 0))
        ordinal += entries
    if tail is not None:
        ledgers.append(StreamLedger(first_id - len(sizes), ordinal, None, None, None))
    manifest = Manifest("orders", UNSTORED, 0, tuple(ledgers), StreamSettings(), base_ordinal=base, **others)
    return StreamView(manifest, OpenTail() if tail is None else OpenTail(tail, tail * 10))


class Tails:
    """One stream, `orders`."""

    def __init__(self, seen):
        self.seen = seen
        self.cursor = []
        self.failing = None
        self.stands_at = 0

    def views(self, *, fresh=False):
        return {} if self.seen is None else {"orders": self.seen}

    def view(self, name):
        return self.seen

    def move_cursor(self, name, place):
        self.cursor.append((name, place.ordinal))
        if self.failing is not None:
            raise self.failing
        return max(self.stands_at, place.ordinal)


def progress(seen, **options):
    given = {"metadataServiceUri": "zk://nowhere/ledgers", "stream": "orders", **options}
    tails = Tails(seen)
    return StreamsProgress(parse(given, StreamingOptions), tails, _snapshots), tails


def _snapshots(streams):
    snapshot = ranges([(0, 50, 1)])[0].ledger
    return {ledger_id: replace(snapshot, ledger_id=ledger_id) for ledger_id in streams}


def entries_of(found):
    return [(each.ledger_id, entry) for each in found for entry in range(each.first, each.last + 1)]
