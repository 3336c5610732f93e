"""The job `offload`: what each ledger needs, bundles of them as tasks, and what it all comes to.

The error of one ledger does not end its bundle.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from bookie_protocol.archive import OffloadRecord, OffloadState
from bookie_protocol.shown import one_line, shown_uri
from pyspark_bookie.archive.files import Files, absolute_uri
from pyspark_bookie.archive.instance import claim, other_owner
from pyspark_bookie.archive.places import PlacedLedger
from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import (
    LedgerRow,
    Selected,
    bundles,
    select_ledgers,
)
from pyspark_bookie.jobs.framework.places import placed_ledgers
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import MISSING, WOULD, JobExit, JobResult, LedgerFinding, findings_table
from pyspark_bookie.jobs.framework.tasks import Outcome, TaskEnvironment, TaskError, task_error
from pyspark_bookie.jobs.offload.arguments import OffloadArguments, check_arguments
from pyspark_bookie.jobs.offload.cleaning import OffloadStore, TakenOver, find_orphans, remove_orphans
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionFate, DeletionSettings, cut, is_due, oldest
from pyspark_bookie.jobs.offload.iceberg import IcebergTable, check_identifier, open_catalog
from pyspark_bookie.jobs.offload.machine import Fate, Offloader, OffloadSettings, is_unplaced

if TYPE_CHECKING:
    from bookie_client.streams import Manifest

_DELETED_AT_ONCE: Final = 20
_MOST_DELETED_AT_ONCE: Final = 200
"""Maximum deletions in one bundle if very many are due: each bundle reads the lists of all streams."""
_PLACED_AT_ONCE: Final = 200
_BUNDLES: Final = 500
_KEPT: Final = (DeletionFate.IN_STREAM, DeletionFate.UNREAD, DeletionFate.OWNED, DeletionFate.ANOTHER_LEDGER)


@job("offload")
class OffloadJob:
    """Copy closed ledgers into Parquet files that any engine can read; later delete them from the cluster, if wanted.

    Each ledger goes through PREPARED, UPLOADED, VERIFIED and COMPLETE, kept in the metadata service; a run that was
    interrupted is resumed by the next one. With --delete-after ledgers go, after their files were read once more.
    """

    Arguments = OffloadArguments

    def run(self, context: JobContext[OffloadArguments]) -> JobResult:
        """Offload, delete what is due, remove orphans."""
        return _Run(context).run()


class _Run:
    def __init__(self, context: JobContext[OffloadArguments]) -> None:
        self._context = context
        self._args = context.args
        check_arguments(self._args)
        self._target = absolute_uri(self._args.target)
        self._files = Files(self._target, "--target")
        self._settings = OffloadSettings(self._target, self._args.partition_by, self._args.max_file_bytes)
        self._store = OffloadStore(context.client())
        self._found: list[LedgerFinding] = []
        self._totals: Counter[str] = Counter()
        self._fates: Counter[Fate | DeletionFate] = Counter()

    def run(self) -> JobResult:
        selected = select_ledgers(self._context)
        self._instance_id = self._own_archive()
        self._table = self._iceberg_table()
        records = self._records(selected)
        plan = plan_offload(selected.rows, records, self._target)
        moved = self._moved(selected, records)
        for ledger_id in plan.elsewhere:
            self._found.append(
                LedgerFinding(ledger_id, "ELSEWHERE", f"in the archive {shown_uri(records[ledger_id].target)}")
            )
        has_found = bool(self._found)
        places = self._places(selected, records, plan)
        pending, pending_bytes = self._offload(plan, places)
        self._note_places(records, places)
        exit_code = JobExit.FINDINGS if has_found or self._fates[Fate.ELSEWHERE] else JobExit.OK
        committed = self._commit(selected)
        waiting = self._delete(selected)
        orphans = self._sweep()
        if self._totals["failed"]:
            exit_code = JobExit.FINDINGS
        return JobResult(
            {
                "selected": len(selected.rows),
                "offloaded": self._fates[Fate.OFFLOADED],
                "resumed": plan.begun,
                "already_there": plan.already + moved[self._target] + self._fates[Fate.ALREADY],
                "entries": self._totals["entries"],
                "bytes": self._totals["bytes"],
                "files": self._totals["files"],
                "file_bytes": self._totals["file_bytes"],
                "not_closed": plan.not_closed + self._fates[Fate.NOT_CLOSED],
                "empty": plan.empty + self._fates[Fate.EMPTY],
                "deleted_meanwhile": self._fates[Fate.GONE],
                "taken_over": self._fates[Fate.TAKEN_OVER],
                "failed": self._totals["failed"],
                "pending": pending,
                "pending_bytes": pending_bytes,
                "committed": committed,
                "deleted": self._fates[DeletionFate.DELETED],
                "waiting_for_deletion": waiting,
                "orphans_removed": orphans,
                "missing": len(selected.missing) - moved.total(),
            },
            findings_table(self._found) if self._found else None,
            exit_code,
            complete=not (self._totals["failed"] or (pending and not self._context.dry_run)),
        )

    def _moved(self, selected: Selected, records: Mapping[int, OffloadRecord]) -> Counter[str]:
        """Count the ledgers that had to exist and are only in an archive, by archive; the others are findings."""
        moved: Counter[str] = Counter()
        for ledger_id in selected.missing:
            record = records.get(ledger_id)
            if record is not None and record.state.is_archived:
                moved[record.target] += 1
            else:
                self._found.append(LedgerFinding(ledger_id, MISSING, "the ledger does not exist"))
        for target, count in sorted(moved.items()):
            if target != self._target:
                where = f"in the archive {shown_uri(target)} alone, and not in {shown_uri(self._target)}"
                self._context.log(f"{count} ledgers are {where}")
        return moved

    def _own_archive(self) -> str:
        """The cluster's instance id, if the archive is its own. Raises `UsageError`."""
        instance_id = self._context.client().run(lambda client: client.metadata_service.cluster.instance_id())
        if instance_id is None:
            raise UsageError("the cluster has no instance id, which identifies its archive")
        other = (other_owner if self._context.dry_run else claim)(self._files, instance_id)
        if other is not None:
            raise UsageError(
                f"--target {shown_uri(self._target)}: the archive belongs to the cluster with instance id"
                f" {one_line(other)}, and this one has {instance_id}: their ledger numbers have nothing to do with each"
                " other. Give this cluster an archive of its own; `restore` reads the other one's"
            )
        return instance_id

    # --- the three parts --------------------------------------------------------------------------------------

    def _places(
        self, selected: Selected, records: Mapping[int, OffloadRecord], plan: OffloadPlan
    ) -> dict[int, PlacedLedger]:
        """Return where streams list what is archived now, and what was archived without its place."""
        unplaced = {row.ledger_id for row in plan.work}.union(
            each for each, record in records.items() if record.state.is_archived and not record.is_placed
        )
        if not unplaced:
            return {}
        named = {row.stream for row in selected.rows if row.ledger_id in unplaced and row.stream is not None}
        listed = placed_ledgers(self._context.client(), named.union(self._args.stream), self._context.log)
        return {each: listed[each] for each in unplaced if each in listed}

    def _offload(self, plan: OffloadPlan, places: Mapping[int, PlacedLedger]) -> tuple[int, int]:
        """Returns how many ledgers were not tried, and their bytes."""
        total = sum(row.nbytes for row in plan.work)
        if self._context.dry_run:
            for row in plan.work:
                detail = f"{row.entries} entries, {row.nbytes} bytes"
                self._found.append(LedgerFinding(row.ledger_id, WOULD + "OFFLOAD", detail))
            return len(plan.work), total
        if not plan.work:
            return 0, 0
        items = [
            OffloadBundle(
                tuple(row.ledger_id for row in rows),
                sum(row.nbytes for row in rows),
                self._settings,
                self._instance_id,
                tuple(places.get(row.ledger_id) for row in rows),
            )
            for rows in bundles(plan.work, at_least=self._context.concurrent)
        ]
        tried = done = 0
        self._context.progress(0, total, "bytes", f"0 of {len(plan.work)} ledgers")
        for outcome in self._context.run_tasks(offload_bundle, items):
            tried += len(outcome.item.ledger_ids)
            done += outcome.item.nbytes
            self._take(outcome)
            self._context.progress(done, total, "bytes", f"{tried} of {len(plan.work)} ledgers")
        return len(plan.work) - tried, total - done

    def _note_places(self, records: Mapping[int, OffloadRecord], places: Mapping[int, PlacedLedger]) -> None:
        """Complete what was archived before its stream listed it, or by a version that noted no places."""
        known = records.keys() & places.keys()
        late = sorted(each for each in known if is_unplaced(records[each], places[each], self._target))
        if self._context.dry_run or not late or not self._files.replaces_at_once:
            return
        some = [late[start : start + _PLACED_AT_ONCE] for start in range(0, len(late), _PLACED_AT_ONCE)]
        items = [PlaceBundle(tuple(each), tuple(places[one] for one in each), self._settings) for each in some]
        for outcome in self._context.run_tasks(place_bundle, items):
            self._take(outcome)
        if noted := self._fates[Fate.PLACED]:
            self._context.log(f"noted the places in streams of {noted} ledgers archived before")

    def _iceberg_table(self) -> IcebergTable | None:
        """The table, if one is wanted: a catalogue that cannot be used is known before the work begins."""
        if self._args.iceberg_table is None:
            return None
        identifier = check_identifier(self._args.iceberg_table)
        catalog = open_catalog(self._args.iceberg_catalog)
        return IcebergTable(self._store, catalog, identifier, self._target, self._instance_id)

    def _commit(self, selected: Selected) -> int:
        """Add what is archived to the table, and return how many ledgers were added."""
        if self._table is None:
            return 0
        records = self._records(selected)
        if not self._context.dry_run:
            return self._table.commit(sorted(records))
        table, missing = str(self._args.iceberg_table), self._table.missing(records)
        self._found += [LedgerFinding(each, WOULD + "COMMIT", table) for each in missing]
        return 0

    def _delete(self, selected: Selected) -> int:
        """Returns how many archived ledgers wait for their lag."""
        if self._args.delete_after is None:
            return 0
        settings = DeletionSettings(self._target, self._args.delete_after, self._args.keep_listed)
        records = self._records(selected)
        going, waiting = due(records, settings, time.time())
        if self._context.dry_run:
            client, throttle = self._context.client(), self._context.throttle()
            deleter = Deleter(client, self._files, settings, throttle, ledger_ids=going)
            cut_off = {each for name in self._cut_streams for each in oldest(self._manifest_of(name), going)}
            for ledger_id in going:
                obstacle = deleter.obstacle(records[ledger_id])
                if obstacle is DeletionFate.IN_STREAM and ledger_id in cut_off:
                    obstacle = None
                what = WOULD + "DELETE" if obstacle is None else "KEPT"
                self._found.append(LedgerFinding(ledger_id, what, obstacle.value if obstacle else ""))
            return waiting
        for name in self._cut_streams:
            self._cut_stream(name, going, settings)
        if not going:
            return waiting
        self._context.progress(0, len(going), "ledgers", "deleted")
        for outcome in self._context.run_tasks(delete_bundle, _deletion_bundles(going, settings)):
            self._take(outcome)
            self._context.progress(self._fates[DeletionFate.DELETED], len(going), "ledgers", "deleted")
        return waiting

    @property
    def _cut_streams(self) -> Sequence[str]:
        """The streams that lose their oldest ledgers."""
        return () if self._args.keep_listed else self._args.stream

    def _cut_stream(self, name: str, going: Collection[int], settings: DeletionSettings) -> None:
        """Take the oldest ledgers of a stream out of it, as far as they may go."""
        manifest = self._manifest_of(name)
        proven: set[int] = set()
        items = _deletion_bundles(oldest(manifest, going), settings)
        for outcome in self._context.run_tasks(prove_bundle, items) if items else ():
            for each in outcome.result or ():
                if each.fate is DeletionFate.PROVEN:
                    proven.add(each.ledger_id)
        obstacle = cut(self._context.client(), manifest, proven)
        if obstacle is not None:
            self._context.log(obstacle)

    def _manifest_of(self, stream: str) -> Manifest:
        from bookie_client.streams import Streams

        return self._context.client().run(lambda client: Streams(client).manifest(stream))

    def _sweep(self) -> int:
        before = datetime.now(UTC) - timedelta(seconds=self._args.orphans_older_than)
        orphans = find_orphans(self._files, before, self._store.current_uuid)
        if not self._context.dry_run:
            remove_orphans(self._files, orphans)
        elif orphans.files:
            self._context.log(f"would remove {len(orphans.files)} files of dead attempts, {orphans.nbytes} bytes")
        return 0 if self._context.dry_run else len(orphans.files)

    # --- inside -----------------------------------------------------------------------------------------------

    def _records(self, selected: Selected) -> dict[int, OffloadRecord]:
        """The records of what is selected. A ledger that was deleted after it was archived is in no listing, so with
        --all, and nothing that narrows it, every record counts."""
        recorded = self._store.ledger_ids()
        if not self._args.all or self._args.where is not None or self._args.older_than is not None:
            chosen = {*(row.ledger_id for row in selected.rows), *selected.missing}
            recorded = [ledger_id for ledger_id in recorded if ledger_id in chosen]
        return self._store.read_all(recorded)

    def _take(self, bundle: Outcome[Any, tuple[LedgerOutcome, ...]]) -> None:
        failed = (LedgerOutcome(ledger_id, None, bundle.failure) for ledger_id in bundle.item.ledger_ids)
        for outcome in bundle.result or failed:
            if outcome.error is not None:
                self._totals["failed"] += 1
                self._found.append(LedgerFinding(outcome.ledger_id, outcome.error.code, outcome.error.message))
                continue
            assert outcome.fate is not None
            self._fates[outcome.fate] += 1
            self._totals["entries"] += outcome.entries
            self._totals["bytes"] += outcome.nbytes
            self._totals["files"] += outcome.files
            self._totals["file_bytes"] += outcome.file_bytes
            if outcome.fate is Fate.ELSEWHERE:
                self._found.append(LedgerFinding(outcome.ledger_id, "ELSEWHERE", str(outcome.fate.value)))
            if outcome.fate in _KEPT:
                self._found.append(LedgerFinding(outcome.ledger_id, "KEPT", str(outcome.fate.value)))


def _deletion_bundles(ledger_ids: Sequence[int], settings: DeletionSettings) -> list[DeletionBundle]:
    size = min(max(_DELETED_AT_ONCE, len(ledger_ids) // _BUNDLES), _MOST_DELETED_AT_ONCE)
    return [
        DeletionBundle(tuple(ledger_ids[start : start + size]), settings) for start in range(0, len(ledger_ids), size)
    ]


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """`begun`: of `work`, those that an earlier run has begun. `already`: in this archive. `elsewhere`: in another."""

    work: tuple[LedgerRow, ...]
    begun: int
    already: int
    elsewhere: tuple[int, ...]
    not_closed: int
    empty: int


def plan_offload(rows: Iterable[LedgerRow], records: Mapping[int, OffloadRecord], target: str) -> OffloadPlan:
    """Return the ledgers that are to be offloaded."""
    work: list[LedgerRow] = []
    elsewhere: list[int] = []
    begun = already = not_closed = empty = 0
    for row in rows:
        record = records.get(row.ledger_id)
        if not row.is_closed:
            not_closed += 1
        elif row.entries == 0:
            empty += 1
        elif record is not None and record.state is OffloadState.COMPLETE and record.ledger.is_surely(row.identity):
            if record.target != target:
                elsewhere.append(row.ledger_id)
            elif record.abandoned:
                work.append(row)  # its run died before it had cleaned up
            else:
                already += 1
        else:
            work.append(row)
            begun += record is not None
    return OffloadPlan(tuple(work), begun, already, tuple(elsewhere), not_closed, empty)


def due(records: Mapping[int, OffloadRecord], settings: DeletionSettings, now: float) -> tuple[list[int], int]:
    """Ledgers whose lag has passed, ascending, and how many wait for it."""
    going = sorted(ledger_id for ledger_id, record in records.items() if is_due(record, settings, now))
    complete = sum(
        record.state is OffloadState.COMPLETE and record.target == settings.target for record in records.values()
    )
    return going, complete - len(going)


@dataclass(frozen=True, slots=True)
class OffloadBundle:
    """Ledgers to be brought to COMPLETE. `nbytes`: of all of them, for the progress."""

    ledger_ids: tuple[int, ...]
    nbytes: int
    settings: OffloadSettings
    instance_id: str
    listed: tuple[PlacedLedger | None, ...]
    """Ledgers as their streams list them."""


@dataclass(frozen=True, slots=True)
class PlaceBundle:
    """Archived ledgers whose places are to be noted."""

    ledger_ids: tuple[int, ...]
    listed: tuple[PlacedLedger, ...]
    settings: OffloadSettings


@dataclass(frozen=True, slots=True)
class DeletionBundle:
    """Ledgers to be deleted, if they may be."""

    ledger_ids: tuple[int, ...]
    settings: DeletionSettings


@dataclass(frozen=True, slots=True)
class LedgerOutcome:
    """The outcome of one ledger: `fate`, or `error`. The numbers are those of an offloaded ledger."""

    ledger_id: int
    fate: Fate | DeletionFate | None
    error: TaskError | None = None
    entries: int = 0
    nbytes: int = 0
    files: int = 0
    file_bytes: int = 0


def offload_bundle(bundle: OffloadBundle, environment: TaskEnvironment) -> tuple[LedgerOutcome, ...]:
    """Offload one ledger after the other."""
    throttle = environment.throttle()
    files = Files(bundle.settings.target, "--target")
    password = environment.access.password.read()
    offloader = Offloader(
        environment.client(), files, bundle.settings, password, throttle, instance_id=bundle.instance_id
    )
    ledgers = zip(bundle.ledger_ids, bundle.listed, strict=True)
    return tuple(_offload(offloader, ledger_id, listed) for ledger_id, listed in ledgers)


def place_bundle(bundle: PlaceBundle, environment: TaskEnvironment) -> tuple[LedgerOutcome, ...]:
    """Note the place of one ledger after the other."""
    files = Files(bundle.settings.target, "--target")
    offloader = Offloader(environment.client(), files, bundle.settings, None, environment.throttle())
    ledgers = zip(bundle.ledger_ids, bundle.listed, strict=True)
    return tuple(_note_place(offloader, ledger_id, listed) for ledger_id, listed in ledgers)


def delete_bundle(bundle: DeletionBundle, environment: TaskEnvironment) -> tuple[LedgerOutcome, ...]:
    """Delete one ledger after the other."""
    files = Files(bundle.settings.target, "--target")
    throttle = environment.throttle()
    deleter = Deleter(environment.client(), files, bundle.settings, throttle, ledger_ids=bundle.ledger_ids)
    return tuple(_delete(deleter, ledger_id) for ledger_id in bundle.ledger_ids)


def prove_bundle(bundle: DeletionBundle, environment: TaskEnvironment) -> tuple[LedgerOutcome, ...]:
    """Prove one ledger after the other: those that may go are PROVEN."""
    files = Files(bundle.settings.target, "--target")
    throttle = environment.throttle()
    deleter = Deleter(environment.client(), files, bundle.settings, throttle, ledger_ids=bundle.ledger_ids)
    return tuple(_prove(deleter, ledger_id) for ledger_id in bundle.ledger_ids)


def _note_place(offloader: Offloader, ledger_id: int, listed: PlacedLedger) -> LedgerOutcome:
    try:
        fate = offloader.note_place(ledger_id, listed)
    except TakenOver:
        fate = Fate.TAKEN_OVER
    except Exception as error:
        return LedgerOutcome(ledger_id, None, task_error(error))
    return LedgerOutcome(ledger_id, fate)


def _offload(offloader: Offloader, ledger_id: int, listed: PlacedLedger | None) -> LedgerOutcome:
    try:
        fate, record = offloader.offload(ledger_id, listed)
    except TakenOver:
        return LedgerOutcome(ledger_id, Fate.TAKEN_OVER)
    except Exception as error:
        return LedgerOutcome(ledger_id, None, task_error(error))
    if fate is not Fate.OFFLOADED or record is None or record.counts is None:
        return LedgerOutcome(ledger_id, fate)
    return LedgerOutcome(
        ledger_id,
        fate,
        None,
        record.counts.entries,
        record.counts.nbytes,
        len(record.files),
        sum(file.nbytes for file in record.files),
    )


def _delete(deleter: Deleter, ledger_id: int) -> LedgerOutcome:
    try:
        return LedgerOutcome(ledger_id, deleter.delete(ledger_id))
    except TakenOver:
        return LedgerOutcome(ledger_id, Fate.TAKEN_OVER)
    except Exception as error:
        return LedgerOutcome(ledger_id, None, task_error(error))


def _prove(deleter: Deleter, ledger_id: int) -> LedgerOutcome:
    try:
        return LedgerOutcome(ledger_id, DeletionFate.PROVEN if deleter.prove(ledger_id) else DeletionFate.NOT_DUE)
    except Exception as error:
        return LedgerOutcome(ledger_id, None, task_error(error))
