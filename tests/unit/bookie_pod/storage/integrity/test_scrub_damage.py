"""A bit that flips anywhere is found, reported, and never served."""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from bookie_pod.storage.entry_log.format import HEADER_SIZE, encode_header, make_location
from bookie_pod.storage.entry_log.scan import LogScan
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc import index_check
from bookie_pod.storage.gc.throttle import ScrubStopped
from bookie_pod.storage.index.index_file import slot_offset
from bookie_pod.storage.index.locations import KEY as ROW_KEY
from bookie_pod.storage.index.locations import VALUE
from bookie_pod.storage.integrity import scrub_part
from bookie_pod.storage.integrity.journal_scrub import check_journal
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.journal.format import HEADER_LENGTH
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import EntryDamaged, LedgerStateUnknown, NotThere, StorageFault
from tests.support.journal_rig import DIRECTORY, JournalRig, an_add, small_options
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import Checkpoints, MemTableBookie
from tests.support.scrub_rig import RIGS, ScrubRig, rig_of, signed
from tests.support.storage_engine import MemoryBookie, put

LEDGERS = [3, 4]
ENTRIES = 5
ENTRY_SIZE = len(signed(3, 0))


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest) -> ScrubRig:
    rig = rig_of(request.param)
    rig.write(LEDGERS, ENTRIES)
    return rig


def kinds(damages: list[Damage]) -> set[DamageKind]:
    return {each.kind for each in damages}


def bits(count: int) -> pytest.MarkDecorator:
    """Each bit with one of the rigs, and each byte, and each place in a byte, with all of them."""
    taken = [(RIGS[(bit + bit // 8) % len(RIGS)], bit) for bit in range(count)]
    return pytest.mark.parametrize(("rig", "bit"), taken, indirect=["rig"])


def assert_truth(rig: ScrubRig) -> None:
    """Every read gives the entry that was written, or an error that is no denial."""
    for ledger_id in LEDGERS:
        for entry_id in range(ENTRIES):
            try:
                assert rig.storage.read(ledger_id, entry_id) == signed(ledger_id, entry_id)
            except NotThere as error:
                raise AssertionError(f"a denial: {error}") from error
            except StorageFault:
                continue


def test_nothing_is_found_where_nothing_is_wrong(rig: ScrubRig) -> None:
    assert rig.run() == []
    assert rig.scrub.counts.digests == len(LEDGERS) * ENTRIES
    assert rig.scrub.counts.rows == len(LEDGERS) * ENTRIES
    assert rig.scrub.counts.restored == 0
    rig.storage.close()


@pytest.mark.parametrize("offset", range(0, ENTRY_SIZE, 7))
def test_every_bit_of_an_entry_counts(rig: ScrubRig, offset: int) -> None:
    path, position = rig.place(3, 2)
    rig.restart()
    rig.flip(path, position + offset, bit=offset % 8)
    damages = rig.run()
    assert (3, 2) in {(each.ledger_id, each.entry_id) for each in damages if each.kind is DamageKind.ENTRY}
    with pytest.raises(EntryDamaged):
        rig.storage.read(3, 2)
    assert_truth(rig)
    rig.storage.close()


@bits(32)
def test_every_bit_of_a_size_word_counts(rig: ScrubRig, bit: int) -> None:
    path, position = rig.place(4, 1)
    rig.restart()
    rig.flip(path, position - 4 + bit // 8, bit % 8)
    assert rig.run()
    assert_truth(rig)
    rig.storage.close()


@bits(20 * 8)
def test_every_bit_of_a_log_header_counts(rig: ScrubRig, bit: int) -> None:
    path, _ = rig.place(3, 0)
    log_id = rig.part.logs.log_ids()[0]
    rig.restart()
    rig.flip(path, bit // 8, bit % 8)
    assert kinds(rig.run()) & {DamageKind.LOG, DamageKind.LEDGERS_MAP}
    assert log_id in rig.scrub.register.held_logs()
    assert_truth(rig)
    rig.storage.close()


def test_a_bit_of_the_ledgers_map_counts_unless_it_only_adds(rig: ScrubRig) -> None:
    path, _ = rig.place(3, 0)
    (offset,) = struct.unpack_from(">q", rig.files.read_bytes(path), 8)
    log_id = rig.part.logs.log_ids()[0]
    rig.restart()
    for at in range(offset, offset + 4 + 20 + 16 * len(LEDGERS)):
        for bit in range(8):
            rig.flip(path, at, bit)
            found = rig.part.logs.ledgers_map(log_id)
            harmless = found.end is None and all(
                found.ledgers.get(each, 0) >= ENTRIES * (4 + ENTRY_SIZE) for each in LEDGERS
            )
            assert bool(rig.run()) is not harmless, (at - offset, bit)
            rig.flip(path, at, bit)
    assert rig.run() == []
    rig.storage.close()


@pytest.mark.parametrize("bit", range(64))
def test_every_bit_of_a_location_counts(bit: int) -> None:
    rig = ScrubRig()
    rig.write(LEDGERS, ENTRIES)
    store = rig.storage.directories[0].locations._store  # type: ignore[union-attr]
    value = VALUE.pack(VALUE.unpack(store.get(ROW_KEY.pack(3, 1)) or b"")[0] ^ (1 << bit if bit < 63 else -1 << 63))
    batch = store.batch()
    batch.put(ROW_KEY.pack(3, 1), value)
    batch.commit()
    damages = rig.run()
    assert {(each.ledger_id, each.entry_id) for each in damages} == {(3, 1)}
    assert_truth(rig)
    rig.storage.close()


@pytest.mark.parametrize("bit", range(0, 64, 5))
def test_bits_of_an_index_file_count(bit: int) -> None:
    rig = ScrubRig(MemTableBookie("sorted"))
    rig.write(LEDGERS, ENTRIES)
    rig.restart()
    (path,) = (each for each in _walk(rig.files, "/ledgers0") if each.endswith("/3.idx"))
    rig.flip(path, slot_offset(1) + bit // 8, bit % 8)
    assert {(each.ledger_id, each.entry_id) for each in rig.run()} == {(3, 1)}
    assert_truth(rig)
    rig.storage.close()


def test_a_row_that_is_gone_is_put_back() -> None:
    rig = ScrubRig(MemoryBookie.without_read_cache())
    rig.write(LEDGERS, ENTRIES)
    batch = rig.storage.directories[0].locations._store.batch()  # type: ignore[union-attr]
    batch.delete(ROW_KEY.pack(3, 1))
    batch.commit()
    with pytest.raises(NotThere):
        rig.storage.read(3, 1)
    assert rig.run() == []
    assert rig.scrub.counts.restored == 1
    assert rig.storage.read(3, 1) == signed(3, 1)
    rig.storage.close()


def test_a_damaged_entry_without_a_row_is_damaged_and_no_longer_denied() -> None:
    rig = ScrubRig()
    rig.write(LEDGERS, ENTRIES)
    path, position = rig.place(3, 1)
    rig.flip(path, position + 50)
    batch = rig.storage.directories[0].locations._store.batch()  # type: ignore[union-attr]
    batch.delete(ROW_KEY.pack(3, 1))
    batch.commit()
    assert [(each.ledger_id, each.entry_id) for each in rig.run()] == [(3, 1)]
    with pytest.raises(EntryDamaged):
        rig.storage.read(3, 1)
    rig.storage.close()


def test_rows_of_deleted_ledgers_do_not_come_back(rig: ScrubRig) -> None:
    rig.storage.delete_ledger(3)
    rig.storage.flush()
    assert rig.run() == []
    assert rig.scrub.counts.restored == 0
    assert 3 not in rig.storage.ledger_ids()
    rig.storage.close()


def test_without_a_known_digest_only_the_framing_is_checked(rig: ScrubRig) -> None:
    rig.digests.default = None
    rig.digests.digests[4] = DigestType.MAC
    path, position = rig.place(3, 2)
    rig.flip(path, position + 60)
    assert rig.run() == []
    assert rig.scrub.counts.digests == 0
    rig.storage.close()


def test_entries_behind_damage_in_the_framing_are_checked_and_served(rig: ScrubRig) -> None:
    path, position = rig.place(3, 1)
    other, behind = rig.place(3, 4)
    assert (other, behind > position) == (path, True)
    rig.restart()
    rig.files.corrupt(path, position - 4, b"\x80\0\0\0")
    rig.flip(path, behind + 50)
    damages = rig.run()
    assert kinds(damages) == {DamageKind.LOG, DamageKind.ENTRY}
    assert {each.entry_id for each in damages if each.ledger_id == 3} == {1, 4}
    assert rig.storage.read(3, 3) == signed(3, 3)
    rig.storage.close()


def test_a_log_that_is_gone_damages_its_entries(rig: ScrubRig) -> None:
    path, _ = rig.place(3, 0)
    rig.restart()
    rig.files.unlink(path)
    found = rig.run()
    assert len([each for each in found if each.kind is DamageKind.ENTRY]) == len(LEDGERS) * ENTRIES
    rig.scrub.tidy()
    rig.scrub.look_again()
    assert rig.scrub.register.damages() == found, "their rows lead there still"
    assert_truth(rig)
    rig.storage.close()


def test_a_log_that_cannot_be_read_is_a_finding_and_ends_nothing(rig: ScrubRig) -> None:
    path, _ = rig.place(3, 0)
    rig.write([5], 2)
    rig.restart()
    rig.files.faults.fail("pread", path=path)
    damages = rig.run()
    assert DamageKind.LOG in kinds(damages)
    assert {each.ledger_id for each in damages if each.kind is DamageKind.ENTRY} == {3, 4}
    rig.scrub.look_again()
    assert rig.scrub.register.damages() == damages
    rig.files.faults.clear()
    for entry_id in range(ENTRIES):
        assert rig.storage.read(3, entry_id) == signed(3, entry_id), "the disk reads it again"
    rig.scrub.look_again()
    assert kinds(rig.scrub.register.damages()) == {DamageKind.LOG}
    assert rig.run() == []
    rig.storage.close()


@pytest.mark.parametrize("operation", ["open", "pread"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_what_the_machine_lacks_is_no_damage(rig: ScrubRig, operation: str, number: int) -> None:
    path, position = rig.place(3, 2)
    rig.flip(path, position + 60)
    assert len(rig.run()) == 1
    rig.restart()
    rig.files.faults.fail(operation, path="/", errno=number)
    assert len(rig.run()) == 1  # what was found before is still known
    assert rig.scrub.state().errors
    rig.files.faults.clear()
    assert rig.storage.read(3, 1) == signed(3, 1)
    assert len(rig.run()) == 1
    assert not rig.scrub.state().errors
    rig.storage.close()


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
@pytest.mark.parametrize("seed", range(12))
def test_what_a_power_cut_took_before_it_was_acknowledged_is_no_damage(engine: str, seed: int) -> None:
    bookie = MemTableBookie(engine)
    storage = bookie.open()
    storage._background.request = lambda **_: None  # type: ignore[method-assign,misc,assignment]
    storage.start(Checkpoints())
    put(storage, *(signed(1, entry_id) for entry_id in range(5)))
    storage.flush()
    storage.logs.rotate()
    storage.logs.sync()
    put(storage, *(signed(1, entry_id) for entry_id in range(5, 8)))
    storage._background.run(lambda: storage._drain_up_to(None))
    storage.cache.flush()  # the index is ahead of the log, whose bytes nobody has synced
    rig = ScrubRig(bookie.crash(random.Random(seed)))
    assert rig.run() == []
    assert [rig.storage.read(1, entry_id) for entry_id in range(5)] == [signed(1, entry_id) for entry_id in range(5)]
    path, position = rig.place(1, 2)
    rig.flip(path, position - 2)  # in the head of an entry that was acknowledged
    assert {each.kind for each in rig.run()} >= {DamageKind.LOG}
    rig.storage.close()


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_whole_record_with_other_bytes_ends_a_log_that_a_power_cut_left(rig: ScrubRig, acknowledged: bool) -> None:
    folder, files = rig.bookie.directories[0], rig.files
    rig.storage.close()
    log_id = max(rig.part.logs.log_ids()) + 1
    entries = [signed(3, entry_id) for entry_id in range(ENTRIES, ENTRIES + 3)]
    entries[1] = entries[1][:-1] + b"\0"
    framed = b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)
    files.write_bytes_synced(f"{folder}/{log_id:x}.log", encode_header() + framed)
    rig.open()
    if acknowledged:  # so its log had been synced up to its end
        last = make_location(log_id, HEADER_SIZE + len(framed) - len(entries[-1]))
        assert rig.part.restore(3, ENTRIES + 2, last)
    for _ in range(2):
        assert [(each.ledger_id, each.entry_id) for each in rig.run()] == [(3, ENTRIES + 1)] * acknowledged
    assert rig.storage.read(3, ENTRIES) == entries[0]
    with pytest.raises(EntryDamaged if acknowledged else NotThere):
        rig.storage.read(3, ENTRIES + 1)
    rig.storage.close()


def torn_log(rig: ScrubRig) -> None:
    """Behind what is there, a log that a power cut has left: of the second of three entries parts are missing."""
    rig.storage.close()
    log_id = max(rig.part.logs.log_ids()) + 1
    entries = [signed(3, entry_id) for entry_id in range(ENTRIES, ENTRIES + 3)]
    entries[1] = entries[1][:-1] + b"\0"
    framed = b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)
    rig.files.write_bytes_synced(f"{rig.bookie.directories[0]}/{log_id:x}.log", encode_header() + framed)
    rig.open()


def assert_only_the_torn_one_is_denied(rig: ScrubRig, answer: type[Exception] = NotThere) -> None:
    for _ in range(2):
        assert rig.run() == []
        for entry_id in (ENTRIES, ENTRIES + 2):
            assert rig.storage.read(3, entry_id) == signed(3, entry_id)
        with pytest.raises(answer):
            rig.storage.read(3, ENTRIES + 1)
        rig.restart()


def test_what_lies_sound_behind_the_rest_of_a_power_cut_is_served_and_proves_nothing(rig: ScrubRig) -> None:
    torn_log(rig)
    assert_only_the_torn_one_is_denied(rig)
    rig.storage.close()


@pytest.mark.parametrize("stop_after", range(10, 20))
def test_a_pass_that_goes_on_behind_the_rest_of_a_power_cut_knows_it(stop_after: int) -> None:
    rig = ScrubRig()
    rig.write(LEDGERS, ENTRIES)
    torn_log(rig)
    rig.stop_after = stop_after
    with pytest.raises(ScrubStopped):
        rig.run()
    rig.stop_after = None
    rig.restart()
    assert_only_the_torn_one_is_denied(rig)
    rig.storage.close()


@pytest.mark.parametrize("stop_after", [None, *range(10, 20)])
def test_nothing_gets_a_row_behind_an_entry_of_which_nobody_can_tell(stop_after: int | None) -> None:
    rig = ScrubRig()
    rig.write(LEDGERS, ENTRIES)
    torn_log(rig)
    rig.digests.default, rig.stop_after = None, stop_after
    with suppress(ScrubStopped):
        rig.run()
        assert rig.scrub.state().errors
    for entry_id in (ENTRIES + 1, ENTRIES + 2):
        with pytest.raises(LedgerStateUnknown if rig.storage.doubts else NotThere):
            rig.storage.read(3, entry_id)
    rig.digests.default, rig.stop_after = DigestType.CRC32C, None
    rig.restart()
    record = rig.storage.ledger(3)
    assert record is not None
    assert record.limbo or stop_after, "behind a whole pass, until it is compared"
    assert rig.run() == []
    assert_only_the_torn_one_is_denied(rig, LedgerStateUnknown if record.limbo else NotThere)
    rig.storage.close()


def test_damage_whose_row_is_missing_for_a_while_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ScrubRig(MemoryBookie.without_read_cache())
    rig.write(LEDGERS, ENTRIES)
    rig.restart()
    path, position = rig.place(3, 2)
    rig.flip(path, position + 60)
    location_of = rig.part.location_of

    def silent(ledger_id: int, entry_id: int) -> int:
        raise StorageFault("the index cannot be read")

    for missing in (silent, lambda ledger_id, entry_id: 0):
        with monkeypatch.context() as patch:
            patch.setattr(
                rig.part, "location_of", lambda *key, of=missing: of(*key) if key == (3, 2) else location_of(*key)
            )
            with pytest.raises(EntryDamaged):
                rig.storage.read(3, 2)
            assert [each.entry_id for each in rig.scrub.register.damages()] == [2], "no place is no other copy"
            rig.scrub.tidy()
            rig.scrub.look_again()
        (damage,) = rig.scrub.register.damages()
        assert rig.scrub.register.held_logs()
        rig.scrub.register.end_pass(99, lambda damage: False)
    rig.scrub.register.add(damage)
    rig.write([3], 1, first=2)
    rig.scrub.look_again()
    assert rig.scrub.register.damages() == []
    rig.storage.close()


@pytest.mark.parametrize("engine", ["db", "sorted"])
def test_damage_of_an_earlier_ledger_of_the_id_is_forgotten(engine: str) -> None:
    rig = ScrubRig(MemoryBookie() if engine == "db" else MemTableBookie(engine))
    rig.write(LEDGERS, ENTRIES)
    path, position = rig.place(3, 2)
    rig.restart()
    rig.flip(path, position + 60)
    assert len(rig.run()) == 1
    rig.storage.delete_ledger(3)
    rig.storage.flush()
    rig.write([3], 1)
    rig.scrub.look_again()
    assert rig.scrub.register.damages() == []
    rig.storage.close()


def test_a_bounded_number_of_damages_is_looked_at_again_and_what_fails_is_paid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrub_part, "LOOKS", 3)
    rig = ScrubRig()
    rig.write(LEDGERS, ENTRIES)
    path, _ = rig.place(3, 0)
    rig.restart()
    rig.files.faults.fail("pread", path=path)
    count = sum(each.kind is DamageKind.ENTRY for each in rig.run())
    assert count == len(LEDGERS) * ENTRIES
    rig.paid = 0
    rig.scrub.look_again()
    assert rig.paid == 3
    rig.files.faults.clear()
    for _ in range(3 * count):
        rig.scrub.look_again()
    assert kinds(rig.scrub.register.damages()) == {DamageKind.LOG}, "each has its turn"
    rig.storage.close()


def test_a_log_that_was_never_closed_is_read_once() -> None:
    rig = ScrubRig()
    rig.write(LEDGERS, ENTRIES)
    torn_log(rig)
    path = rig.part.logs.path(max(rig.part.logs.log_ids()))
    scans: list[str] = []
    scan = LogScan.__iter__

    def noted(self: LogScan[bytes]) -> Iterator[tuple[int, int, int, bytes]]:
        scans.append(self._path)
        return scan(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogScan, "__iter__", noted)
        rig.run()
    assert scans.count(path) == 1
    rig.storage.close()


def test_a_log_that_was_made_ahead_is_no_damage(rig: ScrubRig) -> None:
    folder, files = rig.bookie.directories[0], rig.files
    rig.storage.close()
    newest = max(rig.part.logs.log_ids())
    for number, length in ((newest + 1, 0), (newest + 2, 1 << 16)):
        file = files.create(f"{folder}/{number:x}.log")
        file.allocate(0, length)
        file.close()
    rig.open()
    assert rig.run() == []
    assert len(rig.part.logs.log_ids()) == newest + 3
    rig.storage.close()


def test_one_look_through_the_index_does_for_all_logs_that_a_crash_left(
    rig: ScrubRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, files = rig.bookie.directories[0], rig.files
    rig.storage.close()
    newest = max(rig.part.logs.log_ids())
    for log_id in range(newest + 1, newest + 4):
        cut = struct.pack(">iqq", 100, 3, 0)
        files.write_bytes_synced(f"{folder}/{log_id:x}.log", encode_header() + cut)
    rig.open()
    looks = []
    look = index_check._all_rows
    monkeypatch.setattr(index_check, "_all_rows", lambda *arguments: looks.append(1) or look(*arguments))
    assert rig.run() == []
    assert len(looks) == 1
    rig.storage.close()


def test_an_index_that_cannot_be_read_is_a_fatal_finding_and_forgets_nothing() -> None:
    rig = ScrubRig()
    rig.write(LEDGERS, ENTRIES)
    path, position = rig.place(3, 2)
    rig.flip(path, position + 60)
    assert len(rig.run()) == 1
    store = rig.storage.directories[0].locations._store  # type: ignore[union-attr]
    batch = store.batch()
    batch.put(ROW_KEY.pack(4, 0), b"short")
    batch.commit()
    damages = rig.run()
    assert {(each.kind, each.ledger_id) for each in damages} == {(DamageKind.ENTRY, 3), (DamageKind.INDEX, 4)}
    assert rig.scrub.counts.faults > 0
    assert rig.scrub.state().errors
    rig.storage.close()


def test_a_copy_that_is_written_anew_is_served_at_once_and_forgotten_by_the_next_pass(rig: ScrubRig) -> None:
    path, position = rig.place(3, 2)
    rig.restart()
    rig.flip(path, position + 60)
    assert len(rig.run()) == 1
    rig.write([3], 1, first=2)
    assert rig.storage.read(3, 2) == signed(3, 2)
    assert rig.run() == []
    for _ in range(2):
        rig.restart()
        rig.storage.read(3, 1)  # reads ahead over the place of the damaged copy
        assert rig.storage.read(3, 2) == signed(3, 2)
        assert rig.run() == []
    rig.storage.close()


def test_what_lies_behind_an_entry_and_has_no_row_is_no_finding_of_a_read() -> None:
    rig = ScrubRig(MemoryBookie.without_read_cache())
    rig.write([3], ENTRIES)
    path, position = rig.place(3, 2)
    rig.flip(path, position + 60)
    batch = rig.storage.directories[0].locations._store.batch()  # type: ignore[union-attr]
    batch.delete(ROW_KEY.pack(3, 2))
    batch.commit()
    assert list(rig.storage.read_each(3, range(2))) == [signed(3, 0), signed(3, 1)]
    rig.storage.directories[0]._log_reads.read_apart(3, 1, 2, 1000)  # type: ignore[union-attr]
    assert rig.scrub.register.damages() == []
    rig.storage.close()


def test_what_the_read_cache_holds_of_a_damaged_entry_is_dropped() -> None:
    rig = ScrubRig()
    rig.write(LEDGERS, ENTRIES)
    path, position = rig.place(3, 2)
    rig.restart()
    rig.flip(path, position + 60)
    rig.digests.default = None
    assert rig.storage.read(3, 2) != signed(3, 2), "nobody could tell the ledger's digest type"
    assert rig.storage.cached(3, 2) is not None
    rig.digests.default = DigestType.CRC32C
    rig.run()
    assert rig.storage.cached(3, 2) is None
    with pytest.raises(EntryDamaged):
        rig.storage.read(3, 2)
    rig.storage.read(3, 0)  # reads ahead over the damaged one
    assert rig.storage.cached(3, 2) is None
    generation = rig.storage.directories[0].read_cache.generation
    rig.run()
    assert rig.storage.directories[0].read_cache.generation == generation, "what is known costs readers nothing more"
    rig.storage.close()


@pytest.mark.parametrize("checks", [True, False])
def test_bits_of_an_old_journal_count(checks: bool) -> None:
    with JournalRig(options=small_options(group_checks=checks)) as rig:
        for entry_id in range(5):
            rig.add(an_add(1, entry_id, b"payload" * 20))
    (name,) = rig.journals()
    files, journal_id = rig.files, int(name.split(".")[0], 16)
    assert isinstance(files, MemoryFiles)
    assert _check(files, journal_id) == []
    path = f"{DIRECTORY}/{name}"
    places = range(HEADER_LENGTH, HEADER_LENGTH + 4 + 24 + 140)
    found = 0
    for at in places:
        byte = files.read_bytes(path)[at : at + 1]
        files.corrupt(path, at, bytes([byte[0] ^ 0x40]))
        found += bool(_check(files, journal_id))
        files.corrupt(path, at, byte)
    if checks:
        assert found == len(places)
    else:
        assert found > 0, "lengths are all that can be checked"


def _check(files: Files, journal_id: int) -> list[Damage]:
    found: list[Damage] = []
    check_journal(files, DIRECTORY, journal_id, found.append, lambda entries, nbytes: None)
    return found


def _walk(files: MemoryFiles, folder: str) -> list[str]:
    found: list[str] = []
    for name in files.listdir(folder):
        path = f"{folder}/{name}"
        found += _walk(files, path) if files.is_dir(path) else [path]
    return found
