"""Damage anywhere, then collection with deletions, restarts and compaction: whatever lives and was not hit reads back,
what was hit is a fault or somebody's digest to judge, and nothing that the index knew is denied."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import pytest

from bookie_pod.storage.entry_log.format import split_location
from bookie_protocol.errors import NoSuchEntry, StorageFault
from tests.support.gc_rig import GcRig
from tests.support.memtable_engine import ENGINES
from tests.support.storage_engine import entry, put

SIZES = (40, 100, 700)
HEADER_FIELDS = 24
TRIALS = 15


@dataclass
class World:
    """Three logs, seven ledgers, and what was done to them."""

    rng: random.Random
    rig: GcRig
    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)
    places: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    hit: set[tuple[int, int]] = field(default_factory=set)
    """Entries some byte of which, with the size word, is another one now."""
    misplaced: set[tuple[int, int]] = field(default_factory=set)
    """Entries whose row is another one."""
    denied: set[tuple[int, int]] = field(default_factory=set)
    """Entries whose row is gone."""
    unclosed: list[int] = field(default_factory=list)
    story: list[str] = field(default_factory=list)

    @classmethod
    def make(cls, seed: int, engine: str) -> World:
        world = cls(random.Random(seed), GcRig(engine=engine))
        rng, rig = world.rng, world.rig
        for ledger_ids, first in (([1, 2, 3], 0), ([3, 4], 24), ([5, 6, 1], 48)):
            size, step = rng.choice(SIZES), rng.choice((1, 3))
            entries = [(ledger_id, first + step * number) for number in range(8) for ledger_id in ledger_ids]
            entries += [(7, first)] if rng.random() < 0.5 else []
            world.entries |= {each: entry(*each, size) for each in entries}
            for each in entries:
                put(rig.storage, world.entries[each])
            log_id = rig.write([99], 1, first=first)
            if rng.random() < 0.3:
                world.story.append(f"log {log_id} was not closed")
                world.unclosed.append(log_id)
        rig.metadata.ledgers |= dict.fromkeys(range(1, 8))
        world.places = {each: split_location(rig.parts.location_of(*each)) for each in world.entries}
        if world.unclosed:
            rig.restart()
            for log_id in world.unclosed:
                rig.forget_map(log_id)
        return world

    # --- damage ---------------------------------------------------------------------------------------------

    def overwrite(self, log_id: int, at: int, data: bytes) -> None:
        path = self.rig.path(log_id)
        old = self.rig.bookie.files.read_bytes(path)[at : at + len(data)]
        data = data[: len(old)]
        self.rig.bookie.files.corrupt(path, at, data)
        changed = [at + number for number, pair in enumerate(zip(old, data, strict=True)) if pair[0] != pair[1]]
        self.note(log_id, changed)
        self.story.append(f"log {log_id} at {at}: {old[:40].hex()} is {data[:40].hex()}")

    def note(self, log_id: int, changed: list[int]) -> None:
        for each, (found, position) in self.places.items():
            span = range(position - 4, position + len(self.entries[each]))
            if found == log_id and any(at in span for at in changed):
                self.hit.add(each)

    def flip(self) -> None:
        log_id = self.rng.choice(self.rig.flushed)
        size = self.rig.logs.size(log_id)
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            at = (
                self.rng.randrange(HEADER_FIELDS)
                if self.rng.random() < 0.2
                else self.rng.randrange(self.rig.first, size)
            )
            (byte,) = self.rig.bookie.files.read_bytes(self.rig.path(log_id))[at : at + 1]
            self.overwrite(log_id, at, bytes([byte ^ 1 << self.rng.randrange(8)]))

    def smear(self) -> None:
        log_id = self.rng.choice(self.rig.flushed)
        at = self.rng.randrange(self.rig.first, self.rig.logs.size(log_id))
        length = self.rng.choice((1, 4, 16, 200, 512, 4096))
        self.overwrite(log_id, at, self.rng.choice((bytes(length), b"\xff" * length, self.rng.randbytes(length))))

    def size_word(self) -> None:
        each = self.rng.choice(list(self.places))
        log_id, position = self.places[each]
        right = len(self.entries[each])
        value = self.rng.choice((0, -1, right - 1, right + 1, right + 4 + right, 16, 1 << 20, self.rng.getrandbits(31)))
        self.overwrite(log_id, position - 4, struct.pack(">i", value))

    def swallow(self) -> None:
        """A size word grows by exactly what follows it, as one flipped bit can do."""
        log_id = self.rng.choice(self.rig.flushed)
        here = sorted((position, each) for each, (found, position) in self.places.items() if found == log_id)
        at = self.rng.randrange(len(here) - 1)
        last = min(len(here) - 1, at + self.rng.choice((1, 1, 2, 5)))
        end = here[last][0] + len(self.entries[here[last][1]])
        self.overwrite(log_id, here[at][0] - 4, struct.pack(">i", end - here[at][0]))

    def head(self) -> None:
        each, other = self.rng.sample(list(self.places), 2)
        log_id, position = self.places[each]
        ids = self.rng.choice((other, (other[0], each[1]), (each[0], other[1]), (each[0], each[1] + 64)))
        self.overwrite(log_id, position, struct.pack(">qq", *ids))

    def cut(self) -> None:
        log_id = self.rng.choice(self.rig.flushed)
        size = self.rig.logs.size(log_id)
        length = self.rng.randrange(self.rig.first, size)
        self.rig.cut(log_id, length)
        self.note(log_id, list(range(length, size)))
        self.story.append(f"log {log_id} cut at {length} of {size}")

    def row(self) -> None:
        each = self.rng.choice(list(self.places))
        location = self.rig.parts.location_of(*each) ^ 1 << self.rng.randrange(63)
        self.rig.set_row(*each, location)
        self.misplaced.add(each)
        self.story.append(f"row of {each} is {split_location(location)}, was {self.places[each]}")

    def no_row(self) -> None:
        each = self.rng.choice(list(self.places))
        self.rig.drop_row(*each)
        self.denied.add(each)
        self.story.append(f"row of {each} is gone")

    # --- what must hold -------------------------------------------------------------------------------------

    def check(self, dead: set[int]) -> None:
        contents = [self.rig.bookie.files.read_bytes(self.rig.path(log_id)) for log_id in self.rig.logs.log_ids()]
        for each, expected in self.entries.items():
            if each[0] in dead:
                continue
            if each not in self.hit:
                assert any(expected in content for content in contents), f"{each} was deleted: {self.story}"
            self.check_read(each, expected)

    def check_read(self, each: tuple[int, int], expected: bytes) -> None:
        try:
            found = self.rig.storage.read(*each)
        except NoSuchEntry:
            assert each in self.denied, f"{each} is denied: {self.story}"
        except StorageFault:
            assert each in self.hit | self.misplaced, f"{each} is a fault: {self.story}"
        else:
            assert found[:16] == expected[:16], f"{each} is another entry: {self.story}"
            if each not in self.hit:
                assert found == expected, f"{each} is wrong: {self.story}"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("engine", ["db", *ENGINES])
def test_nothing_that_lives_is_lost(engine: str, seed: int) -> None:
    for trial in range(TRIALS):
        world = World.make(seed * TRIALS + trial, engine)
        rng = world.rng
        kinds = [world.flip, world.smear, world.size_word, world.swallow, world.head, world.cut]
        if engine == "db":
            kinds += [world.row, world.no_row]
        if rng.random() < 0.5:
            world.rig.gc.run_pass()  # the logs were measured before the damage
        for _ in range(rng.choice((1, 1, 2))):
            rng.choice(kinds)()
        dead = set(rng.sample(range(1, 8), rng.randrange(2, 6)))
        world.story.append(f"deleted {sorted(dead)}")
        if rng.random() < 0.5:
            world.rig.restart()
        world.rig.delete(*dead)
        for _ in range(2):
            world.rig.force()
            world.check(dead)
            world.rig.restart()
            world.check(dead)
