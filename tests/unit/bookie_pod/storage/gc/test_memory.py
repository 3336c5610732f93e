"""A log of a million ledgers costs tens of megabytes, whatever became of them: what is kept of each is packed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizes
from bookie_pod.storage.entry_log.scan import LedgersMap
from bookie_pod.storage.gc.absent_ledgers import AbsentLedgers
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted
from bookie_pod.storage.gc.index_check import IndexedRows
from bookie_pod.storage.gc.ledger_collector import LedgerCollector
from bookie_pod.storage.gc.log_usage import LogUsages
from bookie_pod.storage.gc.reports import REPORT_LEDGERS, Inspection
from bookie_pod.storage.gc.schedule import CompactionSchedule, GcTimes
from tests.support.gc_rig import FAST, DictatedMetadata
from tests.support.memory_files import MemoryFiles

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LEDGERS = 1_000_000
FIRST_ID = 1 << 40
LOG = 0xA1
FOLDER = "/ledgers/current"
MOST = 90_000_000
"""Bytes at the peak: to sort a map of 16 MB takes 64 already."""


class Disk(MemoryFiles):
    """What is written to it takes no memory."""

    def write_bytes_atomic(self, path: str, data: bytes) -> None:
        assert len(data) < MOST


class Elsewhere(DictatedMetadata):
    """Every ledger exists, on other bookies."""

    def read(self, ledger_id: int) -> Any:
        return _ELSEWHERE


_ELSEWHERE = SimpleNamespace(ensembles={0: ("other:1",)})


class MillionLedgers:
    """A log whose map names a million ledgers; `lives` says which of them are known here."""

    def __init__(self, lives: Callable[[int], bool], metadata: DictatedMetadata) -> None:
        self.logs: Any = self
        self.has_ledger = lives
        files = Disk()
        files.makedirs(FOLDER)
        self.deleted = DeletedLedgers(files, FOLDER)
        storage: Any = self
        absent = AbsentLedgers(lambda: FAST, lambda: 0)
        collector = LedgerCollector(
            storage, metadata, lambda: None, self.deleted, FencedAndDeleted(), absent, verify=False
        )
        self.usages = LogUsages(
            storage,
            collector,
            pay_scan=lambda entries, nbytes: None,
            rows=IndexedRows(storage, lambda: None),
            quarantined={},
        )
        schedule = CompactionSchedule.of(FAST)
        self.inspection = Inspection(storage, self.usages, schedule, GcTimes(0, 0), dict)

    def is_earlier_life(self, ledger_id: int, log_id: int) -> bool:
        return False

    def ledgers_map(
        self, log_id: int, pay: Callable[[int, int], None], *, scan: bool = False, met: object = None
    ) -> LedgersMap:
        ids = np.arange(FIRST_ID, FIRST_ID + LEDGERS, dtype=np.int64)
        return LedgersMap(LedgerSizes(ids, np.full(LEDGERS, 1000, np.int64) + ids % 7), None, checked=True)

    def size(self, log_id: int) -> int:
        return 1 << 30

    def written_ms(self, log_id: int) -> int:
        return 0

    def path(self, log_id: int) -> str:
        return f"{FOLDER}/{log_id:x}.log"

    def is_flushed(self, log_id: int) -> bool:
        return True

    def measure(self) -> None:
        """What a pass does with this log."""
        self.usages.begin_pass([LOG])
        usage = self.usages.refresh(LOG)
        assert usage is not None
        self.deleted.retain(self.usages.seen_deleted.ascending(), LOG + 1)
        self.deleted.seal(LOG)
        self.deleted.write()


@contextmanager
def peak_below(most: int) -> Iterator[None]:
    """The most that is allocated at any time inside."""
    tracemalloc.start(1)
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak / 1e6:.0f} MB"


@pytest.mark.parametrize("kind", ["live", "half is deleted", "all are deleted", "all live elsewhere"])
def test_a_pass_and_a_report(kind: str) -> None:
    lives = {"live": lambda ledger_id: True, "half is deleted": lambda ledger_id: ledger_id % 2 == 0}
    metadata = Elsewhere() if kind == "all live elsewhere" else DictatedMetadata()
    million = MillionLedgers(lives.get(kind, lambda ledger_id: False), metadata)
    expected = {"live": LEDGERS, "half is deleted": LEDGERS // 2}.get(kind, 0)
    with peak_below(MOST):
        for _ in range(2):  # the second one knows what the first one has found out
            million.measure()
        assert million.usages.usages[LOG].ledgers == expected
        report = million.inspection.report(LOG, None, 0)
        assert report.owners is not None
        assert len(report.owners) == min(expected, REPORT_LEDGERS)
