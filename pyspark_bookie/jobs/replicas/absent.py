"""Ledgers that a stream lists and that do not exist: some are in an archive, the others are lost.

`offload --keep-listed` deletes ledgers that stay in their stream. An inspection does not look into archives, so it
counts them, lest they are taken for inspected. Everything else that a stream lists in vain is a finding.

Invariants
- A ledger is in an archive only on the word of a record of `offload`, and with as many entries as the stream lists: the
  Spark source goes by the same. What cannot be determined is UNKNOWN.
- Nothing is accused by one reading: stream and ledger are read again after the ledger was not found. A client that
  takes ledgers out of a stream changes the stream before it deletes them.

`absent`: event loop only. `tell_absent`: driver only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bookie_protocol.archive import ArchivedLedger
from bookie_protocol.errors import MetadataDamaged, NotThere
from bookie_protocol.metadata_service.records import archived_ledger
from bookie_protocol.shown import shown_uri
from bookie_protocol.together import bounded
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.replicas.findings import Finding, FindingsSpool, Verdict, of_ledger
from pyspark_bookie.source.selection import stored_metadata

if TYPE_CHECKING:
    from bookie_client.client import Client
    from bookie_client.streams.model import StreamLedger

READ_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Absent:
    """Listed ledgers that do not exist. `archives`: the archive's URI of each that is only in an archive."""

    archives: Mapping[int, str]
    findings: tuple[Finding, ...]


def tell_absent(context: JobContext[Any], missing: Collection[int], spool: FindingsSpool) -> dict[str, Value]:
    """Findings of ledgers that the streams of `--stream` list and that were not there; returns the counter for the
    result row. Raises `MetadataUnavailable`."""
    streams = context.args.stream
    if not streams or not missing:
        return {"archived": 0}
    found = context.client().run(lambda client: absent(client, streams, missing))
    spool.add(found.findings)
    for archive, count in sorted(Counter(found.archives.values()).items()):
        context.log(f"{count} ledgers were not inspected: they are in the archive {shown_uri(archive)} alone")
    return {"archived": len(found.archives)}


async def absent(client: Client, streams: Iterable[str], missing: Collection[int]) -> Absent:
    """Judge ledgers that were listed by these streams and did not exist. Those that no stream lists any more were
    deleted properly. Raises `MetadataUnavailable`."""
    from bookie_client.streams import Streams

    wanted, listings = frozenset(missing), []
    for name in dict.fromkeys(streams):
        try:
            manifest = await Streams(client).manifest(name)
        except NotThere:
            continue  # deleted meanwhile, and its ledgers with it
        listings += [(name, ledger) for ledger in manifest.ledgers if ledger.ledger_id in wanted]
    told = await bounded(listings, lambda each: _judge(client, *each), READ_AT_ONCE)
    findings = tuple(each for each in told if isinstance(each, Finding))
    doubtful = {each.ledger_id for each in findings}
    archives = {
        each.ledger_id: each.target
        for each in told
        if isinstance(each, ArchivedLedger) and each.ledger_id not in doubtful
    }
    return Absent(archives, findings)


async def _judge(client: Client, stream: str, listed: StreamLedger) -> ArchivedLedger | Finding:
    ledger_id, entries = listed.ledger_id, "an end that is not known" if listed.is_open else f"{listed.entries} entries"
    try:
        exists = await stored_metadata(client, ledger_id) is not None
        there = await archived_ledger(client.metadata_service.records, ledger_id)
    except MetadataDamaged as error:
        text = f"stream {stream} lists it, and whether it is in an archive is unknown: {error}"
        return of_ledger(ledger_id, Verdict.UNKNOWN, text)
    if exists:
        return of_ledger(ledger_id, Verdict.UNKNOWN, "it was not there at first, and was not inspected since")
    if there is not None and there.counts.entries == listed.entries:
        return there
    reason = "no archive has it"
    if there is not None:
        reason = f"what the archive {shown_uri(there.target)} has of this id has {there.counts.entries} entries"
    return of_ledger(ledger_id, Verdict.NO_SUCH_LEDGER, f"stream {stream} lists it with {entries}, and {reason}")
