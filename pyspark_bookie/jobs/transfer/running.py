"""A transfer from plan to result: bundles on Spark, then, when all ledgers are there, the stream.

Driver only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bookie_protocol.errors import Refused
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.jobs.framework.bundles import bundles
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.findings import WOULD, LedgerFinding, findings_table
from pyspark_bookie.jobs.framework.ledgers import LedgerRow
from pyspark_bookie.jobs.framework.result import Counter as Counted
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.transfer.arguments import TransferArguments
from pyspark_bookie.jobs.transfer.machine import TransferFate, TransferSettings, transfer_records
from pyspark_bookie.jobs.transfer.record import TransferState, record_key
from pyspark_bookie.jobs.transfer.sources import Source
from pyspark_bookie.jobs.transfer.tasks import TransferBundle, TransferOutcome, transfer_bundle

if TYPE_CHECKING:
    from bookie_client.streams import Manifest, PublishedLedger


@dataclass(frozen=True)
class TransferPlan:
    """`rows`: the ledgers at the source, in the order in which a stream shall have them. `missing`: one for each that
    was asked for and is not there. `target`: the cluster that gets them. `unreadable`: what the source has and cannot
    be read; it counts as failed."""

    source: Source
    rows: Sequence[LedgerRow]
    missing: Sequence[LedgerFinding]
    settings: TransferSettings
    target: AccessOptions
    unreadable: Sequence[LedgerFinding] = ()
    cut: tuple[int, int] | None = None
    """Where in its first ledger the stream at the source begins: entries before it were truncated."""


def run_transfer(context: JobContext[TransferArguments], plan: TransferPlan) -> JobResult:
    """Do it."""
    return _Run(context, plan).run()


class _Run:
    def __init__(self, context: JobContext[TransferArguments], plan: TransferPlan) -> None:
        self._context = context
        self._plan = plan
        self._client = context.client(plan.target)
        self._found = [*plan.missing, *plan.unreadable]
        self._fates: Counter[TransferFate] = Counter()
        self._totals: Counter[str] = Counter({"failed": len(plan.unreadable)})
        self._there: dict[int, TransferOutcome] = {}

    def run(self) -> JobResult:
        work, resumed = self._work()
        pending = len(work)
        published: int | None = None
        if self._context.dry_run:
            for row in work:
                detail = f"{row.entries} entries, {row.nbytes} bytes"
                self._found.append(LedgerFinding(row.ledger_id, WOULD + "WRITE", detail))
        else:
            pending = self._transfer(work)
            if self._plan.settings.stream is not None:
                published = self._publish_whole(self._plan.settings.stream)
        bad = self._totals["failed"] or self._plan.missing or self._fates[TransferFate.EXISTS]
        counters: dict[str, Counted] = {
            "selected": len(self._plan.rows),
            "written": self._fates[TransferFate.MADE],
            "resumed": resumed,
            "already_there": self._fates[TransferFate.ALREADY],
            "entries": self._totals["entries"],
            "bytes": self._totals["bytes"],
            "taken_over": self._fates[TransferFate.TAKEN_OVER],
            "id_exists": self._fates[TransferFate.EXISTS],
            "missing": len(self._plan.missing),
            "failed": self._totals["failed"],
            "pending": pending,
            "transfer": self._plan.settings.name,
        }
        if self._plan.settings.stream is not None:
            counters["published"] = published
        return JobResult(
            counters,
            findings_table(self._found) if self._found else None,
            JobExit.FINDINGS if bad else JobExit.OK,
            complete=not (bad or pending) or self._context.dry_run,
        )

    def _work(self) -> tuple[list[LedgerRow], int]:
        """What may need work, and how many of that an earlier run has begun. COMPLETE ones are looked at again by the
        tasks, because their ledgers may be gone; a dry run trusts the records."""
        keys = {record_key(self._plan.settings.name, row.ledger_id): row for row in self._plan.rows}
        records = transfer_records(self._client).find_all(list(keys))
        begun = sum(record.state is TransferState.WRITING for record in records.values())
        if not self._context.dry_run:
            return list(self._plan.rows), begun
        done = {record.source_id for record in records.values() if record.state is TransferState.COMPLETE}
        self._fates[TransferFate.ALREADY] = len(done)
        return [row for row in self._plan.rows if row.ledger_id not in done], begun

    def _transfer(self, work: Sequence[LedgerRow]) -> int:
        """Returns how many ledgers were not tried."""
        if not work:
            return 0
        total = sum(row.nbytes for row in work)
        items = [
            TransferBundle(
                tuple(row.ledger_id for row in rows),
                tuple(row.uuid for row in rows),
                tuple(row.life for row in rows),
                sum(row.nbytes for row in rows),
                self._plan.source,
                self._plan.settings,
            )
            for rows in bundles(work, at_least=self._context.concurrent)
        ]
        tried = done = 0
        self._context.progress(0, total, "bytes", f"0 of {len(work)} ledgers")
        for outcome in self._context.run_tasks(transfer_bundle, items, self._plan.target):
            tried += len(outcome.item.ledger_ids)
            done += outcome.item.nbytes
            failed = (TransferOutcome(ledger_id, None, outcome.failure) for ledger_id in outcome.item.ledger_ids)
            for each in outcome.result or failed:
                self._take(each)
            self._context.progress(done, total, "bytes", f"{tried} of {len(work)} ledgers")
        return len(work) - tried

    def _take(self, outcome: TransferOutcome) -> None:
        if outcome.error is not None:
            self._totals["failed"] += 1
            self._found.append(LedgerFinding(outcome.source_id, outcome.error.code, outcome.error.message))
            return
        assert outcome.fate is not None
        self._fates[outcome.fate] += 1
        if outcome.target_id is not None:
            self._there[outcome.source_id] = outcome
        if outcome.fate is TransferFate.MADE:
            self._totals["entries"] += outcome.entries
            self._totals["bytes"] += outcome.nbytes
            if outcome.target_id != outcome.source_id:
                self._found.append(LedgerFinding(outcome.source_id, "WRITTEN", f"as ledger {outcome.target_id}"))
        elif outcome.fate is TransferFate.EXISTS:
            self._found.append(LedgerFinding(outcome.source_id, "EXISTS", outcome.fate.value))

    def _publish_whole(self, stream: str) -> int | None:
        """A stream gets all that was asked for or nothing: readers would not see that there is a gap. None: nothing."""
        lacking = len(self._plan.missing) + len(self._plan.unreadable) + len(self._plan.rows) - len(self._there)
        if not lacking:
            return self._publish(stream)
        self._context.log(
            f"stream {stream}: nothing is added to it, because {lacking} of its ledgers are not there; run it again"
            " when they are, or select the others by --ledgers"
        )
        return None

    def _publish(self, stream: str) -> int:
        """All of them, in order, by one change of the stream. A repeated run adds what the source has got since."""
        from bookie_client.streams import PublishedLedger, StreamPosition, Streams

        ledgers: list[PublishedLedger] = []
        for row in self._plan.rows:
            made = self._there[row.ledger_id]
            if made.target_id is not None and made.entries:
                ledgers.append(PublishedLedger(made.target_id, made.entries, made.nbytes, made.payload_crc))
        manifest = self._client.run(lambda client: Streams(client).create(stream, if_absent=True))
        new = _behind_listed(manifest, ledgers)
        manifest = self._client.run(lambda client: Streams(client).publish(stream, new)).manifest
        if self._plan.cut is not None and self._plan.cut[0] in self._there:  # which may have been left out
            source_id, entry = self._plan.cut
            cut = StreamPosition(self._there[source_id].target_id or 0, entry)
            if manifest.ledgers and manifest.ledgers[0].ledger_id == cut.ledger_id:
                self._client.run(lambda client: Streams(client).truncate(stream, cut))
        return len(ledgers)


def _behind_listed(manifest: Manifest, ledgers: Sequence[PublishedLedger]) -> Sequence[PublishedLedger]:
    """Those that the stream does not have: they come behind the ones that an earlier run has added. Raises
    `Refused`."""
    listed = sum(each.ledger_id in manifest for each in ledgers)
    new = ledgers[listed:]
    if any(each.ledger_id in manifest for each in new):
        raise Refused(
            f"stream {manifest.name} has ledgers that come behind others which it does not have, so those would be out"
            " of order: give the transfer another --name and --to-stream"
        )
    return new
