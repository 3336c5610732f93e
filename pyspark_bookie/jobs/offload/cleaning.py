"""Offload records in the metadata service, by ledger id; what dead attempts have left in an archive, and its removal.

Two ways lead to it. Attempts that a record remembers are removed by name, at once. What no record remembers is found by
a listing, and removed only when it is old: until then its writer may live.

Invariants
- A manifest is removed before the files that it names; files that a manifest names are never removed.

Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from bookie_protocol.archive import KIND, Abandoned, OffloadRecord
from bookie_protocol.versioned import Versioned
from pyspark_bookie.archive.files import Files, Listed
from pyspark_bookie.archive.manifest import (
    DATA,
    TEMPORARY,
    data_file,
    manifest_file,
    parse_data_file,
    temporary_folder,
)
from pyspark_bookie.archive.reading import archived_ledgers, manifest_at, read_manifest
from pyspark_bookie.jobs.framework.records import JobRecords
from pyspark_bookie.jobs.framework.records import TakenOver as TakenOver

if TYPE_CHECKING:
    from bookie_client.blocking import BlockingClient

Stored = Versioned[OffloadRecord]


class OffloadStore(JobRecords[OffloadRecord]):
    """The records of `offload`, by a client that is the caller's."""

    def __init__(self, client: BlockingClient) -> None:
        super().__init__(client, KIND, OffloadRecord.decode)

    def read(self, ledger_id: int) -> Stored | None:
        """None: there is no record. Raises `MetadataUnavailable`, `MetadataDamaged`."""
        return self.find(str(ledger_id))

    def current_uuid(self, ledger_id: int) -> str | None:
        """The attempt that a ledger's record names; None: there is no record. Raises as `read`."""
        stored = self.read(ledger_id)
        return None if stored is None else stored.value.uuid

    def ledger_ids(self) -> list[int]:
        """Return the ledgers of all records, ascending."""
        return sorted(int(key) for key in self.keys() if key.isascii() and key.isdigit())

    def read_all(self, ledger_ids: Sequence[int]) -> dict[int, OffloadRecord]:
        """Return the records of those of these ledgers that have one. Raises as `read`."""
        return {int(key): record for key, record in self.find_all([str(each) for each in ledger_ids]).items()}


def remove_attempt(files: Files, ledger_id: int, attempt: Abandoned) -> None:
    """Remove everything of an attempt that was given up."""
    if read_manifest(files, ledger_id, attempt.uuid) is not None:
        files.delete(manifest_file(ledger_id, attempt.uuid))
        named_by_number = manifest_at(files, ledger_id, None)
        if named_by_number is not None and named_by_number.uuid == attempt.uuid:
            files.delete(manifest_file(ledger_id, None))  # only older versions wrote these
    part = 0
    while files.size(path := f"{attempt.folder}/{data_file(ledger_id, attempt.uuid, part)}") is not None:
        files.delete(path)
        part += 1
    files.delete_folder(temporary_folder(attempt.uuid))


@dataclass(frozen=True, slots=True)
class Orphans:
    """Files that no record refers to."""

    files: tuple[Listed, ...]

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


def find_orphans(files: Files, before: datetime, current_uuid: Callable[[int], str | None]) -> Orphans:
    """Files written before a moment that no manifest names, and whose attempt is not the current one of its ledger.
    `current_uuid`: of the ledger's record, or None. What has no date is kept. The archive is this cluster's."""
    found: list[Listed] = []
    manifests = archived_ledgers(files)
    for listed in _old(files.list(TEMPORARY), before):
        uuid = listed.path.split("/")[1]
        told = parse_data_file(listed.path.rpartition("/")[2])
        if told is None or current_uuid(told[0]) != uuid:
            found.append(listed)
    for listed in _old(files.list(DATA), before):
        told = parse_data_file(listed.path.rpartition("/")[2])
        if told is None or told[1] in (attempts := manifests.get(told[0], [])) or current_uuid(told[0]) == told[1]:
            continue
        if None not in attempts or read_manifest(files, *told) is None:
            found.append(listed)
    return Orphans(tuple(found))


def remove_orphans(files: Files, orphans: Orphans) -> None:
    """Remove what `find_orphans` found, and temporary folders that are empty then."""
    for listed in orphans.files:
        files.delete(listed.path)
    left = {listed.path.split("/")[1] for listed in files.list(TEMPORARY)}
    for uuid in {listed.path.split("/")[1] for listed in orphans.files if listed.path.startswith(f"{TEMPORARY}/")}:
        if uuid and uuid not in left:
            files.delete_folder(temporary_folder(uuid))


def _old(listing: Iterable[Listed], before: datetime) -> Iterable[Listed]:
    return (listed for listed in listing if listed.modified is not None and listed.modified < before)
