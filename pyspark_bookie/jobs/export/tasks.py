"""Bundles of ledgers on an executor.

One ledger's error does not end its bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bookie_protocol.errors import EntryDamaged
from pyspark_bookie.archive.files import Files
from pyspark_bookie.jobs.dumps.files import Dumps
from pyspark_bookie.jobs.dumps.format import DumpHeader
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment, TaskError, task_error
from pyspark_bookie.jobs.transfer.sources import LedgerAtSource, OpenCluster


class ExportFate(Enum):
    """What became of a ledger in this run."""

    EXPORTED = "exported"
    ALREADY = "already there"
    ANOTHER = "the dump of another ledger of this id is there"


@dataclass(frozen=True, slots=True)
class ExportBundle:
    """`sizes`: entries and bytes of each ledger, as its metadata told."""

    ledger_ids: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    target: str
    compression: str
    replace: bool

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.sizes)


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """What became of one ledger: `fate`, or `error`."""

    ledger_id: int
    fate: ExportFate | None
    error: TaskError | None = None
    entries: int = 0
    nbytes: int = 0
    file_bytes: int = 0


def export_bundle(bundle: ExportBundle, environment: TaskEnvironment) -> tuple[ExportOutcome, ...]:
    """Export one ledger after the other."""
    source = OpenCluster(environment.client(), environment.access.password.read(), environment.throttle())
    exporter = Exporter(source, Dumps(Files(bundle.target, "--target")), bundle.compression, replace=bundle.replace)
    return tuple(
        _export(exporter, ledger_id, entries, nbytes)
        for ledger_id, (entries, nbytes) in zip(bundle.ledger_ids, bundle.sizes, strict=True)
    )


class Exporter:
    """Writes one ledger after the other."""

    def __init__(self, source: OpenCluster, dumps: Dumps, compression: str, *, replace: bool = False) -> None:
        self._source = source
        self._dumps = dumps
        self._compression = compression
        self._replace = replace

    def export(self, ledger_id: int, entries: int, nbytes: int) -> ExportOutcome:
        """Raises what reading and writing raise; then nothing has the name of a dump that was not there before."""
        ledger = self._source.ledger(ledger_id)
        header = DumpHeader(ledger_id, entries, nbytes, ledger.shape)
        found = self._dumps.find(ledger_id)
        if found is not None and not self._replace:
            same = self._is_of(found, header, ledger)
            return ExportOutcome(ledger_id, ExportFate.ALREADY if same else ExportFate.ANOTHER)
        counts, size = self._dumps.write(header, ledger.payloads(), self._compression)
        return ExportOutcome(ledger_id, ExportFate.EXPORTED, None, counts.entries, counts.nbytes, size)

    def _is_of(self, name: str, header: DumpHeader, ledger: LedgerAtSource) -> bool:
        try:
            there = self._dumps.header(name)
        except EntryDamaged:
            return False
        return (there.ledger_id, there.entries, there.nbytes, there.shape.created_ms) == (
            header.ledger_id,
            header.entries,
            header.nbytes,
            ledger.shape.created_ms,
        )


def _export(exporter: Exporter, ledger_id: int, entries: int, nbytes: int) -> ExportOutcome:
    try:
        return exporter.export(ledger_id, entries, nbytes)
    except Exception as error:
        return ExportOutcome(ledger_id, None, task_error(error))
