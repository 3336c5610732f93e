"""An entry that was found without a row, and gets none yet, is not denied: its ledger is in limbo until compared."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.entry_log.format import encode_header
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.index.index_file import SLOT_BYTES, relative_path, slot_offset
from bookie_pod.storage.index.ledger_cache.seal import NAME as FILES_SEAL
from bookie_pod.storage.index.ledger_cache.seal import IndexFilesSeal
from bookie_pod.storage.index.locations import KEY
from bookie_pod.storage.integrity import lost_rows, scrub_part
from bookie_pod.storage.integrity.lost_rows import LostRows
from bookie_pod.storage.integrity.scrub_part import ScrubPhase, ScrubStateFile
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import LedgerStateUnknown, NotThere, StorageFault
from tests.support.memory_files import Died, MemoryFiles
from tests.support.scrub_rig import ScrubRig, rig_of, signed
from tests.support.storage_engine import put

LEDGER, ENTRIES, LOST = 3, 5, 4
KINDS = pytest.mark.parametrize("kind", ["db", "sorted", "interleaved"])


def _rig(kind: str, digest: DigestType, *, sealed: bool = False) -> ScrubRig:
    """The row of the last entry is lost, and nothing tells of it; with `sealed` the index seems to be complete."""
    rig = rig_of(kind)
    rig.digests.default = digest
    put(rig.storage, *(signed(LEDGER, each, 100, digest) for each in range(ENTRIES)))
    rig.storage.flush()
    rig.part.logs.rotate()
    rig.part.logs.sync()
    rig.storage.flush()
    if isinstance(rig.storage, DbLedgerStorage):
        batch = rig.storage.directories[0].locations._store.batch()
        batch.delete(KEY.pack(LEDGER, LOST))
        batch.commit()
        rig.restart()
    else:
        rig.storage.close()
        folder = rig.bookie.directories[0]
        rig.files.unlink(f"{folder}/{FILES_SEAL}")
        if sealed:
            page_bytes = rig.bookie.options.sorted_storage.page_size_bytes
            seal = IndexFilesSeal(rig.files, [folder], page_bytes)
            seal.note(LEDGER, slot_offset(0), is_new=True)
            seal.renew([folder])
            seal.close()
        rig.files.corrupt(f"{folder}/{relative_path(LEDGER)}", slot_offset(LOST), bytes(SLOT_BYTES))
        rig.open()
    return rig


def _check_unknown(rig: ScrubRig) -> None:
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(LEDGER, LOST)
    with pytest.raises(LedgerStateUnknown):
        rig.storage.last_entry_id(LEDGER)
    assert rig.storage.read(LEDGER, 0)


def _by_a_pass_that_began_in_the_middle(rig: ScrubRig, patch: pytest.MonkeyPatch) -> None:
    rig.scrub.position.location = 1


def _by_an_index_that_takes_no_row(rig: ScrubRig, patch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> bool:
        raise StorageFault("Input/output error")

    patch.setattr(CollectedStorage, "restore", refuse)


def _by_many_others_that_wait(rig: ScrubRig, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lost_rows, "MAX_WAITING", 0)


Cause = Callable[[ScrubRig, pytest.MonkeyPatch], None]


@KINDS
@pytest.mark.parametrize(
    "cause", [_by_a_pass_that_began_in_the_middle, _by_an_index_that_takes_no_row, _by_many_others_that_wait]
)
def test_what_is_kept_back_is_not_denied_by_this_process_or_the_next(
    kind: str, cause: Cause, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = _rig(kind, DigestType.MAC)
    with pytest.raises(NotThere):
        rig.storage.read(LEDGER, LOST)  # nobody knows better yet
    cause(rig, monkeypatch)
    rig.scrub.position.phase = ScrubPhase.LOGS
    rig.scrub._check()
    _check_unknown(rig)
    rig.storage.close()
    rig.open()
    _check_unknown(rig)
    rig.storage.close()


@KINDS
def test_an_entry_of_which_it_is_unknown_whether_it_was_synced_is_not_denied(kind: str) -> None:
    rig = _rig(kind, DigestType.CRC32C)
    put(rig.storage, signed(1, 9))
    rig.storage.flush()
    log_id = max(rig.part.logs.log_ids()) + 1
    rig.storage.close()
    behind = signed(LEDGER, ENTRIES)
    records = b"".join(len(each).to_bytes(4, "big") + each for each in (signed(1, 0, 50, DigestType.MAC), behind))
    rig.files.write_bytes_synced(f"{rig.bookie.directories[0]}/{log_id:x}.log", encode_header() + records)
    rig.open()
    rig.digests.digests[1] = None
    rig.run()
    for ledger_id, entry_id in ((1, 0), (LEDGER, ENTRIES)):
        with pytest.raises(LedgerStateUnknown):
            rig.storage.read(ledger_id, entry_id)
    assert rig.storage.doubts
    rig.storage.close()


@KINDS
@pytest.mark.parametrize("digest", [DigestType.MAC, DigestType.CRC32C])
def test_an_index_that_has_lacked_a_row_is_not_known_to_be_complete(kind: str, digest: DigestType) -> None:
    rig = _rig(kind, digest)
    told: list[int] = []
    storage = rig.storage
    owner = storage.directories[0] if isinstance(storage, DbLedgerStorage) else storage.cache
    withdraw = owner._seal.withdraw
    owner._seal.withdraw = lambda *ledger_id: (told.append(1), withdraw(*ledger_id))  # type: ignore[method-assign, assign]
    rig.run()
    assert told
    assert storage.read(LEDGER, LOST) == signed(LEDGER, LOST, 100, digest)
    assert isinstance(storage, DbLedgerStorage | MemTableStorage)
    storage.close()


def _is_complete(files: MemoryFiles, rig: ScrubRig) -> bool:
    """What the seals on these disks say."""
    if isinstance(rig.storage, DbLedgerStorage):
        return rig.storage.directories[0].is_index_complete
    folder = rig.bookie.directories[0]
    file = files.open(f"{folder}/{relative_path(LEDGER)}")
    try:
        return IndexFilesSeal(files, [folder]).is_complete(LEDGER, file)
    finally:
        file.close()


@KINDS
def test_wherever_the_power_goes_no_row_is_back_in_an_index_that_counts_as_complete(kind: str) -> None:
    after = set()
    for at in range(100):
        rig = _rig(kind, DigestType.CRC32C, sealed=True)
        rig.bookie.faults.die_at(rig.bookie.faults.mutations + at)
        try:
            rig.scrub.run()
        except Died:
            later = ScrubRig(rig.bookie.crash(random.Random(at)))
            after.add((later.part.location_of(LEDGER, LOST) != 0, _is_complete(later.files, later)))
            later.storage.close()
        else:
            rig.storage.close()
            assert after == {(False, True), (False, False), (True, False)}
            return
    raise AssertionError("the pass never came to its end")


@KINDS
def test_wherever_the_power_goes_no_position_is_stored_before_the_limbo_behind_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_part, "SAVE_S", 0.0)
    after = set()
    for at in range(100):
        rig = _rig(kind, DigestType.MAC)
        monkeypatch.setattr(LostRows, "finish", lambda self, all_seen: None)
        (log_id,) = [each for each in rig.part.logs.log_ids() if rig.part.logs.is_closed(each)]
        places = {entry_id: location for location, _, entry_id, _ in rig.part.logs.scan(log_id)}
        rig.bookie.faults.die_at(rig.bookie.faults.mutations + at)
        try:
            rig.scrub.run()
        except Died:
            later = ScrubRig(rig.bookie.crash(random.Random(at)))
            position = ScrubStateFile(later.files, later.bookie.directories[0]).read().position
            record = later.storage.ledger(LEDGER)
            assert record is not None
            passed = position.phase is ScrubPhase.INDEX or position.location >= places[LOST]
            after.add((passed, record.limbo))
            later.storage.close()
        else:
            rig.storage.close()
            assert (True, True) in after
            assert (True, False) not in after
            return
    raise AssertionError("the pass never came to its end")


@KINDS
def test_limbo_that_the_end_of_the_logs_brings_is_durable_behind_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = _rig(kind, DigestType.MAC)
    finish = LostRows.finish

    def behind_a_comparison(rows: LostRows, *, all_seen: bool) -> None:
        record = rig.storage.ledger(LEDGER)
        assert record is not None
        assert record.limbo
        rig.storage.set_ledger(LEDGER, replace(record, limbo=False))
        rig.storage.flush()
        _by_an_index_that_takes_no_row(rig, monkeypatch)
        finish(rows, all_seen=all_seen)

    monkeypatch.setattr(LostRows, "finish", behind_a_comparison)
    rig.scrub.position.phase = ScrubPhase.LOGS
    rig.scrub._check()
    later = ScrubRig(rig.bookie.restart())
    with pytest.raises(LedgerStateUnknown):
        later.storage.read(LEDGER, LOST)
    later.storage.close()


@KINDS
def test_an_entry_without_a_row_is_a_doubt_though_its_ledger_is_in_limbo(kind: str) -> None:
    rig = _rig(kind, DigestType.MAC)
    before = rig.storage.doubts
    for number in (1, 2):
        rig.part.deny_nothing(LEDGER)
        assert rig.storage.doubts == before + number
    rig.storage.close()
