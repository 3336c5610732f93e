"""What the throttle counts: every byte that compaction reads or writes, and every entry that it moves, once; and how
often the index is looked through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bookie_pod.storage.entry_log.format import SIZE_BYTES
from tests.support.gc_rig import FAST, GcRig
from tests.support.memtable_engine import ENGINES as MEMTABLE_ENGINES
from tests.support.storage_engine import entry

ENGINES = ["db", *MEMTABLE_ENGINES]
SIZE = 100
IN_A_LOG = SIZE_BYTES + SIZE
ENTRIES = 40


class Counted:
    """Stands for a throttle."""

    def __init__(self) -> None:
        self.entries = self.nbytes = 0

    def __call__(self, entries: int, nbytes: int) -> None:
        self.entries += entries
        self.nbytes += nbytes


def _counted(rig: GcRig) -> Counted:
    counted = Counted()
    rig.gc._reclaimer._compactor._pay = counted  # type: ignore[attr-defined]
    return counted


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "plain"])
@pytest.mark.parametrize("alive", [1, 2])
def test_a_compaction(engine: str, transactional: bool, alive: int) -> None:
    """Read: the whole log, dead entries too. Written, and so moved: what lives."""
    rig = GcRig(replace(FAST, transactional_compaction=transactional), engine=engine)
    rig.write(range(4), ENTRIES, SIZE)
    rig.delete(*range(alive, 4))
    rig.gc.run_pass()
    counted = _counted(rig)
    assert rig.force().logs_compacted == 1
    assert counted.entries == alive * ENTRIES
    assert counted.nbytes == (4 + alive) * ENTRIES * IN_A_LOG


@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "plain"])
def test_a_copy_that_a_crash_left_is_read_again(transactional: bool) -> None:
    """From the disk this time, so its bytes count; its entries were moved before."""
    rig = GcRig(replace(FAST, transactional_compaction=transactional))
    source = rig.write([1, 2], ENTRIES, SIZE)
    rig.delete(2)
    assert rig.gc.run_pass().ledgers_deleted == 1
    target = rig.logs.begin_compaction(source, 0)
    target.append_run(1, [entry(1, each, SIZE) for each in range(ENTRIES)])
    target.mark_compacted()
    rig.restart()
    counted = _counted(rig)
    assert rig.gc.run_pass().logs_deleted == 1
    assert (counted.entries, counted.nbytes) == (0, ENTRIES * IN_A_LOG)
    assert len(rig.readable(1)) == ENTRIES


def test_a_scan_that_measures_a_log() -> None:
    rig = GcRig()
    log_id = rig.write([1, 2], ENTRIES, SIZE)
    rig.forget_map(log_id)
    rig.restart()
    counted = Counted()
    rig.gc._usages._pay_scan = counted
    rig.gc.run_pass()
    assert (counted.entries, counted.nbytes) == (2 * ENTRIES, 2 * ENTRIES * IN_A_LOG)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "plain"])
def test_logs_that_an_unclean_stop_left_cost_one_look_through_the_index_together(
    engine: str, transactional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = GcRig(replace(FAST, transactional_compaction=transactional), engine=engine)
    logs = [rig.write([ledger_id, 10 + ledger_id], 5) for ledger_id in range(6)]
    for log_id in logs:
        rig.forget_map(log_id)
    rig.restart()
    rig.delete(0, 1, 2, 4, 14, 5, 15)
    looked: Counter[int] = Counter()
    part = rig.gc._usages._storage
    rows = part.rows

    def counting(ledger_id: int) -> Iterator[tuple[int, int]]:
        looked[ledger_id] += 1
        return rows(ledger_id)

    monkeypatch.setattr(part, "rows", counting)
    result = rig.force()
    assert (result.errors, result.logs_compacted, result.logs_deleted) == ([], 3, 5)
    assert looked == dict.fromkeys((3, 10, 11, 12, 13), 1)
    assert all(len(rig.readable(ledger_id)) == 5 for ledger_id in looked)
