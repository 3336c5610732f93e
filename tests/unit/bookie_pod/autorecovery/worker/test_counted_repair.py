"""What is counted while a fragment is copied, and what is asked for before it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from bookie_client.replication.check import FragmentReport, ReplicaVerdict
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.replicator import CopyProgress
from bookie_pod.autorecovery.worker.ledger_repair import CountedRepair
from bookie_pod.autorecovery.worker.progress import WorkerProgress
from bookie_protocol.errors import EntriesUnreadable
from bookie_protocol.metadata_service.under_replication import LedgerLock
from bookie_protocol.versioned import Identity
from tests.unit.bookie_pod.autorecovery.worker.reports import LEDGER, metadata_of, report_of

LOCK = LedgerLock(LEDGER, Identity(0, 1), 1)


class Metrics:
    def __init__(self) -> None:
        self.told: list[tuple[int, int, float]] = []

    def copied(self, entries: int, nbytes: int, seconds: float) -> None:
        self.told.append((entries, nbytes, seconds))


class Replicator:
    """Cannot read what it is told."""

    def __init__(self) -> None:
        self.lost: tuple[int, ...] = ()
        self.asked: list[tuple[int, ...]] = []
        self.copied = 0

    async def replicate(self, *arguments: object, **options: object) -> None:
        self.copied += 1
        error = EntriesUnreadable("no copy is left")
        error.entries = self.lost
        raise error

    async def ask_for(self, fragment: Fragment, entry_ids: Collection[int]) -> None:
        self.asked.append(tuple(sorted(entry_ids)))
        if lost := tuple(each for each in entry_ids if each in self.lost):
            error = EntriesUnreadable("no copy is left")
            error.entries = lost
            raise error


class Rig:
    def __init__(self) -> None:
        self.now = 0.0
        self.progress = WorkerProgress(lambda: self.now)
        self.note = self.progress.begin(LEDGER)
        self.replicator, self.metrics = Replicator(), Metrics()
        replicator: Any = self.replicator
        metrics: Any = self.metrics
        self.repair = CountedRepair(replicator, self.progress, metrics)

    async def fails(self, found: FragmentReport, doubtful: Collection[int]) -> EntriesUnreadable:
        with pytest.raises(EntriesUnreadable) as raised:
            await self.repair.restore(found, {0: "a"}, doubtful, self.note, frozenset(), LOCK)
        return raised.value


def test_what_comes_since_the_last_time_is_counted_though_a_fragment_is_begun_again() -> None:
    rig = Rig()
    listen = rig.repair._listener(rig.note)
    for after, entries, nbytes in ((1.0, 10, 100), (2.0, 10, 100), (0.5, 30, 250), (4.0, 5, 50), (1.0, 6, 40)):
        rig.now += after
        listen(CopyProgress(LEDGER, 0, entries, 100, nbytes))
    assert rig.metrics.told == [(10, 100, 1.0), (0, 0, 2.0), (20, 150, 0.5), (5, 50, 4.0), (1, 40, 1.0)]
    assert (rig.note.entries_copied, rig.note.bytes_copied) == (36, 340)
    assert rig.progress.moved_at == rig.now


def reports(*firsts: int) -> list[FragmentReport]:
    metadata = metadata_of(dict.fromkeys(firsts, ("a", "b", "c")))
    return list(report_of(metadata, {"a": ReplicaVerdict.LOST}).fragments)


async def test_entries_in_doubt_are_asked_for_before_anything_is_copied() -> None:
    rig, (found,) = Rig(), reports(0)
    rig.replicator.lost = (3, 50)
    error = await rig.fails(found, {2, 3})
    assert (error.entries, rig.replicator.copied) == ((3,), 0)
    assert (await rig.fails(found, {2})).entries == (3, 50), "another one cannot be read"
    assert (await rig.fails(found, ())).entries == (3, 50)
    assert (rig.replicator.asked, rig.replicator.copied) == ([(2, 3), (2,)], 2)
