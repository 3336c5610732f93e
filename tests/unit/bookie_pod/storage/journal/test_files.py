"""What a journal leaves in its files, and how one file follows another."""

from __future__ import annotations

import errno
import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.metrics.journal import JournalMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.journal import JournalBatch, LogMark
from bookie_pod.storage.journal import format as fmt
from bookie_pod.storage.journal.journal import JournalFileSupply
from bookie_pod.storage.journal.journal_file import BLOCK, BUFFER_BYTES, DirectFile, create_journal_file
from bookie_pod.storage.journal.survey import survey_journal
from tests.support.journal_rig import DIRECTORY, JournalRig, an_add, an_entry, records_of, replayed, small_options
from tests.support.memory_files import MemoryFiles


def test_bytes_of_the_worked_example() -> None:
    key = bytes.fromhex("e793cbc379107648537183605cd361d3bb789a39")
    entry = an_entry(7, 3, bytes(17))
    with JournalRig(options=small_options(group_checks=False)) as rig:
        rig.add(JournalBatch.of(fmt.key_record(7, key), fmt.entry_record(entry)))
        mark = rig.journal.last_mark()
    data = rig.files.read_bytes(f"{DIRECTORY}/{rig.journals()[0]}")
    expected = b"BKLG\0\0\0\6" + bytes(504) + b"\0\0\0\x28" + bytes.fromhex("0000000000000007fffffffffffff00000000014")
    expected += key + b"\0\0\0\x29" + entry + bytes.fromhex("ffffff000000019f") + bytes(415)
    assert data == expected.ljust(8192, b"\0")
    assert mark.offset == 1024


def test_ids_start_at_the_time_and_go_on_after_the_largest() -> None:
    files = MemoryFiles()
    before = time.time_ns() // 1_000_000
    with JournalRig(files) as rig:
        first = rig.journal.last_mark().journal_id
    assert before < first <= time.time_ns() // 1_000_000 + 1
    with JournalRig(files) as rig:
        assert rig.journal.last_mark().journal_id == first + 1
    files.create(f"{DIRECTORY}/ffffffffff0.txn").close()
    with JournalRig(files) as rig:
        assert rig.journal.last_mark() == LogMark(0xFFFFFFFFFF1, 512)
        assert f"{0xFFFFFFFFFF1:x}.txn" in rig.journals()


def test_a_new_file_is_durable_before_it_is_used() -> None:
    files = MemoryFiles()
    files.makedirs(DIRECTORY)
    log = files.faults.record()
    with JournalRig(files):
        names = [operation.name for operation in log if operation.name != "makedirs"]
        assert names == ["create_direct", "create", "allocate", "pwrite", "sync", "sync_directory"]


def test_a_full_file_is_followed_by_the_next() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_size_bytes=4096)) as rig:
        for i in range(40):
            rig.add(an_add(7, i, bytes(400)))
        first = int(rig.journals()[0].split(".")[0], 16)
        assert rig.journal.last_mark().journal_id > first
    names = rig.journals()
    assert len(names) >= 5
    assert [int(name.split(".")[0], 16) for name in names] == list(range(first, first + len(names)))
    assert records_of(rig) == [(7, i) for i in range(40)]
    assert files.open_files == 0


def test_each_file_names_the_one_before_it_and_where_that_ends() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_size_bytes=4096)) as rig:
        for i in range(44):
            rig.add(an_add(7, i, bytes(400)))
    surveys = []
    for name in rig.journals():
        file = files.open(f"{DIRECTORY}/{name}")
        surveys.append(survey_journal(file, int(name.split(".")[0], 16)))
        file.close()
    assert len(surveys) >= 5
    assert (surveys[0].header.previous, surveys[0].continues) == (fmt.NO_FILE, 0)
    for before, after in itertools.pairwise(surveys):
        assert (after.header.previous, after.continues) == (before.journal_id, before.end)


def test_no_file_is_overwritten_that_somebody_else_made() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_size_bytes=4096)) as rig:
        first = rig.journal.last_mark().journal_id
        others = [f"{DIRECTORY}/{first + after:x}.txn" for after in (1, 2)]
        for path in others:
            files.write_bytes(path, b"theirs")
        while rig.journal.last_mark().journal_id == first:
            rig.add(an_add(7, 0, bytes(400)))
        assert rig.journal.last_mark().journal_id == first + 3
    assert [files.read_bytes(path) for path in others] == [b"theirs"] * 2


def test_the_next_file_is_ready_before_it_is_needed() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_size_bytes=8192)) as rig:
        created = files.faults.hold("create")
        for i in range(9):
            rig.add(an_add(7, i, bytes(400)))
        created.reached()
        rig.add(an_add(7, 9, bytes(400)))
        created.open()
        for i in range(10, 20):
            rig.add(an_add(7, i, bytes(400)))
    assert records_of(rig) == [(7, i) for i in range(20)]


def test_the_next_file_is_awaited_if_it_was_begun() -> None:
    files = MemoryFiles()
    files.makedirs(DIRECTORY)
    supply = JournalFileSupply(files, DIRECTORY, small_options(), JournalMetrics(Registry(), 0), thread_name="next")
    first = supply.first(LogMark())
    gate = files.faults.hold("create", path=f"{first.journal_id + 1:x}.txn")
    supply.prepare()
    gate.reached()
    thread = supply._thread
    assert thread is not None
    supply.prepare()
    assert supply._thread is thread, "it was begun"
    join = thread.join
    thread.join = lambda: (gate.open(), join())  # type: ignore[method-assign, assignment, func-returns-value]
    second = supply.next(512)
    assert second.journal_id == first.journal_id + 1
    third = supply.next(512)
    assert third.journal_id == first.journal_id + 2
    supply.prepare()
    supply.discard()
    supply.discard()
    for file in (first, second, third):
        file.close()
    assert len(files.listdir(DIRECTORY)) == 3
    assert files.open_files == 0


def test_a_next_file_that_could_not_be_made_early_is_made_when_needed() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_size_bytes=8192)) as rig:
        files.faults.fail("create", times=1)
        for i in range(40):
            rig.add(an_add(7, i, bytes(400)))
    assert records_of(rig) == [(7, i) for i in range(40)]
    assert rig.acknowledged.failures == []


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "sync_directory"])
def test_a_next_file_that_could_not_be_made_leaves_no_gap(checks: bool, operation: str) -> None:
    """Files that do not name the one before them follow each other by number."""
    files = MemoryFiles()
    with JournalRig(files, small_options(max_size_bytes=8192, group_checks=checks)) as rig:
        name = "" if operation == "sync_directory" else f"{int(rig.journals()[0][:-4], 16) + 1:x}.txn"
        files.faults.fail(operation, path=name, errno=errno.ENOSPC, times=1)
        for i in range(40):
            rig.add(an_add(7, i, bytes(400)))
    ids = [int(name[:-4], 16) for name in rig.journals()]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert replayed(files, LogMark())[0].entries() == [(7, i) for i in range(40)]


def test_a_file_is_synced_before_anything_is_written_to_the_next() -> None:
    files = MemoryFiles()
    log = files.faults.record()
    with JournalRig(files, small_options(max_size_bytes=4096, buffered_writes_threshold_bytes=1000)) as rig:
        rig.add(*[an_add(7, i, bytes(400)) for i in range(60)])
    paths = sorted({op.path for op in log if op.path.endswith(".txn")})
    assert len(paths) > 2
    for earlier, later in itertools.pairwise(paths):
        writes = [i for i, op in enumerate(log) if op.path == later and op.name == "pwrite"]
        syncs = [i for i, op in enumerate(log) if op.path == earlier and op.name == "datasync"]
        last_write = max(i for i, op in enumerate(log) if op.path == earlier and op.name == "pwrite")
        if len(writes) > 1:  # the first is the header, which is made in advance
            assert any(last_write < sync < writes[1] for sync in syncs)


@pytest.mark.parametrize("checks", [True, False])
def test_a_file_that_was_never_used_stays_blank(checks: bool) -> None:
    with JournalRig(options=small_options(group_checks=checks)) as rig:
        pass
    (name,) = rig.journals()
    assert not any(rig.files.read_bytes(f"{DIRECTORY}/{name}")[24:])


def test_an_unused_next_file_does_not_stay() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_size_bytes=8192)) as rig:
        for i in range(9):
            rig.add(an_add(7, i, bytes(400)))
    assert len(rig.journals()) == 1
    assert files.open_files == 0


def test_trimming_keeps_backups() -> None:
    with JournalRig(options=small_options(max_size_bytes=4096, max_backups=2)) as rig:
        for i in range(60):
            rig.add(an_add(7, i, bytes(400)))
        before = rig.journals()
        mark = rig.journal.last_mark()
        removed = rig.journal.remove_below(mark)
        below = [name for name in before if int(name.split(".")[0], 16) < mark.journal_id]
        assert [f"{i:x}.txn" for i in removed] == below[:-2]
        assert rig.journals()[:2] == below[-2:]


def test_preallocation_is_repeated() -> None:
    files = MemoryFiles()
    log = files.faults.record()
    with JournalRig(files, small_options(pre_alloc_size_bytes=8192)) as rig:
        path = f"{DIRECTORY}/{rig.journals()[0]}"
        assert files.size(path) == 8192
        rig.add(an_add(7, 0, bytes(20_000)))
        assert files.size(path) == 24_576
    assert [op.name for op in log].count("allocate") == 2


@pytest.mark.parametrize("alignment", [512, 4096])
def test_groups_start_aligned(alignment: int) -> None:
    with JournalRig(options=small_options(alignment_size_bytes=alignment)) as rig:
        ends = []
        for i in range(5):
            rig.add(an_add(7, i, bytes(i * 37)))
            ends.append(rig.journal.last_mark().offset)
    assert all(end % alignment == 0 for end in ends)
    assert sorted(set(ends)) == ends
    assert records_of(rig) == [(7, i) for i in range(5)]


@pytest.mark.parametrize("version", [4, 5])
def test_older_versions_leave_explicit_lacs_out_but_acknowledge_them(version: int) -> None:
    with JournalRig(options=small_options(format_version=version)) as rig:
        lac = JournalBatch.of(fmt.explicit_lac_record(7, bytes(20)))
        mixed = JournalBatch.of(
            fmt.fence_record(7), fmt.explicit_lac_record(7, bytes(20)), fmt.entry_record(an_entry(7, 1))
        )
        rig.add(lac, mixed)
        assert (rig.journal.queued_bytes, rig.journal.queued_entries) == (0, 0)
    events = replayed(rig.files)[0].events
    assert [(kind, ledger, entry) for kind, ledger, entry, _ in events] == [("fence", 7, 0), ("entry", 7, 1)]
    assert rig.files.read_bytes(f"{DIRECTORY}/{rig.journals()[0]}")[:8] == b"BKLG\0\0\0" + bytes([version])


def test_version_6_keeps_explicit_lacs() -> None:
    with JournalRig() as rig:
        rig.add(JournalBatch.of(fmt.explicit_lac_record(7, b"packet")))
    assert replayed(rig.files)[0].events == [("lac", 7, 0, b"packet")]


def test_synced_pages_are_dropped_8_mib_behind() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(direct_io=False, pre_alloc_size_bytes=1 << 24)) as rig:
        for i in range(11):
            rig.add(an_add(7, i, bytes(1 << 20)))
    drops = [(offset, length) for _, offset, length in files.dropped]
    assert drops
    assert drops[0][0] == 0
    assert all(length > 0 for _, length in drops)
    for (offset, length), (following, _) in itertools.pairwise(drops):
        assert offset + length == following
    assert sum(drops[-1]) <= rig.journal.last_mark().offset - (8 << 20)


def test_the_page_cache_is_left_alone_if_told_so() -> None:
    files = MemoryFiles()
    with JournalRig(
        files, small_options(direct_io=False, pre_alloc_size_bytes=1 << 24, remove_from_page_cache=False)
    ) as rig:
        for i in range(9):
            rig.add(an_add(7, i, bytes(1 << 20)))
    assert files.dropped == []


PATH = "/j/f"


def memory_files() -> MemoryFiles:
    files = MemoryFiles()
    files.makedirs("/j")
    return files


@given(st.lists(st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=4), max_size=8))
def test_same_bytes_as_an_ordinary_file(groups: list[list[int]]) -> None:
    files = memory_files()
    file = create_journal_file(files, PATH, direct=True)
    assert isinstance(file, DirectFile)
    expected = b""
    for number, sizes in enumerate(groups):
        pieces = [bytes([1 + (number + part) % 255]) * size for part, size in enumerate(sizes)]
        file.writev(pieces)
        expected += b"".join(pieces)
        assert file.position == len(expected)
        content = files.read_bytes(PATH)
        assert content[: len(expected)] == expected
        assert not any(content[len(expected) :])
        assert len(content) % BLOCK == 0
    file.close()


def test_a_write_larger_than_the_buffer() -> None:
    files = memory_files()
    file = create_journal_file(files, PATH, direct=True)
    file.write(b"a" * 700)
    data = bytes(range(256)) * (2 * BUFFER_BYTES // 256) + b"end"
    file.write(data)
    file.close()
    assert files.read_bytes(PATH)[: file.position] == b"a" * 700 + data


def test_real_file_system(tmp_path: Path) -> None:
    """Whatever this file system allows, the bytes are there after a sync."""
    files = PosixFiles()
    path = str(tmp_path / "journal")
    file = create_journal_file(files, path, direct=True)
    file.allocate(0, 64 * 1024)
    for size in (512, 5000, 512, 100_000):
        file.write(b"x" * size)
        file.datasync()
    file.close()
    content = files.read_bytes(path)
    assert content[: 512 + 5000 + 512 + 100_000] == b"x" * (512 + 5000 + 512 + 100_000)
    assert not any(content[512 + 5000 + 512 + 100_000 :])


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_direct_io(code: int) -> None:
    files = memory_files()
    files.faults.fail("create_direct", errno=code)
    file = create_journal_file(files, PATH, direct=True)
    assert not isinstance(file, DirectFile)
    file.write(b"abc")
    file.close()
    assert files.read_bytes(PATH) == b"abc"


def test_a_full_disk_is_no_refusal() -> None:
    files = memory_files()
    files.faults.fail("create_direct", errno=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        create_journal_file(files, PATH, direct=True)


def test_a_direct_file_is_only_appended_to_and_else_as_the_one_below() -> None:
    files = memory_files()
    log = files.faults.record()
    file = create_journal_file(files, PATH, direct=True)
    assert isinstance(file, DirectFile)
    with pytest.raises(OSError, match="appended"):
        file.pwrite(b"x", 0)
    with pytest.raises(OSError, match="read"):
        file.pread(1, 0)
    file.allocate(0, 2 * BLOCK)
    assert (file.size(), file.data_from(0)) == (2 * BLOCK, None)
    file.write(b"x")
    file.sync()
    assert file.data_from(0) == (0, BLOCK)
    file.truncate(BLOCK)
    assert files.size(PATH) == file.size() == BLOCK
    assert [operation.name for operation in log][-4:] == ["allocate", "pwrite", "sync", "truncate"]
    file.close()
    assert not file._view, "its buffer is freed while something still refers to the file"
    assert files.open_files == 0
