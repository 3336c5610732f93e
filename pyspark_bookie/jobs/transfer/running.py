"""A transfer from plan to result: bundles on Spark, then, when all ledgers are there, the stream.

Driver only.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bookie_protocol.errors import NoSuchStream, Refused
from pyspark_bookie.archive.places import StreamPlace
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.secrets import read_secret
from pyspark_bookie.jobs.framework.arguments import COUNT, CommonArguments, UsageError, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import LedgerRow, bundles
from pyspark_bookie.jobs.framework.records import TakenOver
from pyspark_bookie.jobs.framework.result import WOULD, JobExit, JobResult, LedgerFinding, findings_table
from pyspark_bookie.jobs.framework.result import Counter as Counted
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment, TaskError, task_error
from pyspark_bookie.jobs.transfer.machine import (
    TransferFate,
    Transferrer,
    TransferSettings,
    check_name,
    transfer_records,
)
from pyspark_bookie.jobs.transfer.order import OrderSettings, Parted, check_behind, in_order, parted
from pyspark_bookie.jobs.transfer.record import TransferRecord, TransferState, record_key
from pyspark_bookie.jobs.transfer.sources import Source

if TYPE_CHECKING:
    from bookie_client.streams import Manifest


@dataclass(frozen=True, kw_only=True)
class TransferArguments(CommonArguments):
    """The arguments of `restore`, `copy` and `import`."""

    keep_ids: bool = argument(
        False, help="The new ledgers have the ids that they had; else the cluster gives new ones."
    )
    to_stream: str | None = argument(
        None, help="When all are there, add them to this stream, which is made if there is none.", metavar="NAME"
    )
    allow_gaps: bool = argument(
        False, help="Add ledgers to --to-stream though others that their stream had between them are not at the source."
    )
    placed_only: bool = argument(
        False,
        help="Leave out of --to-stream the ledgers whose place in their stream is unknown, such as those of the sink's"
        " failed attempts.",
    )
    order_by_id: bool = argument(
        False,
        help="Add ledgers to --to-stream in the order of their ids, whatever stream they are from; neither gaps nor"
        " doubles are noticed.",
    )
    ensemble: int | None = argument(None, help="Bookies of each new ledger. Default: as it was.", kind=COUNT)
    write_quorum: int | None = argument(None, help="Copies of each entry. Default: as it was.", kind=COUNT)
    ack_quorum: int | None = argument(None, help="Copies that a write waits for. Default: as it was.", kind=COUNT)
    new_password_file: str | None = argument(
        None,
        help="File with the new ledgers' password. Default: the copied ledger's; empty for ledgers from files.",
        metavar="FILE",
    )
    name: str | None = argument(
        None,
        help="Name of the transfer: runs of one name go on where the last one ended. Default: by its source"
        " and stream.",
    )

    def settings(self, job: str, source: str) -> TransferSettings:
        """`source`: a text that tells the source from others."""
        if self.keep_ids and self.to_stream is not None:
            raise UsageError("--keep-ids and --to-stream exclude each other: a stream's ledgers are its own")
        if self.to_stream is None and (self.allow_gaps or self.placed_only or self.order_by_id):
            raise UsageError("--allow-gaps, --placed-only and --order-by-id are about a stream: give --to-stream, too")
        whole = source if self.to_stream is None else f"{source} {self.to_stream}"
        digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
        if self.new_password_file is not None:
            read_secret("--new-password-file", self.new_password_file)  # reported now if it cannot be read
        return TransferSettings(
            name=check_name(self.name or f"{job}-{digest}"),
            keep_ids=self.keep_ids,
            stream=self.to_stream,
            ensemble=self.ensemble,
            write_quorum=self.write_quorum,
            ack_quorum=self.ack_quorum,
            password_file=self.new_password_file,
        )


@dataclass(frozen=True)
class TransferPlan:
    """`rows`: the ledgers at the source. `missing`: one for each that was asked for and is not there. `target`: the
    cluster that gets them. `unreadable`: what the source has and cannot be read; it counts as failed."""

    source: Source
    rows: Sequence[LedgerRow]
    missing: Sequence[LedgerFinding]
    settings: TransferSettings
    target: AccessOptions
    unreadable: Sequence[LedgerFinding] = ()
    cut: tuple[int, int] | None = None
    """First entry of the source stream in its first ledger: entries before it were truncated."""
    is_ordered: bool = False
    """True if the rows are in the order in which a stream shall have them; else their places decide."""


def run_transfer(context: JobContext[TransferArguments], plan: TransferPlan) -> JobResult:
    """Do it."""
    return _Run(context, plan).run()


class _Run:
    def __init__(self, context: JobContext[TransferArguments], plan: TransferPlan) -> None:
        self._context = context
        self._plan = plan
        self._order = OrderSettings(
            context.args.allow_gaps or bool(plan.missing or plan.unreadable),  # then nothing is added
            context.args.placed_only,
            context.args.order_by_id,
        )
        self._rows = plan.rows if plan.settings.stream is None or plan.is_ordered else in_order(plan.rows, self._order)
        self._client = context.client(plan.target)
        self._found = [*plan.missing, *plan.unreadable]
        self._fates: Counter[TransferFate] = Counter()
        self._totals: Counter[str] = Counter({"failed": len(plan.unreadable)})
        self._there: dict[int, TransferOutcome] = {}
        self._before: dict[int, int] = {}
        """Target ledgers that earlier runs have surely made of these very ledgers, by source id."""
        self._lost: frozenset[int] = frozenset()
        """Ledgers of the source that the stream has had and lost."""

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
            "selected": len(self._rows),
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
        """Return the ledgers that may need work, and how many of them an earlier run has begun.

        Tasks check COMPLETE ones again, because their ledgers may be gone; a dry run trusts the records.
        """
        rows = {row.ledger_id: row for row in self._rows}
        keys = [record_key(self._plan.settings.name, each) for each in rows]
        records = transfer_records(self._client).find_all(keys).values()
        begun = sum(record.state is TransferState.WRITING for record in records)
        complete = [record for record in records if record.state is TransferState.COMPLETE]
        done = {record.source_id: record.target_id for record in complete}
        self._before = {each.source_id: each.target_id for each in complete if _is_of(each, rows[each.source_id])}
        if (stream := self._plan.settings.stream) is not None:
            with suppress(NoSuchStream):
                self._leave_out(stream, self._parted(self._manifest(stream), done, self._before).lost)
        if not self._context.dry_run:
            self._fates[TransferFate.ALREADY] = len(self._lost)
            return [row for row in self._rows if row.ledger_id not in self._lost], begun
        self._fates[TransferFate.ALREADY] = len(done)
        return [row for row in self._rows if row.ledger_id not in done], begun

    def _leave_out(self, stream: str, lost: Collection[LedgerRow]) -> None:
        """Leave out the ledgers that the stream has had, too: written again, they would be in no list."""
        if lost:
            self._context.log(
                f"{len(lost)} ledgers were in stream {stream}, and retention or truncation took them out: they are not"
                " added again"
            )
        self._lost = frozenset(row.ledger_id for row in lost)

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
                tuple(row.place for row in rows),
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
        there = len(self._there) + len(self._lost)
        lacking = len(self._plan.missing) + len(self._plan.unreadable) + len(self._rows) - there
        if not lacking:
            return self._publish(stream)
        self._context.log(
            f"stream {stream}: nothing is added to it, because {lacking} of its ledgers are not there; run it again"
            " when they are, or select the others by --ledgers, with --allow-gaps"
        )
        return None

    def _publish(self, stream: str) -> int:
        """All of them, in order, by one change of the stream. A repeated run adds what the source has got since."""
        from bookie_client.streams import PublishedLedger, StreamPosition, Streams

        manifest = self._client.run(lambda client: Streams(client).create(stream, if_absent=True))
        made = {each.source_id: each.target_id for each in self._there.values() if each.target_id is not None}
        rows = self._parted(manifest, self._before | made, self._before).new
        if any(row.ledger_id in self._lost for row in rows):
            raise Refused(f"stream {stream} was deleted and made again meanwhile: run the job again")
        there = [self._there[row.ledger_id] for row in rows]
        new = [PublishedLedger(each.target_id or 0, each.entries, each.nbytes, each.payload_crc) for each in there]
        behind = manifest.end_ordinal
        manifest = self._client.run(lambda client: Streams(client).publish(stream, new, behind=behind)).manifest
        if self._plan.cut is not None and self._plan.cut[0] in self._there:  # which may have been left out
            source_id, entry = self._plan.cut
            cut = StreamPosition(self._there[source_id].target_id or 0, entry)
            if manifest.ledgers and manifest.ledgers[0].ledger_id == cut.ledger_id:
                self._client.run(lambda client: Streams(client).truncate(stream, cut))
        return sum(each.entries > 0 for each in self._there.values())

    def _parted(self, manifest: Manifest, made: Mapping[int, int], earlier: Collection[int]) -> Parted:
        """Part the ledgers that have entries, and check that the new ones may come behind the others. Raises
        `Refused`."""
        parts = parted(manifest, [row for row in self._rows if row.entries], made, earlier)
        check_behind(self._client, manifest, parts, made, self._order)
        return parts

    def _manifest(self, stream: str) -> Manifest:
        from bookie_client.streams import Streams

        return self._client.run(lambda client: Streams(client).manifest(stream))


def _is_of(record: TransferRecord, row: LedgerRow) -> bool:
    """Return True if the record is of this very ledger of the source, as far as both tell; else its size decides."""
    if record.life and row.life:
        return record.life == row.life
    return record.counts is not None and (record.counts.entries, record.counts.nbytes) == (row.entries, row.nbytes)


@dataclass(frozen=True)
class TransferBundle:
    """`uuids`, `lives` and `places`: of the ledgers, as in `LedgerRow`. `nbytes`: of all its ledgers, for the
    progress."""

    ledger_ids: tuple[int, ...]
    uuids: tuple[str, ...]
    lives: tuple[str, ...]
    places: tuple[StreamPlace | None, ...]
    nbytes: int
    source: Source
    settings: TransferSettings


@dataclass(frozen=True, slots=True)
class TransferOutcome:
    """The outcome of one ledger: `fate`, or `error`. `target_id`: the ledger that was made, now or before."""

    source_id: int
    fate: TransferFate | None
    error: TaskError | None = None
    target_id: int | None = None
    entries: int = 0
    nbytes: int = 0
    payload_crc: int = 0


def transfer_bundle(bundle: TransferBundle, environment: TaskEnvironment) -> tuple[TransferOutcome, ...]:
    """Transfer one ledger after the other into the cluster of the environment."""
    source = bundle.source.open(environment.throttle())
    transferrer = Transferrer(environment.client(), source, bundle.settings, ledger_ids=bundle.ledger_ids)
    ledgers = zip(bundle.ledger_ids, bundle.uuids, bundle.lives, bundle.places, strict=True)
    return tuple(_transfer(transferrer, *ledger) for ledger in ledgers)


def _transfer(
    transferrer: Transferrer, ledger_id: int, uuid: str, life: str, place: StreamPlace | None
) -> TransferOutcome:
    try:
        fate, record = transferrer.transfer(ledger_id, uuid, life, place)
    except TakenOver:
        return TransferOutcome(ledger_id, TransferFate.TAKEN_OVER)
    except Exception as error:
        return TransferOutcome(ledger_id, None, task_error(error))
    if record is None or record.counts is None:
        return TransferOutcome(ledger_id, fate)
    counts = record.counts
    return TransferOutcome(ledger_id, fate, None, record.target_id, counts.entries, counts.nbytes, counts.payload_crc)
