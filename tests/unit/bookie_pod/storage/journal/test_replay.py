"""Replay: what is handed out, what is refused, and how a torn tail is told from damage."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bookie_pod.storage.files import File
from bookie_pod.storage.journal import JournalBatch, LogMark, read_records
from bookie_pod.storage.journal import format as fmt
from bookie_pod.storage.journal.format import RecordKind
from bookie_pod.storage.journal.reader import CHUNK
from bookie_pod.storage.journal.replay import replay_journal, settle_end
from bookie_protocol.errors import JournalDamaged, JournalMissing, StorageFault
from tests.support.journal_rig import DIRECTORY, JournalRig, Replayed, an_add, an_entry, replayed, small_options
from tests.support.memory_files import MemoryFiles
from tests.unit.bookie_pod.storage.journal.contents import (
    SIZE,
    checked_file,
    files_with,
    path_of,
    plain_file,
    record,
    zeroed,
)


def entries(files: MemoryFiles, mark: LogMark | None = None, *, skip: bool = False) -> list[tuple[int, int]]:
    return replayed(files, mark, skip=skip)[0].entries()


@contextmanager
def damaged(journal_id: int, offset: int) -> Iterator[None]:
    with pytest.raises(JournalDamaged) as refused:
        yield
    assert (refused.value.path, refused.value.offset) == (path_of(journal_id), offset)


@contextmanager
def missing(journal_id: int) -> Iterator[None]:
    with pytest.raises(JournalMissing) as refused:
        yield
    assert refused.value.path == path_of(journal_id)


# --- what is handed out ------------------------------------------------------------------------------------------


def test_every_kind_of_record_reaches_the_sink_in_order() -> None:
    with JournalRig() as rig:
        rig.add(
            JournalBatch.of(
                fmt.deletion_record(7, 3),
                fmt.key_record(7, b"k" * 20),
                fmt.entry_record(an_entry(7, 0)),
                fmt.fence_record(7),
                fmt.explicit_lac_record(7, b"packet"),
                [fmt.LENGTH.pack(16), fmt.IDS.pack(7, -3)],
                [fmt.LENGTH.pack(16), fmt.IDS.pack(7, fmt.FORCE_ENTRY_ID)],
                fmt.entry_record(an_entry(7, 1)),
            )
        )
    assert replayed(rig.files)[0].events == [
        ("deletion", 7, 3, b""),
        ("key", 7, 0, b"k" * 20),
        ("entry", 7, 0, an_entry(7, 0)),
        ("fence", 7, 0, b""),
        ("lac", 7, 0, b"packet"),
        ("entry", 7, 1, an_entry(7, 1)),
    ]


@pytest.mark.parametrize("checks", [True, False])
def test_what_lies_before_the_last_deletion_of_its_ledger_is_left_out(checks: bool) -> None:
    """In whichever file that is."""
    with JournalRig(options=small_options(max_size_bytes=4096, group_checks=checks)) as rig:
        for life in range(3):
            rig.add(JournalBatch.of(fmt.key_record(7, b"k" * 20)))
            for entry_id in range(10):
                rig.add(an_add(7, entry_id, bytes(400)))
                rig.add(an_add(8, 10 * life + entry_id))
            rig.add(JournalBatch.of(fmt.fence_record(7)))
            if life < 2:
                rig.add(JournalBatch.of(fmt.deletion_record(7, life + 1)))
    assert len(rig.files.listdir(DIRECTORY)) > 3
    found = replayed(rig.files)[0].events
    assert [event[:3] for event in found if event[1] == 7] == [
        ("deletion", 7, 2),
        ("key", 7, 0),
        *(("entry", 7, entry_id) for entry_id in range(10)),
        ("fence", 7, 0),
    ]
    assert [event[2] for event in found if event[1] == 8] == list(range(30))


def test_a_deletion_that_was_never_acknowledged_hides_nothing() -> None:
    """It stands in a group whose end was not written."""
    torn = b"".join(fmt.deletion_record(7, 1)) + record(8, 0, b"p" * 1500)
    data = checked_file(9, record(7, 0), torn)
    files = files_with((9, zeroed(data, 2048, 512)))
    found, end = replayed(files)
    assert (found.entries(), end) == ([(7, 0)], LogMark(9, SIZE))
    assert replayed(files_with((9, data)))[0].events[0] == ("deletion", 7, 1, b"")


def test_replay_starts_at_the_mark_and_ends_in_the_next_one() -> None:
    with JournalRig(options=small_options(max_size_bytes=4096)) as rig:
        marks = []
        for i in range(30):
            rig.add(an_add(7, i, bytes(400)))
            marks.append(rig.journal.last_mark())
    for i in (0, 5, 17, 29):
        assert entries(rig.files, marks[i]) == [(7, n) for n in range(i + 1, 30)]
    end = replayed(rig.files)[1]
    assert end >= marks[-1]
    assert replayed(rig.files, end) == (Replayed(), end)
    replay_journal(DIRECTORY, [end], rig.files, Replayed(), progress=lambda done, total: pytest.fail("nothing to do"))


def test_files_below_the_mark_are_not_read() -> None:
    files = files_with((1, b"garbage"), (2, checked_file(2, record(7, 0))), (3, checked_file(3, record(7, 1))))
    assert entries(files, LogMark(2, 0)) == [(7, 0), (7, 1)]
    assert entries(files, LogMark(2, 512)) == [(7, 0), (7, 1)]
    assert entries(files, LogMark(2, 1024)) == [(7, 1)]
    assert entries(files, LogMark(2, SIZE)) == [(7, 1)], "where a replay of a torn file stopped"


def test_the_file_of_the_mark_must_be_there() -> None:
    files = files_with((3, checked_file(3, record(7, 1))))
    with missing(2):
        replayed(files, LogMark(2, 512))
    assert entries(files, LogMark(2, 512), skip=True) == [(7, 1)]
    with pytest.raises(JournalMissing):
        replayed(files_with(), LogMark(2, 512))
    assert replayed(files_with())[1] == LogMark()


GROUPS = (record(7, 0), record(7, 1), record(7, 2))


@pytest.mark.parametrize(
    ("data", "right"),
    [
        (checked_file(9, *GROUPS), {0, 8, 512, 1024, 1536, 2048, 2052, SIZE}),
        (plain_file(*GROUPS), {0, 8, 512, 570, 1024, 1082, 1536, 1594, 2048, 2052, SIZE}),
        (plain_file(*GROUPS, version=4), {0, 8, 66, 124, 182, 186, SIZE}),
    ],
)
def test_a_mark_that_does_not_stand_where_a_record_begins_is_damage(data: bytes, right: set[int]) -> None:
    files = files_with((9, data))
    everything = [(7, 0), (7, 1), (7, 2)]
    for offset in [*right, *range(0, 200, 6), *range(200, 2600, 51), SIZE - 512, SIZE + 4, 1 << 40]:
        if offset in right or offset < fmt.parse_header(data[:24], 9).length:
            assert set(entries(files, LogMark(9, offset))) <= set(everything)
            continue
        with damaged(9, offset):
            replayed(files, LogMark(9, offset))
        assert entries(files, LogMark(9, offset), skip=True) == everything


def test_the_oldest_mark_that_stands_counts() -> None:
    files = files_with((8, checked_file(8, record(7, 0))), (9, checked_file(9, *GROUPS, previous=8, continues=1024)))

    def began(*marks: LogMark) -> LogMark:
        return replay_journal(DIRECTORY, marks, files, Replayed()).began

    assert began(LogMark(7, 512), LogMark(8, 1024), LogMark(9, 1536)) == LogMark(8, 1024), "the oldest file is trimmed"
    assert began(LogMark(8, 800), LogMark(9, 1024), LogMark(9, 1 << 30)) == LogMark(9, 1024)
    assert began() == LogMark(8, 0), "everything that is there"
    assert began(LogMark()) == LogMark()
    with pytest.raises(JournalMissing, match=r"c\.txn is .*\(offset 512\)"):
        began(LogMark(12, 512))


def test_a_mark_may_stand_where_a_reader_without_checks_stopped_in_a_torn_tail() -> None:
    """The reference, or an earlier release, replayed a file of a process that had been killed, and wrote nothing."""
    whole = checked_file(9, *GROUPS)
    torn = whole + record(7, 3) + record(7, 4)[:30]
    files = files_with((9, torn))
    read_as = len(whole) + len(record(7, 3)) + len(record(7, 4))
    for offset in (read_as, read_as + 4):
        assert entries(files, LogMark(9, offset)) == []
    for offset in (len(whole) + 2, read_as - 2, read_as + 2, read_as + 8, read_as + 512):
        with damaged(9, offset):
            replayed(files, LogMark(9, offset))


def test_progress_is_told_in_bytes() -> None:
    with JournalRig(options=small_options(pre_alloc_size_bytes=1 << 25)) as rig:
        for i in range(20):
            rig.add(an_add(7, i, b"x" * (1 << 20)))
    told: list[tuple[int, int]] = []
    replay_journal(DIRECTORY, [], rig.files, Replayed(), progress=lambda done, total: told.append((done, total)))
    assert len(told) >= 3
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 20 << 20


def test_progress_goes_on_from_file_to_file() -> None:
    told: list[tuple[int, int]] = []
    replay_journal(DIRECTORY, [], chained(), Replayed(), progress=lambda done, total: told.append((done, total)))
    assert told == [(1024, 3072), (2048, 3072), (3072, 3072)]


def test_an_entry_longer_than_a_chunk() -> None:
    payload = bytes(range(256)) * (CHUNK // 256 * 2 + 7)
    with JournalRig() as rig:
        rig.add(an_add(7, 0), an_add(7, 1, payload), an_add(7, 2))
    events = replayed(rig.files)[0].events
    assert [entry for _, _, entry, _ in events] == [0, 1, 2]
    assert events[1][3] == an_entry(7, 1, payload)


def test_replay_reads_in_chunks() -> None:
    with JournalRig(options=small_options(pre_alloc_size_bytes=1 << 24)) as rig:
        for i in range(8):
            rig.add(an_add(7, i, b"x" * (1 << 19)))
    longest: list[int] = []
    pread_sizes(rig.files, longest)
    replayed(rig.files)
    assert max(longest) <= CHUNK + 4


def pread_sizes(files: object, into: list[int]) -> None:
    def rule(operation: object) -> None:
        if operation.name == "pread":  # type: ignore[attr-defined]
            into.append(operation.nbytes)  # type: ignore[attr-defined]

    files.faults._rules.append(rule)  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_all_versions_are_read(version: int) -> None:
    files = files_with((9, plain_file(record(7, 0) + record(8, 0), record(7, 1), version=version)))
    assert entries(files) == [(7, 0), (8, 0), (7, 1)]


@pytest.mark.parametrize(("kind", "first"), [("key", 3), ("fence", 4), ("lac", 6)])
def test_special_records_need_their_version(kind: str, first: int) -> None:
    special = {
        "key": fmt.key_record(7, b"k"),
        "fence": fmt.fence_record(7),
        "lac": fmt.explicit_lac_record(7, b"p"),
    }[kind]
    known = files_with((9, plain_file(b"".join(special), version=first)))
    assert [event[0] for event in replayed(known)[0].events] == [kind]
    unknown = files_with((9, plain_file(record(7, 0), b"".join(special), record(7, 1), version=first - 1)))
    with pytest.raises(JournalDamaged, match=f"version {first - 1} "):
        replayed(unknown)
    assert entries(unknown, skip=True) == [(7, 0)]


def test_a_version_that_nobody_knows() -> None:
    files = files_with((9, b"BKLG\0\0\0\7".ljust(512, b"\0") + record(7, 0)))
    with damaged(9, 0):
        replayed(files)


@pytest.mark.parametrize("data", [b"", b"B", b"BKLG", b"BKLG\0\0\0\6", b"BKLG\0\0\0\6PKGC", bytes(100)])
@pytest.mark.parametrize("size", [0, SIZE])
def test_a_file_that_never_got_its_header_holds_nothing(data: bytes, size: int) -> None:
    files = files_with((8, checked_file(8, record(7, 0))))
    files.write_bytes_synced(path_of(9), data.ljust(size, b"\0"))
    found, end = replayed(files)
    assert found.entries() == [(7, 0)]
    assert end.journal_id == 8


def test_a_damaged_header_is_no_empty_file() -> None:
    data = b"\0" + checked_file(9, record(7, 0))[1:]
    with damaged(9, 0):
        replayed(files_with((9, b"X" + data[1:])))


def special(kind: int, *, told: int, given: int) -> bytes:
    """A record with a key, or an explicit LAC, that tells of another length than it has."""
    body = struct.pack(">qqi", 7, kind, told) + bytes(given)
    return fmt.LENGTH.pack(len(body)) + body


MALFORMED = [
    special(kind, told=told, given=10) for kind in (fmt.KEY_ENTRY_ID, fmt.EXPLICIT_LAC_ENTRY_ID) for told in (-1, 11)
]


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_special_record_that_is_cut_or_longer_than_itself_is_damage(malformed: bytes) -> None:
    files = files_with((9, plain_file(record(7, 0), malformed, record(7, 1))))
    with damaged(9, 1024):
        replayed(files)
    assert entries(files, skip=True) == [(7, 0)]


# --- files with group checks ----------------------------------------------------------------------------------------

THREE = (record(7, 0) * 9, record(7, 1) * 9, record(7, 2) * 9)


def test_a_sound_file() -> None:
    found, end = replayed(files_with((9, checked_file(9, *THREE))))
    assert len(found.entries()) == 27
    assert end == LogMark(9, 512 + 3 * 1024)


@pytest.mark.parametrize("where", [512, 530, 1023, 1024, 1040])
def test_zeros_in_a_group_that_had_been_synced_are_damage(where: int) -> None:
    data = zeroed(checked_file(9, *THREE), where, 30)
    with damaged(9, 512):
        replayed(files_with((9, data)))


@pytest.mark.parametrize("where", range(512, 1024, 37))
def test_a_changed_byte_in_the_last_group_is_damage(where: int) -> None:
    data = bytearray(checked_file(9, record(7, 0, b"x" * 500)))
    data[where] ^= 0x55
    with damaged(9, 512):
        replayed(files_with((9, bytes(data))))


def test_a_torn_last_group_is_a_torn_tail_and_none_of_it_is_handed_out() -> None:
    whole = checked_file(9, *THREE)
    begin = len(checked_file(9, *THREE[:2]))
    for length in range(4, len(whole.rstrip(b"\0")) - begin, 29):
        found, end = replayed(files_with((9, whole[: begin + length])))
        assert found.entries() == [(7, 0)] * 9 + [(7, 1)] * 9
        assert end == LogMark(9, SIZE)


def test_a_hole_before_a_later_group_that_had_not_been_synced_either_is_a_torn_tail() -> None:
    data = checked_file(9, *THREE, synced=512)
    first = checked_file(9, THREE[0])
    torn = zeroed(data, len(first), 512)
    found, end = replayed(files_with((9, torn)))
    assert found.entries() == [(7, 0)] * 9
    assert end == LogMark(9, SIZE)
    assert entries(files_with((9, torn)), end) == []


def test_a_copy_of_a_journal_inside_an_entry_proves_nothing() -> None:
    inner = checked_file(9, *THREE)
    whole = checked_file(9, record(7, 0, inner), synced=512)
    assert entries(files_with((9, whole))) == [(7, 0)]
    torn = zeroed(whole, 512, 512)
    assert entries(files_with((9, torn))) == []


@pytest.mark.parametrize("impossible", [struct.pack(">i", -5) + bytes(20), *MALFORMED])
def test_an_impossible_record_in_a_sound_group_is_damage(impossible: bytes) -> None:
    data = checked_file(9, record(7, 0), impossible, record(7, 1), synced=512)
    with damaged(9, 1024):
        replayed(files_with((9, data)))
    assert entries(files_with((9, data)), skip=True) == [(7, 0)]


def test_the_closing_group_proves_that_the_last_one_was_synced() -> None:
    with JournalRig() as rig:
        rig.add(an_add(7, 0, bytes(2000)))
    (name,) = rig.journals()
    rig.files.corrupt(f"{DIRECTORY}/{name}", 1536, b"\3")  # type: ignore[attr-defined]
    with pytest.raises(JournalDamaged):
        replayed(rig.files)


def test_a_mark_into_the_middle_of_a_checked_file() -> None:
    data = checked_file(9, *THREE)
    files = files_with((9, data))
    assert entries(files, LogMark(9, len(checked_file(9, THREE[0])))) == [(7, 1)] * 9 + [(7, 2)] * 9


# --- files of the reference ---------------------------------------------------------------------------------------


def test_a_plain_file_with_a_torn_last_record() -> None:
    whole = plain_file(record(7, 0), record(7, 1, b"x" * 600))
    for length in range(1, 600, 31):
        found = entries(files_with((9, whole[: 1024 + length])))
        assert found in ([(7, 0)], [(7, 0), (7, 1)])
        cut = MemoryFiles()
        cut.makedirs(DIRECTORY)
        cut.write_bytes(path_of(9), whole[: 1024 + length])
        assert entries(cut) == [(7, 0)]


@pytest.mark.parametrize(
    ("offset", "change", "message"),
    [
        (1024, bytes(512), "offset 1536"),
        (1024, struct.pack(">i", -5), "length -5"),
        (1024, struct.pack(">i", -2147483648), "length -2147483648"),
        (1024, struct.pack(">i", 2147483647), "longer"),
        (1024, struct.pack(">i", 15), "length 15, .* 16"),
        (1024, struct.pack(">ii", -0x100, -1), "length -1"),
        (1024, struct.pack(">ii", -0x100, 1 << 30), "follow"),
    ],
)
def test_damage_in_the_middle_of_a_plain_file(offset: int, change: bytes, message: str) -> None:
    data = plain_file(record(7, 0), record(7, 1), record(7, 2))
    data = data[:offset] + change + data[offset + len(change) :]
    files = files_with((9, data))
    with pytest.raises(JournalDamaged, match=rf"9\.txn .* offset {offset}: .*{message}"):
        replayed(files)
    assert entries(files, skip=True) == [(7, 0)]


@pytest.mark.parametrize("marker", [b"\xff", b"\xff\xff", b"\xff\xff\xff"])
def test_a_padding_marker_cut_short_is_a_torn_tail(marker: bytes) -> None:
    data = plain_file(record(7, 0))
    files = files_with((9, data + marker))
    assert entries(files) == [(7, 0)]


def test_records_before_a_torn_tail_are_not_doubted_for_their_lengths() -> None:
    """With one bit of it changed the fence's length leads to a record as well: the one in between has 64 bytes."""
    entry = record(7, 0, bytes(range(64 - 4 - 24)))
    group = b"".join(fmt.fence_record(7)) + entry + record(7, 1)
    assert len(entry) == 64
    for cut in (struct.pack(">i", 700), record(7, 2, b"x" * 700)[:200], record(7, 2, b"x" * 700)[:18]):
        assert entries(files_with((9, plain_file(group) + cut)))[:2] == [(7, 0), (7, 1)]


def test_a_record_of_zeros_is_not_handed_out() -> None:
    data = plain_file(record(7, 0)) + fmt.LENGTH.pack(100)
    assert entries(files_with((9, data))) == [(7, 0)]


def test_a_last_record_that_ends_in_unwritten_sectors_is_not_handed_out() -> None:
    """The reference writes a long group in several goes; killed in between, it leaves whole lengths with cut bodies."""
    group = record(7, 1) + record(7, 2, b"x" * 700)
    data = plain_file(record(7, 0)) + group
    cut = data[:1536].ljust(len(data), b"\0")
    assert len(data) % 512
    assert entries(files_with((9, data))) == [(7, 0), (7, 1), (7, 2)]
    assert entries(files_with((9, cut))) == [(7, 0), (7, 1)]
    assert entries(files_with((9, cut), (10, plain_file(record(7, 3))))) == [(7, 0), (7, 1), (7, 3)]


def test_an_entry_that_ends_in_zeros_is_handed_out_if_its_group_is_whole() -> None:
    data = plain_file(record(7, 0), record(7, 1, bytes(700)))
    assert entries(files_with((9, data))) == [(7, 0), (7, 1)]


# --- several files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda i, *groups: plain_file(*groups), checked_file])
def test_a_torn_tail_before_a_file_with_records_is_refused(make: object) -> None:
    whole = make(8, record(7, 0), record(7, 1, b"x" * 600))  # type: ignore[operator]
    torn = whole[:1500]
    with_records = files_with((8, torn), (9, make(9, record(7, 2))))  # type: ignore[operator]
    if make is checked_file:
        with damaged(8, 1024):
            replayed(with_records)
        assert entries(with_records, skip=True) == [(7, 0), (7, 2)]
    blank = files_with((8, torn), (9, make(9)))  # type: ignore[operator]
    found, end = replayed(blank)
    assert found.entries()[0] == (7, 0)
    assert end.journal_id == 8


def test_a_cut_plain_file_before_a_file_with_records_is_refused() -> None:
    files = files_with((9, plain_file(record(7, 2))))
    files.write_bytes_synced(path_of(8), plain_file(record(7, 0), record(7, 1))[:1050])
    with damaged(8, 1024):
        replayed(files)


def test_nothing_is_handed_out_if_any_file_is_damaged() -> None:
    data = plain_file(record(7, 1), struct.pack(">i", -5), record(7, 2))
    files = files_with((8, plain_file(record(7, 0))), (9, data))
    sink = Replayed()
    with pytest.raises(JournalDamaged):
        replay_journal(DIRECTORY, [], files, sink)
    assert sink.events == []


def test_skipping_gives_up_the_rest_of_the_file_only() -> None:
    damaged = plain_file(record(7, 1), struct.pack(">i", -5), record(7, 2))
    files = files_with((8, damaged), (9, plain_file(record(7, 3))))
    assert entries(files, skip=True) == [(7, 1), (7, 3)]


def test_a_file_that_cannot_be_read_is_an_error_of_another_type() -> None:
    files = files_with((9, plain_file(record(7, 0))))
    files.faults.fail("pread")
    with pytest.raises(StorageFault):
        replayed(files)


def chained(*skipped: int) -> MemoryFiles:
    """Three files of one process, but for those skipped."""
    files = files_with()
    end = 0
    for journal_id in (7, 8, 9):
        previous = fmt.NO_FILE if journal_id == 7 else journal_id - 1
        data = checked_file(
            journal_id, record(7, 2 * journal_id), record(7, 2 * journal_id + 1), previous=previous, continues=end
        )
        end = len(data)
        if journal_id not in skipped:
            files.write_bytes_synced(path_of(journal_id), data.ljust(SIZE, b"\0"))
    return files


ALL = [(7, entry) for entry in range(14, 20)]


def test_a_file_that_is_missing_is_damage_wherever_it_was() -> None:
    assert entries(chained()) == ALL
    for journal_id in (7, 8):
        with missing(journal_id):
            replayed(chained(journal_id), LogMark())
    assert entries(chained(8), skip=True) == [(7, 14), (7, 15), (7, 18), (7, 19)]
    assert entries(chained(7), LogMark(8, 512)) == ALL[2:], "it was trimmed"
    assert entries(chained(7), LogMark(8, 0)) == ALL[2:]


def test_a_file_that_was_made_ahead_knows_which_one_was_in_use() -> None:
    """The one in use went, and the next, in which nothing was ever written, is still there."""
    ahead = (9, checked_file(9, previous=8))
    first = (7, checked_file(7, record(7, 14)))
    for mark in (LogMark(), LogMark(7, 512), LogMark(7, 1024)):
        with missing(8):
            replayed(files_with(first, ahead), mark)
    with damaged(8, 0):
        replayed(files_with(first, (8, b""), ahead))
    torn = checked_file(8, record(7, 15), previous=7, continues=1024) + record(7, 16)[:40]
    assert entries(files_with(first, (8, torn), ahead)) == [(7, 14), (7, 15)]
    assert entries(files_with(ahead), LogMark(9, 512)) == entries(files_with(ahead)) == []


def test_all_that_is_there_is_replayed_if_all_marks_went_with_the_disks_that_held_them() -> None:
    """What was below them may have been trimmed; a bookie that starts for the first time leaves a mark of (0, 0)."""
    assert entries(chained(7)) == ALL[2:]
    with missing(8):
        replayed(chained(8))


@pytest.mark.parametrize("left", [0, 512, 1024])
@pytest.mark.parametrize("size", [0, SIZE])
def test_a_file_that_was_emptied_or_cut_is_damage(left: int, size: int) -> None:
    files = chained(8)
    whole = chained().read_bytes(path_of(8))
    files.write_bytes_synced(path_of(8), whole[:left].ljust(size, b"\0"))
    with damaged(8, left):
        replayed(files)
    assert entries(files, LogMark(8, 1024) if left == 1024 else None, skip=True)[-2:] == ALL[-2:]


@pytest.mark.parametrize("make", [plain_file, lambda *groups: b"BKLG\0\0\0\6PKGC" + plain_file(*groups)[12:]])
def test_files_that_do_not_say_what_came_before_follow_by_number(make: object) -> None:
    first, last = plain_file(record(7, 0)), plain_file(record(7, 1))
    with missing(8):
        replayed(files_with((7, first), (9, last)))
    with damaged(8, 0):
        replayed(files_with((7, first), (8, b""), (9, last)))
    unused = fmt.header_bytes(6)
    assert entries(files_with((7, first), (8, unused), (9, last))) == [(7, 0), (7, 1)]
    assert entries(files_with((7, first), (9, unused))) == [(7, 0)], "it does not say what came before"
    assert entries(files_with((8, b""), (9, last)), LogMark(8, 0)) == [(7, 1)], "a replay ended in it"


def test_a_torn_tail_that_the_next_file_knows_of_is_no_damage() -> None:
    """The disks were full after a power cut: the marks stayed, and the bookie served on."""
    torn = checked_file(8, record(7, 0)) + record(7, 1)[:40]
    files = files_with((8, torn))
    end = replay_journal(DIRECTORY, [], files, Replayed())
    assert (end.mark, end.after) == (LogMark(8, SIZE), LogMark(8, 1024))
    with JournalRig(files) as rig:
        rig.journal.stop()
    again = JournalRig(files)
    again.journal.start(end.after)
    again.add(an_add(7, 2))
    again.journal.stop()
    assert entries(files) == [(7, 0), (7, 2)]
    for left in (0, 512):
        files.write_bytes_synced(path_of(8), torn[:left].ljust(SIZE, b"\0"))
        with damaged(8, left):
            replayed(files)


# --- what a start makes of the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("checks", [True, False])
def test_an_entry_that_ends_in_zeros_before_a_tail_that_was_cut_off_stays(checks: bool) -> None:
    torn = plain_file(record(7, 0)) + record(7, 1, b"x" * 100 + bytes(900)) + record(7, 2, b"y" * SIZE)[:300]
    files = files_with((8, torn))
    end = replay_journal(DIRECTORY, [LogMark()], files, Replayed())
    assert end.torn
    settle_end(DIRECTORY, files, end, cut=True)
    rig = JournalRig(files, small_options(group_checks=checks))
    rig.journal.start(end.after)
    rig.add(an_add(7, 3))
    rig.journal.stop()
    assert entries(files, LogMark()) == [(7, 0), (7, 1), (7, 3)]


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("left", [b"", b"BK", bytes(SIZE)])
@pytest.mark.parametrize("whole", [[(8, plain_file(record(7, 0)))], []])
def test_a_file_that_was_never_begun_is_not_taken_for_an_emptied_one_later(
    checks: bool, left: bytes, whole: list[tuple[int, bytes]]
) -> None:
    """The machine went down while the next file was being made."""
    files = files_with(*whole)
    files.write_bytes_synced(path_of(9), left)
    end = replay_journal(DIRECTORY, [LogMark()], files, Replayed())
    settle_end(DIRECTORY, files, end)
    rig = JournalRig(files, small_options(group_checks=checks))
    rig.journal.start(end.after)
    rig.add(an_add(7, 1))
    rig.journal.stop()
    assert entries(files, LogMark()) == [(7, 0)] * len(whole) + [(7, 1)]


def test_the_header_of_a_file_that_was_never_used_is_durable_before_another_follows_it() -> None:
    """The process was killed while it made that file, and the machine lives a little longer."""
    files = files_with((8, plain_file(record(7, 0))))
    files.create(path_of(9)).write(plain_file().ljust(SIZE, b"\0"))
    end = replay_journal(DIRECTORY, [LogMark()], files, Replayed())
    settle_end(DIRECTORY, files, end)
    rig = JournalRig(files, small_options(group_checks=False))
    rig.journal.start(end.after)
    rig.add(an_add(7, 1))
    rig.journal.stop()
    for seed in range(20):
        assert entries(files.crash(random.Random(seed)), LogMark()) == [(7, 0), (7, 1)]


def test_a_file_is_opened_for_writing_only_to_cut_it() -> None:
    """One that was restored from a backup may be somebody else's."""

    class ReadOnly(MemoryFiles):
        def open(self, path: str, *, writable: bool = False) -> File:
            if writable:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return super().open(path)

    files = ReadOnly()
    files.makedirs(DIRECTORY)
    files.write_bytes(path_of(8), checked_file(8, record(7, 0)))
    end = replay_journal(DIRECTORY, [LogMark()], files, Replayed())
    settle_end(DIRECTORY, files, end)
    assert entries(files, LogMark()) == [(7, 0)]
    assert files.crash(random.Random(0)).read_bytes(path_of(8)) == files.read_bytes(path_of(8))


# --- for tools ------------------------------------------------------------------------------------------------------


def test_reading_records_one_by_one() -> None:
    data = plain_file(record(7, 0) + b"".join(fmt.fence_record(7)), struct.pack(">i", -5), record(7, 2))
    file = files_with((9, data)).open(path_of(9))
    found = []
    with damaged(9, 1024):
        for one in read_records(file, 9):
            found.append((one.offset, one.kind, one.ledger_id, len(one.body)))  # noqa: PERF401
    assert found == [(512, RecordKind.ENTRY, 7, 54), (570, RecordKind.FENCE, 7, 16)]
    file.close()
