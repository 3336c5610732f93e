"""Die at every file operation of a journal's work, cut the power, and replay.

Checked at each place of death and for several crash states of it
- every acknowledged batch is replayed, and so is what was acknowledged before in other processes;
- what is replayed is a prefix of what was appended, in order, above the mark;
- replay of a state that only a crash made never raises, also not the second time;
- the next process can go on in the same directory.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

import pytest

from bookie_pod.config.sections.journal import JournalConfig
from bookie_pod.storage.journal import Journal, JournalBatch, LogMark, MarkFiles, journal_file, replay_journal
from bookie_pod.storage.journal import format as fmt
from bookie_pod.storage.journal.replay import settle_end
from bookie_protocol.errors import StorageFault
from tests.support.journal_rig import DIRECTORY, JournalRig, Replayed, an_add, an_entry, replayed, small_options
from tests.support.memory_faults import quiet_death
from tests.support.memory_files import Died, MemoryFiles

LEDGER_DIRECTORIES = ["/l0/current", "/l1/current"]
SEEDS = range(6)
Event = tuple[str, int, int, bytes]


@dataclass
class History:
    """What was appended, in order, what of it was acknowledged, and the last mark that was asked for."""

    appended: list[Event] = field(default_factory=list)
    acknowledged: int = 0
    batches: int = 0
    positions: dict[LogMark, int] = field(default_factory=lambda: {LogMark(): 0})


def batches(rng: random.Random, count: int, first: int) -> list[tuple[JournalBatch, list[Event]]]:
    """Adds of several ledgers, keys, fences, explicit LACs and force markers, one to five records in a batch."""
    made = []
    for number in range(first, first + count):
        records, events = [], []
        for part in range(rng.randint(0, 5)):
            ledger, kind = rng.randrange(4), rng.random()
            if kind < 0.75:
                entry = an_entry(ledger, number * 10 + part, rng.randbytes(rng.choice([0, 60, 700, 1500])))
                records.append(fmt.entry_record(entry))
                events.append(("entry", ledger, number * 10 + part, entry))
            elif kind < 0.85:
                records.append(fmt.key_record(ledger, b"%020d" % number))
                events.append(("key", ledger, 0, b"%020d" % number))
            elif kind < 0.92:
                records.append(fmt.fence_record(ledger))
                events.append(("fence", ledger, 0, b""))
            else:
                records.append(fmt.explicit_lac_record(ledger, b"lac%d" % number))
                events.append(("lac", ledger, 0, b"lac%d" % number))
        made.append((JournalBatch.of(*records), events))
    return made


def end_threads(journal: Journal) -> None:
    """Of a process that died."""
    journal._stopping = True
    journal._queue.wake()
    journal._writer_thread.join()
    journal._sync_thread.join()


def live(
    files: MemoryFiles, history: History, rng: random.Random, options: JournalConfig, *, ahead: bool = False
) -> None:
    """One process: start, add in bursts, checkpoint now and then (mark and trim), stop. Raises `Died`.

    `ahead`: syncs are slow and bursts do not wait for them, so that several groups are written and not synced.
    """
    if ahead:
        files.faults.delay(0.002, "datasync")
    rig = JournalRig(files, options)
    marks = MarkFiles(files, LEDGER_DIRECTORIES, 0, 1)
    after = replay_journal(DIRECTORY, marks.copies(), files, Replayed()).after
    journal = rig.journal
    journal.start(after)
    done = threading.Condition()
    counted = 0
    appended_with: dict[JournalBatch, int] = {}

    def deliver(batch_list: list[JournalBatch], error: BaseException | None) -> None:
        nonlocal counted
        with done:
            for batch in batch_list:
                history.acknowledged = max(history.acknowledged, appended_with[batch])
            counted += len(batch_list)
            done.notify_all()

    journal._deliver = journal._sync._deliver = deliver  # type: ignore[assignment]
    try:
        for burst in range(30 if ahead else 8):
            work = batches(rng, rng.randint(1, 4), history.batches)
            history.batches += len(work)
            for batch, events in work:
                history.appended.extend(events)
                appended_with[batch] = len(history.appended)
                journal.append(batch)
            if ahead:
                time.sleep(0.0003)
            with done:
                while counted < len(appended_with) and not ahead:
                    if files.faults.dead:
                        raise Died
                    done.wait(0.002)
            if burst % 3 == 2 and not ahead:
                mark = journal.last_mark()
                history.positions[mark] = history.acknowledged
                marks.write(mark, LEDGER_DIRECTORIES)
                journal.remove_below(mark)
        journal.stop()
    except StorageFault:
        assert files.faults.dead
        raise Died from None
    finally:
        end_threads(journal)


def check(files: MemoryFiles, history: History) -> LogMark:
    """Replay twice, hold it against the history; gives the mark to go on from."""
    mark = MarkFiles(files, LEDGER_DIRECTORIES, 0, 1).read()
    found, end = replayed(files, mark)
    begin = history.positions[mark]
    expected = history.appended[begin:]
    assert found.events == expected[: len(found.events)]
    assert begin + len(found.events) >= history.acknowledged
    again, same = replayed(files, mark)
    assert (again.events, same) == (found.events, end)
    assert replayed(files, end)[0].events == []
    return end


def fresh(strict: bool) -> MemoryFiles:
    files = MemoryFiles(strict_names=strict)
    for directory in [DIRECTORY, *LEDGER_DIRECTORIES]:
        files.makedirs(directory)
    return files


def died(
    files: MemoryFiles,
    history: History,
    rng: random.Random,
    options: JournalConfig,
    at: int,
    *,
    ahead: bool = False,
) -> bool:
    files.faults.die_at(files.operations + at)
    try:
        live(files, history, rng, options, ahead=ahead)
    except Died:
        return True
    return False


OPTIONS = {
    "small files": small_options(max_size_bytes=6000, max_backups=1),
    "one file": small_options(),
    "no waiting": small_options(max_size_bytes=9000, flush_when_queue_empty=True, max_backups=0),
    "wide alignment": small_options(alignment_size_bytes=4096, max_size_bytes=30_000),
    "through the page cache": small_options(direct_io=False, max_size_bytes=6000, max_backups=1),
}


@pytest.mark.parametrize("strict", [False, True], ids=["ordered names", "strict names"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_dying_at_every_operation(options: JournalConfig, strict: bool) -> None:
    deaths = 0
    with quiet_death():
        while True:
            files, history = fresh(strict), History()
            if not died(files, history, random.Random(7), options, deaths):
                break
            deaths += 1
            for seed in SEEDS:
                check(files.crash(random.Random(seed)), history)
            check(files.restart(), history)
    assert deaths > 40


def test_dying_at_every_operation_of_tiny_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "WRITE_BYTES", 700)
    test_dying_at_every_operation(OPTIONS["small files"], strict=False)


@pytest.mark.parametrize("name", ["small files", "no waiting", "through the page cache"])
def test_dying_while_groups_wait_for_their_sync(name: str) -> None:
    with quiet_death():
        for at in range(0, 60, 2):
            files, history = fresh(strict=False), History()
            died(files, history, random.Random(at), OPTIONS[name], at, ahead=True)
            for seed in range(12):
                check(files.crash(random.Random(seed)), history)


@pytest.mark.parametrize("seed", range(25))
def test_one_crash_after_another(seed: int) -> None:
    """Processes that follow each other in one directory, each dying somewhere, power lost or not."""
    rng = random.Random(seed)
    options = rng.choice(list(OPTIONS.values()))
    files, history = fresh(rng.random() < 0.5), History()
    with quiet_death():
        for _ in range(6):
            died(files, history, rng, options, rng.randrange(10, 90))
            files = files.crash(rng) if rng.random() < 0.7 else files.restart()
            end = check(files, history)
            found = replayed(files, MarkFiles(files, LEDGER_DIRECTORIES, 0, 1).read())[0].events
            history = after_replay(files, history, end, found) if rng.random() < 0.5 else kept(files, history, found)


def after_replay(files: MemoryFiles, history: History, end: LogMark, found: list[Event]) -> History:
    """What a bookie does after replay: flush its storage, write the mark. Gives the history of the next process."""
    marks = MarkFiles(files, LEDGER_DIRECTORIES, 0, 1)
    before = marks.read()
    settle_end(DIRECTORY, files, replay_journal(DIRECTORY, [before], files, Replayed()))
    marks.write(end, LEDGER_DIRECTORIES)
    survived = history.positions[before] + len(found)
    return History(
        appended=history.appended[:survived],
        acknowledged=history.acknowledged,
        batches=history.batches,
        positions={**{mark: n for mark, n in history.positions.items() if n <= survived}, end: survived},
    )


def kept(files: MemoryFiles, history: History, found: list[Event]) -> History:
    """What it does instead while its disks are full: the mark stays."""
    mark = MarkFiles(files, LEDGER_DIRECTORIES, 0, 1).read()
    end = replay_journal(DIRECTORY, [mark], files, Replayed())
    settle_end(DIRECTORY, files, end)
    settle_end(DIRECTORY, files, end, cut=True)
    survived = history.positions[mark] + len(found)
    return History(
        appended=history.appended[:survived],
        acknowledged=history.acknowledged,
        batches=history.batches,
        positions={mark: n for mark, n in history.positions.items() if n <= survived},
    )


def die_unsynced(files: MemoryFiles, entries: int, **options: object) -> None:
    """One process: acknowledges entries of ledger 7 after the write to the OS, and dies."""
    with quiet_death():
        rig = JournalRig(files, small_options(page_cache_flush_interval_ms=1e9, **options))
        rig.journal.start()
        rig.add(*[an_add(7, i, bytes(500), sync=False) for i in range(entries)])
        files.faults.die_now()
        end_threads(rig.journal)


@pytest.mark.parametrize("sync_data", [True, False])
def test_deferred_sync_survives_the_end_of_the_process(sync_data: bool) -> None:
    """What was acknowledged after the write to the OS is lost with the machine at most, not with the process."""
    files = fresh(strict=False)
    die_unsynced(files, 30, sync_data=sync_data, max_size_bytes=4000)
    assert replayed(files.restart())[0].entries() == [(7, i) for i in range(30)]
    for seed in range(30):
        survived = replayed(files.crash(random.Random(seed)))[0].entries()
        assert survived == [(7, i) for i in range(len(survived))]


@pytest.mark.parametrize("moves", [True, False])
def test_what_a_dead_process_left_unsynced_is_durable_before_anything_says_so(moves: bool) -> None:
    """The mark and the file that follows name its end, and a power failure could take that back."""
    files = fresh(strict=False)
    die_unsynced(files, 9, sync_data=False)
    files.faults.dead = False  # the next process, and what the first wrote is where that left it
    end = replay_journal(DIRECTORY, [LogMark()], files, Replayed())
    settle_end(DIRECTORY, files, end)
    mark = end.mark if moves else LogMark()
    rig = JournalRig(files)
    rig.journal.start(end.after)
    rig.add(an_add(7, 9))
    for seed in range(30):
        found = replayed(files.crash(random.Random(seed)), mark)[0].entries()
        assert found == [(7, i) for i in range(9 if moves else 0, 10)]
    rig.journal.stop()


def test_the_directory_of_the_journal_exists_after_every_crash() -> None:
    files = fresh(strict=True)
    with JournalRig(files) as rig:
        rig.add(JournalBatch.of(fmt.fence_record(7)))
        for seed in range(20):
            crashed = files.crash(random.Random(seed))
            assert crashed.listdir(DIRECTORY) == rig.journals()
