"""What garbage collection counts, as a running collector counts it."""

from __future__ import annotations

import posixpath

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.garbage_collection import make_collection
from bookie_pod.storage.engines.detection import SORTED_LEDGER_STORAGE
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted
from bookie_protocol.errors import StorageFault
from tests.support.gc_rig import MAJOR, MINOR, GcRig

ENTRY = 104
"""Bytes of an entry in a log, its size word included."""


class Counted:
    """A rig whose collector is made as a bookie makes it, and its metrics."""

    def __init__(self, engine: str) -> None:
        self.rig = GcRig(engine=engine)
        self.rig.bookie.files.makedirs("/ledgers0/current")
        overrides = {
            "metadataServiceUri": "file:///metadata",
            "journalDirectories": "/journal",
            "ledgerDirectories": "/ledgers0",
            "compactionRateByBytes": "1000000000",
            "gcOverreplicatedLedgerWaitTime": "-1",
            "gcDeletionGracePeriod": "0",
        }
        self._start = 'bookie_{}{{ledgerDir="/ledgers0/current",indexDir="/ledgers0/current"}}'
        if engine == "sorted":
            overrides["ledgerStorageClass"] = SORTED_LEDGER_STORAGE
            self._start = "bookie_{}"
        self._registry = Registry()
        collection = make_collection(
            load_config(environ={}, overrides=overrides),
            self.rig.bookie.files,
            self.rig.storage,
            self.rig.metadata,
            self._registry,
            lambda: False,
            FencedAndDeleted(),
        )
        (self.rig.gc,) = collection.collectors

    def __getitem__(self, name: str) -> float:
        """A counter or gauge."""
        (line,) = [
            line for line in self._registry.render().splitlines() if line.startswith(self._start.format(name) + " ")
        ]
        return float(line.split()[-1])

    def values(self, *names: str) -> tuple[float, ...]:
        return tuple(self[name] for name in names)


LEVELS = ("ACTIVE_ENTRY_LOG_TOTAL", "ENTRY_LOG_SPACE_BYTES", "ACTIVE_ENTRY_LOG_SPACE_BYTES", "ACTIVE_LEDGER_TOTAL")


@pytest.mark.parametrize("engine", ["db", "sorted"])
def test_levels_and_what_a_pass_did(engine: str) -> None:
    counted = Counted(engine)
    rig = counted.rig
    mixed, dead = rig.write(range(10), 4), rig.write([10, 11], 5)
    assert counted.values(*LEVELS) == (0, 0, 0, 12)  # no pass has measured the logs
    rig.gc.run_pass()
    assert counted.values(*LEVELS) == (2, 50 * ENTRY, 50 * ENTRY, 12)
    assert (counted["ENTRY_LOG_COMPACT_RATIO"], counted["entry_log_usage_buckets_le_100"]) == (0, 2)
    assert counted["DELETED_LEDGER_TOTAL"] == 0

    sizes = {log_id: rig.logs.size(log_id) for log_id in (mixed, dead)}
    rig.delete(*range(7), 10, 11)
    rig.gc.run_pass()
    assert counted.values(*LEVELS) == (1, 40 * ENTRY, 12 * ENTRY, 3)
    assert counted["ENTRY_LOG_COMPACT_RATIO"] == pytest.approx(0.7)
    assert (counted["entry_log_usage_buckets_le_40"], counted["entry_log_usage_buckets_le_100"]) == (1, 0)
    assert counted["DELETED_LEDGER_TOTAL"] == 9
    assert counted.values("RECLAIMED_DELETION_SPACE_BYTES", "RECLAIMED_COMPACTION_SPACE_BYTES") == (sizes[dead], 0)

    rig.force(MINOR)
    assert counted.values("MINOR_COMPACTION_TOTAL", "MAJOR_COMPACTION_TOTAL") == (1, 0)
    rig.force(MAJOR)
    assert counted.values("MINOR_COMPACTION_TOTAL", "MAJOR_COMPACTION_TOTAL") == (1, 1)
    assert counted["RECLAIMED_COMPACTION_SPACE_BYTES"] == sizes[mixed] - 12 * ENTRY, "what was copied is not free"
    assert counted["RECLAIM_FAILED_TO_DELETE"] == 0


@pytest.mark.parametrize("engine", ["db", "sorted"])
def test_what_could_not_be_deleted(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(engine)
    rig = counted.rig
    log_id = rig.write([1, 2], 3)
    rig.metadata.ledgers[99] = None
    rig.delete(1, 2)
    with monkeypatch.context() as patch:

        def refuse(ledger_id: int) -> None:
            raise StorageFault(f"ledger {ledger_id} is not deleted")

        patch.setattr(type(rig.gc._storage), "delete_ledger", lambda self, ledger_id, consent: refuse(ledger_id))
        rig.gc.run_pass()
    assert counted.values("DELETED_LEDGER_TOTAL", "RECLAIM_FAILED_TO_DELETE") == (0, 2)

    rig.bookie.faults.fail("unlink", path=posixpath.basename(rig.path(log_id)))
    rig.gc.run_pass()
    assert rig.logs.exists(log_id)
    assert counted.values("DELETED_LEDGER_TOTAL", "RECLAIM_FAILED_TO_DELETE") == (2, 3)
    assert counted["RECLAIMED_DELETION_SPACE_BYTES"] == 0
