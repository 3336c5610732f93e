"""One bookie's storage in memory, and what a seed does to it: work, deaths, power cuts, errors of the disk.

Journal files, replay, engine, checkpoints, collector and scrubber are the real ones, configured as the seed says; only
the threads of the journal are not there, so that one seed is one history. Ledgers are deleted, and their ids are used
again. Directories change places between two processes, and a bit of an entry flips. After each start, and now and then,
everything that was acknowledged is read, as a client does it, and everything of earlier lives is asked for.

A rule that is broken ends the run with `Broken`, whose first word names it:

    denied     an acknowledged entry, or its ledger, is said not to be there
    lost       an acknowledged entry cannot be read
    wrong      an entry reads as another one
    returned   an entry of an earlier life of the id is there
    unfenced   an acknowledged fence is forgotten
    refused    the bookie does not start
    limbo      nobody knows any more what a ledger held, though nothing was damaged
    damage     something is called damaged that nothing has damaged
    unfound    a scrub has not found what is damaged

Limbo and damage are asked only of DbLedgerStorage, where the disk has made no errors, and where a torn journal is told
from a whole one.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.journal import CURRENT_FOLDER, JournalConfig
from bookie_pod.metrics.journal import JournalMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.identity.cookies import BookieDirectories
from bookie_pod.node.identity.places import DirectoryPlaces, MisplacedDirectory
from bookie_pod.node.recovery import replay_journals
from bookie_pod.storage.checkpoint import CheckpointHandlers, SyncThread
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.entry_log import EntryLogger, LedgerDirs
from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted, fenced_files
from bookie_pod.storage.gc.state_file import GcStateFile
from bookie_pod.storage.gc.storage import CollectedStorage, collected
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.offline import OfflineLocations
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_pod.storage.integrity.ledger_scrub import LedgerScrub
from bookie_pod.storage.journal.directory import remove_journals_below
from bookie_pod.storage.journal.format import deletion_record, entry_record, fence_record, key_record
from bookie_pod.storage.journal.journal import JournalFileSupply
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.digest import DigestManager, DigestType, digest_manager
from bookie_protocol.errors import (
    JournalDamaged,
    NoSuchEntry,
    NoSuchLedger,
    PodkeeperError,
    StartupError,
    StorageFailed,
    StorageFault,
)
from tests.support.gc_rig import FAST, DictatedMetadata
from tests.support.memory_files import Died, MemoryFiles
from tests.support.memory_tool_stores import MemoryToolStores
from tests.support.memtable_engine import MemTableBookie, memtable_options
from tests.support.production import changed
from tests.support.scrub_rig import FixedDigests
from tests.support.storage_engine import KEY, MemoryBookie, small_options

ENGINES: Final = ("db", "sorted", "interleaved")
STEPS: Final = 200
LEDGERS: Final = 6
ALWAYS_THERE: Final = 999
"""A ledger of the metadata service, so that it never lists nothing."""
_JOURNAL: Final = f"/journal/{CURRENT_FOLDER}"
_MAC_LEDGERS: Final = (0, 3)
"""Their digests are checked by clients alone, where bits flip."""
_IDS: Final = 16
"""Bytes of an entry that say which one it is. A scan that meets others has met another entry."""
_FAULTY: Final = (
    *("datasync", "sync", "pwrite", "write", "pread", "sync_directory", "rename", "unlink", "truncate"),
    *("create_direct", "create", "allocate"),
)
_PATHS: Final = ("", ".idx", ".log", ".txn", "locations", "seal", "lastMark")


class Broken(AssertionError):
    """A rule does not hold."""


class _Over(Exception):
    """Nobody can tell a torn journal without checks of its groups from a damaged one, so the bookie does not start."""


@dataclass(frozen=True, slots=True)
class StorageScenario:
    """What a seed stands for, but for the order of events."""

    seed: int
    engine: str
    reuse: bool
    """Ids of deleted ledgers are used again."""
    errors: bool
    """Single operations of the disk fail."""
    transactional: bool
    """How entry logs are compacted."""
    half_bytes: int
    log_bytes: int
    read_cache_bytes: int
    page_bytes: int
    page_limit: int
    directories: int = 1
    direct_io: bool = True
    journal_direct_io: bool = True
    group_checks: bool = True
    journal_data: bool = True
    """`journalWriteData`; without, an add is acknowledged for good once it is flushed."""
    log_per_ledger: bool = False
    exchanges: bool = False
    """Directories change places between two processes."""
    flips: bool = False
    """Bits of entries flip."""
    journal_version: int = 6
    journal_alignment: int = 512
    journal_bytes: int = 40_000
    write_buffer_bytes: int = 64 << 10
    direct_buffer_bytes: int = 8192
    flush_interval_bytes: int = 0
    open_logs: int = 256
    open_index_files: int = 100
    rows_per_batch: int = 100_000
    minor_threshold: float = 0.2
    major_threshold: float = 0.8
    rebuilds: bool = False
    """The location index is rebuilt from the logs between some processes."""


def draw(seed: int, engine: str | None = None) -> StorageScenario:
    """The scenario of a seed; with `engine` of that one."""
    rng = random.Random(f"scenario {seed}")
    drawn = rng.choice(ENGINES)
    scenario = StorageScenario(
        seed,
        engine or drawn,
        reuse=rng.random() < 0.6,
        errors=rng.random() < 0.3,
        transactional=rng.random() < 0.5,
        half_bytes=rng.choice((4096, 20_000, 1 << 20)),
        log_bytes=rng.choice((10_000, 30_000, 1 << 20)),
        read_cache_bytes=rng.choice((0, 1 << 16)),
        page_bytes=rng.choice((64, 512, 8192)),
        page_limit=rng.choice((1, 4, 1024)),
    )
    return replace(
        scenario,
        directories=rng.choice((1, 1, 2, 3)),
        direct_io=rng.random() < 0.8,
        journal_direct_io=rng.random() < 0.8,
        group_checks=rng.random() < 0.8,
        journal_data=rng.random() < 0.8,
        log_per_ledger=rng.random() < 0.2,
        exchanges=rng.random() < 0.5,
        flips=rng.random() < 0.2,
    )


def draw_configuration(seed: int) -> StorageScenario:
    """The scenario of a seed, with every setting of it drawn that has a say in what is written when."""
    rng = random.Random(f"configuration {seed}")
    return replace(
        draw(seed),
        journal_version=rng.choice((5, 6)),
        journal_alignment=rng.choice((512, 512, 4096)),
        journal_bytes=rng.choice((12_000, 40_000, 1 << 20)),
        write_buffer_bytes=rng.choice((1, 700, 64 << 10)),
        direct_buffer_bytes=rng.choice((4096, 8192, 1 << 20)),
        flush_interval_bytes=rng.choice((0, 0, 900)),
        open_logs=rng.choice((1, 3, 256)),
        open_index_files=rng.choice((1, 2, 100)),
        rows_per_batch=rng.choice((1, 7, 100_000)),
        minor_threshold=rng.choice((0.0, 0.2, 0.5)),
        major_threshold=rng.choice((0.5, 0.8, 0.99)),
        rebuilds=rng.random() < 0.5,
    )


def _bookie_of(scenario: StorageScenario) -> MemoryBookie | MemTableBookie:
    folders = [f"{each}/{CURRENT_FOLDER}" for each in _ledger_directories(scenario)]
    if scenario.engine == "db":
        options = small_options(
            half_bytes=scenario.half_bytes,
            directories=scenario.directories,
            log_size=scenario.log_bytes,
            read_cache_bytes=scenario.read_cache_bytes,
            direct_io=scenario.direct_io,
        )
        options = changed(
            options,
            log_size_limit_bytes=scenario.log_bytes,
            max_operations_per_write_batch=scenario.rows_per_batch,
            **_log_writes(scenario),
        )
        return MemoryBookie(folders, options=options, logger=_logger(scenario))
    memtable = memtable_options(
        memtable_bytes=scenario.half_bytes,
        log_size=scenario.log_bytes,
        page_bytes=scenario.page_bytes,
        page_limit=scenario.page_limit,
        per_ledger=scenario.log_per_ledger,
        open_files=scenario.open_index_files,
    )
    memtable = changed(memtable, **_log_writes(scenario))
    return MemTableBookie(scenario.engine, folders, options=memtable, logger=_logger(scenario))


def _log_writes(scenario: StorageScenario) -> dict[str, int]:
    return {
        "write_buffer_size_bytes": scenario.write_buffer_bytes,
        "flush_entry_log_bytes": scenario.flush_interval_bytes,
    }


def _logger(scenario: StorageScenario) -> Callable[[Files, LedgerDirs, BookieConfig], EntryLogger]:
    return partial(EntryLogger, max_open_files=scenario.open_logs, direct_buffer_bytes=scenario.direct_buffer_bytes)


def _ledger_directories(scenario: StorageScenario) -> tuple[str, ...]:
    return tuple(f"/ledgers{number}" for number in range(scenario.directories))


class _Journal:
    """The files of a `Journal` without its threads: each group is synced before it is acknowledged."""

    def __init__(self, files: MemoryFiles, after: LogMark, written: LogMark, scenario: StorageScenario) -> None:
        self._files = files
        self._options = JournalConfig(
            format_version=scenario.journal_version,
            alignment_size_bytes=scenario.journal_alignment,
            max_size_bytes=scenario.journal_bytes,
            pre_alloc_size_bytes=8192,
            max_backups=0,
            direct_io=scenario.journal_direct_io,
            group_checks=scenario.group_checks,
        )
        self.remove_below(written)
        metrics = JournalMetrics(Registry(), 0)
        self._supply = JournalFileSupply(files, _JOURNAL, self._options, metrics, thread_name="none")
        self._file = self._supply.first(after)
        self._mark = LogMark(self._file.journal_id, self._file.position)

    def append(self, records: Iterable[list[bytes]], *, sync: bool = True) -> None:
        pieces = [piece for record in records for piece in record]
        nbytes = sum(map(len, pieces))
        self._file.write_group([(pieces, nbytes)], nbytes)
        if sync:
            self._sync()
        if self._file.position > self._options.max_size_bytes:
            self._sync()
            end = self._file.position
            self._file.close()
            self._file = self._supply.next(end)

    def _sync(self) -> None:
        self._file.sync(self._file.position)
        self._mark = LogMark(self._file.journal_id, self._file.position)

    def stop(self) -> None:
        self._sync()
        self._file.close_group()
        self._sync()
        self._file.close()

    def last_mark(self) -> LogMark:
        return self._mark

    def remove_below(self, mark: LogMark) -> list[int]:
        return remove_journals_below(self._files, _JOURNAL, mark, self._options.max_backups)


@dataclass(slots=True)
class _Known:
    """What clients know of one id."""

    put: dict[int, bytes] = field(default_factory=dict)
    """Of its life now: all that was sent."""
    unflushed: set[int] = field(default_factory=set)
    """What was answered and is durable with the next flush."""
    acknowledged: set[int] = field(default_factory=set)
    earlier: set[int] = field(default_factory=set)
    """Entries that earlier lives had."""
    fenced: bool = False
    lives: int = 0
    collected: bool = False
    """The bookie has deleted the ledger, and nobody has made it anew."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one collection looks after: a directory of DbLedgerStorage, or all of another engine's."""

    storage: CollectedStorage
    collector: GarbageCollector
    scrub: LedgerScrub


class StorageWorld:
    """One run."""

    def __init__(self, scenario: StorageScenario, tell: Callable[[str], None] = lambda what: None) -> None:
        self.counts: Counter[str] = Counter()
        self._scenario = scenario
        self._tell = tell
        self._rng = random.Random(f"events {scenario.seed}")
        random.seed(scenario.seed)  # the directories of new files are chosen by it
        self._now = 10**12
        self._bookie = _bookie_of(scenario)
        self._bookie.files.makedirs(_JOURNAL)
        self._metadata = DictatedMetadata()
        self._metadata.ledgers[ALWAYS_THERE] = None
        self._flipped: dict[tuple[int, int], int] = {}
        """Entries of which a bit has flipped on the disk, and where."""
        self._digests = FixedDigests()
        if scenario.flips:
            self._digests.digests = dict.fromkeys(_MAC_LEDGERS, DigestType.MAC)
        self._known = {ledger_id: _Known() for ledger_id in range(LEDGERS)}
        self._deleting: dict[int, set[int]] = {}
        """What ledgers had whose deletions are not durable yet."""
        self._start("first start")

    def run(self, steps: int = STEPS) -> None:
        """Raises `Broken`."""
        with suppress(_Over):
            self._run(steps)

    def _run(self, steps: int) -> None:
        works: dict[Callable[[], None], int] = {
            self._add: 60,
            self._fence: 3,
            self._delete: 4,
            self._collect: 6,
            self._checkpoint: 5,
            self._flush: 4,
            self._rotate: 3,
            self._scrub_all: 2,
            self._look: 4,
            self._stop: 1,
        }
        if self._scenario.flips:
            works[self._flip] = 2
        for _ in range(steps):
            self._plan_trouble()
            work = self._rng.choices(list(works), list(works.values()))[0]
            self._do(work)
        self._bookie.files.faults.clear()
        self._do(self._stop)

    def _plan_trouble(self) -> None:
        faults = self._bookie.files.faults
        if self._rng.random() < 0.06:
            faults.die_at(faults.mutations + self._rng.randrange(30))
        if self._scenario.errors and self._rng.random() < 0.05:
            what, path = self._rng.choice(_FAULTY), self._rng.choice(_PATHS)
            self._note(f"will fail: {what} {path}")
            faults.fail(what, path=path, after=self._rng.randrange(4), times=1)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Died:
            self._end(("kill", "kill", "power"))
        except StorageFailed as error:
            self._note(f"ends: {error}")
            self._bookie.files.faults.clear()
            self._end(("kill", "kill", "power"))
        except (StorageFault, OSError) as error:
            self._note(f"fault: {error!r}")
            if isinstance(error, OSError) or ".txn" in str(error):  # the journal's, which ends the process
                self._bookie.files.faults.clear()
                self._end(("kill", "kill", "power"))
        if self._bookie.files.faults.dead:  # on a thread that has told nobody
            self._end(("kill", "power"))

    def _note(self, what: str) -> None:
        self.counts[what.split(" ")[0].rstrip(":")] += 1
        self._tell(what)

    # --- processes ------------------------------------------------------------------------------------------

    def _end(self, ways: tuple[str, ...]) -> None:
        """The process is gone, or the power; the next process starts."""
        way = self._rng.choice(ways)
        self._bookie = self._bookie.crash(self._rng) if way == "power" else self._bookie.restart()
        if way == "power":  # which of its lives an id names, only the metadata know, and nothing was acknowledged of it
            for ledger_id, entries in self._deleting.items():
                self._known[ledger_id].earlier -= entries
        if self._scenario.rebuilds and self._scenario.engine == "db" and self._rng.random() < 0.5:
            self._rebuild_locations()
        self._start(way)

    def _rebuild_locations(self) -> None:
        """As `bookie disk rebuild-locations` does it, with the old index at hand."""
        bookie = self._bookie
        assert isinstance(bookie, MemoryBookie)
        assert bookie.stores is not None
        stores = MemoryToolStores(bookie.files, bookie.stores)
        for folder in bookie.directories:
            if not stores.exists(f"{folder}/{StoreKind.LEDGERS.value}"):
                continue
            logs = StoredLogs(bookie.files, [folder])
            rebuilding = OfflineLocations(bookie.files, stores, stores.stores, folder, logs)
            while rebuilding.step():
                pass
            if rebuilding.report.damaged_logs and not self._scenario.flips:
                raise Broken(f"damage: a rebuild tells of {rebuilding.report.damages[:2]}")
            rebuilding.commit()
            logs.close()
        self._note("rebuilt")

    def _exchange(self) -> None:
        """Two directories change places. What holds other ledgers then must be refused."""
        one, other = self._rng.sample(self._bookie.directories, 2)
        self._note(f"exchanged {one} and {other}")
        exchange(self._bookie, one, other)
        try:
            self._places().check()
        except MisplacedDirectory:
            exchange(self._bookie, one, other)

    def _places(self) -> DirectoryPlaces:
        directories = BookieDirectories(("/journal",), _ledger_directories(self._scenario))
        return DirectoryPlaces(self._bookie.files, directories, ordered=self._scenario.engine == "db")

    def _start(self, why: str) -> None:
        self._note(why)
        if self._scenario.exchanges and self._scenario.directories > 1 and self._rng.random() < 0.5:
            self._exchange()
        bookie = self._bookie
        try:
            places = self._places()
            places.check()
            self._storage = bookie.open()
            if isinstance(self._storage, DbLedgerStorage):
                self._storage._threads = [_AtOnce() for _ in self._storage._threads]  # type: ignore[misc]
            replayed = replay_journals(
                bookie.files,
                self._storage,
                journal_folders=[_JOURNAL],
                ledger_folders=list(bookie.directories),
            )
            places.check_contents(self._storage)
            places.record()
            self._journal = _Journal(bookie.files, replayed.ends[0], replayed.marks[0].written, self._scenario)
            replayed.go_on_at([self._journal.last_mark()], bookie.writable())
        except (StorageFault, StartupError) as error:
            if why == "power" and not self._scenario.group_checks and isinstance(error, JournalDamaged):
                raise _Over from error
            raise Broken(f"refused a start: {error!r}") from error
        self._keys = set(replayed.keys)
        self._deleting.clear()
        for known in self._known.values():
            known.unflushed.clear()  # some of it may be there
        handlers = CheckpointHandlers(on_no_writable_directory=_ignore, on_failure=_ignore)
        self._checkpoints = SyncThread(self._storage, [self._journal], replayed.marks, bookie.writable, handlers)  # type: ignore[list-item]
        if isinstance(self._storage, MemTableStorage):
            self._storage._background.request = lambda *, hurry=False: None  # type: ignore[method-assign]
            if self._storage._flusher is not None:
                self._storage._flusher = _AtOnce()
        self._storage.start(self._checkpoints)
        fenced = FencedAndDeleted(fenced_files(bookie.files, list(bookie.directories)), now_ms=lambda: self._now)
        self._storage.on_ledger_deleted(self._deleted)
        self._parts = [
            self._part_of(each, folder, fenced)
            for each, folder in zip(collected(self._storage), bookie.directories, strict=False)
        ]
        self._check()

    def _part_of(self, storage: CollectedStorage, folder: str, fenced: FencedAndDeleted) -> _Part:
        files = self._bookie.files
        collector = GarbageCollector(
            storage,
            self._metadata,
            GcStateFile(files, folder),
            replace(
                FAST,
                transactional_compaction=self._scenario.transactional,
                minor_compaction_threshold=self._scenario.minor_threshold,
                major_compaction_threshold=self._scenario.major_threshold,
            ),
            fenced=fenced,
            now_ms=lambda: self._now,
            random=self._rng,
        )
        pace = ScrubPace(threading.Event(), entries_per_second=0, bytes_per_second=0)
        scrub = LedgerScrub(storage, files, folder, pace, self._digests, now_ms=lambda: self._now)
        collector.excluded = scrub.register.held_logs
        return _Part(storage, collector, scrub)

    def _stop(self) -> None:
        try:
            self._checkpoints.checkpoint(trim=False)
            self._flushed()
            self._storage.close()
            self._journal.stop()
        except (StorageFault, OSError) as error:
            self._note(f"fault: {error!r}")
            self._bookie.files.faults.clear()
        self._bookie = self._bookie.restart()
        self._start("stop")

    # --- work -----------------------------------------------------------------------------------------------

    def _add(self) -> None:
        ledger_id = self._rng.randrange(LEDGERS)
        known = self._known[ledger_id]
        if known.fenced:
            return
        if ledger_id not in self._metadata.ledgers:
            if self._storage.ledger(ledger_id) is not None or (known.lives and not self._scenario.reuse):
                return
            self._metadata.ledgers[ledger_id] = None
            known.lives, known.collected = known.lives + 1, False
        if known.collected:
            return
        records = []
        if self._storage.ledger(ledger_id) is None:
            self._storage.set_master_key(ledger_id, KEY)
        if ledger_id not in self._keys:
            records.append(key_record(ledger_id, KEY))
        first = max(known.put, default=-1) + 1 + self._rng.choice((0, 0, 0, 1, 3))
        ids = range(first, first + self._rng.randint(1, 5))
        for entry_id in ids:
            payload = b"%d" % (known.lives % 10) * self._rng.choice((10, 100, 900))
            data = self._digest(ledger_id).encode(ledger_id, entry_id, entry_id - 1, len(payload), payload)
            if self._storage.is_full(ledger_id):
                self._storage.flush()
                self._flushed()
            self._storage.active_entries(ledger_id)[entry_id] = data
            self._storage.account(ledger_id, len(data), 1)
            known.put[entry_id] = data
            if self._scenario.journal_data:
                records.append(entry_record(data))
        if records:
            self._append(records)
        self._keys.add(ledger_id)
        (known.acknowledged if self._scenario.journal_data else known.unflushed).update(ids)
        self._note(f"acknowledged {ledger_id}: {ids[0]} to {ids[-1]} of life {known.lives}")

    def _append(self, records: list[list[bytes]]) -> None:
        self._journal.append(records)
        self._deleting.clear()

    def _digest(self, ledger_id: int) -> DigestManager:
        return digest_manager(self._digests.digest_type(ledger_id) or DigestType.DUMMY, b"password")

    def _flushed(self) -> None:
        """All that was put is durable."""
        for known in self._known.values():
            known.acknowledged |= known.unflushed
            known.unflushed.clear()

    def _fence(self) -> None:
        live = [each for each, known in self._known.items() if known.acknowledged and not known.fenced]
        live = [each for each in live if each in self._metadata.ledgers]
        if not live:
            return
        ledger_id = self._rng.choice(live)
        record = self._storage.ledger(ledger_id)
        assert record is not None
        self._storage.set_ledger(ledger_id, replace(record, fenced=True))
        key = [] if ledger_id in self._keys else [key_record(ledger_id, KEY)]
        self._keys.add(ledger_id)
        self._append([*key, fence_record(ledger_id)])
        self._known[ledger_id].fenced = True
        self._note(f"fenced {ledger_id}")

    def _delete(self) -> None:
        there = [ledger_id for ledger_id in self._metadata.ledgers if ledger_id != ALWAYS_THERE]
        if there:
            ledger_id = self._rng.choice(there)
            del self._metadata.ledgers[ledger_id]
            self._note(f"deleted {ledger_id}")

    def _deleted(self, ledger_id: int, fenced: bool, next_log: int) -> None:
        """The collector has told the storage."""
        known = self._known[ledger_id]
        known.earlier.update(known.put)
        self._deleting[ledger_id] = set(known.put)
        known.put, known.acknowledged, known.fenced, known.collected = {}, set(), False, True
        known.unflushed = set()
        for flipped in [each for each in self._flipped if each[0] == ledger_id]:
            del self._flipped[flipped]
        self._keys.discard(ledger_id)
        self._note(f"collected {ledger_id}")
        self._journal.append([deletion_record(ledger_id, next_log)], sync=False)

    def _collect(self) -> None:
        self._now += self._rng.choice((1000, 2 * 3_600_000, 2 * 86_400_000))
        for part in self._parts:
            done = part.collector.run_pass()
            self._note(f"pass: {done.ledgers_deleted} {done.logs_deleted} {done.logs_compacted} {done.errors[:1]}")
            self.counts["logs compacted"] += done.logs_compacted

    def _checkpoint(self) -> None:
        self._checkpoints.checkpoint()
        if self._scenario.engine == "db":  # the others drain what lies below the marks of the journals
            self._flushed()
        self._note("checkpoint")

    def _flush(self) -> None:
        self._storage.flush()
        self._flushed()
        self._note("flush")

    def _rotate(self) -> None:
        for part in self._parts:
            part.storage.logs.rotate()
        self._note("rotate")

    def _scrub_all(self) -> None:
        self._now += 1000
        for part in self._parts:
            part.scrub.run()
        self._note("scrub")
        if not self._scenario.errors:
            self._check_what_was_found()

    def _flip(self) -> None:
        """A bit of an entry that is on the disk, often of its last byte."""
        stored = [(each, entry_id) for each, known in self._known.items() for entry_id in known.acknowledged]
        stored = [each for each in stored if each not in self._flipped and each[0] in self._metadata.ledgers]
        if not stored:
            return
        ledger_id, entry_id = self._rng.choice(stored)
        part = self._part_with(ledger_id)
        location = part.storage.location_of(ledger_id, entry_id)
        log_id, position = split_location(location)
        if not location or not part.storage.logs.is_flushed(log_id):
            return
        last = len(self._known[ledger_id].put[entry_id]) - 1
        at = self._rng.choice((last, self._rng.randrange(_IDS, last)))
        path = part.storage.logs.path(log_id)
        byte = self._bookie.files.read_bytes(path)[position + at]
        self._bookie.files.corrupt(path, position + at, bytes([byte ^ 1 << self._rng.randrange(8)]))
        self._flipped[ledger_id, entry_id] = location
        self._note(f"flipped {ledger_id}:{entry_id} at {at} of {last}")

    def _part_with(self, ledger_id: int) -> _Part:
        return self._parts[ledger_id % len(self._parts)]

    def _look(self) -> None:
        if not self._scenario.errors:  # else a read may meet one
            self._check()
            self._note("look")

    # --- rules ----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        for ledger_id, known in self._known.items():
            if ledger_id in self._metadata.ledgers:
                self._check_ledger(ledger_id, known)
        scenario = self._scenario
        if scenario.engine == "db" and scenario.group_checks and not scenario.errors and not scenario.flips:
            self._check_false_alarms()

    def _check_ledger(self, ledger_id: int, known: _Known) -> None:
        record = self._storage.ledger(ledger_id)
        if known.fenced and (record is None or not record.fenced):
            raise Broken(f"unfenced: {ledger_id}")
        for entry_id in sorted(known.acknowledged):
            self._check_entry(ledger_id, entry_id, known.put[entry_id])
        for entry_id in sorted(known.earlier - known.put.keys()):
            try:
                self._storage.read(ledger_id, entry_id)
            except PodkeeperError:
                continue
            raise Broken(f"returned: {ledger_id}:{entry_id}")
        limbo = record is not None and record.limbo
        if not limbo and known.acknowledged and max(known.acknowledged) > self._storage.last_entry_id(ledger_id):
            raise Broken(f"denied the end of {ledger_id}")

    def _check_what_was_found(self) -> None:
        for (ledger_id, entry_id), location in self._flipped.items():
            part = self._part_with(ledger_id)
            if (
                part.storage.location_of(ledger_id, entry_id) == location
                and self._digests.digest_type(ledger_id) is not DigestType.MAC
                and not any(each.location == location for each in part.scrub.register.damages())
            ):
                raise Broken(f"unfound: {ledger_id}:{entry_id}")

    def _check_entry(self, ledger_id: int, entry_id: int, wanted: bytes) -> None:
        try:
            found = self._storage.read(ledger_id, entry_id)
            if self._digests.digest_type(ledger_id) is DigestType.MAC:
                self._digest(ledger_id).verify(found, ledger_id, entry_id)  # a bookie cannot
        except (NoSuchEntry, NoSuchLedger) as error:
            raise Broken(f"denied {ledger_id}:{entry_id}: {error!r}") from error
        except PodkeeperError as error:
            if (ledger_id, entry_id) in self._flipped:
                return
            raise Broken(f"lost {ledger_id}:{entry_id}: {error!r}") from error
        if found != wanted:
            raise Broken(f"wrong {ledger_id}:{entry_id}")

    def _check_false_alarms(self) -> None:
        for part in self._parts:
            quarantined, damages = part.collector.state().quarantined, part.scrub.register.damages()
            if quarantined or damages:
                raise Broken(f"damage: {quarantined} {[damage.detail for damage in damages[:2]]}")
        records = {ledger_id: self._storage.ledger(ledger_id) for ledger_id in self._metadata.ledgers}
        if limbo := [ledger_id for ledger_id, record in records.items() if record is not None and record.limbo]:
            raise Broken(f"limbo: {limbo}")


class _AtOnce(Executor):
    """Directories, and ledgers with a log each, are flushed one behind the other, so that one seed is one history."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except BaseException as error:
            done.set_exception(error)
        return done


def exchange(bookie: MemoryBookie | MemTableBookie, one: str, other: str) -> None:
    """Two folders hold what the other one held."""
    bookie.files.exchange(one, other)
    if isinstance(bookie, MemoryBookie) and bookie.stores is not None:
        bookie.stores.exchange(one, other)


def _ignore(error: BaseException) -> None:
    pass


def broken_rule(scenario: StorageScenario) -> str | None:
    """What is wrong with this run, and its last events; None: every rule holds."""
    events: list[str] = []
    try:
        StorageWorld(scenario, events.append).run()
    except Broken as broken:
        return f"{broken}\n  {scenario}\n  " + "\n  ".join(events[-20:])
    return None
