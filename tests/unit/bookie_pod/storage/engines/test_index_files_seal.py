"""Index files that were cut, or lost, since they were complete: their ledgers are in limbo, and the others are not."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from structlog.testing import capture_logs

from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.index.index_file import HEADER_BYTES, SLOT_BYTES, relative_path, slot_offset
from bookie_pod.storage.index.ledger_cache import seal as module
from bookie_pod.storage.index.ledger_cache.held import HeldPages
from bookie_pod.storage.index.ledger_cache.seal import NAME, IndexFilesSeal, drop_seals
from bookie_protocol.errors import (
    EntryDamaged,
    LedgerStateUnknown,
    NoSuchEntry,
    NoSuchLedger,
    NoWritableDirectory,
    StorageFault,
)
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import ENGINES, MemTableBookie, memtable_options
from tests.support.storage_engine import KEY, entry, put

FOLDERS = ("/a", "/b")
ENTRIES = 30
HURT, SOUND = 5, 6


@pytest.fixture(params=list(ENGINES))
def bookie(request: pytest.FixtureRequest) -> MemTableBookie:
    return MemTableBookie(request.param, FOLDERS, options=memtable_options(page_bytes=64))


@pytest.fixture
def storage(bookie: MemTableBookie) -> MemTableStorage:
    """Two ledgers of several pages, all of it checkpointed."""
    storage = bookie.open()
    for ledger_id in (HURT, SOUND):
        put(storage, *(entry(ledger_id, each) for each in range(ENTRIES)))
    storage.flush()
    return storage


def path_of(bookie: MemTableBookie, ledger_id: int) -> str:
    (path,) = (path for folder in FOLDERS if bookie.files.exists(path := f"{folder}/{relative_path(ledger_id)}"))
    return path


def cut_to(size: int) -> Callable[[MemoryFiles, str], None]:
    return lambda files, path: files.write_bytes(path, files.read_bytes(path)[:size])


def lose(files: MemoryFiles, path: str) -> None:
    files.unlink(path)


@pytest.mark.parametrize("damage", [cut_to(HEADER_BYTES + 64), cut_to(HEADER_BYTES), cut_to(100), cut_to(0), lose])
def test_nothing_of_a_file_that_was_cut_or_lost_is_denied(
    bookie: MemTableBookie, storage: MemTableStorage, damage: Callable[[MemoryFiles, str], None]
) -> None:
    storage.close()
    damage(bookie.files, path_of(bookie, HURT))
    for _ in range(2):  # it is remembered
        storage = bookie.open()
        record = storage.ledger(HURT)
        assert record is not None
        assert record.limbo
        with pytest.raises(LedgerStateUnknown):
            storage.read(HURT, ENTRIES - 1)
        with pytest.raises(LedgerStateUnknown):
            storage.last_entry_id(HURT)
        assert [storage.read(SOUND, each) for each in range(ENTRIES)] == [entry(SOUND, each) for each in range(ENTRIES)]
        with pytest.raises(NoSuchEntry):
            storage.read(SOUND, ENTRIES)
        storage.flush()
        storage.close()


def zero(files: MemoryFiles, path: str, first: int, count: int) -> None:
    files.corrupt(path, slot_offset(first), bytes(SLOT_BYTES * count))


@pytest.mark.parametrize(("first", "count"), [(8, 8), (10, 1), (0, 24), (24, 6)], ids=["page", "slot", "pages", "end"])
def test_what_was_zeroed_within_a_file_is_damage_and_not_absence(
    bookie: MemTableBookie, storage: MemTableStorage, first: int, count: int
) -> None:
    storage.close()
    zero(bookie.files, path_of(bookie, HURT), first, count)
    storage = bookie.open()
    for entry_id in range(ENTRIES):
        if first <= entry_id < first + count:
            with pytest.raises(EntryDamaged):
                storage.read(HURT, entry_id)
        else:
            assert storage.read(HURT, entry_id) == entry(HURT, entry_id)
        assert storage.read(SOUND, entry_id) == entry(SOUND, entry_id)
    if first + count < ENTRIES:
        assert storage.last_entry_id(HURT) == ENTRIES - 1
    else:
        with pytest.raises(EntryDamaged):
            storage.last_entry_id(HURT)
    for none in (ENTRIES, ENTRIES + 100, -9, -17, -(1 << 63)):
        with pytest.raises(NoSuchEntry):
            storage.read(HURT, none)
    with pytest.raises(NoSuchEntry):
        storage.read(SOUND, ENTRIES)
    put(storage, *(entry(HURT, each) for each in range(first, first + count)))  # they are copied back
    storage.flush()
    assert storage.last_entry_id(HURT) == ENTRIES - 1
    with pytest.raises(NoSuchEntry):
        storage.read(HURT, ENTRIES)


@pytest.mark.parametrize(("first", "count"), [(25, 2), (28, 2), (24, 6)], ids=["middle", "end", "all"])
def test_damage_is_told_though_its_page_has_grown_since(
    bookie: MemTableBookie, storage: MemTableStorage, first: int, count: int
) -> None:
    storage.close()
    zero(bookie.files, path_of(bookie, HURT), first, count)
    storage = bookie.open()
    lost, grown = range(first, first + count), range(ENTRIES, ENTRIES + 4)
    for entry_id in grown:
        put(storage, entry(HURT, entry_id))
        storage.flush()
    for _ in range(2):
        for entry_id in range(24, grown.stop):
            if entry_id in lost:
                with pytest.raises(EntryDamaged):
                    storage.read(HURT, entry_id)
            else:
                assert storage.read(HURT, entry_id) == entry(HURT, entry_id)
        assert storage.last_entry_id(HURT) == grown[-1]
        storage.close()
        storage = bookie.open()
    put(storage, *(entry(HURT, each) for each in lost))  # they are copied back
    storage.flush()
    assert [storage.read(HURT, each) for each in lost] == [entry(HURT, each) for each in lost]
    with pytest.raises(NoSuchEntry):
        storage.read(HURT, grown.stop)


FAR = 70_000


@pytest.mark.parametrize(("first", "count"), [(FAR + 8, 8), (FAR + 10, 1), (FAR + 24, 6)], ids=["page", "slot", "end"])
def test_damage_is_told_wherever_a_ledger_begins(
    bookie: MemTableBookie, storage: MemTableStorage, first: int, count: int
) -> None:
    """Of a ledger into whose ensemble this bookie came late."""
    late = 7
    put(storage, *(entry(late, FAR + each) for each in range(ENTRIES)))
    storage.flush()
    storage.close()
    zero(bookie.files, path_of(bookie, late), first, count)
    storage = bookie.open()
    for entry_id in range(first, first + count):
        with pytest.raises(EntryDamaged):
            storage.read(late, entry_id)
    for entry_id in (0, FAR - 1, FAR + ENTRIES):
        with pytest.raises(NoSuchEntry):
            storage.read(late, entry_id)
    if first + count < FAR + ENTRIES:
        assert storage.last_entry_id(late) == FAR + ENTRIES - 1
    else:
        with pytest.raises(EntryDamaged):
            storage.last_entry_id(late)


def test_holes_are_legal(bookie: MemTableBookie, storage: MemTableStorage) -> None:
    """Of a striped ledger others hold what lies between."""
    put(storage, *(entry(SOUND, each) for each in range(ENTRIES, 200, 3)))
    storage.flush()
    storage.close()
    storage = bookie.open()
    with pytest.raises(NoSuchEntry):
        storage.read(SOUND, 31)
    assert storage.last_entry_id(SOUND) == 198


def assert_new(storage: MemTableStorage) -> None:
    """The hurt ledger is another one: nothing of the old one is missing in it."""
    record = storage.ledger(HURT)
    assert record is not None
    assert not record.limbo
    with pytest.raises(NoSuchEntry):
        storage.read(HURT, 4)


def test_a_ledger_that_is_made_anew_does_not_owe_what_the_old_one_had(
    bookie: MemTableBookie, storage: MemTableStorage
) -> None:
    storage.delete_ledger(HURT)
    put(storage, entry(HURT, 3))
    bookie.faults.fail("write", path=NAME, after=1)  # the seal at the end: a crash comes first
    with pytest.raises(StorageFault, match=NAME):
        storage.flush()
    bookie.faults.clear()
    storage.logs.force_close()
    assert_new(bookie.on(bookie.files.restart()).open())


def test_nor_if_its_file_is_made_between_two_checkpoints(bookie: MemTableBookie, storage: MemTableStorage) -> None:
    """To make room in memory for pages of others."""
    storage.delete_ledger(HURT)
    put(storage, entry(HURT, 3))
    storage._drain_up_to(None)
    bookie.faults.fail("write", path=NAME, after=1)
    storage.cache._flusher.flush([HURT])
    assert_new(bookie.on(bookie.files.restart()).open())


def test_nor_does_it_keep_the_files_of_others_on_a_full_disk(bookie: MemTableBookie, storage: MemTableStorage) -> None:
    """Their removal makes the room for the seal that it waits for."""
    sound = path_of(bookie, SOUND)
    for ledger_id in (HURT, SOUND):
        storage.delete_ledger(ledger_id)
    put(storage, entry(HURT, 3))
    bookie.faults.fail("write", path=NAME, errno=errno.ENOSPC)
    with pytest.raises(NoWritableDirectory):
        storage.flush()
    assert not bookie.files.exists(sound)
    bookie.faults.clear()
    storage.flush()
    assert storage.read(HURT, 3) == entry(HURT, 3)


@pytest.mark.parametrize("damage", [cut_to(HEADER_BYTES), lose])
def test_what_was_lost_is_missed_until_the_limbo_is_durable(
    bookie: MemTableBookie, storage: MemTableStorage, damage: Callable[[MemoryFiles, str], None]
) -> None:
    """Whatever becomes of another ledger meanwhile, whose file comes first."""
    storage.close()
    damage(bookie.files, path_of(bookie, SOUND))
    storage = bookie.open()
    storage.delete_ledger(HURT)
    put(storage, entry(HURT, 3))
    before = bookie.faults.counts["rename"]
    bookie.faults.fail("create", "pwrite", path=relative_path(SOUND))
    with pytest.raises(StorageFault):
        storage.flush()
    assert bookie.faults.counts["rename"] > before, "a seal was written"
    bookie.faults.clear()
    storage.logs.force_close()
    bookie = bookie.on(bookie.files.restart())
    for _ in range(2):
        storage = bookie.open()
        record = storage.ledger(SOUND)
        assert record is not None
        assert record.limbo
        storage.flush()
        storage.close()


def test_a_change_of_the_page_size_forgets_what_pages_held_and_not_what_files_are(
    bookie: MemTableBookie, storage: MemTableStorage
) -> None:
    storage.close()
    zero(bookie.files, path_of(bookie, HURT), 8, 8)
    cut_to(HEADER_BYTES)(bookie.files, path_of(bookie, SOUND))
    bookie.options = memtable_options(page_bytes=128)
    storage = bookie.open()
    with pytest.raises(NoSuchEntry):
        storage.read(HURT, 9)
    with pytest.raises(LedgerStateUnknown):
        storage.read(SOUND, 9)


def test_a_page_costs_the_same_wherever_it_lies() -> None:
    files = MemoryFiles()
    files.makedirs("/a")
    seal = IndexFilesSeal(files, ["/a"], 8192)
    far = (0, 63, 1 << 29, 1 << 40)
    for page in reversed(far):
        seal.note(7, 1024, [(page, b"\x05\x80")])
    seal.note(8, 1024, [(0, b"\x05")])
    seal.note(8, 1024, [(0, b"\x02\x01"), (5, b"")])
    seal.renew(["/a"])
    assert len(files.read_bytes(f"/a/{NAME}")) < 500
    for each in (seal, IndexFilesSeal(files, ["/a"], 8192)):
        assert [each.held(7, page) for page in (-1, 1, *far)] == [b"", b"", *[b"\x05\x80"] * 4]
        assert list(each.pages(7)) == list(far)
        assert (each.held(8, 0), list(each.pages(8)), list(each.pages(9))) == (b"\x07\x01", [0], [])


def zero_header(files: MemoryFiles, path: str) -> None:
    files.corrupt(path, 0, bytes(HEADER_BYTES))


@pytest.mark.parametrize("damage", [lose, zero_header, cut_to(0), cut_to(20)])
def test_what_was_lost_with_a_header_is_not_taken_for_never_written(
    bookie: MemTableBookie, storage: MemTableStorage, damage: Callable[[MemoryFiles, str], None]
) -> None:
    """It was durable before: the key that the journals bring makes up neither for the fence nor for the entries."""
    storage.close()
    damage(bookie.files, path_of(bookie, HURT))
    storage = bookie.open()
    for restarts in range(2):
        storage.set_master_key(HURT, KEY)
        record = storage.ledger(HURT)
        assert record is not None
        assert (record.key, record.fenced, record.limbo) == (KEY, True, True)
        with pytest.raises(LedgerStateUnknown):
            storage.read(HURT, ENTRIES)
        if not restarts:
            storage.flush()
            storage.close()
            storage = bookie.open()
    storage.close()


def test_files_that_grow_and_go_meanwhile_are_sound(bookie: MemTableBookie, storage: MemTableStorage) -> None:
    storage.delete_ledger(HURT)
    put(storage, *(entry(SOUND, each) for each in range(ENTRIES, 2 * ENTRIES)))
    storage.flush()
    put(storage, entry(HURT, 0))  # again, and shorter
    storage.flush()
    storage.close()
    with capture_logs() as logs:
        storage = bookie.open()
    assert not [each for each in logs if each["log_level"] == "error"]
    assert storage.read(SOUND, 2 * ENTRIES - 1) == entry(SOUND, 2 * ENTRIES - 1)
    with pytest.raises(NoSuchEntry):
        storage.read(HURT, 1)


def test_without_a_seal_or_with_a_damaged_one_files_are_taken_as_they_are(
    bookie: MemTableBookie, storage: MemTableStorage
) -> None:
    storage.close()
    bookie.files.unlink(path_of(bookie, HURT))
    sealed = bookie.files.read_bytes(f"/a/{NAME}")
    for found in (b"", sealed[:-1], sealed[:40], bytes(len(sealed)), sealed[:30] + b"\xff" + sealed[31:]):
        bookie.files.write_bytes(f"/a/{NAME}", found)
        storage = bookie.open()
        with pytest.raises(NoSuchLedger):
            storage.read(HURT, 0)
        storage.logs.force_close()
    drop_seals(bookie.files, FOLDERS)
    assert bookie.open().ledger(HURT) is None


def test_nothing_is_written_to_a_ledger_before_the_seal_that_tells_of_its_deletion_is_there() -> None:
    files = MemoryFiles()
    files.makedirs("/a")
    seal = IndexFilesSeal(files, ["/a"], 64)
    seal.note(HURT, 1024)
    seal.renew(["/a"])
    seal.forget(HURT)
    writing = files.faults.hold("datasync")
    with ThreadPoolExecutor(2) as threads:
        written = threads.submit(seal.renew, ["/a"])
        writing.reached()
        prepared = threads.submit(seal.prepare, HURT, ["/a"])
        early = wait([prepared], timeout=0.05).done
        writing.open()
        written.result()
        prepared.result()
    assert not early
    assert IndexFilesSeal(files, ["/a"], 64).check({}) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"PKSEAL", struct.pack(">8sqq", b"PKSEAL04", 7, 64)]
    + [struct.pack(">8sqq", b"PKSEAL05", number, 64) for number in (-1, 0, (1 << 63) - 1)],
)
def test_a_seal_that_says_nothing_sensible_is_damaged(content: bytes) -> None:
    """Another one counts."""
    files = MemoryFiles()
    for folder in ("/a", "/b"):
        files.makedirs(folder)
    sound = IndexFilesSeal(files, [], 64)
    sound.note(HURT, 1088, [(0, b"\x05")])
    sound.renew(["/a"])
    files.write_bytes(f"/b/{NAME}", content)
    with capture_logs() as logs:
        seal = IndexFilesSeal(files, ["/a", "/b"], 64)
    assert [line["log_level"] for line in logs] == ["warning"]
    assert (seal.held(HURT, 0), seal.check({})) == (b"\x05", [HURT])
    seal.renew(["/a"])


def sealed(files: MemoryFiles) -> IndexFilesSeal:
    return IndexFilesSeal(files, ["/a"], 64)


def test_a_checkpoint_costs_what_has_changed() -> None:
    files = MemoryFiles()
    files.makedirs("/a")
    seal = sealed(files)
    for ledger_id in range(5000):
        seal.note(ledger_id, 1088, [(0, b"\xff")])
    seal.renew(["/a"])
    written = files.faults.record()
    seal.note(7, 1152, [(1, b"\1")])
    seal.forget(8)
    seal.renew(["/a"])
    assert [(each.name, each.path) for each in written] == [("write", f"/a/{NAME}"), ("datasync", f"/a/{NAME}")]
    assert written[0].nbytes < 100
    again = sealed(files)
    assert (again.held(7, 1), again.held(7, 0), again.held(8, 0)) == (b"\1", b"\xff", b"")
    assert again.check(dict.fromkeys(range(5000), 1088)) == [7]


def test_a_page_of_a_long_ledger_costs_as_much_as_one_of_a_short_one() -> None:
    files = MemoryFiles()
    files.makedirs("/a")
    seal = sealed(files)
    lengths = 1024 + 64 * 3000
    seal.note(7, lengths, [(page, bytes([page % 255 + 1])) for page in range(3000)])
    seal.renew(["/a"])
    written = files.faults.record()
    for page in (2999, 17, 17, 3001):
        seal.note(7, lengths, [(page, b"\xff")])
        seal.renew(["/a"])
    assert max(each.nbytes for each in written) < 100
    again = sealed(files)
    assert {page: again.held(7, page) for page in again.pages(7)} == {
        page: seal.held(7, page) for page in seal.pages(7)
    }
    assert again.held(7, 17) == b"\xff"


def test_a_ledger_that_was_lost_owes_nothing_of_before_once_its_limbo_is_durable() -> None:
    files = MemoryFiles()
    files.makedirs("/a")
    seal = sealed(files)
    seal.note(7, 1152, [(0, b"\xff"), (1, b"\1")])
    seal.renew(["/a"])
    seal = sealed(files)
    assert seal.check({}) == [7]
    seal.note(8, 1088)
    seal.forget(9)
    seal.renew(["/a"])
    again = sealed(files)
    assert (list(again.pages(7)), again.check({8: 1088})) == ([], [])


def test_a_seal_that_has_grown_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_GROWTH", 200)
    files = MemoryFiles()
    files.makedirs("/a")
    seal = sealed(files)
    most = 0
    for page in range(300):
        seal.note(7, 1088 + 64 * page, [(page % 3, bytes([page % 255 + 1]))])
        seal.renew(["/a"])
        most = max(most, files.size(f"/a/{NAME}"))
    assert most < 600
    assert sealed(files).held(7, 0) == seal.held(7, 0)


@pytest.mark.parametrize("left", ["torn", "not whole", "another process"])
def test_nothing_is_added_to_what_may_not_be_whole(left: str) -> None:
    files = MemoryFiles()
    files.makedirs("/a")
    seal = sealed(files)
    seal.note(1, 1088)
    seal.renew(["/a"])
    if left == "torn":
        files.write_bytes(f"/a/{NAME}", files.read_bytes(f"/a/{NAME}") + b"\0\0\0\7half")
        seal = sealed(files)
        assert seal.check({1: 1088, 2: 1088}) == []
        assert list(seal.never_durable) == []
    elif left == "not whole":
        files.faults.fail("datasync", path=NAME, times=1)
    else:
        seal = sealed(files)
        assert seal.check({1: 1088, 2: 1088}) == []
        assert list(seal.never_durable) == [2]
    before = files.faults.counts["rename"]
    seal.note(3, 1088)
    seal.renew(["/a"])
    assert files.faults.counts["rename"] == before + 1
    assert 3 in sealed(files).check({})


@pytest.mark.parametrize("tail", [b"\0" * 7, b"\0" * 100, b"\0\0\0\7half"])
def test_torn_tail_leaves_what_lies_before_it(tail: bytes) -> None:
    """A crash may leave zeros where a block was added, and they are no block."""
    files = MemoryFiles()
    files.makedirs("/a")
    seal = sealed(files)
    seal.note(1, 1088, [(0, b"\1")])
    seal.renew(["/a"])
    files.write_bytes(f"/a/{NAME}", files.read_bytes(f"/a/{NAME}") + tail)
    seal = sealed(files)
    assert (seal.check({1: 1024}), seal.held(1, 0), list(seal.never_durable)) == ([1], b"\1", [])


def test_pages_before_others_cost_as_much_as_behind() -> None:
    many = range(0, 20_000, 2)
    pages = HeldPages().replaced((page, b"\1") for page in many)
    pages = pages.replaced((page, b"\3") for page in range(1, 20_000, 2))
    pages = pages.replaced([(-1, b"\1"), (4, b"\7"), (30_000, b"\1")])
    assert list(pages.pages()) == [-1, *range(20_000), 30_000]
    assert [pages.get(page) for page in (-2, -1, 0, 1, 4, 19_999, 25_000, 30_000)] == [
        *(b"", b"\1", b"\1", b"\3", b"\7", b"\3", b"", b"\1")
    ]


def test_the_newest_seal_counts_wherever_it_is(bookie: MemTableBookie, storage: MemTableStorage) -> None:
    bookie.faults.fail("write", path=f"/a/{NAME}", errno=errno.EIO)
    put(storage, *(entry(HURT, each) for each in range(ENTRIES, 2 * ENTRIES)))
    storage.flush()
    storage.close()
    path = path_of(bookie, HURT)
    cut_to(len(bookie.files.read_bytes(path)) - 64)(bookie.files, path)
    record = bookie.open().ledger(HURT)
    assert record is not None
    assert record.limbo


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, NoWritableDirectory), (errno.EIO, StorageFault)])
def test_no_mark_passes_what_is_not_sealed(
    bookie: MemTableBookie, storage: MemTableStorage, number: int, kind: type[StorageFault]
) -> None:
    bookie.faults.fail("write", path=NAME, errno=number)
    put(storage, *(entry(HURT, each) for each in range(ENTRIES, 2 * ENTRIES)))
    for _ in range(2):
        with pytest.raises(kind, match=NAME):
            storage.flush()
    bookie.faults.clear()
    storage.flush()
    before = bookie.faults.counts["rename"]
    storage.flush()
    assert bookie.faults.counts["rename"] == before, "nothing has changed"


def test_a_seal_of_many_ledgers() -> None:
    files = MemoryFiles()
    files.makedirs("/a")
    seal = IndexFilesSeal(files, ["/a"], 8192)
    assert seal.check({-5: 1024, 1 << 62: 8192, **dict.fromkeys(range(1000), 2048)}) == []
    seal.note(7, 4096)
    seal.forget(8)
    seal.renew(["/a"])
    found = {-5: 1023, 1 << 62: 8192, **dict.fromkeys(range(7), 2048), 7: 4095, **dict.fromkeys(range(9, 1000), 9999)}
    assert IndexFilesSeal(files, ["/a", "/b"], 8192).check(found) == [-5, 7]
