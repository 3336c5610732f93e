"""Reading a journal file forwards: through one chunk, record by record, with or without the entries."""

from __future__ import annotations

import pytest

from bookie_pod.storage.journal import format as fmt
from bookie_pod.storage.journal import reader
from bookie_pod.storage.journal.reader import FileWindow, RecordWalk, Step, Stop, records_between
from tests.support.journal_rig import an_entry
from tests.support.memory_files import MemoryFiles
from tests.unit.bookie_pod.storage.journal.contents import files_with, path_of, plain_file, record


def window_on(data: bytes, size: int | None = None) -> tuple[FileWindow, MemoryFiles]:
    files = files_with((9, data), size=len(data))
    return FileWindow(files.open(path_of(9)), len(data) if size is None else size), files


def small(ledger_id: int, entry_id: int) -> bytes:
    """The smallest record there is."""
    return fmt.LENGTH.pack(16) + fmt.IDS.pack(ledger_id, entry_id)


def test_a_window_reads_what_the_file_has_and_no_more_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "CHUNK", 8)
    data = bytes(range(30))
    window, files = window_on(data, 25)
    for offset in (0, 5, 8, 3, 17, 22, 25, 30):
        chunk, base = window.chunk_at(offset, 4)
        assert chunk[offset - base :][:4] == data[offset : min(25, offset + 4)]
        for begin in range(27):
            for length in (0, 1, 3, 8, 12, 40):
                assert window.read(begin, length) == data[begin : min(25, begin + length)]
        assert window.chunk_at(offset, min(4, len(chunk) - (offset - base)))[1] == base, "reads do not move it"
        assert b"".join(window.chunks(offset, 25)) == data[offset:25]
    assert list(map(len, window.chunks(3, 20))) == [8, 8, 1]
    chunk, base = window.chunk_at(1, 4)
    assert (len(chunk), base) == (8, 1)
    before = files.faults.counts["pread"]
    assert window.read(1, 8) == data[1:9]
    assert window.read(8, 1) == data[8:9]
    assert window.chunk_at(1, 8) == (chunk, 1)
    assert window.chunk_at(5, 4) == (chunk, 1)
    assert files.faults.counts["pread"] == before
    assert window.chunk_at(6, 4) == (data[6:14], 6)
    assert window.chunk_at(5, 4) == (data[5:13], 5)


RECORDS = [small(7, 1), record(7, 2), small(0, 0), small(7, -0x2000), small(7, 3), small(0, 1), small(1, 0)]


def steps(data: bytes, version: int, *, skip: bool) -> tuple[list[Step], RecordWalk]:
    walk = RecordWalk(window_on(data)[0], version, fmt.header_length(version), skip_entries=skip)
    return list(walk), walk


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("last", [small(7, 4), record(7, 4)])
def test_entries_are_left_out_but_for_the_first_of_a_chunk(version: int, last: bytes) -> None:
    data = plain_file(b"".join(RECORDS) + last, version=version)
    whole, walk = steps(data, version, skip=False)
    ids = [(7, 1), (7, 2), (0, 0), (7, -0x2000), (7, 3), (0, 1), (1, 0), (7, 4)]
    assert [(step.ledger_id, step.entry_id) for step in whole if not step.is_padding] == ids
    assert (walk.stop, walk.offset) == (Stop.END_OF_FILE, len(data))
    some, walk = steps(data, version, skip=True)
    others = [step for step in whole if step.is_padding or step.entry_id < 0 or step.ledger_id == step.entry_id == 0]
    assert some == [whole[0], *others]
    assert (walk.stop, walk.offset) == (Stop.END_OF_FILE, len(data))


@pytest.mark.parametrize("chunk", [20, 21, 37, 64])
def test_nothing_but_entries_is_left_out_wherever_a_chunk_ends(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = plain_file(b"".join(RECORDS), b"".join(RECORDS[::-1]))
    whole, _ = steps(data, 6, skip=False)
    monkeypatch.setattr(reader, "CHUNK", chunk)
    assert steps(data, 6, skip=False)[0] == whole
    some, walk = steps(data, 6, skip=True)
    left_out = [step for step in whole if step not in some]
    assert left_out
    assert [step for step in whole if step in some] == some
    assert not [step for step in left_out if step.is_padding or step.entry_id < 0 or step[4:6] == (0, 0)]
    assert walk.offset == len(data)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    ("end", "stop", "length"),
    [
        (b"", Stop.END_OF_FILE, 0),
        (b"\0\0\0", Stop.END_OF_FILE, 0),
        (b"\0\0\0\0", Stop.ZERO, 0),
        (b"\0\0\0\x0f" + bytes(15), Stop.SHORT, 15),
        (b"\0\0\0\x01" + bytes(30), Stop.SHORT, 1),
        (small(7, 9)[:-1], Stop.CUT, 16),
        (record(7, 9)[:-1], Stop.CUT, 54),
        (fmt.LENGTH.pack(-1) + bytes(30), Stop.NEGATIVE, -1),
        (fmt.LENGTH.pack(-0x100), Stop.CUT, -0x100),
        (fmt.LENGTH.pack(-0x100) + b"\0\0\0", Stop.CUT, -0x100),
        (fmt.PADDING_HEAD.pack(-0x100, 1), Stop.CUT, 1),
        (fmt.PADDING_HEAD.pack(-0x100, -1), Stop.NEGATIVE, -1),
    ],
)
def test_why_a_walk_stops(end: bytes, stop: Stop, length: int, skip: bool) -> None:
    data = fmt.header_bytes(6) + record(7, 1) + record(7, 2)
    found, walk = steps(data + end, 6, skip=skip)
    assert len(found) == (1 if skip else 2)
    assert (walk.offset, walk.stop, walk.stop_length) == (len(data), stop, length)


def test_an_empty_padding_and_one_in_a_file_that_has_none() -> None:
    padding = fmt.PADDING_HEAD.pack(-0x100, 0)
    found, walk = steps(fmt.header_bytes(6) + padding + small(7, 1), 6, skip=False)
    assert [(step.offset, step.end, step.is_padding) for step in found] == [(512, 520, True), (520, 540, False)]
    found, walk = steps(fmt.header_bytes(4) + padding + small(7, 1), 4, skip=False)
    assert (found, walk.stop, walk.stop_length) == ([], Stop.NEGATIVE, -0x100)


def test_records_of_a_range() -> None:
    data = plain_file(record(7, 0) + record(7, 1), record(7, 2), record(7, 3))
    window, _ = window_on(data)
    found = list(records_between(window, 6, 570, 1536))
    assert [(one.offset, one.entry_id, one.body) for one in found] == [
        (570, 1, an_entry(7, 1, b"p" * 30)),
        (1024, 2, an_entry(7, 2, b"p" * 30)),
    ]
    assert list(records_between(window, 6, 570, 570)) == []
