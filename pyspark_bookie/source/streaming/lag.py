"""The lag of a query: what `latestOffset` of its progress says beside the offset.

    "latestOffset": {"v": 1, "s": {...}, "behind": {"entries": 120, "streams": {"orders": 120}}}

Spark asks for it right after it was given the end of the next batch, so these are the entries that this batch leaves.
PySpark has no way for a source to report metrics; this offset is only reported, and is in no checkpoint.

Pure; any process.
"""

from __future__ import annotations

from pyspark_bookie.source.streaming.offsets import Document, LedgersOffset, Offset, StreamsOffset


def behind(end: Offset, tail: Offset) -> Document:
    """Return the entries between the end of a batch, or the start of the query, and the offset behind everything."""
    if isinstance(tail, StreamsOffset):
        places = end.places if isinstance(end, StreamsOffset) else {}
        streams = {
            name: max(0, place.ordinal - (places.get(name) or tail.begin.get(name) or place).ordinal)
            for name, place in sorted(tail.places.items())
        }
        return {"entries": sum(streams.values()), "streams": streams}
    if isinstance(tail, LedgersOffset):
        return {"entries": _in_ledgers(end, tail)}
    return {}


def _in_ledgers(end: Offset, tail: LedgersOffset) -> int:
    begin = end if isinstance(end, LedgersOffset) else tail.begin
    if begin is None:
        return 0
    places = ((entry, begin.next_entry(ledger_id)) for ledger_id, entry in tail.next_entries.items())
    return sum(max(0, entry - read) for entry, read in places if read is not None)
