"""The location index of a directory that serves, rebuilt: what it lacked comes back, what happens meanwhile counts."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.gc.throttle import ScrubStopped
from bookie_pod.storage.index_rebuild.online import LogsDamaged
from bookie_protocol.errors import (
    CouldNotTell,
    LedgerStateUnknown,
    NoSuchEntry,
    NoSuchLedger,
    ResourcesShort,
    StorageFault,
)
from tests.support.gc_rig import MAJOR, MINOR
from tests.support.rebuild_rig import RebuildRig
from tests.support.storage_engine import MemoryBookie, entry, put

LOCATIONS = {"ledgers": False}


def test_missing_and_wrong_rows_come_back_and_sound_ones_stay() -> None:
    rig = RebuildRig(MemoryBookie.without_read_cache())
    rig.write([1, 2], 20)
    rig.write([1], 10, first=20)
    rows = rig.rows()
    rig.spoil([((1, 3), 0), ((1, 25), 0), ((2, 7), 99 << 32 | 2048), ((2, 8), rows[1, 8])])
    with pytest.raises(NoSuchEntry):
        rig.storage.read(1, 3)
    state = rig.rebuild(**LOCATIONS)
    assert rig.rows() == rows
    assert (state.entries, state.rows_changed, state.rows_dangling, state.logs) == (50, 4, 0, 2)
    assert state.bytes_done == state.bytes_total
    assert rig.storage.read(1, 3) == entry(1, 3, 100)
    assert state.backups
    assert all(rig.tool_stores.exists(path) for path in state.backups)


def test_rows_that_the_index_has_are_preferred_to_newer_copies() -> None:
    rig = RebuildRig()
    rig.write([1], 5)
    rows = rig.rows()
    rig.write([1], 5)
    newer = rig.rows()
    rig.spoil([((1, 0), rows[1, 0]), ((1, 1), 0)])
    rig.rebuild(**LOCATIONS)
    assert rig.rows() == newer | {(1, 0): rows[1, 0]}


def test_while_it_runs_nothing_is_denied() -> None:
    rig = RebuildRig(MemoryBookie.without_read_cache())
    rig.write([1], 20)
    rig.spoil([((1, 3), 0), ((1, 19), 0)])
    answers = []

    def ask() -> None:
        for question in (
            lambda: rig.storage.read(1, 3),
            lambda: rig.storage.read(1, 1000),
            lambda: rig.storage.last_entry_id(1),
            lambda: list(rig.storage.entry_ids(1)),
            lambda: rig.storage.read(77, 0),
        ):
            with pytest.raises(LedgerStateUnknown):
                question()
        answers.append(rig.storage.read(1, 4))

    rig.between = ask
    rig.rebuild(**LOCATIONS)
    assert set(answers) == {entry(1, 4, 100)}
    assert len(answers) >= 3
    assert rig.storage.read(1, 3) == entry(1, 3, 100)
    assert rig.storage.last_entry_id(1) == 19
    with pytest.raises(NoSuchEntry):
        rig.storage.read(1, 1000)
    with pytest.raises(NoSuchLedger):
        rig.storage.read(77, 0)


def test_a_look_that_began_before_the_doubt_was_gone_denies_nothing() -> None:
    rig = RebuildRig(MemoryBookie.without_read_cache())
    rig.write([1], 5)
    rig.spoil([((1, 3), 0)])
    rig.directory.doubt = "a test says so"
    get = rig.directory.locations.get

    def slow(ledger_id: int, entry_id: int) -> int:
        found = get(ledger_id, entry_id)
        rig.directory.doubt = None
        return found

    rig.directory.locations.get = slow  # type: ignore[method-assign]
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(1, 3)


def test_garbage_collection_touches_no_log_meanwhile() -> None:
    rig = RebuildRig()
    log_id = rig.write([1, 2], 20)
    rig.spoil([((1, each), 0) for each in range(20)])
    rig.delete(2)
    passes = []

    def collect() -> None:
        passes.append(rig.force(MAJOR))
        assert rig.logs.exists(log_id)
        assert "being rebuilt" in rig.gc.excluded()[log_id]
        assert rig.gc.state().held[log_id]

    rig.between = collect
    rig.rebuild(**LOCATIONS)
    assert passes
    assert sum(each.logs_deleted + each.logs_compacted for each in passes) == 0
    assert rig.force(MAJOR).logs_compacted == 1
    assert rig.storage.read(1, 19) == entry(1, 19, 100)


def test_deleted_ledgers_are_not_resurrected() -> None:
    rig = RebuildRig()
    rig.write([1, 2, 3, 4], 10)
    rig.storage.delete_ledger(2)
    rig.storage.flush()
    steps = iter([3])

    def delete() -> None:
        for ledger_id in islice(steps, 1):
            rig.storage.delete_ledger(ledger_id)
            rig.storage.flush()
            put(rig.storage, entry(ledger_id, 2, 50, b"n"))  # made anew, with another entry 2
            rig.storage.flush()

    rig.between = delete
    state = rig.rebuild(**LOCATIONS)
    assert state.unknown_ledger_entries >= 10
    assert {ledger for ledger, _ in rig.rows()} == {1, 3, 4}
    assert [place for place in rig.rows() if place[0] == 3] == [(3, 2)]
    assert rig.storage.read(3, 2) == entry(3, 2, 50, b"n")


def test_entries_from_before_a_deletion_that_the_collection_remembers_get_no_row() -> None:
    rig = RebuildRig()
    rig.write([1, 2], 10)
    rig.delete(2)
    result = rig.force(MINOR)
    assert (result.ledgers_deleted, result.logs_compacted) == (1, 0), "the log stays: half of it lives"
    rig.metadata.ledgers[2] = None
    put(rig.storage, entry(2, 5, 100, b"n"))
    rig.storage.flush()
    rig.spoil([((1, 0), 0)])
    rig.rebuild(**LOCATIONS)
    assert [place for place in rig.rows() if place[0] == 2] == [(2, 5)]
    assert rig.rows()[1, 9]


def test_rows_that_lead_nowhere_are_kept_and_rows_behind_damage_too() -> None:
    rig = RebuildRig(MemoryBookie.without_read_cache())
    log_id = rig.write([1], 30)
    rows = rig.rows()
    rig.files.corrupt(rig.path(log_id), split_location(rows[1, 10])[1] - 4, b"\x7f" * 8)
    with pytest.raises(LogsDamaged):
        rig.rebuild(**LOCATIONS)
    assert rig.rows() == rows
    assert not rig.files.exists(f"{rig.folder}/rebuilt.building")
    state = rig.rebuild(accept_damage=True, **LOCATIONS)
    assert rig.rows() == rows
    assert (state.entries, state.rows_salvaged, state.rows_dangling) == (10, 19, 1)
    with pytest.raises(StorageFault):  # lost here, not absent
        rig.storage.read(1, 10)


def test_a_closed_log_that_was_cut_off_is_damaged() -> None:
    rig = RebuildRig()
    log_id = rig.write([1], 30)
    rows = rig.rows()
    rig.files.open(rig.path(log_id), writable=True).truncate(split_location(rows[1, 10])[1] - 4)
    with pytest.raises(LogsDamaged):
        rig.rebuild(**LOCATIONS)


def test_damage_in_a_log_that_was_never_closed_is_what_a_crash_leaves_unless_rows_lie_behind_it() -> None:
    rig = RebuildRig()
    for entry_id in range(10):
        put(rig.storage, entry(1, entry_id, 100))
    rig.storage.flush()
    rows = rig.rows()
    assert isinstance(rig.bookie, MemoryBookie)
    rig = RebuildRig(rig.bookie.crash(random.Random(1)))
    log_id, position = split_location(rows[1, 9])
    rig.files.corrupt(rig.path(log_id), position - 4, b"\x7f" * 8)
    rig.rebuild(**LOCATIONS)
    assert rig.rows() == rows
    rig.files.corrupt(rig.path(log_id), split_location(rows[1, 5])[1] - 4, b"\x7f" * 8)
    with pytest.raises(LogsDamaged):
        rig.rebuild(**LOCATIONS)
    assert rig.rebuilding.state.rows_salvaged == 3


def test_a_stop_leaves_the_old_index() -> None:
    rig = RebuildRig()
    rig.write([1], 30)
    rig.spoil([((1, 3), 0)])
    rows = rig.rows()
    rig.between = rig.stopped.set
    with pytest.raises(ScrubStopped):
        rig.rebuild(**LOCATIONS)
    assert rig.rows() == rows
    assert rig.directory.doubt is None
    assert not rig.gc.excluded()
    assert not rig.tool_stores.exists(f"{rig.folder}/rebuilt.building/locations")
    put(rig.storage, entry(1, 30))
    rig.storage.flush()
    assert rig.rows()[1, 30]


@pytest.mark.parametrize("where", ["rebuilt.building", "index-swap.json"])
def test_a_disk_that_refuses_the_new_index_leaves_the_old_one(where: str) -> None:
    rig = RebuildRig()
    rig.write([1], 30)
    rig.spoil([((1, 3), 0)])
    names = ("write",) if where.startswith("rebuilt") else ("overwrite", "create", "rename")

    def spoil() -> None:
        rig.between = lambda: None
        rig.bookie.faults.fail(*names, path=where)

    rig.between = spoil
    with pytest.raises(StorageFault):
        rig.rebuild(**LOCATIONS)
    rig.bookie.faults.clear()
    assert (1, 3) not in rig.rows()
    put(rig.storage, entry(1, 30))
    rig.storage.flush()
    rig.between = lambda: None
    rig.rebuild(**LOCATIONS)
    assert len(rig.rows()) == 31


def test_an_index_that_cannot_be_read_for_want_of_descriptors_is_used_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = RebuildRig()
    rig.write([1], 30)
    rig.spoil([((1, 3), 0)])
    rows = rig.rows()

    def short(*_: object) -> None:
        raise ResourcesShort("too many open files")

    with monkeypatch.context() as patched, pytest.raises(ResourcesShort):
        patched.setattr(rig.directory.locations, "rows", short)
        rig.rebuild(**LOCATIONS)
    assert rig.rows() == rows


def test_a_flush_is_not_failed_by_the_new_index() -> None:
    rig = RebuildRig()
    rig.write([1], 30)

    def add() -> None:
        rig.between = lambda: None
        rig.bookie.faults.fail("write", path="rebuilt.building")
        put(rig.storage, entry(1, 30))
        rig.storage.flush()

    rig.between = add
    with pytest.raises(StorageFault, match="follow"):
        rig.rebuild(**LOCATIONS)
    assert rig.storage.read(1, 30) == entry(1, 30)


class _Story:
    """A random life of ledgers, and what they must hold. An entry never changes."""

    def __init__(self, rig: RebuildRig, rng: random.Random) -> None:
        self.rig, self.rng = rig, rng
        self.ledgers: dict[int, set[int]] = {}
        self.next = 1

    def act(self) -> None:
        rig, rng = self.rig, self.rng
        kind = rng.choice(["add", "add", "add", "again", "delete", "flush", "rotate", "collect", "restart-gc"])
        if kind == "add":
            ledger_id = rng.choice([*self.ledgers, self.next])
            if ledger_id == self.next:
                self.next += 1
            held = self.ledgers.setdefault(ledger_id, set())
            rig.metadata.ledgers[ledger_id] = None
            for entry_id in range(len(held), len(held) + rng.randint(1, 12)):
                put(rig.storage, entry(ledger_id, entry_id, 60))
                held.add(entry_id)
        elif kind == "again" and self.ledgers:
            ledger_id = rng.choice(list(self.ledgers))
            put(rig.storage, entry(ledger_id, rng.choice(sorted(self.ledgers[ledger_id])), 60))
        elif kind == "delete" and len(self.ledgers) > 2:
            ledger_id = rng.choice(list(self.ledgers))
            del self.ledgers[ledger_id]
            rig.delete(ledger_id)
            rig.storage.delete_ledger(ledger_id)
        elif kind == "flush":
            rig.storage.flush()
        elif kind == "rotate":
            rig.storage.flush()
            rig.logs.rotate()
            rig.logs.sync()
        elif kind == "collect":
            rig.force(MAJOR)

    def look(self) -> None:
        """Nothing that is there is denied."""
        for ledger_id, held in self.ledgers.items():
            for entry_id in self.rng.sample(sorted(held), min(3, len(held))):
                try:
                    assert self.rig.storage.read(ledger_id, entry_id) == entry(ledger_id, entry_id, 60)
                except CouldNotTell:
                    continue

    def spoil(self) -> None:
        rows = self.rig.rows()
        places = list(rows)
        self.rng.shuffle(places)
        wrong = (0, 0, 77 << 32 | 1030, 5)
        values = [(place, self.rng.choice([*wrong, rows[self.rng.choice(places)]])) for place in places]
        self.rig.spoil(values[: len(places) // 2])

    def check(self) -> None:
        storage = self.rig.storage
        assert sorted(storage.ledger_ids()) == sorted(self.ledgers)
        for ledger_id, held in self.ledgers.items():
            assert list(storage.entry_ids(ledger_id)) == sorted(held)
            assert [storage.read(ledger_id, each) for each in held] == [entry(ledger_id, each, 60) for each in held]
            with pytest.raises(NoSuchEntry):
                storage.read(ledger_id, max(held) + 1)
        storage.flush()
        assert {ledger for ledger, _ in self.rig.rows()} == set(self.ledgers), "deleted ledgers have no rows"


@pytest.mark.parametrize("seed", range(40))
def test_the_index_says_what_a_model_says(seed: int) -> None:
    rng = random.Random(seed)
    rig = RebuildRig()
    story = _Story(rig, rng)
    for _ in range(60):
        story.act()
    rig.storage.flush()
    story.check()
    story.spoil()

    def meanwhile() -> None:
        story.look()
        for _ in range(rng.randint(0, 3)):
            story.act()

    rig.between = meanwhile
    rig.rebuild(ledgers=bool(seed % 2))
    rig.between = lambda: None
    story.check()
    for _ in range(20):
        story.act()
    rig.storage.flush()
    rig.restart()
    story.check()
