"""Streams that are archived and come back: what tests of their order and of repeated runs share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

from bookie_client.streams import Manifest, PublishedLedger, Streams
from bookie_client.streams.model import STREAM_KEY
from pyspark_bookie.archive.files import Files
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.framework.tasks import Outcome
from pyspark_bookie.jobs.offload.cleaning import OffloadStore
from pyspark_bookie.jobs.offload.job import _note_place, _offload
from pyspark_bookie.jobs.offload.machine import Offloader
from pyspark_bookie.jobs.transfer.machine import Transferrer
from pyspark_bookie.jobs.transfer.running import _transfer
from pyspark_bookie.jobs.transfer.sources import ClusterSource, OpenCluster
from tests.support.killing import Killed
from tests.support.ledger_shelf import LedgerShelf
from tests.unit.pyspark_bookie.jobs.rig import DriverContext, drive


class RunningContext(DriverContext):
    """The tasks of offload, restore and copy run here; a copy is one within the shelf. `dies_at`: the number of the
    task behind which the run dies."""

    def __init__(self, shelf: LedgerShelf, name: str, *words: str, dies_at: int | None = None) -> None:
        super().__init__(shelf, name, *words)
        self._dies_at = dies_at

    def run_tasks(self, function: object, items: object, access: object = None) -> Iterator[Any]:
        for number, item in enumerate(items):  # type: ignore[arg-type]
            yield Outcome(item, tuple(self._results(item)), None)
            if number == self._dies_at:
                raise Killed

    def _results(self, item: Any) -> Iterator[Any]:
        if hasattr(item, "places"):
            throttle = Throttle(None)
            is_copy = isinstance(item.source, ClusterSource)
            source = OpenCluster(self._shelf, None, throttle) if is_copy else item.source.open(throttle)
            transferrer = Transferrer(self._shelf, source, item.settings)
            ledgers = zip(item.ledger_ids, item.uuids, item.lives, item.places, strict=True)
            return (_transfer(transferrer, *each) for each in ledgers)
        offloader = Offloader(self._shelf, Files(item.settings.target, "--target"), item.settings, None, Throttle(None))
        run = _offload if hasattr(item, "instance_id") else _note_place
        return (run(offloader, *each) for each in zip(item.ledger_ids, item.listed, strict=True))


def put(shelf: LedgerShelf, *ledger_ids: int, stream: str = "orders") -> list[PublishedLedger]:
    for each in ledger_ids:
        shelf.put(each, [b"%d/0" % each, b"%d/1" % each], custom={STREAM_KEY: stream.encode()})
    return [PublishedLedger(each, 2, sum(map(len, shelf.payloads(each)))) for each in ledger_ids]


def publish(shelf: LedgerShelf, *ledger_ids: int, stream: str = "orders", replace: bool = False) -> None:
    ledgers = put(shelf, *ledger_ids, stream=stream)
    shelf.run(lambda client: Streams(client).create(stream, if_absent=True))
    shelf.run(lambda client: Streams(client).publish(stream, ledgers, replace=replace))


def offload(shelf: LedgerShelf, target: str, *words: str) -> JobResult:
    result = drive(RunningContext(shelf, "offload", "--target", target, *(words or ("--all",))))
    assert result.exit is JobExit.OK
    return result


def restore(shelf: LedgerShelf, sources: Sequence[str], *words: str, dies_at: int | None = None) -> JobResult:
    named = [word for source in sources for word in ("--source", source)]
    return drive(RunningContext(shelf, "restore", *named, "--to-stream", "again", *words, dies_at=dies_at))


def copy(shelf: LedgerShelf, *words: str) -> JobResult:
    return drive(RunningContext(shelf, "copy", "--to-metadata", "embedded://x", "--to-stream", "again", *words))


def manifest_of(shelf: LedgerShelf, stream: str = "again") -> Manifest:
    return shelf.run(lambda client: Streams(client).manifest(stream))


def content(shelf: LedgerShelf, stream: str = "again") -> list[bytes]:
    return [payload for ledger in manifest_of(shelf, stream).ledgers for payload in shelf.payloads(ledger.ledger_id)]


def lose(shelf: LedgerShelf, count: int, stream: str = "again") -> None:
    """Take the oldest ledgers out of a stream, as retention does, and delete them."""
    manifest = manifest_of(shelf, stream)
    before = manifest.position_at(sum(each.entries or 0 for each in manifest.ledgers[:count]) + manifest.base_ordinal)
    shelf.run(lambda client: Streams(client).truncate(stream, before))
    assert len(manifest_of(shelf, stream).ledgers) == len(manifest.ledgers) - count


def manifests_in(target: str) -> list[Path]:
    return list(Path(target.removeprefix("file://")).glob("_manifests/*"))


def without_places(shelf: LedgerShelf, target: str, *ledger_ids: int) -> None:
    """Make the archive, and the records of these ledgers, as releases wrote them that noted no places."""
    for path in manifests_in(target):
        row = json.loads(path.read_bytes())
        row.pop("place", None)
        path.write_text(json.dumps(row))
    store = OffloadStore(shelf)
    for each in ledger_ids:
        stored = store.read(each)
        assert stored is not None
        store.update(stored, with_fields(stored.value, is_placed=False))


def name_by_number(target: str) -> None:
    """Name the manifests of an archive as the oldest releases did."""
    for path in manifests_in(target):
        path.rename(path.with_name("-".join(path.name.split("-")[:2]) + ".json"))
