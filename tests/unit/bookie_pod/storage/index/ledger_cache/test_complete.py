"""The seal says of a ledger that its rows are complete while that is proved, and no longer, whenever the power goes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.index.index_file import HEADER_BYTES, decode_header, encode_header, relative_path
from bookie_pod.storage.index.ledger_cache.seal import NAME, IndexFilesSeal
from bookie_pod.storage.index.ledger_data import LedgerRecord
from tests.support.index_rebuilds import leave_foreign_log
from tests.support.memory_files import Died, MemoryFiles
from tests.support.memtable_engine import ENGINES, MemTableBookie, memtable_options
from tests.support.storage_engine import KEY, entry, put

FOLDER = "/a"
SEAL = f"{FOLDER}/{NAME}"
HURT, SOUND = 5, 6
engines = pytest.mark.parametrize("engine", list(ENGINES))


def bookie_of(engine: str) -> MemTableBookie:
    return MemTableBookie(engine, [FOLDER], options=memtable_options(page_bytes=64))


def filled(engine: str) -> tuple[MemTableBookie, MemTableStorage]:
    """Two ledgers, all of it checkpointed."""
    bookie = bookie_of(engine)
    storage = bookie.open()
    storage.cache.end_replay()
    for ledger_id in (HURT, SOUND):
        put(storage, *(entry(ledger_id, each) for each in range(3)))
    storage.flush()
    return bookie, storage


def complete(files: MemoryFiles) -> set[int]:
    """What the seal on the disk, and the files, say."""
    seal = IndexFilesSeal(files, [FOLDER])
    found = set()
    for ledger_id in (HURT, SOUND):
        if files.exists(path := f"{FOLDER}/{relative_path(ledger_id)}"):
            file = files.open(path)
            if seal.is_complete(ledger_id, file):
                found.add(ledger_id)
            file.close()
    return found


def set_limbo(storage: MemTableStorage, *, limbo: bool) -> None:
    record = storage.ledger(HURT)
    assert record is not None
    storage.set_ledger(HURT, replace(record, limbo=limbo))


@engines
def test_ledgers_that_began_here_are_complete_in_every_later_process(engine: str) -> None:
    bookie, storage = filled(engine)
    for _ in range(3):
        assert complete(bookie.files) == {HURT, SOUND}
        storage.close()
        storage = bookie.open()
        put(storage, entry(HURT, 9))
        storage.flush()
    storage.close()


@engines
def test_a_file_of_which_only_an_older_seal_tells_is_not_known_to_be_complete(engine: str) -> None:
    bookie, storage = filled(engine)
    storage.close()
    older = IndexFilesSeal(bookie.files, [FOLDER], 64)
    older.check({each: bookie.files.size(f"{FOLDER}/{relative_path(each)}") for each in (HURT, SOUND)})
    older._complete.clear()
    older.note(SOUND, 1 << 10, [(0, b"\x07")])
    older._changed[SOUND] = {0}
    older.renew([FOLDER])
    for _ in range(2):
        assert complete(bookie.files) == set()
        storage = bookie.open()
        storage.cache.end_replay()
        put(storage, entry(HURT, 4))
        storage.flush()
        storage.close()


@engines
@pytest.mark.parametrize("name", [LedgerRecord(KEY, first_log=3), LedgerRecord(KEY)], ids=["ours", "another program's"])
def test_a_file_of_another_program_is_not_known_to_be_complete_and_what_a_crash_left_is(
    engine: str, name: LedgerRecord
) -> None:
    bookie, storage = filled(engine)
    storage.delete_ledger(HURT)
    storage.flush()
    storage.close()
    bookie.files.write_bytes_synced(f"{FOLDER}/{relative_path(HURT)}", encode_header(name))
    storage = bookie.open()
    storage.set_master_key(HURT, KEY)  # as the replay does
    put(storage, entry(HURT, 0))
    storage.cache.end_replay()
    storage.flush()
    assert complete(bookie.files) == ({HURT, SOUND} if name.first_log else {SOUND})
    storage.close()


@engines
def test_a_ledger_that_was_in_limbo_is_not_known_to_be_complete_whatever_comes_later(engine: str) -> None:
    bookie, storage = filled(engine)
    set_limbo(storage, limbo=True)
    storage.flush()
    set_limbo(storage, limbo=False)
    for _ in range(2):
        put(storage, entry(HURT, 9))
        storage.flush()
        assert complete(bookie.files) == {SOUND}
        storage.close()
        storage = bookie.open()
    storage.delete_ledger(HURT)
    put(storage, entry(HURT, 0))
    storage.flush()
    assert complete(bookie.files) == {HURT, SOUND}, "of its new life nothing is missing"
    storage.close()


def _limbo_that_comes_and_goes(storage: MemTableStorage) -> None:
    set_limbo(storage, limbo=True)
    set_limbo(storage, limbo=False)


def _row_that_is_missing(storage: MemTableStorage) -> None:
    storage.cache.may_lack_rows(HURT)
    set_limbo(storage, limbo=False)


@engines
@pytest.mark.parametrize("happens", [_limbo_that_comes_and_goes, _row_that_is_missing])
def test_wherever_the_power_goes_the_seal_has_withdrawn_before_a_header_tells_of_no_limbo(
    engine: str, happens: Callable[[MemTableStorage], None]
) -> None:
    after = set()
    for at in range(40):
        bookie, storage = filled(engine)
        record = storage.ledger(HURT)
        assert record is not None
        storage.set_ledger(HURT, replace(record, explicit_lac=bytes(16)))
        happens(storage)
        bookie.faults.die_at(bookie.faults.mutations + at)
        try:
            storage.flush()
        except Died:
            files = bookie.crash(random.Random(at)).files
            after.add((_told(files), HURT in complete(files)))
        else:
            assert (_told(bookie.files), complete(bookie.files)) == (True, {SOUND})
            assert after == {(False, True), (False, False), (True, False)}
            return
    raise AssertionError("the flush never came to its end")


def _told(files: MemoryFiles) -> bool:
    """Whether the header that was written behind the limbo is there."""
    decoded = decode_header(files.read_bytes(f"{FOLDER}/{relative_path(HURT)}")[:HEADER_BYTES])
    assert decoded is not None
    return decoded[1].explicit_lac is not None


def test_of_a_page_size_that_has_changed_nothing_is_known() -> None:
    files = _sealed()
    other = IndexFilesSeal(files, [FOLDER], 128)
    other.renew([FOLDER])
    assert _complete_in(IndexFilesSeal(files, [FOLDER], 64)) == {HURT}
    other.note(HURT, 1 << 11)
    other.renew([FOLDER])
    assert _complete_in(other) == _complete_in(IndexFilesSeal(files, [FOLDER], 128)) == set()


def _sealed() -> MemoryFiles:
    files = MemoryFiles()
    files.makedirs(FOLDER)
    files.makedirs("/b")
    seal = IndexFilesSeal(files, [FOLDER], 64)
    seal.note(HURT, 1088, [(0, b"\x01")], is_new=True)
    seal.renew([FOLDER])
    return files


def _complete_in(seal: IndexFilesSeal) -> set[int]:
    files = MemoryFiles()
    files.makedirs("/file")
    files.write_bytes("/file/long", bytes(1024) + b"\xff" * 4096)
    file = files.open("/file/long")
    return {each for each in (HURT, SOUND) if seal.is_complete(each, file)}


def test_a_seal_beside_a_damaged_one_proves_nothing() -> None:
    files = _sealed()
    assert _complete_in(IndexFilesSeal(files, [FOLDER, "/b"], 64)) == {HURT}
    files.write_bytes(f"/b/{NAME}", b"PKSEAL05 and no more")
    seal = IndexFilesSeal(files, [FOLDER, "/b"], 64)
    assert seal.check({HURT: 1088, SOUND: 1024}) == []
    assert _complete_in(seal) == set()
    assert list(seal.never_durable) == []


def test_a_torn_tail_takes_back_nothing_that_was_proved() -> None:
    files = _sealed()
    seal = IndexFilesSeal(files, [FOLDER], 64)
    seal.note(SOUND, 1088, is_new=True)
    seal.renew([FOLDER])
    before = files.size(SEAL)
    seal.note(SOUND, 1152)
    seal.renew([FOLDER])
    assert files.size(SEAL) > before, "it was added to"
    files.write_bytes(SEAL, files.read_bytes(SEAL)[: before + 9])
    assert _complete_in(IndexFilesSeal(files, [FOLDER], 64)) == {HURT, SOUND}


def test_what_is_withdrawn_is_not_lost_with_the_end_of_the_file() -> None:
    files = _sealed()
    seal = IndexFilesSeal(files, [FOLDER], 64)
    seal.note(SOUND, 1088, is_new=True)
    seal.renew([FOLDER])
    seal.withdraw(HURT)
    seal.tell_withdrawn([FOLDER])
    data = files.read_bytes(SEAL)
    for end in range(len(data) + 1):
        files.write_bytes(SEAL, data[:end])
        assert HURT not in _complete_in(IndexFilesSeal(files, [FOLDER], 64))


def test_a_withdrawal_that_could_not_be_written_is_owed() -> None:
    files = _sealed()
    seal = IndexFilesSeal(files, [FOLDER], 64)
    seal.withdraw(HURT)
    files.faults.fail("write", path=NAME, times=1)
    with pytest.raises(Exception, match=NAME):
        seal.renew([FOLDER])
    assert _complete_in(IndexFilesSeal(files, [FOLDER], 64)) == {HURT}
    seal.renew([FOLDER])
    assert _complete_in(IndexFilesSeal(files, [FOLDER], 64)) == set()


@engines
def test_nothing_is_known_to_be_complete_behind_a_log_of_another_program(engine: str) -> None:
    bookie, storage = filled(engine)
    newest = storage.logs.newest_log_id
    put(storage, entry(9, 0))
    storage.close()  # without a checkpoint
    unsealed = f"{FOLDER}/{relative_path(9)}"
    bookie.files.makedirs(unsealed.rpartition("/")[0])
    bookie.files.write_bytes_synced(unsealed, encode_header(LedgerRecord(KEY, first_log=1)))
    leave_foreign_log(bookie.files, FOLDER, newest + 1, entry(HURT, 3))
    storage = bookie.open()
    storage.cache.end_replay()
    storage.flush()
    assert complete(bookie.files) == set()
    storage.close()
    bookie.files.unlink(f"{FOLDER}/{newest + 1:x}.log")
    seal = IndexFilesSeal(bookie.files, [FOLDER])
    assert not seal._complete
    storage = bookie.open()
    put(storage, entry(HURT, 9))
    storage.flush()
    assert complete(bookie.files) == set()
    storage.close()


def test_a_header_waits_for_a_withdrawal_that_another_thread_writes() -> None:
    files = _sealed()
    seal = IndexFilesSeal(files, [FOLDER], 64)
    seal.withdraw(HURT)
    bring, told = seal._bring, threading.Event()
    early: list[bool] = []

    def tell() -> None:
        seal.tell_withdrawn([FOLDER])
        told.set()

    other = threading.Thread(target=tell)

    def slow(*args: object, **options: object) -> None:
        other.start()
        early.append(told.wait(0.2))
        bring(*args, **options)  # type: ignore[arg-type]

    seal._bring = slow  # type: ignore[method-assign]
    seal.renew([FOLDER])
    other.join()
    assert early == [False]
    assert told.is_set()


def test_what_was_withdrawn_is_left_in_no_other_folder() -> None:
    files = _sealed()
    seal = IndexFilesSeal(files, [FOLDER, "/b"], 64)
    seal.withdraw(HURT)
    files.faults.fail("overwrite", path=FOLDER, times=1)
    seal.renew([FOLDER, "/b"])
    assert _complete_in(IndexFilesSeal(files, [FOLDER], 64)) == set()
    assert files.exists(f"/b/{NAME}")
    assert _complete_in(IndexFilesSeal(files.crash(random.Random(1)), [FOLDER], 64)) == set()


def test_of_two_seals_the_newer_need_not_have_the_higher_number() -> None:
    """Each may be of a time in which the other folder was not there."""
    files = _sealed()
    files.write_bytes(f"/b/{NAME}", files.read_bytes(SEAL))
    seal = IndexFilesSeal(files, [FOLDER, "/b"], 64)
    assert _complete_in(seal) == set()
    seal.tell_withdrawn([FOLDER, "/b"])
    assert _complete_in(IndexFilesSeal(files, [FOLDER], 64)) == set()
    assert _complete_in(IndexFilesSeal(files, ["/b"], 64)) == set()
