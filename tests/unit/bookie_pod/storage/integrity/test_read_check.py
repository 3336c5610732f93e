"""What a reader gets from a disk whose bits flipped before any scrub: an error that is no denial, never the bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from bookie_pod.storage.index.index_file import slot_offset
from bookie_pod.storage.index.locations import KEY as ROW_KEY
from bookie_pod.storage.index.locations import VALUE
from bookie_pod.storage.integrity import entry_check, scrub
from bookie_pod.storage.integrity.entry_check import EntryCheck, ReadCheck, ScrubCounts
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.scrub import Scrubber
from bookie_pod.storage.integrity.scrub_part import ScrubPart
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import EntryDamaged, StorageFault
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import MemTableBookie
from tests.support.scrub_rig import ScrubRig, signed
from tests.support.storage_engine import put

ENTRIES = 5
ENTRY_SIZE = len(signed(3, 0))


@pytest.fixture(params=["db", "sorted", "interleaved"])
def rig(request: pytest.FixtureRequest) -> ScrubRig:
    rig = ScrubRig(None if request.param == "db" else MemTableBookie(request.param))
    rig.write([3, 4], ENTRIES)
    return rig


@pytest.mark.parametrize("offset", [*range(0, ENTRY_SIZE, 11), ENTRY_SIZE - 1])
def test_every_bit_counts_at_the_first_read(rig: ScrubRig, offset: int) -> None:
    path, position = rig.place(3, 2)
    rig.restart()
    rig.flip(path, position + offset, bit=offset % 8)
    for _ in range(2):
        with pytest.raises(EntryDamaged):
            rig.storage.read(3, 2)
    for entry_id in (0, 1, 3, 4):  # reading ahead meets the damaged one too
        assert rig.storage.read(3, entry_id) == signed(3, entry_id)
    with pytest.raises(EntryDamaged):
        rig.storage.read(3, 2)
    assert rig.storage.read(4, 2) == signed(4, 2)
    rig.storage.close()


def test_what_a_read_found_is_registered_and_its_log_is_kept(rig: ScrubRig) -> None:
    path, position = rig.place(3, 2)
    log_id = rig.part.logs.log_ids()[0]
    rig.restart()
    rig.flip(path, position + 60)
    with pytest.raises(EntryDamaged, match="CRC32C digest"):
        rig.storage.read(3, 2)
    (damage,) = rig.scrub.register.damages()
    assert (damage.kind, damage.ledger_id, damage.entry_id) == (DamageKind.ENTRY, 3, 2)
    assert damage.location == rig.part.location_of(3, 2)
    assert log_id in rig.scrub.register.held_logs()
    assert rig.part.logs.stats.damaged_reads == 1
    assert [each.key for each in rig.run()] == [damage.key], "the next pass meets it again"
    rig.storage.close()


@pytest.mark.parametrize("bit", range(64))
def test_every_bit_of_a_location_counts_at_the_first_read(bit: int) -> None:
    rig = ScrubRig()
    rig.write([3, 4], ENTRIES)
    rig.restart()
    store = rig.storage.directories[0].locations._store  # type: ignore[union-attr]
    (value,) = VALUE.unpack(store.get(ROW_KEY.pack(3, 1)) or b"")
    batch = store.batch()
    batch.put(ROW_KEY.pack(3, 1), VALUE.pack(value ^ (1 << bit if bit < 63 else -1 << 63)))
    batch.commit()
    with pytest.raises(StorageFault):  # of which "no such entry" is none
        rig.storage.read(3, 1)
    assert rig.storage.read(3, 2) == signed(3, 2)
    rig.storage.close()


@pytest.mark.parametrize("bit", range(64))
def test_every_bit_of_a_slot_of_an_index_file_counts_at_the_first_read(bit: int) -> None:
    rig = ScrubRig(MemTableBookie("sorted"))
    rig.write([3], ENTRIES)
    path = next(each for each in paths(rig.files, "/ledgers0") if each.endswith("/3.idx"))
    rig.restart()
    rig.flip(path, slot_offset(1) + bit // 8, bit % 8)
    with pytest.raises(StorageFault):
        rig.storage.read(3, 1)
    assert rig.storage.read(3, 2) == signed(3, 2)
    rig.storage.close()


def paths(files: MemoryFiles, folder: str) -> Iterator[str]:
    for name in files.listdir(folder):
        path = f"{folder}/{name}"
        if files.is_dir(path):
            yield from paths(files, path)
        else:
            yield path


class CountedDigests:
    """Digest types by ledger, and who asked for them."""

    def __init__(self, digest: DigestType | None) -> None:
        self.digest = digest
        self.asked: list[int] = []
        self.silent = False
        self.speak = threading.Event()

    def digest_type(self, ledger_id: int, *, fresh: bool = False) -> DigestType | None:
        self.asked.append(ledger_id)
        if self.silent:
            assert self.speak.wait(60)
        return self.digest


def make(digests: CountedDigests) -> tuple[ReadCheck, list[Damage]]:
    found: list[Damage] = []
    return ReadCheck(digests, lambda damage, asked: found.append(damage), clock=lambda: 0.0), found


def flipped(entry: bytes) -> bytes:
    return entry[:-1] + bytes([entry[-1] ^ 1])


@pytest.mark.parametrize(("before", "now"), [("CRC32", "CRC32C"), ("CRC32C", "CRC32"), ("CRC32", "MAC")])
def test_an_id_that_is_used_again_with_another_digest_is_no_damage(before: str, now: str) -> None:
    digests = CountedDigests(DigestType[before])
    check, found = make(digests)
    assert check.served(1, 3, 2, signed(3, 2, digest=DigestType[before])) is None
    digests.digest = DigestType[now]
    for entry_id in range(3):
        assert check.served(1, 3, entry_id, signed(3, entry_id, digest=DigestType[now])) is None

    class Late(CountedDigests):
        def digest_type(self, ledger_id: int, *, fresh: bool = False) -> DigestType | None:
            return DigestType[now if fresh else before]

    scrubbed = EntryCheck(Late(None), ScrubCounts())
    assert scrubbed.problem(3, 2, signed(3, 2, digest=DigestType[now])) is None
    assert found == []
    if now != "MAC":
        assert scrubbed.problem(3, 2, flipped(signed(3, 2, digest=DigestType[now])))
        assert check.served(1, 3, 2, flipped(signed(3, 2, digest=DigestType[now])))
        assert len(found) == 1


def test_a_sound_entry_asks_nobody() -> None:
    digests = CountedDigests(DigestType.CRC32C)
    check, found = make(digests)
    assert check.served(1, 3, 2, signed(3, 2)) is None
    assert (digests.asked, found) == ([], [])
    assert "CRC32C" in str(check.served(1, 3, 2, flipped(signed(3, 2))))
    assert digests.asked == [3]
    assert [(each.ledger_id, each.entry_id, each.location) for each in found] == [(3, 2, 1)]


@pytest.mark.parametrize("digest", [DigestType.CRC32, DigestType.MAC, DigestType.DUMMY])
def test_other_types_are_asked_for_once(digest: DigestType) -> None:
    digests = CountedDigests(digest)
    check, found = make(digests)
    for _ in range(3):
        assert check.served(1, 3, 2, signed(3, 2, digest=digest)) is None
    assert digests.asked == [3]
    assert bool(check.served(1, 3, 2, flipped(signed(3, 2, digest=digest)))) is (digest is DigestType.CRC32)
    assert len(digests.asked) == (2 if digest is DigestType.CRC32 else 1), "what is damaged is asked for anew"
    assert len(found) == (digest is DigestType.CRC32)


def test_an_entry_too_short_for_its_digest_is_damaged() -> None:
    check, _ = make(CountedDigests(DigestType.CRC32C))
    assert check.served(1, 3, 2, signed(3, 2)[:34]) is not None


def test_reads_go_on_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_check, "WAIT_S", 0.05)
    digests = CountedDigests(DigestType.CRC32C)
    digests.silent = True
    check, found = make(digests)
    for ledger_id in (3, 4, 5):
        assert check.served(1, ledger_id, 2, flipped(signed(ledger_id, 2))) is None
    assert digests.asked == [3], "after one silence nobody is asked for a while"
    assert found == []
    digests.speak.set()


def test_a_ledger_that_nobody_knows_is_served_and_asked_about_now_and_then() -> None:
    digests = CountedDigests(None)
    now = [0.0]
    check = ReadCheck(digests, lambda damage, asked: pytest.fail(str(damage)), clock=lambda: now[0])
    for _ in range(3):
        assert check.served(1, 3, 2, flipped(signed(3, 2))) is None
    assert digests.asked == [3]
    now[0] = entry_check.PAUSE_S
    assert check.served(1, 3, 2, flipped(signed(3, 2))) is None
    assert digests.asked == [3, 3]


def test_what_is_kept_of_ledgers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_check, "MAX_KNOWN", 10)
    digests = CountedDigests(DigestType.MAC)
    check, _ = make(digests)
    for ledger_id in range(25):
        digests.digest = DigestType.MAC if ledger_id % 2 else None
        assert check.served(1, ledger_id, 0, signed(ledger_id, 0, digest=DigestType.MAC)) is None
    assert len(check._others) <= 10
    assert len(check._unknown_until) <= 10


class TestRepair:
    def test_what_a_read_found_is_handed_on_without_a_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scrub, "REPAIR_PACE_S", 0.0)
        rig = ScrubRig()
        rig.write([3], ENTRIES)
        path, position = rig.place(3, 2)
        rig.restart()
        rig.flip(path, position + 60)
        told: list[Damage] = []
        done = threading.Event()

        def after(found: Sequence[tuple[ScrubPart, Damage]]) -> None:
            told.extend(damage for _, damage in found)
            done.set()

        scrubber = Scrubber([rig.scrub], rig.stopped, interval_s=0, after_pass=after)
        scrubber.start()
        assert not done.wait(0.05)
        with pytest.raises(EntryDamaged):
            rig.storage.read(3, 2)
        assert done.wait(20)
        scrubber.stop()
        assert [each.entry_id for each in told] == [2]
        assert rig.scrub.position.number == 0, "no pass was made"
        rig.restart()
        assert [each.entry_id for each in rig.scrub.register.damages()] == [2], "it is stored"
        rig.storage.close()

    def test_what_was_deleted_is_forgotten(self) -> None:
        rig = ScrubRig()
        rig.write([3, 4], ENTRIES)
        for ledger_id in (3, 4):
            path, position = rig.place(ledger_id, 2)
            rig.flip(path, position + 60)
        rig.restart()
        for ledger_id in (3, 4):
            with pytest.raises(EntryDamaged):
                rig.storage.read(ledger_id, 2)
        log_id = rig.part.logs.log_ids()[0]
        rig.storage.delete_ledger(3)
        rig.scrub.tidy()
        assert [each.ledger_id for each in rig.scrub.register.damages()] == [4]
        rig.storage.delete_ledger(4)
        put(rig.storage, signed(5, 0))
        rig.scrub.tidy()
        assert log_id not in rig.scrub.register.held_logs(), "collection may have the log"
        rig.storage.close()
