"""The ledger index of a directory that serves, rebuilt: what memory has is kept, lost ledgers come back fenced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.entry_log.format import SIZE_BYTES, split_location
from bookie_pod.storage.index.ledger_data import LedgerRecord, decode
from bookie_pod.storage.journal.directory import journal_path
from bookie_pod.storage.journal.format import deletion_record, explicit_lac_record, header_bytes, key_record
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import LedgerStateUnknown, MetadataDamaged, MetadataUnavailable, NoSuchLedger
from bookie_protocol.keys import NO_KEY, NO_LIFE, life_of_copies, master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.support.rebuild_rig import JOURNAL, RebuildRig
from tests.support.storage_engine import KEY, entry, put

LEDGERS = {"locations": False}
LAC = bytes(range(24))


def forget(rig: RebuildRig, *ledger_ids: int) -> None:
    """Lose rows of the ledger index, and start again."""
    rig.storage.flush()
    batch = rig.directory.ledgers._store.batch()
    for ledger_id in ledger_ids:
        batch.delete(ledger_id.to_bytes(8, "big"))
    batch.commit()
    rig.storage.close()
    rig.open()


def stored(rig: RebuildRig) -> dict[int, LedgerRecord]:
    rows = rig.directory.ledgers._store.scan(b"", b"\x80")
    return {int.from_bytes(key[:8], "big"): decode(value) for key, value in rows}


def journal(rig: RebuildRig, *records: list[bytes]) -> None:
    data = b"".join(piece for record in records for piece in record)
    rig.files.write_bytes_synced(journal_path(JOURNAL, 1), header_bytes(6) + data)


def change(storage: LedgerStorage, ledger_id: int, **changes: object) -> None:
    record = storage.ledger(ledger_id)
    assert record is not None
    storage.set_ledger(ledger_id, replace(record, **changes))  # type: ignore[arg-type]


def test_a_lost_ledger_comes_back_fenced_with_what_journals_know() -> None:
    rig = RebuildRig()
    rig.write([1, 2, 3], 5)
    forget(rig, 2, 3)
    journal(rig, key_record(2, KEY, life_of_copies(5)), explicit_lac_record(2, LAC))
    with pytest.raises(NoSuchLedger):
        rig.storage.read(2, 99)
    state = rig.rebuild(**LEDGERS)
    assert (state.ledgers, state.ledgers_restored, state.ledgers_without_key) == (3, 2, 1)
    expected = {1: LedgerRecord(KEY), 2: LedgerRecord(KEY, True, True, LAC), 3: LedgerRecord(b"", True, True)}
    assert stored(rig) == expected
    assert [stored(rig)[each].life for each in expected] == [NO_LIFE, life_of_copies(5), NO_LIFE]
    assert rig.storage.read(2, 4) == entry(2, 4, 100)
    assert rig.storage.read(3, 4) == entry(3, 4, 100)
    rig.restart()
    assert {each: rig.storage.ledger(each) for each in expected} == expected


def test_key_of_the_metadata_is_given_only_where_none_is_journaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without a password, which has a key of zeros, sent what is stored: it is not the ledger's."""
    rig = RebuildRig()
    rig.write([2, 3], 5)
    forget(rig, 2, 3)
    journal(rig, key_record(2, NO_KEY))
    read = rig.metadata.read

    def with_password(ledger_id: int) -> LedgerMetadata | None:
        found = read(ledger_id)
        return found and replace(found, password=b"pw", digest_type=DigestType.CRC32C)

    monkeypatch.setattr(rig.metadata, "read", with_password)
    assert rig.rebuild(**LEDGERS).ledgers_restored == 2
    assert {each: record.key for each, record in stored(rig).items()} == {2: NO_KEY, 3: master_key(b"pw")}


def test_what_journals_say_before_a_deletion_is_of_an_earlier_life() -> None:
    rig = RebuildRig()
    rig.write([1, 2, 3], 5)
    forget(rig, 2, 3)
    both = [key_record(2, b"1" * 20), explicit_lac_record(2, LAC), key_record(3, b"1" * 20)]
    journal(rig, *both, deletion_record(2, 7), deletion_record(3, 7), key_record(2, KEY))
    assert rig.rebuild(**LEDGERS).ledgers_restored == 2
    assert stored(rig)[2] == LedgerRecord(KEY, True, True)
    assert stored(rig)[3] == LedgerRecord(b"", True, True)
    assert [stored(rig)[each].first_log for each in (2, 3)] == [7, 7]


def test_what_memory_has_is_kept_whatever_the_database_and_the_journals_say() -> None:
    rig = RebuildRig()
    rig.write([1, 2], 5)
    change(rig.storage, 1, fenced=True, explicit_lac=LAC)
    rig.storage.flush()
    change(rig.storage, 2, fenced=True, limbo=True)  # not in the database yet
    batch = rig.directory.ledgers._store.batch()
    batch.delete((1).to_bytes(8, "big"))
    batch.commit()
    journal(rig, key_record(1, b"another key"), explicit_lac_record(1, bytes(24)))
    records = {each: rig.storage.ledger(each) for each in (1, 2)}
    state = rig.rebuild(**LEDGERS)
    assert state.ledgers_restored == 0
    assert stored(rig) == records
    assert rig.metadata.reads == 0, "only of what is lacking"


def test_changes_and_deletions_meanwhile_are_in_the_new_database() -> None:
    rig = RebuildRig()
    rig.write([1, 2, 3], 5)
    rig.directory.ledgers.set_flags(1)

    def act() -> None:
        rig.between = lambda: None
        change(rig.storage, 1, fenced=True)
        rig.storage.delete_ledger(2)
        put(rig.storage, entry(8, 0))
        rig.storage.flush()
        rig.directory.ledgers.set_flags(0)

    fill = rig.directory.ledgers.fill

    def fill_then_act(store: object) -> object:
        yield from fill(store)  # type: ignore[arg-type]
        act()

    rig.directory.ledgers.fill = fill_then_act  # type: ignore[method-assign,assignment]
    rig.rebuild(**LEDGERS)
    assert stored(rig) == {1: LedgerRecord(KEY, True), 3: LedgerRecord(KEY), 8: LedgerRecord(KEY)}
    assert rig.directory.ledgers.flags() == 0
    rig.restart()
    assert sorted(rig.storage.ledger_ids()) == [1, 3, 8]


def test_deleted_ledgers_and_those_of_others_are_not_resurrected() -> None:
    rig = RebuildRig()
    rig.write([1, 2, 3, 4], 5)
    rig.delete(2)  # the metadata service has no ledger 2, and the collection has removed it here
    rig.metadata.ledgers[3] = ("b2:3181",)
    rig.force()
    forget(rig, 3, 4)
    rig.metadata.ledgers[2] = None  # created again by somebody, with nothing of it here
    state = rig.rebuild(**LEDGERS)
    assert state.ledgers_restored == 1
    assert sorted(rig.storage.ledger_ids()) == [1, 4]
    assert sorted(stored(rig)) == [1, 4]


@pytest.mark.parametrize("doubt", ["down", "foreign", "unreadable"])
def test_a_metadata_service_that_cannot_tell_ends_it(doubt: str) -> None:
    rig = RebuildRig()
    rig.write([1, 2], 5)
    forget(rig, 2)
    if doubt == "unreadable":
        rig.metadata.unreadable.add(2)
    else:
        setattr(rig.metadata, doubt, True)
    with pytest.raises(MetadataDamaged if doubt == "foreign" else MetadataUnavailable):
        rig.rebuild(**LEDGERS)
    assert rig.storage.ledger_ids() == [1]
    assert rig.directory.doubt is None


def test_an_unknown_ledger_is_not_denied_meanwhile() -> None:
    rig = RebuildRig()
    rig.write([1, 2], 5)
    forget(rig, 2)
    asked = []

    def ask() -> None:
        if rig.storage.ledger(2) is None:
            with pytest.raises(LedgerStateUnknown):
                rig.storage.read(2, 99)
            asked.append(True)

    rig.between = ask
    rig.write([1], 3, first=5)
    journal(rig, key_record(7, KEY))
    rig.rebuild(**LEDGERS)
    assert asked
    assert rig.storage.read(2, 0) == entry(2, 0, 100)


def test_a_damaged_journal_is_told(tmp_path: Path) -> None:
    rig = RebuildRig()
    rig.write([1], 5)
    journal(rig, key_record(7, KEY))
    rig.files.write_bytes_synced(journal_path(JOURNAL, 2), b"no journal at all" * 100)
    state = rig.rebuild(**LEDGERS)
    assert len(state.journal_damages) == 1


def test_a_damaged_log_is_told_since_ledgers_may_lie_behind_the_damage() -> None:
    rig = RebuildRig()
    log_id = rig.write([1, 2], 1)
    rig.cut(log_id, split_location(rig.rows()[2, 0])[1] - SIZE_BYTES)
    forget(rig, 2)
    state = rig.rebuild(**LEDGERS)
    assert (state.ledgers_restored, len(state.damages)) == (0, 1)
    assert rig.path(log_id) in state.damages[0]
