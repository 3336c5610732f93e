"""A ledger from one shelf to another: killed at every side effect, raced, and where its id is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie_client import Client
from bookie_client.streams import PublishedLedger, Streams, StreamSettings
from bookie_client.streams.model import GOING_KEY, STREAM_KEY
from bookie_protocol.errors import (
    BadRequest,
    EntryDamaged,
    LedgerNotClosed,
    MetadataUnavailable,
    NoSuchLedger,
    Refused,
    Unauthorized,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.framework.records import TakenOver
from pyspark_bookie.jobs.restore import RestoreArguments
from pyspark_bookie.jobs.transfer.machine import (
    Stored,
    TransferFate,
    Transferrer,
    TransferSettings,
    transfer_records,
)
from pyspark_bookie.jobs.transfer.record import TRANSFER_KEY, TransferRecord
from pyspark_bookie.jobs.transfer.sources import OpenCluster
from tests.support.killing import Dying, Killed, KillSwitch
from tests.support.ledger_shelf import LedgerShelf

PAYLOADS = [b"first", b"", b"x" * 1000, b"\0\xff", b"", b"last"]
EFFECTS = frozenset({"create", "update", "delete", "close_ledger", "submit_many"})


@pytest.fixture
def source(tmp_path: Path) -> Iterator[LedgerShelf]:
    with LedgerShelf(tmp_path / "source") as made:
        yield made


@pytest.fixture
def target(tmp_path: Path) -> Iterator[LedgerShelf]:
    with LedgerShelf(tmp_path / "target") as made:
        yield made


def transferrer(
    source: LedgerShelf,
    target: LedgerShelf,
    switch: KillSwitch | None = None,
    *,
    keep_ids: bool = False,
    password: bytes | None = None,
    **settings: object,
) -> Transferrer:
    client, records = target, transfer_records(target)
    if switch is not None:
        client = Dying(target, switch, EFFECTS)  # type: ignore[assignment]
        records = Dying(records, switch, EFFECTS)  # type: ignore[assignment]
    opened = OpenCluster(source, password, Throttle(None))
    made = TransferSettings("t", keep_ids, **settings)  # type: ignore[arg-type]
    return Transferrer(client, opened, made, records=records)


def made_of(target: LedgerShelf, source_id: int) -> TransferRecord:
    found = transfer_records(target).find(f"t.{source_id}")
    assert found is not None
    return found.value


@pytest.mark.parametrize("keep_ids", [True, False])
def test_a_ledger_is_made_like_it_and_then_left_alone(source: LedgerShelf, target: LedgerShelf, keep_ids: bool) -> None:
    source.put(70, PAYLOADS, custom={"application": b"mine", "podkeeper/stream": b"orders"}, password=b"secret")
    fate, record = transferrer(source, target, keep_ids=keep_ids).transfer(70)
    assert fate is TransferFate.MADE
    assert record is not None
    assert (record.target_id == 70) is keep_ids
    assert target.payloads(record.target_id) == PAYLOADS
    metadata = target.metadata(record.target_id)
    assert (metadata.is_closed, metadata.last_entry_id, metadata.password) == (True, 5, b"secret")
    assert metadata.custom_metadata == {"application": b"mine", TRANSFER_KEY: record.tag}
    assert transferrer(source, target, keep_ids=keep_ids).transfer(70) == (TransferFate.ALREADY, record)
    assert list(target.list()) == [record.target_id]


@pytest.mark.parametrize("keep_ids", [True, False])
def test_killed_anywhere_the_next_run_completes_it(source: LedgerShelf, target: LedgerShelf, keep_ids: bool) -> None:
    source.put(1000, PAYLOADS)
    counting = KillSwitch()
    transferrer(source, target, counting, keep_ids=keep_ids).transfer(1000)
    assert counting.count >= 6
    for at in range(1, counting.count + 1):
        ledger_id = 1000 + at
        source.put(ledger_id, PAYLOADS)
        with pytest.raises(Killed):
            transferrer(source, target, KillSwitch(at), keep_ids=keep_ids).transfer(ledger_id)
        fate, record = transferrer(source, target, keep_ids=keep_ids).transfer(ledger_id)
        assert fate in (TransferFate.MADE, TransferFate.ALREADY)
        assert record is not None
        assert target.payloads(record.target_id) == PAYLOADS
    made = {made_of(target, 1000 + at).target_id for at in range(counting.count + 1)}
    assert set(target.list()) == made
    assert len(made) == counting.count + 1


def test_an_id_that_is_taken_is_told_and_left_alone(source: LedgerShelf, target: LedgerShelf) -> None:
    source.put(7, PAYLOADS)
    target.put(7, [b"another"])
    assert transferrer(source, target, keep_ids=True).transfer(7) == (TransferFate.EXISTS, None)
    assert target.payloads(7) == [b"another"]


def test_what_was_deleted_at_the_target_is_made_again(source: LedgerShelf, target: LedgerShelf) -> None:
    source.put(7, PAYLOADS)
    transferrer(source, target, keep_ids=True).transfer(7)
    target.delete(7)
    assert transferrer(source, target, keep_ids=True).transfer(7)[0] is TransferFate.MADE
    assert target.payloads(7) == PAYLOADS


def test_ledgers_that_cannot_be_taken_leave_nothing(source: LedgerShelf, target: LedgerShelf) -> None:
    source.put(7, [], state=LedgerState.OPEN)
    source.put(8, PAYLOADS)
    for ledger_id, password, error in ((7, None, LedgerNotClosed), (8, b"x", Unauthorized), (9, None, NoSuchLedger)):
        with pytest.raises(error, match=f"ledger {ledger_id}"):
            transferrer(source, target, password=password).transfer(ledger_id)
    assert list(target.list()) == []
    assert transfer_records(target).keys() == frozenset()


def test_a_source_that_fails_in_the_middle_leaves_no_ledger(source: LedgerShelf, target: LedgerShelf) -> None:
    source.put(7, PAYLOADS)
    batches = []

    def fail_at_the_second() -> None:
        batches.append(1)
        if len(batches) == 2:
            raise EntryDamaged("entry 3 of ledger 7 is damaged")

    source.before_batch = fail_at_the_second
    with pytest.raises(EntryDamaged):
        transferrer(source, target).transfer(7)
    assert list(target.list()) == []
    source.before_batch = lambda: None
    assert transferrer(source, target).transfer(7)[0] is TransferFate.MADE


def test_a_target_that_does_not_keep_what_is_written_is_told(
    source: LedgerShelf, target: LedgerShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put(7, PAYLOADS)
    keep = target.close_ledger

    def lose(ledger_id: int) -> None:
        target.payloads(ledger_id)[3] = b"\0\xfe"
        keep(ledger_id)

    monkeypatch.setattr(target, "close_ledger", lose)
    with pytest.raises(EntryDamaged, match="hold"):
        transferrer(source, target).transfer(7)
    assert list(target.list()) == []


def test_of_two_runs_one_goes_on(source: LedgerShelf, target: LedgerShelf) -> None:
    source.put(7, PAYLOADS)

    def another_run() -> None:
        source.before_batch = lambda: None
        assert transferrer(source, target).transfer(7)[0] is TransferFate.MADE

    source.before_batch = another_run
    with pytest.raises((TakenOver, NoSuchLedger)):
        transferrer(source, target).transfer(7)
    assert list(target.list()) == [made_of(target, 7).target_id]
    assert target.payloads(made_of(target, 7).target_id) == PAYLOADS


def test_a_run_that_looked_before_another_was_done_removes_nothing(source: LedgerShelf, target: LedgerShelf) -> None:
    source.put(7, PAYLOADS)
    first, late = transferrer(source, target), transferrer(source, target)
    update, find = first._records.update, late._records.find
    done: list[Stored] = []

    def complete(stored: Stored, record: TransferRecord) -> Stored:
        def look(key: str) -> Stored | None:
            found = find(key)
            if not done:
                done.append(update(stored, record))
            return found

        late._records.find = look  # type: ignore[method-assign]
        with pytest.raises(TakenOver):
            late.transfer(7)
        return done[0]

    first._records.update = complete  # type: ignore[method-assign]
    assert first.transfer(7)[0] is TransferFate.MADE
    assert list(target.list()) == [made_of(target, 7).target_id]


class Sleeps(LedgerShelf):
    """A client of a run that sleeps behind its first look at ledgers, until others have done their work."""

    def __init__(self, shelf: LedgerShelf, meanwhile: Callable[[], object]) -> None:
        self.__dict__ = {**shelf.__dict__, "meanwhile": [meanwhile]}

    def run(self, function: Callable[[Client], Any]) -> Any:
        found = super().run(function)
        if self.meanwhile:
            self.meanwhile.pop()()
        return found


def test_what_another_run_makes_under_the_id_is_not_removed(source: LedgerShelf, target: LedgerShelf) -> None:
    source.put(7, PAYLOADS)
    with pytest.raises(Killed):
        transferrer(source, target, KillSwitch(5), keep_ids=True).transfer(7)
    assert list(target.list()) == [7]
    late = transferrer(source, target, keep_ids=True)
    late._client = Sleeps(target, lambda: transferrer(source, target, keep_ids=True).transfer(7))
    assert late.transfer(7) == (TransferFate.EXISTS, None)
    assert target.payloads(7) == PAYLOADS
    assert target.metadata(7).custom_metadata[TRANSFER_KEY] == made_of(target, 7).tag


def test_one_of_which_nobody_was_told_that_it_is_complete_stays(source: LedgerShelf, target: LedgerShelf) -> None:
    """Another run may have listed it since."""
    source.put(7, PAYLOADS)
    first = transferrer(source, target)
    update = first._records.update

    def lost(stored: Stored, record: TransferRecord) -> Stored:
        update(stored, record)
        first._records.update = update  # type: ignore[method-assign]
        raise MetadataUnavailable("no answer")

    first._records.update = lost  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailable):
        first.transfer(7)
    assert transferrer(source, target).transfer(7)[0] is TransferFate.ALREADY
    assert target.payloads(made_of(target, 7).target_id) == PAYLOADS


def test_quorums_and_stream_of_the_new_ledgers(source: LedgerShelf, target: LedgerShelf) -> None:
    source.put(7, PAYLOADS)
    _, record = transferrer(source, target, ensemble=3, write_quorum=3, ack_quorum=2, stream="new").transfer(7)
    assert record is not None
    metadata = target.metadata(record.target_id)
    assert (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size) == (3, 3, 2)
    assert metadata.custom_metadata["podkeeper/stream"] == b"new"


def test_a_ledger_that_comes_back_is_its_streams(source: LedgerShelf, target: LedgerShelf) -> None:
    """A stream lists it, whose readers have found it in the archive so far."""
    for each in ("orders", "others"):
        target.run(lambda client, name=each: Streams(client).create(name, StreamSettings()))  # type: ignore[misc]
    target.put(7, PAYLOADS)
    ledgers = [PublishedLedger(7, len(PAYLOADS), sum(map(len, PAYLOADS)))]
    target.run(lambda client: Streams(client).publish("orders", ledgers))
    target.delete(7)
    source.put(7, PAYLOADS)
    assert transferrer(source, target, keep_ids=True).transfer(7)[0] is TransferFate.MADE
    with pytest.raises(BadRequest, match="orders's"):
        target.run(lambda client: Streams(client).publish("others", ledgers))


def test_a_copy_of_a_ledger_that_was_about_to_be_deleted_stays(source: LedgerShelf, target: LedgerShelf) -> None:
    source.put(7, PAYLOADS, custom={STREAM_KEY: b"orders", GOING_KEY: b""})
    _, record = transferrer(source, target, stream="copied").transfer(7)
    assert record is not None
    copy = PublishedLedger(record.target_id, len(PAYLOADS), sum(map(len, PAYLOADS)))
    target.run(lambda client: Streams(client).create("copied", StreamSettings()))
    assert target.run(lambda client: Streams(client).publish("copied", [copy])).is_new


def test_what_was_made_for_one_stream_is_refused_to_another(source: LedgerShelf, target: LedgerShelf) -> None:
    source.put(7, PAYLOADS)
    transferrer(source, target, stream="one").transfer(7)
    with pytest.raises(Refused, match=r"ledger 0 .*: .*--name"):
        transferrer(source, target, stream="two").transfer(7)
    assert transferrer(source, target, stream="one").transfer(7)[0] is TransferFate.ALREADY


def test_the_stream_is_part_of_the_transfers_name() -> None:
    def name(**to_stream: str) -> str:
        return RestoreArguments(metadata="embedded://x", source=("s",), **to_stream).settings("restore", "s").name

    assert len({name(), name(to_stream="one"), name(to_stream="two")}) == 3


@pytest.mark.parametrize(("first", "second"), [("monday", "friday"), ("", "")])
def test_another_ledger_of_the_number_at_the_source_is_not_taken_for_the_first(
    source: LedgerShelf, target: LedgerShelf, tmp_path: Path, first: str, second: str
) -> None:
    """As when two clusters are reached by one text, or the number was used again; nobody may be able to tell."""
    source.put(7, PAYLOADS)
    _, record = transferrer(source, target).transfer(7, life=first)
    assert record is not None
    with LedgerShelf(tmp_path / "elsewhere") as elsewhere:
        elsewhere.put(7, [payload[::-1] for payload in PAYLOADS])
        with pytest.raises(Refused, match=r"ledger 7, .*content"):
            transferrer(elsewhere, target).transfer(7, life=second)
    assert target.payloads(record.target_id) == PAYLOADS
    fate, known = transferrer(source, target).transfer(7, life="moved")
    assert (fate, known) == (TransferFate.ALREADY, replace(record, life="moved")), "the content is the same"


def test_records_survive_their_bytes() -> None:
    record = TransferRecord.decode(
        b'{"v": 1, "name": "t", "source_id": 7, "state": "WRITING", "target_id": 9, "uuid": "u", "counts": null}'
    )
    assert TransferRecord.decode(record.encode()) == record
