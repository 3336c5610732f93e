"""Fail every file operation and every index commit of a workload with garbage collection (`gc_crash_rig`)."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from bookie_protocol.errors import StorageFailed, StorageFault
from tests.support.gc_crash_rig import ENGINES, ENGINES_AND_KINDS, World, operations
from tests.support.gc_crash_workload import WORKLOAD, Put
from tests.support.gc_rig import MAJOR
from tests.support.memory_faults import MUTATING
from tests.support.memtable_engine import MemTableBookie
from tests.support.storage_engine import MemoryBookie


@pytest.mark.parametrize(("engine", "plain"), ENGINES_AND_KINDS)
def test_any_single_failure_is_survived_and_made_good_by_the_next_pass(engine: str, plain: bool) -> None:
    make = ENGINES[engine]
    seen = 0
    for failing in range(0, operations(make, plain), 1 if engine == "db" else 3):
        world, bookie = World(make, plain), make(False)
        seen += _run_with_failure(world, bookie, failing)
    assert seen > 20


def _run_with_failure(world: World, bookie: MemoryBookie | MemTableBookie, failing: int) -> bool:
    """Whether the failure was told to anybody."""
    told = False
    node = world.node(bookie)
    node.start()
    failed = bookie.faults.mutations + failing
    bookie.faults.fail(*MUTATING, after=failing, times=1)
    for number, step in enumerate(WORKLOAD):
        world.journal.begun = number
        try:
            node.apply(step)
        except StorageFailed:
            told = True
            break
        except StorageFault:
            told = True
        else:
            told = told or any(each.state().last_errors for each in node.collectors)
        world.journal.begun = number + 1
        # What was there before is what every run has; and a put changes little.
        if bookie.faults.mutations > failed and not isinstance(step, Put):
            world.check(node)
    else:
        bookie.faults.clear()
        # A failed sync is noticed by the next flush that has something to write, and made good by the one behind it.
        for ledger_id in (7, 8):
            node.replay(Put(ledger_id, 8))
        with suppress(StorageFault):
            node.storage.flush()
        try:
            node.storage.flush()
        except StorageFailed:
            told = True
        else:
            assert node.collect(MAJOR) == []
            world.check(node)
            world.check_collected(node)
    node.release()
    bookie.faults.clear()
    bookie.faults.die_now()
    world.recover_and_check(bookie.crash(random.Random(failing)))
    return told
