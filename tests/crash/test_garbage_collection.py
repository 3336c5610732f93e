"""Die at every file operation and every index commit of a workload with garbage collection (`gc_crash_rig`)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.gc_crash_rig import (
    ENGINES,
    ENGINES_AND_KINDS,
    ENGINES_WITH_LOGS_PER_LEDGER,
    KINDS,
    World,
    operations,
)
from tests.support.gc_crash_workload import CURRENT_LOGS, WORKLOAD, Pass
from tests.support.memtable_engine import MemTableBookie
from tests.support.storage_engine import MemoryBookie


@pytest.mark.parametrize("plain", KINDS)
@pytest.mark.parametrize("engine", list(ENGINES))
def test_the_workload_compacts_and_the_model_agrees(engine: str, plain: bool) -> None:
    world, bookie = World(ENGINES[engine], plain), ENGINES[engine](False)
    node = world.node(bookie)
    node.start()
    compacted = 0
    for number, step in enumerate(WORKLOAD):
        node.apply(step)
        world.journal.begun = number + 1
        world.check(node)
        if isinstance(step, Pass):
            compacted += sum(each.state().last_pass.logs_compacted for each in node.collectors)  # type: ignore[union-attr]
            world.check_collected(node)
    assert compacted >= 3
    node.storage.close()


@pytest.mark.parametrize("strict_names", [False, True], ids=["ordered names", "strict names"])
@pytest.mark.parametrize(("engine", "plain"), ENGINES_AND_KINDS)
def test_death_at_every_operation_loses_nothing_and_resurrects_nothing(
    engine: str, strict_names: bool, plain: bool
) -> None:
    make = ENGINES[engine]
    total = operations(make, plain)
    assert total > 150
    step = 1 if engine == "db" and not plain and not strict_names else 4  # as it is by default
    for death in range(0, total + 1, step):
        world, bookie = World(make, plain), make(strict_names)
        bookie.faults.die_at(death)
        world.run(bookie)
        bookie.faults.die_now()
        world.recover_and_check(bookie.crash(random.Random(1000 + death)))


@pytest.mark.parametrize("strict_names", [False, True], ids=["ordered names", "strict names"])
@pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(make, id=f"{engine}, one log") for engine, make in ENGINES.items()),
        *(
            pytest.param(make, id=f"{engine}, a log per ledger")
            for engine, make in ENGINES_WITH_LOGS_PER_LEDGER.items()
        ),
    ],
)
def test_death_while_logs_that_are_written_at_present_are_given_back(
    make: Callable[[bool], MemoryBookie | MemTableBookie], strict_names: bool
) -> None:
    """Nothing is lost, nothing comes back, and no entry is read for another, whatever number the next log gets."""
    total = operations(make, True, CURRENT_LOGS)
    for death in range(0, total + 1, 2):
        world, bookie = World(make, True, CURRENT_LOGS), make(strict_names)
        bookie.faults.die_at(death)
        world.run(bookie)
        bookie.faults.die_now()
        world.recover_and_check(bookie.crash(random.Random(2000 + death)))
