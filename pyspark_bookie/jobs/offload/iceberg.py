"""Archived ledgers as an Iceberg table: their Parquet files, as they are, become data files of it, each once.

A commit adds the files of some ledgers, and says in the same transaction which: in the properties of its snapshot, with
a token, and in a property of the table, which stays when snapshots expire. Then the records of these ledgers say that
they are in the table.

    read the table ── the records of those that its property names get their mark
                   ── so do those without a mark that the table has nevertheless
                   ── the others are added, on condition that nothing was added meanwhile
                   ── their records get their mark

So a process may die anywhere: the next run reads the property before it adds anything, and sees what was added. Two
runs at once do no harm: of two commits that read the same table one fails, reads again, and leaves out what the other
added. A record that has lost its mark, as an older release writes records without it, adds nothing again: the table is
asked which files it has, and its snapshots which ledgers they have added. A run reads each list of these once.

Invariants
- The files of an attempt are in a table once at most; `uuid` in the names of files tells attempts of a ledger apart.
- The table never deletes files (`gc.enabled=false`): they are the archive's.
- The library does not repeat a commit by itself: it would not look again at what is in the table. Nor does it look for
  files that are there: it would read all of them at each commit.

The driver's main thread. pyiceberg is imported when a table is wanted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from bookie_protocol.archive import OffloadRecord
from bookie_protocol.errors import CouldNotTell
from bookie_protocol.extras import install_command
from bookie_protocol.shown import one_line
from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.framework.records import TakenOver
from pyspark_bookie.jobs.offload.cleaning import OffloadStore, Stored

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.table import Table

LEDGERS_AT_ONCE: Final = 200
"""Ledgers of one commit: as many as a property of the table can name."""
_TRIES: Final = 10
"""Commits of the same ledgers, should others change the table each time."""
_READ_AT_ONCE: Final = 16
TOKEN: Final = "podkeeper.commit-token"
LEDGERS: Final = "podkeeper.ledgers"
"""Property of a snapshot, and with the cluster's instance id behind it of the table: `7-<uuid>,9-<uuid>`."""
INSTANCE: Final = "podkeeper.instance-id"
_GC: Final = "gc.enabled"
_RETRIES: Final = "commit.retry.num-retries"
_LOGIN: Final = re.compile(r"//[^/@\s]+@")
"""User and password in a URI that a message quotes."""


class TableUnavailable(CouldNotTell):
    """The catalogue or the table cannot be reached, or does not take what is added."""


def open_catalog(name: str) -> Any:
    """The catalogue that pyiceberg's configuration has under this name. Raises `UsageError`, `TableUnavailable`."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise UsageError(
            f"--iceberg-table needs the Python package {error.name}, which is not installed:"
            f" {install_command('iceberg', 'pyiceberg')}"
        ) from None
    with _told(f"the catalogue {name}"):
        return load_catalog(name)


def check_identifier(text: str) -> str:
    """Return the name of a table with that of its namespace. Raises `UsageError`."""
    parts = text.split(".")
    if len(parts) < 2 or not all(part.strip() == part and part for part in parts):
        raise UsageError(f"--iceberg-table {one_line(text)}: it looks like NAMESPACE.TABLE")
    return text


class IcebergTable:
    """The table of one archive. `before_commit` is there for tests."""

    def __init__(
        self,
        store: OffloadStore,
        catalog: Any,
        identifier: str,
        target: str,
        instance_id: str,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._identifier = identifier
        self._target = target
        self._instance_id = instance_id
        self._before_commit = before_commit
        self._content: _Content | None = None

    def missing(self, records: Mapping[int, OffloadRecord]) -> list[int]:
        """Return the archived ledgers that the table does not have yet; nothing is changed. Raises
        `TableUnavailable`."""
        table = self._existing()
        if table is None:
            return sorted(each for each, record in records.items() if self._is_here(record))
        wanted = [record for record in records.values() if self._is_wanted(record, table)]
        there = self._listed(table) | self._there(table, wanted)
        return sorted(record.ledger_id for record in wanted if (record.ledger_id, record.uuid) not in there)

    def commit(self, ledger_ids: Sequence[int]) -> int:
        """Add the archived ones of these ledgers that are not in the table, and return how many were added. Raises
        `UsageError`, `TableUnavailable`, `MetadataUnavailable`."""
        starts = range(0, len(ledger_ids), LEDGERS_AT_ONCE)
        return sum(self._commit(ledger_ids[start : start + LEDGERS_AT_ONCE]) for start in starts)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _commit(self, ledger_ids: Sequence[int]) -> int:
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(_TRIES):
            table = self._existing() or self._created()
            if table is None:
                continue  # another run was first: what it made is looked at
            self._mark(table, self._listed(table))
            records = self._store.read_all(ledger_ids)
            wanted = [record for _, record in sorted(records.items()) if self._is_wanted(record, table)]
            there = self._there(table, wanted)
            self._mark(table, there)
            wanted = [record for record in wanted if (record.ledger_id, record.uuid) not in there]
            if not wanted:
                return 0
            self._before_commit()
            try:
                with _told(f"the table {self._identifier}", CommitFailedException):
                    self._add(table, wanted)
            except CommitFailedException:
                continue  # another writer was first
            self._mark(table, {(record.ledger_id, record.uuid) for record in wanted})
            return len(wanted)
        raise TableUnavailable(f"the table {self._identifier} was changed by others {_TRIES} times; run the job again")

    def _existing(self) -> Table | None:
        with _told(f"the table {self._identifier}"):
            if not self._catalog.table_exists(self._identifier):
                return None
            table: Table = self._catalog.load_table(self._identifier)
        if table.properties.get(_GC, "true").lower() != "false":
            raise UsageError(
                f"--iceberg-table {self._identifier}: its maintenance may delete files, which are the archive's: set"
                f" its property {_GC}=false"
            )
        return table

    def _created(self) -> Table | None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        from pyspark_bookie.archive.writing import schema

        with _told(f"the table {self._identifier}"):
            self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
            try:
                table: Table = self._catalog.create_table(self._identifier, schema(), properties={_GC: "false"})
            except TableAlreadyExistsError:
                return None
        return table

    def _add(self, table: Table, records: Sequence[OffloadRecord]) -> None:
        names = ",".join(f"{record.ledger_id}-{record.uuid}" for record in records)
        token = hashlib.sha256(f"{self._instance_id}:{names}".encode()).hexdigest()[:32]
        paths = [path for record in records for path in _paths(record)]
        table.metadata.properties[_RETRIES] = "0"  # of this object alone
        with table.transaction() as transaction:
            transaction.set_properties({self._property: names})
            properties = {TOKEN: token, LEDGERS: names, INSTANCE: self._instance_id}
            transaction.add_files(paths, properties, check_duplicate_files=False)

    @property
    def _property(self) -> str:
        return f"{LEDGERS}.{self._instance_id}"

    def _listed(self, table: Table) -> set[tuple[int, str]]:
        """Ledgers and attempts of the last commit from this cluster."""
        return set(_attempts(table.properties.get(self._property, "")))

    def _there(self, table: Table, records: Sequence[OffloadRecord]) -> set[tuple[int, str]]:
        """Return those of these ledgers and attempts that the table has, or has had."""
        if not records:
            return set()
        if self._content is None or self._content.table_uuid != table.metadata.table_uuid:
            self._content = _Content(table.metadata.table_uuid, self._target, self._instance_id)
        with _told(f"the table {self._identifier}"):
            self._content.read(table)
        return {(record.ledger_id, record.uuid) for record in records if self._content.has(record)}

    def _is_here(self, record: OffloadRecord) -> bool:
        return record.state.is_archived and record.target == self._target

    def _is_wanted(self, record: OffloadRecord, table: Table) -> bool:
        return self._is_here(record) and str(table.metadata.table_uuid) not in record.tables

    def _mark(self, table: Table, attempts: set[tuple[int, str]]) -> None:
        """Write down that these are in the table."""
        table_uuid = str(table.metadata.table_uuid)
        for ledger_id, uuid in sorted(attempts):
            while (stored := self._marked_next(ledger_id, uuid, table_uuid)) is not None:
                try:
                    self._store.update(stored, stored.value.in_table(table_uuid))
                    break
                except TakenOver:
                    continue  # its deletion, or another run, changed it: look again

    def _marked_next(self, ledger_id: int, uuid: str, table_uuid: str) -> Stored | None:
        """Return the record, if it needs the mark."""
        stored = self._store.read(ledger_id)
        if stored is None or stored.value.uuid != uuid or table_uuid in stored.value.tables:
            return None
        return stored


class _Content:
    """The content of one table, as it grows: the paths of the archive that it refers to, and what its snapshots say
    that they have added, because a compaction puts other files in the place of these."""

    def __init__(self, table_uuid: UUID, target: str, instance_id: str) -> None:
        self.table_uuid = table_uuid
        self._below = target.rstrip("/") + "/"
        self._instance_id = instance_id
        self._read: set[int | str] = set()
        self._attempts: set[tuple[int, str]] = set()
        self._paths: set[str] = set()

    def read(self, table: Table) -> None:
        """Take in what is new in the table as it is now."""
        from pyiceberg.manifest import ManifestContent
        from pyiceberg.table.snapshots import ancestors_of

        now = table.current_snapshot()
        for snapshot in ancestors_of(now, table.metadata):
            if snapshot.snapshot_id in self._read:
                break
            self._read.add(snapshot.snapshot_id)
            if snapshot.summary is not None and snapshot.summary.get(INSTANCE) == self._instance_id:
                self._attempts.update(_attempts(snapshot.summary.get(LEDGERS) or ""))
        manifests = [
            each
            for each in (now.manifests(table.io) if now is not None else ())
            if each.content == ManifestContent.DATA and each.manifest_path not in self._read
        ]
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            for entries in pool.map(lambda each: each.fetch_manifest_entry(table.io), manifests):
                paths = (entry.data_file.file_path for entry in entries)
                self._paths.update(path for path in paths if path.startswith(self._below))
        self._read.update(each.manifest_path for each in manifests)

    def has(self, record: OffloadRecord) -> bool:
        is_said = (record.ledger_id, record.uuid) in self._attempts
        return is_said or not self._paths.isdisjoint(_paths(record))


def _paths(record: OffloadRecord) -> list[str]:
    return [f"{record.target.rstrip('/')}/{file.path}" for file in record.files]


def _attempts(names: str) -> Iterator[tuple[int, str]]:
    """The ledgers and attempts that `LEDGERS` names."""
    for name in filter(None, names.split(",")):
        number, _, uuid = name.partition("-")
        if number.isascii() and number.isdigit():
            yield int(number), uuid


@contextmanager
def _told(what: str, *passed: type[Exception]) -> Iterator[None]:
    """Failures of the library as one line; `passed` as they are."""
    try:
        yield
    except Exception as error:  # the library raises what its stores and catalogues raise
        if isinstance(error, (*passed, UsageError, MemoryError)):
            raise
        why = _LOGIN.sub("//...@", one_line(str(error) or type(error).__name__))
        raise TableUnavailable(f"{what} cannot be used: {why}; is pyiceberg's configuration right?") from None
