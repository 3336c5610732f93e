"""An entry that lost its row gets it back, and the row leads to its best copy."""

from __future__ import annotations

import pytest

from bookie_pod.storage.entry_log.format import encode_header, split_location
from bookie_pod.storage.index.locations import KEY
from bookie_pod.storage.integrity import lost_rows
from bookie_pod.storage.integrity.quarantine import DamageKind
from bookie_pod.storage.integrity.scrub_part import ScrubPhase
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import EntryDamaged, LedgerStateUnknown, StorageFault
from tests.support.scrub_rig import ScrubRig, signed
from tests.support.storage_engine import MemoryBookie, put

LEDGER, ENTRIES = 3, 5
UNSEEN = pytest.mark.parametrize("digest", [DigestType.MAC, DigestType.DUMMY])
"""Digests that say nothing here about an entry."""


def _rig(digest: DigestType) -> ScrubRig:
    rig = ScrubRig(MemoryBookie.without_read_cache())
    rig.digests.default = digest
    _store(rig, *(signed(LEDGER, entry_id, 100, digest) for entry_id in range(ENTRIES)))
    return rig


def _store(rig: ScrubRig, *entries: bytes) -> None:
    put(rig.storage, *entries)
    rig.storage.flush()
    rig.part.logs.rotate()
    rig.part.logs.sync()
    rig.storage.flush()


def _leave_log(rig: ScrubRig, *entries: bytes) -> None:
    """A power cut leaves a log with these records."""
    log_id = max(rig.part.logs.log_ids()) + 1
    rig.storage.close()
    path = f"{rig.bookie.directories[0]}/{log_id:x}.log"
    records = b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)
    rig.files.write_bytes_synced(path, encode_header() + records)
    rig.open()


def _torn(entry: bytes) -> bytes:
    return entry[:-20] + bytes(20)


def _lose_row(rig: ScrubRig, entry_id: int) -> None:
    batch = rig.storage.directories[0].locations._store.batch()  # type: ignore[union-attr]
    batch.delete(KEY.pack(LEDGER, entry_id))
    batch.commit()
    rig.restart()


@UNSEEN
def test_the_copy_of_the_replay_gets_the_row_and_not_the_torn_one_before(digest: DigestType) -> None:
    rig = _rig(digest)
    entry = signed(LEDGER, ENTRIES, 100, digest)
    _leave_log(rig, _torn(entry))
    _store(rig, entry)
    _lose_row(rig, ENTRIES)
    assert rig.run() == []
    assert rig.storage.read(LEDGER, ENTRIES) == entry
    assert rig.scrub.counts.restored == 1
    rig.storage.close()


@UNSEEN
def test_a_torn_copy_behind_a_whole_one_does_not_get_the_row(digest: DigestType) -> None:
    rig = _rig(digest)
    entry = signed(LEDGER, 2, 100, digest)
    _leave_log(rig, _torn(entry))
    _lose_row(rig, 2)
    assert rig.run() == []
    assert rig.storage.read(LEDGER, 2) == entry
    rig.storage.close()


def test_a_good_copy_behind_a_rotten_one_gets_the_row() -> None:
    rig = _rig(DigestType.CRC32C)
    entry = signed(LEDGER, 2)
    path, position = rig.place(LEDGER, 2)
    _store(rig, entry)
    rig.flip(path, position + 50)
    _lose_row(rig, 2)
    assert rig.run() == []
    assert rig.storage.read(LEDGER, 2) == entry
    rig.storage.close()


def test_a_copy_that_waited_and_cannot_be_read_is_not_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = _rig(DigestType.MAC)
    location = rig.part.location_of(LEDGER, 2)
    _lose_row(rig, 2)
    read = rig.part.logs.read

    def fail(at: int, ledger_id: int, entry_id: int) -> bytes:
        if at == location:
            raise StorageFault("Input/output error")
        return read(at, ledger_id, entry_id)

    monkeypatch.setattr(rig.part.logs, "read", fail)
    assert [(each.ledger_id, each.entry_id) for each in rig.run()] == [(LEDGER, 2)]
    assert rig.part.location_of(LEDGER, 2) == location
    monkeypatch.undo()
    assert rig.run() == []
    assert rig.storage.read(LEDGER, 2) == signed(LEDGER, 2, 100, DigestType.MAC)
    rig.storage.close()


def test_a_pass_that_did_not_see_all_logs_gives_no_row_to_a_doubtful_copy() -> None:
    rig = _rig(DigestType.MAC)
    entry = signed(LEDGER, 2, 100, DigestType.MAC)
    _leave_log(rig, _torn(entry))
    _lose_row(rig, 2)
    first_log = split_location(rig.part.location_of(LEDGER, 0))[0]
    rig.scrub.position.log_id, rig.scrub.position.location = first_log + 1, 0
    rig.scrub.position.phase = ScrubPhase.LOGS
    rig.scrub._check()
    assert rig.part.location_of(LEDGER, 2) == 0
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(LEDGER, 2)
    rig.restart()
    for _ in range(2):  # the rest of that pass, and one of all logs
        rig.run()
    assert rig.storage.read(LEDGER, 2) == entry
    rig.storage.close()


def test_entries_that_wait_are_bounded_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_rows, "MAX_WAITING", 2)
    rig = _rig(DigestType.MAC)
    for entry_id in range(ENTRIES):
        _lose_row(rig, entry_id)
    restored = []
    for _ in range(3):
        rig.run()
        restored.append((rig.scrub.counts.restored, rig.scrub.counts.faults))
    assert restored == [(2, 1), (2, 1), (1, 0)]
    assert [rig.storage.read(LEDGER, at) for at in range(ENTRIES)] == [
        signed(LEDGER, at, 100, DigestType.MAC) for at in range(ENTRIES)
    ]
    rig.storage.close()


def _good_copy_in_a_later_log(rig: ScrubRig, *, behind: tuple[bytes, ...] = ()) -> tuple[bytes, int, int]:
    """A rotten copy and a good one of an entry without a row: the entry, and the logs of both."""
    entry = signed(LEDGER, 2)
    path, position = rig.place(LEDGER, 2)
    old = split_location(rig.part.location_of(LEDGER, 2))[0]
    _store(rig, *behind, entry)
    good = split_location(rig.part.location_of(LEDGER, 2))[0]
    rig.flip(path, position + 50)
    _lose_row(rig, 2)
    return entry, old, good


def _row_log(rig: ScrubRig) -> int:
    return split_location(rig.part.location_of(LEDGER, 2))[0]


def _fail_scan(rig: ScrubRig, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    scan = rig.part.logs.scan

    def fail(log_id: int) -> object:
        if log_id == failing:
            raise StorageFault("Input/output error")
        return scan(log_id)

    monkeypatch.setattr(rig.part.logs, "scan", fail)


def test_a_log_that_failed_once_counts_as_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = _rig(DigestType.CRC32C)
    entry, _, good = _good_copy_in_a_later_log(rig)
    _fail_scan(rig, monkeypatch, good)
    assert DamageKind.LOG in [each.kind for each in rig.run()]
    assert _row_log(rig) == 0  # the rotten copy did not get it
    monkeypatch.undo()
    assert rig.run() == []
    assert rig.storage.read(LEDGER, 2) == entry
    rig.storage.close()


def test_a_log_that_keeps_failing_does_not_let_its_entries_be_denied_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = _rig(DigestType.CRC32C)
    entry, old, good = _good_copy_in_a_later_log(rig)
    _fail_scan(rig, monkeypatch, good)
    rig.run()
    rig.run()
    assert _row_log(rig) == old
    with pytest.raises(EntryDamaged):
        rig.storage.read(LEDGER, 2)
    assert good in rig.scrub.register.held_logs()  # garbage collection leaves the good copy there
    monkeypatch.undo()
    rig.run()
    assert _row_log(rig) == good
    assert rig.run() == []
    assert rig.storage.read(LEDGER, 2) == entry
    rig.storage.close()


def test_a_log_with_damaged_framing_counts_as_not_seen_until_its_damage_lasts() -> None:
    rig = _rig(DigestType.CRC32C)
    entry, old, good = _good_copy_in_a_later_log(rig, behind=(signed(1, 0),))
    path, position = rig.place(1, 0)
    size = rig.files.read_bytes(path)[position - 4 : position]
    rig.files.corrupt(path, position - 4, b"\x7f\xff\xff\xff")
    rig.run()
    assert _row_log(rig) == 0
    rig.run()
    assert _row_log(rig) == old
    rig.files.corrupt(path, position - 4, size)
    rig.run()
    assert _row_log(rig) == good
    assert rig.run() == []
    assert rig.storage.read(LEDGER, 2) == entry
    rig.storage.close()


def test_a_log_of_which_it_is_unknown_what_was_synced_counts_as_not_seen() -> None:
    rig = _rig(DigestType.CRC32C)
    _store(rig, signed(1, 0))
    entry = signed(LEDGER, 2)
    path, position = rig.place(LEDGER, 2)
    _leave_log(rig, signed(1, 5, 100, DigestType.MAC), entry)
    rig.digests.digests[1] = None
    rig.flip(path, position + 50)
    _lose_row(rig, 2)
    for _ in range(2):
        rig.run()
        assert _row_log(rig) == 0
    rig.digests.digests[1] = DigestType.MAC
    rig.restart()  # the answer "unknown" is remembered for a while
    assert rig.run() == []
    assert rig.storage.read(LEDGER, 2) == entry
    rig.storage.close()


def test_a_good_copy_of_an_earlier_life_does_not_take_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = _rig(DigestType.CRC32C)
    _store(rig, signed(LEDGER, 2))
    path, position = rig.place(LEDGER, 2)
    newer = _row_log(rig)
    rig.flip(path, position + 50)
    monkeypatch.setattr(rig.part, "is_earlier_life", lambda ledger_id, log_id: log_id < newer)
    for _ in range(2):
        assert [(each.ledger_id, each.entry_id) for each in rig.run()] == [(LEDGER, 2)]
        assert _row_log(rig) == newer
    rig.storage.close()
