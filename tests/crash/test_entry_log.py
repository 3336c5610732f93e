"""Death at every file-system call of an entry logger, then a power cut: what was synced is there."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from bookie_pod.storage.entry_log import EntryLogger
from bookie_protocol.errors import StorageFault
from tests.support.entry_logs import PER_LEDGER, entry, open_logger, run
from tests.support.memory_faults import quiet_death
from tests.support.memory_files import Died, MemoryFiles

A, B = "/a/current", "/b/current"
SHAPES = {
    "default": {"log_size_limit_bytes": 3000, "write_buffer_size_bytes": 700},
    "preallocated": {"log_size_limit_bytes": 3000, "write_buffer_size_bytes": 700, "entry_log_preallocation": True},
    "forced": {"log_size_limit_bytes": 3000, "write_buffer_size_bytes": 300, "flush_entry_log_bytes": 900},
    "per ledger": {
        "log_size_limit_bytes": 3000,
        "write_buffer_size_bytes": 700,
        **PER_LEDGER,
        "max_active_entry_logs": 2,
    },
    "direct": {"log_size_limit_bytes": 8192, "direct_io_entry_logger": True, "direct_buffer_bytes": 4096},
}
Key = tuple[int, int]


@dataclass
class Story:
    """What the dying process knew: entries that a sync covered, and those behind them."""

    synced: dict[Key, int] = field(default_factory=dict)
    appended: dict[Key, int] = field(default_factory=dict)

    def append(self, logger: EntryLogger, ledger_id: int, first: int, count: int) -> None:
        ids, entries = run(ledger_id, count, size=150, first=first)
        locations = logger.append_run(ledger_id, ids, entries)
        self.appended.update({(ledger_id, i): loc for i, loc in zip(ids, locations, strict=True)})

    def all_synced(self) -> None:
        self.synced = dict(self.appended)

    def rotated_synced(self, logger: EntryLogger, before: dict[Key, int]) -> None:
        """After a checkpoint: entries in logs that count as flushed."""
        self.synced |= {key: loc for key, loc in before.items() if logger.is_flushed(loc >> 32)}


def _live(files: MemoryFiles, shape: dict[str, object], story: Story) -> None:
    """One process; it ends by `Died` if that comes first."""
    logger = open_logger(files, A, B, **shape)
    for ledger_id in (1, 2, 3):
        story.append(logger, ledger_id, 0, 8)
    logger.sync()
    story.all_synced()
    story.append(logger, 1, 8, 12)
    before = dict(story.appended)
    logger.checkpoint()
    story.rotated_synced(logger, before)
    for log_id in [log_id for log_id in logger.log_ids() if logger.is_flushed(log_id)][:1]:
        for key in [key for key, loc in story.synced.items() if loc >> 32 == log_id]:
            del story.synced[key], story.appended[key]
        logger.delete(log_id)
    story.append(logger, 2, 8, 10)
    logger.rotate()
    logger.sync()
    story.all_synced()
    story.append(logger, 3, 8, 3)
    logger.close()
    story.all_synced()


def _check(after: MemoryFiles, story: Story) -> None:
    """Reopen after the crash: synced entries read back, scans end by themselves, writing goes on."""
    logger = open_logger(after, A, B)
    for (ledger_id, entry_id), location in story.synced.items():
        assert logger.read(location, ledger_id, entry_id) == entry(ledger_id, entry_id, 150)
    found: dict[int, tuple[int, int, bytes]] = {}
    for log_id in logger.log_ids():
        scan = logger.scan(log_id)
        entries = {location: (ledger_id, entry_id, body) for location, ledger_id, entry_id, body in scan}
        found |= entries
        total = logger.ledgers_map(log_id)
        if scan.end.clean and total.end is None:
            assert sum(total.ledgers.values()) == sum(4 + len(body) for _, _, body in entries.values())
    for (ledger_id, entry_id), location in story.synced.items():
        assert found[location] == (ledger_id, entry_id, entry(ledger_id, entry_id, 150))
    for key, location in story.appended.items():
        if key not in story.synced:
            _read_or_fault(logger, location, key)
    known = set(logger.log_ids())
    fresh = logger.append_run(9, [0], [entry(9, 0)])[0]
    logger.sync()
    assert fresh >> 32 not in known
    assert fresh >> 32 > max((loc >> 32 for loc in story.synced.values()), default=-1)
    assert logger.read(fresh, 9, 0) == entry(9, 0)
    logger.close()


def _read_or_fault(logger: EntryLogger, location: int, key: Key) -> None:
    try:
        logger.read(location, *key)
    except StorageFault:
        pass


@pytest.mark.parametrize("strict_names", [False, True], ids=["ordered names", "posix names"])
@pytest.mark.parametrize("shape", SHAPES)
def test_death_at_every_call(shape: str, strict_names: bool) -> None:
    deaths = 0
    while _dies_at(deaths, shape, strict_names):
        deaths += 1
    assert deaths > 30


def _dies_at(step: int, shape: str, strict_names: bool) -> bool:
    """Live until the mutating call of this number; check what is left. False if the life was shorter."""
    files = MemoryFiles(strict_names=strict_names)
    files.faults.die_at(step)
    story = Story()
    random.seed(step)
    died = False
    with quiet_death():
        try:
            _live(files, SHAPES[shape], story)
        except Died:
            died = True
    for seed in range(3):
        _check(files.crash(random.Random(1000 * step + seed)), story)
    return died


@pytest.mark.parametrize("shape", SHAPES)
def test_a_killed_process_loses_only_its_buffer(shape: str) -> None:
    files = MemoryFiles()
    logger = open_logger(files, A, B, **SHAPES[shape])
    story = Story()
    for ledger_id in (1, 2, 3):
        story.append(logger, ledger_id, 0, 20)
    logger.flush()
    story.all_synced()
    _check(files.restart(), story)
    logger.close()
