"""The order in which a stream gets archived ledgers back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie_client.streams import PublishedLedger, StreamPosition, Streams
from bookie_protocol.errors import Refused
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.manifest import manifest_file
from pyspark_bookie.archive.reading import archived_ledgers, manifest_at
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.export import Exporter
from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.framework.places import placed_ledgers
from pyspark_bookie.jobs.framework.result import JobExit
from pyspark_bookie.jobs.offload.cleaning import OffloadStore
from pyspark_bookie.jobs.transfer.dumps import Dumps
from pyspark_bookie.jobs.transfer.sources import OpenCluster
from tests.support.killing import Killed
from tests.support.ledger_shelf import LedgerShelf
from tests.unit.pyspark_bookie.jobs.rig import drive
from tests.unit.pyspark_bookie.jobs.transfer.stream_rig import (
    RunningContext,
    content,
    copy,
    manifests_in,
    name_by_number,
    offload,
    publish,
    put,
    restore,
    without_places,
)


@pytest.fixture
def archives(shelf: LedgerShelf, tmp_path: Path) -> list[str]:
    """Ledgers 1003, 1001, 1004 and 1002 of a stream, each in an archive of its own; named in the order of ids."""
    publish(shelf, 1003, 1001, 1004, 1002)
    made = [f"file://{tmp_path}/{each}" for each in (1001, 1002, 1003, 1004)]
    for target in made:
        offload(shelf, target, "--ledgers", target[-4:])
    return made


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_ledgers_come_back_in_the_order_of_their_stream(
    shelf: LedgerShelf, archives: list[str], order: list[int]
) -> None:
    """Whatever their ids are, and in whatever order the archives are named."""
    result = restore(shelf, [archives[each] for each in order])
    assert (result.exit, result.counters["published"]) == (JobExit.OK, 4)
    assert content(shelf) == content(shelf, "orders")
    assert restore(shelf, list(reversed(archives))).counters["already_there"] == 4
    assert content(shelf) == content(shelf, "orders")


def test_one_archive_of_a_whole_stream_comes_back_in_order(shelf: LedgerShelf, tmp_path: Path) -> None:
    publish(shelf, 1003, 1001, 1002)
    target = f"file://{tmp_path}/archive"
    offload(shelf, target, "--stream", "orders")
    restore(shelf, [target])
    assert content(shelf) == content(shelf, "orders")


@pytest.mark.parametrize("dies_at", range(4))
def test_a_restore_that_died_is_repeated_without_a_double_or_a_loss(
    shelf: LedgerShelf, archives: list[str], dies_at: int
) -> None:
    with pytest.raises(Killed):
        restore(shelf, archives, "--max-concurrent", "4", dies_at=dies_at)
    assert restore(shelf, archives).exit is JobExit.OK
    assert content(shelf) == content(shelf, "orders")


def test_a_gap_is_refused_before_anything_is_written(shelf: LedgerShelf, archives: list[str]) -> None:
    before = list(shelf.list())
    with pytest.raises(Refused, match="--allow-gaps"):
        restore(shelf, archives[:3])
    assert list(shelf.list()) == before
    assert restore(shelf, archives[:3], "--allow-gaps").counters["published"] == 3
    assert content(shelf)[::2] == [b"1003/0", b"1001/0", b"1002/0"]


def test_archives_may_be_restored_one_after_the_other_in_order_alone(shelf: LedgerShelf, archives: list[str]) -> None:
    first, second, third, fourth = (archives[each] for each in (2, 0, 3, 1))
    restore(shelf, [first])
    with pytest.raises(Refused, match="--allow-gaps"):
        restore(shelf, [third])
    restore(shelf, [second])
    for sources, words in (([first, second], ()), ([first], ("--name", "other"))):
        with pytest.raises(Refused, match="already"):
            restore(shelf, sources, *words)
    restore(shelf, [fourth, third])
    assert content(shelf) == content(shelf, "orders")


def test_what_a_stream_has_had_does_not_come_behind_what_it_has(shelf: LedgerShelf, archives: list[str]) -> None:
    shelf.run(lambda client: Streams(client).truncate("orders", StreamPosition(1001, 0)))
    with pytest.raises(Refused, match="already"):
        restore(shelf, [archives[2]], "--to-stream", "orders")


def test_two_archives_of_one_ledger_need_a_choice(shelf: LedgerShelf, archives: list[str], tmp_path: Path) -> None:
    store = OffloadStore(shelf)
    stored = store.read(1002)
    assert stored is not None
    store.delete(stored)
    offload(shelf, f"file://{tmp_path}/double", "--ledgers", "1002")
    sources = [*archives, f"file://{tmp_path}/double"]
    with pytest.raises(Refused, match="--uuid"):
        restore(shelf, sources)
    assert restore(shelf, sources, "--uuid", stored.value.uuid).exit is JobExit.OK
    assert content(shelf) == content(shelf, "orders")


def test_archives_that_name_manifests_by_number_alone_need_the_same_choice(
    shelf: LedgerShelf, archives: list[str], tmp_path: Path
) -> None:
    """As older versions named them: the uuid is in the manifest."""
    store = OffloadStore(shelf)
    stored = store.read(1002)
    assert stored is not None
    store.delete(stored)
    double = f"file://{tmp_path}/double"
    offload(shelf, double, "--ledgers", "1002")
    for target in (archives[1], double):
        name_by_number(target)
    with pytest.raises(Refused, match=f"uuid {stored.value.uuid}"):
        restore(shelf, [*archives, double])
    assert restore(shelf, [*archives, double], "--uuid", stored.value.uuid).exit is JobExit.OK
    assert content(shelf) == content(shelf, "orders")


def test_two_ledgers_with_the_same_entries_are_refused(shelf: LedgerShelf, archives: list[str]) -> None:
    files = Files(archives[0], "--source")
    (uuid,) = archived_ledgers(files)[1001]
    manifest = manifest_at(files, 1001, uuid)
    assert manifest is not None
    assert manifest.place is not None
    place = replace(manifest.place, ordinal=1)
    files.write(manifest_file(1001, manifest.uuid), replace(manifest, place=place).encode(), "_tmp/x/manifest.json")
    with pytest.raises(Refused, match="ledgers 1003 and 1001 "):
        restore(shelf, archives)


def test_ledgers_of_other_streams_or_of_what_was_overwritten_are_not_mixed(shelf: LedgerShelf, tmp_path: Path) -> None:
    publish(shelf, 1, 2)
    publish(shelf, 3, stream="bills")
    target = f"file://{tmp_path}/archive"
    offload(shelf, target)
    with pytest.raises(Refused, match="ledgers 1 and 3 "):
        restore(shelf, [target])
    publish(shelf, 4, replace=True)
    offload(shelf, target)
    with pytest.raises(Refused, match="ledgers 1 and 4 "):
        restore(shelf, [target], "--ledgers", "1,2,4")
    assert restore(shelf, [target], "--ledgers", "4").exit is JobExit.OK
    with pytest.raises(Refused, match="bills"):
        restore(shelf, [target], "--ledgers", "3")
    assert restore(shelf, [target], "--ledgers", "3", "--order-by-id").counters["published"] == 1
    assert content(shelf)[::2] == [b"4/0", b"3/0"]


def test_the_place_of_a_ledger_that_was_archived_first_and_published_later_is_noted(
    shelf: LedgerShelf, tmp_path: Path
) -> None:
    target = f"file://{tmp_path}/archive"
    ledgers = put(shelf, 1, 2, 3)
    shelf.run(lambda client: Streams(client).create("orders"))
    shelf.run(lambda client: Streams(client).publish("orders", ledgers[2:]))
    offload(shelf, target)
    with pytest.raises(Refused, match="2 of 3 ledgers"):
        restore(shelf, [target])
    assert restore(shelf, [target], "--placed-only", "--dry-run").counters["selected"] == 1
    shelf.run(lambda client: Streams(client).publish("orders", list(reversed(ledgers[:2]))))
    offload(shelf, target, "--stream", "orders")
    restore(shelf, [target])
    assert content(shelf)[::2] == [b"3/0", b"2/0", b"1/0"]


def test_places_are_noted_in_manifests_that_are_named_by_number_alone(shelf: LedgerShelf, tmp_path: Path) -> None:
    """Once, and in the manifest that is there."""
    target = f"file://{tmp_path}/archive"
    publish(shelf, 1002, 1001)
    offload(shelf, target)
    without_places(shelf, target, 1001, 1002)
    name_by_number(target)
    names = sorted(manifests_in(target))
    offload(shelf, target, "--stream", "orders")
    assert all(record.is_placed for record in OffloadStore(shelf).read_all([1001, 1002]).values())
    assert sorted(manifests_in(target)) == names
    restore(shelf, [target])
    assert content(shelf) == content(shelf, "orders")


def test_ledgers_of_an_archive_without_places_come_in_the_order_of_their_ids(
    shelf: LedgerShelf, archives: list[str]
) -> None:
    """As older versions wrote them."""
    for source in archives:
        without_places(shelf, source)
    restore(shelf, archives)
    assert content(shelf)[::2] == [b"1001/0", b"1002/0", b"1003/0", b"1004/0"]


def test_nothing_is_taken_by_its_id_where_only_placed_ledgers_are_wanted(shelf: LedgerShelf, tmp_path: Path) -> None:
    put(shelf, 1, 2, 3)
    target = f"file://{tmp_path}/archive"
    offload(shelf, target)
    with pytest.raises(Refused, match="--placed-only"):
        restore(shelf, [target], "--placed-only")
    assert restore(shelf, [target]).counters["published"] == 3


def test_a_place_is_that_of_the_ledger_that_was_listed_not_of_another_one_of_its_number(shelf: LedgerShelf) -> None:
    """The ledger went and is still listed, as `--keep-listed` leaves it; its number is another application's by now."""
    publish(shelf, 1002, 1001)
    shelf.delete(1001)
    shelf.put(1001, [b"foreign"])
    for words in (("--ledgers", "1001-1002"), ("--stream", "orders")):
        with pytest.raises(Refused, match=r"1 of 2 ledgers, .* 1001"):
            copy(shelf, *words)


@pytest.mark.parametrize("job", ["import", "copy"])
def test_dumps_and_copies_by_id_have_the_order_of_the_stream(shelf: LedgerShelf, tmp_path: Path, job: str) -> None:
    publish(shelf, 1003, 1001, 1002)
    source = OpenCluster(shelf, None, Throttle(None))
    exporter = Exporter(source, Dumps(Files(str(tmp_path), "--target")), "none")
    for ledger_id, listed in placed_ledgers(shelf, ["orders"], print).items():
        exporter.export(ledger_id, listed.entries, listed.nbytes, listed)
    words = {"import": ("--source", str(tmp_path)), "copy": ("--to-metadata", "embedded://x", "--ledgers", "1001-1003")}
    drive(RunningContext(shelf, job, *words[job], "--to-stream", "again"))
    assert content(shelf) == content(shelf, "orders")


def test_two_runs_at_once_do_not_both_add(
    shelf: LedgerShelf, archives: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one adds its ledgers between the look of this one and its change."""
    ordinary: Callable[..., Any] = Streams.publish
    rival: list[bool] = []

    async def publish(self: Streams, *args: Any, **named: Any) -> Any:
        if not rival:
            rival.append(True)
            ledgers = [PublishedLedger(9, 2, sum(map(len, shelf.payloads(9))))]
            await ordinary(self, "again", ledgers)
        return await ordinary(self, *args, **named)

    put(shelf, 9, stream="again")
    monkeypatch.setattr(Streams, "publish", publish)
    with pytest.raises(Refused, match="again"):
        restore(shelf, archives)


@pytest.mark.parametrize("sources", [[""], ["here", ""]])
def test_a_source_without_a_name_is_refused(shelf: LedgerShelf, sources: list[str]) -> None:
    """It would be the working directory."""
    with pytest.raises(UsageError, match="--source is"):
        restore(shelf, sources)


def test_what_is_about_the_order_of_a_stream_needs_one(shelf: LedgerShelf, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give --to-stream"):
        drive(RunningContext(shelf, "restore", "--source", str(tmp_path), "--allow-gaps"))
