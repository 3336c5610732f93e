"""Transfers that are repeated: what a stream has had comes to it once, though it may have lost it since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bookie_client.streams import Streams
from bookie_client.streams.model import STREAM_KEY
from bookie_protocol.errors import Refused
from pyspark_bookie.archive.places import PLACE_KEY, PlacedLedger, StreamPlace
from pyspark_bookie.jobs.copy import _place
from pyspark_bookie.jobs.framework.ledgers import LedgerRow
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from tests.support.killing import Killed
from tests.support.ledger_shelf import LedgerShelf
from tests.unit.pyspark_bookie.jobs.transfer.stream_rig import (
    content,
    copy,
    lose,
    manifest_of,
    offload,
    publish,
    restore,
    without_places,
)

Job = Callable[..., JobResult]


@pytest.fixture(params=["restore", "unplaced", "copy", "copy by id"])
def job(request: pytest.FixtureRequest, shelf: LedgerShelf, tmp_path: Path) -> Job:
    """A job that adds all ledgers of stream `orders` to `again`."""
    target = f"file://{tmp_path}/archive"

    def run(*words: str) -> JobResult:
        if request.param == "copy":
            return copy(shelf, "--stream", "orders", *words)
        if request.param == "copy by id":
            return copy(shelf, "--ledgers", "1001-1099", *words)
        offload(shelf, target, "--stream", "orders")
        if request.param == "unplaced":
            without_places(shelf, target)
        return restore(shelf, [target], *words)

    return run


def entries(*ledger_ids: int) -> list[bytes]:
    return [b"%d/%d" % (each, entry) for each in ledger_ids for entry in range(2)]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_what_a_stream_has_lost_is_not_added_again_and_what_is_new_is(shelf: LedgerShelf, job: Job, lost: int) -> None:
    publish(shelf, 1001, 1002, 1003)
    assert job().counters["published"] == 3
    lose(shelf, lost)
    before = list(shelf.list())
    for _ in range(2):
        result = job()
        assert (result.exit, result.counters["already_there"], result.counters["written"]) == (JobExit.OK, 3, 0)
    assert job("--dry-run").counters["already_there"] == 3
    assert list(shelf.list()) == before
    publish(shelf, 1004, 1005)
    result = job()
    assert (result.exit, result.counters["written"], result.counters["selected"]) == (JobExit.OK, 2, 5)
    assert content(shelf) == entries(1001, 1002, 1003, 1004, 1005)[2 * lost :]
    assert manifest_of(shelf).end_ordinal == 10


def test_what_was_made_but_not_added_comes_behind_what_the_stream_has_lost(
    shelf: LedgerShelf, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that dies before it adds anything, between two losses."""
    publish(shelf, 1001, 1002)
    job()
    publish(shelf, 1003, 1004)
    with monkeypatch.context() as dying:
        dying.setattr(Streams, "publish", lambda *_, **__: (_ for _ in ()).throw(Killed("before the stream")))
        with pytest.raises(Killed):
            job()
    lose(shelf, 2)
    assert job().counters["written"] == 0
    assert content(shelf) == entries(1003, 1004)


@pytest.mark.parametrize("words", [("--name", "other"), ("--name", "other", "--ledgers", "1001")])
def test_what_is_unknown_of_an_emptied_stream_is_refused(
    shelf: LedgerShelf, tmp_path: Path, words: Sequence[str]
) -> None:
    publish(shelf, 1001, 1002)
    target = f"file://{tmp_path}/archive"
    offload(shelf, target)
    restore(shelf, [target])
    lose(shelf, 2)
    before = list(shelf.list())
    for is_placed in (True, False):
        if not is_placed:
            without_places(shelf, target)
        with pytest.raises(Refused, match="--order-by-id"):
            restore(shelf, [target], *words)
    assert list(shelf.list()) == before
    assert restore(shelf, [target], *words, "--order-by-id").exit is JobExit.OK
    assert content(shelf)[0] == b"1001/0"


def test_another_ledger_of_a_lost_ones_number_is_not_taken_for_it(shelf: LedgerShelf) -> None:
    publish(shelf, 1001, 1002)
    copy(shelf, "--stream", "orders")
    lose(shelf, 1)
    publish(shelf, 1003)
    lose(shelf, 1, "orders")
    shelf.put(1001, [b"1001/0", b"1001/1"], custom={STREAM_KEY: b"orders"}, created_ms=1_800_000_000_000)
    with pytest.raises(Refused, match="--name"):
        copy(shelf, "--ledgers", "1001-1003", "--order-by-id")


def test_a_gap_is_refused_between_two_copies_of_a_stream(shelf: LedgerShelf) -> None:
    """The stream has lost what the first copy had not got yet."""
    publish(shelf, 1001, 1002)
    copy(shelf, "--stream", "orders")
    publish(shelf, 1003, 1004)
    lose(shelf, 3, "orders")
    with pytest.raises(Refused, match="--allow-gaps"):
        copy(shelf, "--stream", "orders")
    assert content(shelf) == entries(1001, 1002)
    assert copy(shelf, "--stream", "orders", "--allow-gaps").counters["published"] == 1
    assert content(shelf) == entries(1001, 1002, 1004)


def test_an_open_ledger_of_a_stream_has_its_place(shelf: LedgerShelf) -> None:
    """Its writer died, a recovery has closed it, and the list does not know that yet."""
    shelf.put(1002, [b"a"])
    row, place = LedgerRow.of(shelf.metadata(1002)), StreamPlace("orders", 1, 0, 2)
    assert _place(row, PlacedLedger(place, None, None, None)) == place
    assert _place(row, PlacedLedger(place, 1, 1, None)) == place
    assert _place(row, PlacedLedger(place, 1, 2, None)) is None


def test_streams_become_one_in_the_order_in_which_they_are_named(shelf: LedgerShelf) -> None:
    publish(shelf, 1003, 1002)
    publish(shelf, 1001, stream="bills")
    for _ in range(2):
        assert copy(shelf, "--stream", "orders", "--stream", "bills").exit is JobExit.OK
    assert content(shelf) == entries(1003, 1002, 1001)


def test_a_restore_that_an_older_release_began_goes_on(shelf: LedgerShelf, tmp_path: Path) -> None:
    """Neither the archive nor what was restored had places."""
    target = f"file://{tmp_path}/archive"
    publish(shelf, 1001, 1002)
    offload(shelf, target)
    without_places(shelf, target, 1001, 1002)
    restore(shelf, [target])
    last = manifest_of(shelf).ledgers[-1].ledger_id
    assert PLACE_KEY not in shelf.metadata(last).custom_metadata
    publish(shelf, 1003)
    offload(shelf, target, "--stream", "orders")
    with pytest.raises(Refused, match="added"):
        restore(shelf, [target], "--ledgers", "1003")
    assert restore(shelf, [target]).exit is JobExit.OK
    assert content(shelf) == entries(1001, 1002, 1003)
