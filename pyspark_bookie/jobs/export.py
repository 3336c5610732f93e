"""The job `export`: closed ledgers become single files, in bundles, each of which is one task.

The error of one ledger does not end its bundle.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookie_protocol.errors import EntryDamaged
from pyspark_bookie.archive.files import Files, absolute_uri
from pyspark_bookie.archive.places import PlacedLedger
from pyspark_bookie.jobs.framework.arguments import argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import LedgerRow, SelectionArguments, bundles, select_ledgers
from pyspark_bookie.jobs.framework.places import placed_ledgers
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import (
    WOULD,
    JobExit,
    JobResult,
    LedgerFinding,
    findings_table,
    missing_findings,
    readable,
)
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment, TaskError, task_error
from pyspark_bookie.jobs.transfer.dumps import SUFFIXES, DumpHeader, Dumps
from pyspark_bookie.jobs.transfer.sources import OpenCluster

_COMPRESSIONS: Final = tuple(SUFFIXES)


@dataclass(frozen=True, kw_only=True)
class ExportArguments(SelectionArguments):
    """The arguments of `export`."""

    target: str = argument(help="The folder, as s3://bucket/path, file:///path or a plain path.", metavar="URI")
    compression: str = argument("zstd", help="Of the files.", choices=_COMPRESSIONS)
    replace: bool = argument(False, help="Overwrite existing dumps.")


@job("export")
class ExportJob:
    """Write closed ledgers, with their metadata and entry ids, to single files that `import` reads.

    A dump is read again before it gets its name. An existing dump is read to its end and not written again, so the next
    run resumes an interrupted one; a damaged dump is reported and stays. Passwords are not exported.
    """

    Arguments = ExportArguments

    def run(self, context: JobContext[ExportArguments]) -> JobResult:
        """Select, then write."""
        return _Run(context).run()


class _Run:
    def __init__(self, context: JobContext[ExportArguments]) -> None:
        self._context = context
        self._target = absolute_uri(context.args.target)
        self._found: list[LedgerFinding] = []
        self._fates: Counter[ExportFate] = Counter()
        self._totals: Counter[str] = Counter()

    def run(self) -> JobResult:
        selected = select_ledgers(self._context)
        self._found += self._context.client().run(lambda client: missing_findings(client, selected.missing))
        closed = [row for row in selected.rows if row.is_closed]
        pending = self._dry_run(closed) if self._context.dry_run else self._export(closed)
        bad = self._totals["failed"] or selected.missing or self._fates[ExportFate.ANOTHER]
        return JobResult(
            {
                "selected": len(selected.rows),
                "exported": self._fates[ExportFate.EXPORTED],
                "already_there": self._fates[ExportFate.ALREADY],
                "entries": self._totals["entries"],
                "bytes": self._totals["bytes"],
                "file_bytes": self._totals["file_bytes"],
                "not_closed": len(selected.rows) - len(closed),
                "dump_exists": self._fates[ExportFate.ANOTHER],
                "missing": len(selected.missing),
                "failed": self._totals["failed"],
                "pending": pending,
            },
            findings_table(self._found) if self._found else None,
            JobExit.FINDINGS if bad else JobExit.OK,
            complete=not (bad or pending) or self._context.dry_run,
        )

    def _dry_run(self, rows: list[LedgerRow]) -> int:
        """Count what a run would do. Only the headers of existing dumps are read."""
        dumps = Dumps(Files(self._target, "--target"))
        names = {} if self._context.args.replace else dumps.names()
        there = {row.ledger_id: row for row in rows if row.ledger_id in names}
        headers, unreadable = readable(there, lambda each: (each, dumps.header(dumps.only(names[each]))))
        self._found += unreadable
        self._totals["failed"] += len(unreadable)
        for ledger_id, header in headers:
            row = there[ledger_id]
            same = is_of(header, ledger_id, row.entries, row.nbytes, row.created_ms)
            self._take(ExportOutcome(ledger_id, ExportFate.ALREADY if same else ExportFate.ANOTHER))
        work = [row for row in rows if row.ledger_id not in there]
        for row in work:
            detail = f"{row.entries} entries, {row.nbytes} bytes"
            self._found.append(LedgerFinding(row.ledger_id, WOULD + "EXPORT", detail))
        return len(work)

    def _export(self, rows: list[LedgerRow]) -> int:
        """Returns how many ledgers were not tried."""
        if not rows:
            return 0
        args, total = self._context.args, sum(row.nbytes for row in rows)
        named = {row.stream for row in rows if row.stream is not None}.union(args.stream)
        listed = placed_ledgers(self._context.client(), named, self._context.log)
        items = [
            ExportBundle(
                tuple(row.ledger_id for row in bundle),
                tuple((row.entries, row.nbytes) for row in bundle),
                tuple(listed.get(row.ledger_id) for row in bundle),
                self._target,
                args.compression,
                args.replace,
            )
            for bundle in bundles(rows, at_least=self._context.concurrent)
        ]
        tried = done = 0
        self._context.progress(0, total, "bytes", f"0 of {len(rows)} ledgers")
        for outcome in self._context.run_tasks(export_bundle, items):
            tried += len(outcome.item.ledger_ids)
            done += outcome.item.nbytes
            failed = (ExportOutcome(ledger_id, None, outcome.failure) for ledger_id in outcome.item.ledger_ids)
            for each in outcome.result or failed:
                self._take(each)
            self._context.progress(done, total, "bytes", f"{tried} of {len(rows)} ledgers")
        return len(rows) - tried

    def _take(self, outcome: ExportOutcome) -> None:
        if outcome.error is not None:
            self._totals["failed"] += 1
            self._found.append(LedgerFinding(outcome.ledger_id, outcome.error.code, outcome.error.message))
            return
        assert outcome.fate is not None
        self._fates[outcome.fate] += 1
        self._totals["entries"] += outcome.entries
        self._totals["bytes"] += outcome.nbytes
        self._totals["file_bytes"] += outcome.file_bytes
        if outcome.fate is ExportFate.ANOTHER:
            self._found.append(LedgerFinding(outcome.ledger_id, "DUMP_EXISTS", outcome.fate.value))


class ExportFate(Enum):
    """The outcome of a ledger in this run."""

    EXPORTED = "exported"
    ALREADY = "already there"
    ANOTHER = "the dump of another ledger of this id is there"


@dataclass(frozen=True, slots=True)
class ExportBundle:
    """Ledgers of one piece of work. `sizes`: entries and bytes of each, from its metadata."""

    ledger_ids: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    listed: tuple[PlacedLedger | None, ...]
    """Ledgers as their streams list them."""
    target: str
    compression: str
    replace: bool

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.sizes)


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """The outcome of one ledger: `fate`, or `error`."""

    ledger_id: int
    fate: ExportFate | None
    error: TaskError | None = None
    entries: int = 0
    nbytes: int = 0
    file_bytes: int = 0


def export_bundle(bundle: ExportBundle, environment: TaskEnvironment) -> tuple[ExportOutcome, ...]:
    """Export one ledger after the other."""
    throttle = environment.throttle()
    source = OpenCluster(environment.client(), environment.access.password.read(), throttle)
    longest = environment.access.client_options().received_frame_size
    dumps = Dumps(Files(bundle.target, "--target"), throttle, longest)
    exporter = Exporter(source, dumps, bundle.compression, replace=bundle.replace)
    return tuple(
        _export(exporter, ledger_id, entries, nbytes, listed)
        for ledger_id, (entries, nbytes), listed in zip(bundle.ledger_ids, bundle.sizes, bundle.listed, strict=True)
    )


class Exporter:
    """Writes one ledger after the other."""

    def __init__(self, source: OpenCluster, dumps: Dumps, compression: str, *, replace: bool = False) -> None:
        self._source = source
        self._dumps = dumps
        self._compression = compression
        self._replace = replace

    def export(self, ledger_id: int, entries: int, nbytes: int, listed: PlacedLedger | None = None) -> ExportOutcome:
        """Raises what reading and writing raise; then nothing has the name of a dump that was not there before."""
        ledger = self._source.ledger(ledger_id)
        is_listed = listed is not None and (listed.entries, listed.nbytes) == (entries, nbytes)
        header = DumpHeader(ledger_id, entries, nbytes, ledger.shape, listed.place if listed and is_listed else None)
        found = None if self._replace else self._dumps.find(ledger_id)
        if found is not None:
            same = self._is_of(found, header)
            return ExportOutcome(ledger_id, ExportFate.ALREADY if same else ExportFate.ANOTHER)
        counts, size = self._dumps.write(header, ledger.payloads(), self._compression)
        return ExportOutcome(ledger_id, ExportFate.EXPORTED, None, counts.entries, counts.nbytes, size)

    def _is_of(self, name: str, header: DumpHeader) -> bool:
        """Return True if a dump is that of the ledger, and then whole. Raises `EntryDamaged`."""
        created_ms = header.shape.created_ms
        try:
            same = is_of(self._dumps.header(name), header.ledger_id, header.entries, header.nbytes, created_ms)
            if same:
                self._dumps.count(name)
        except EntryDamaged as error:
            raise EntryDamaged(f"{error}; --replace --ledgers {header.ledger_id} overwrites it") from None
        return same


def is_of(there: DumpHeader, ledger_id: int, entries: int, nbytes: int, created_ms: int | None) -> bool:
    """Return True if a dump with this header is that of the ledger."""
    found = there.ledger_id, there.entries, there.nbytes, there.shape.created_ms
    return found == (ledger_id, entries, nbytes, created_ms)


def _export(
    exporter: Exporter, ledger_id: int, entries: int, nbytes: int, listed: PlacedLedger | None
) -> ExportOutcome:
    try:
        return exporter.export(ledger_id, entries, nbytes, listed)
    except Exception as error:
        return ExportOutcome(ledger_id, None, task_error(error))
