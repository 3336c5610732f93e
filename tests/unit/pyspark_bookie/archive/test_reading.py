"""Entries of an archived ledger from one to another, and what is told of files that are not as they were written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from bookie_client.reading.entry import LedgerEntry
from bookie_protocol.archive import ArchivedLedger
from bookie_protocol.errors import EntryDamaged
from pyspark_bookie.archive.files import ArchivedFileMissing, ArchiveUnavailable, Files
from pyspark_bookie.archive.reading import ArchiveDamaged, count_files, read_entries, read_payloads
from pyspark_bookie.archive.writing import write_ledger
from pyspark_bookie.common.throttle import Throttle
from tests.support.unsteady_store import RESET, UnsteadyStore, goes

PAYLOADS = [os.urandom(7 * number) for number in range(30)]
GROUP, LEDGER = 4, 7
ERRORS = [RESET, pa.ArrowInvalid("google::cloud::Status: 400"), ValueError("I/O operation on closed file")]
"""What requests of stores fail with."""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(f"file://{tmp_path}", "--target")


@pytest.fixture
def ledger(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArchivedLedger:
    """Of several files with several row groups."""
    monkeypatch.setattr("pyspark_bookie.archive.writing.ROW_GROUP_ENTRIES", GROUP)
    found = written(files, tmp_path, PAYLOADS)
    assert len(found.files) > 2
    return found


def written(files: Files, folder: Path, payloads: list[bytes]) -> ArchivedLedger:
    entries = [LedgerEntry(LEDGER, number, 0, payload, number - 1) for number, payload in enumerate(payloads)]
    made = write_ledger(files, "data", LEDGER, "0" * 32, [entries], 700, Throttle(None))
    placed = tuple(replace(file, path=f"data/{file.path}") for file in made.files)
    return ArchivedLedger(LEDGER, f"file://{folder}", "0" * 32, placed, made.counts)


def rows(files: Files, ledger: ArchivedLedger, first: int, last: int) -> list[tuple[int, bytes, int]]:
    return list(flat(read_entries(files, ledger, first, last)))


def flat(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes, int]]:
    for batch in batches:
        yield from ((row["entry_id"], row["value"], row["lac"]) for row in batch.to_pylist())


def expected(first: int, last: int) -> list[tuple[int, bytes, int]]:
    return [(number, PAYLOADS[number], number - 1) for number in range(first, last + 1)]


def test_every_range_is_itself(files: Files, ledger: ArchivedLedger) -> None:
    """From every entry around the ends of row groups and files, to each within a row group and one more, and to the
    end."""
    end = len(PAYLOADS)
    begins = {file.first_entry for file in ledger.files} | {GROUP, end}
    for first in sorted({begin + by for begin in begins for by in (-1, 0, 1)} & set(range(end))):
        for last in {*range(first, min(first + GROUP + 2, end)), end - 1}:
            assert rows(files, ledger, first, last) == expected(first, last)


def test_only_the_row_groups_that_are_wanted_are_read(
    files: Files, ledger: ArchivedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    one = pq.ParquetFile.read_row_group

    def watched(self: pq.ParquetFile, group: int, **more: object) -> pa.Table:
        read.append(group)
        return one(self, group, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    assert rows(files, ledger, GROUP, 2 * GROUP - 1) == expected(GROUP, 2 * GROUP - 1)
    assert len(read) == 1


@pytest.mark.parametrize(
    "error", [pa.ArrowMemoryError("malloc of size 64"), pa.ArrowCancelled("interrupted")], ids=repr
)
def test_a_process_without_memory_is_no_damage(
    files: Files, ledger: ArchivedLedger, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise type(error)(*error.args)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", fails)
    with pytest.raises(ArchiveUnavailable, match=f"ledger 7: .*: {error}"):
        rows(files, ledger, 0, 1)


def damage(ledger: ArchivedLedger, entry: int) -> str:
    """One bit of the payloads of an entry's row group; returns the file."""
    [file] = [each for each in ledger.files if each.first_entry <= entry < each.first_entry + each.entries]
    path = Path(ledger.target.removeprefix("file://")) / file.path
    group = (entry - file.first_entry) // GROUP
    values = pq.read_metadata(path).row_group(group).column(3)
    data = bytearray(path.read_bytes())
    data[values.data_page_offset + values.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    return str(path)


def test_a_flipped_bit_is_told_with_ledger_and_file_and_spoils_its_row_group_only(
    files: Files, ledger: ArchivedLedger
) -> None:
    path = damage(ledger, 6)
    assert rows(files, ledger, 0, 3) == expected(0, 3)
    with pytest.raises(ArchiveDamaged, match=f"{path} of ledger 7 ") as caught:
        rows(files, ledger, 0, 29)
    assert caught.value.last == 7
    assert rows(files, ledger, 8, 29) == expected(8, 29)


def test_a_ledger_that_is_read_whole_must_have_its_checksum(files: Files, ledger: ArchivedLedger) -> None:
    other = replace(ledger, counts=replace(ledger.counts, payload_crc=ledger.counts.payload_crc ^ 1))
    assert rows(files, other, 1, 29) == expected(1, 29)
    found = read_entries(files, other, 0, 29)
    with pytest.raises(ArchiveDamaged, match="ledger 7 "):
        list(found)


def test_other_sizes_and_other_contents_are_damage(files: Files, ledger: ArchivedLedger) -> None:
    first, second, *others = ledger.files
    longer = replace(ledger, files=(replace(first, nbytes=first.nbytes + 1), second, *others))
    with pytest.raises(ArchiveDamaged, match=f"{first.path} of ledger 7 has {first.nbytes} bytes"):
        rows(files, longer, 0, 29)
    fewer = replace(ledger, files=(first, second))
    end = second.first_entry + second.entries
    assert rows(files, fewer, 0, end - 1) == expected(0, end - 1)
    with pytest.raises(ArchiveDamaged, match=r"of ledger 7 in .* entry 29"):
        rows(files, fewer, 0, 29)
    with pytest.raises(ArchiveDamaged, match="other"):
        rows(files, replace(ledger, ledger_id=8), 0, 29)
    moved = replace(second, first_entry=second.first_entry + 1, entries=second.entries - 1)
    with pytest.raises(ArchiveDamaged, match=f"{second.path} of ledger 7"):
        rows(files, replace(ledger, files=(first, moved, *others)), 0, 29)


def test_a_file_that_is_not_there(files: Files, ledger: ArchivedLedger) -> None:
    files.delete(ledger.files[1].path)
    assert rows(files, ledger, 0, 3) == expected(0, 3)
    with pytest.raises(ArchivedFileMissing, match=f"ledger 7: .*{ledger.files[1].path} "):
        rows(files, ledger, 0, 29)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("failing", ["size", "open", "read", "seek", "tell"])
def test_a_store_that_does_not_answer_is_no_damage(
    files: Files, ledger: ArchivedLedger, failing: str, error: Exception
) -> None:
    files.system = pafs.PyFileSystem(UnsteadyStore(lambda _: True, failing, error=error))
    with pytest.raises(ArchiveUnavailable, match=f"ledger 7: --target: .*{error}"):
        rows(files, ledger, 0, 3)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_file_that_goes_while_it_is_read_is_not_there_whatever_the_store_says(
    files: Files, ledger: ArchivedLedger, error: Exception
) -> None:
    """S3 says a bare `OSError` then, and a file of GCS is closed."""
    files.system = pafs.PyFileSystem(UnsteadyStore(goes(Path(files.path(ledger.files[0].path)), 2), error=error))
    with pytest.raises(ArchivedFileMissing, match=f"ledger 7: .*{ledger.files[0].path} "):
        rows(files, ledger, 0, 3)


def whole(files: Files, ledger: ArchivedLedger) -> list[bytes]:
    batches = read_payloads(files, ledger.ledger_id, ledger.files, Throttle(None))
    return [payload for batch in batches for payload in batch]


def test_a_whole_ledger_and_its_counts(files: Files, ledger: ArchivedLedger) -> None:
    assert whole(files, ledger) == PAYLOADS
    assert count_files(files, LEDGER, ledger.files, Throttle(None)) == ledger.counts


def test_what_is_wrong_with_a_whole_ledger_is_told_alike(files: Files, ledger: ArchivedLedger) -> None:
    first, _, *others = ledger.files
    with pytest.raises(EntryDamaged, match=rf"{others[0].path} of ledger 7 .* entry {first.entries}"):
        whole(files, replace(ledger, files=(first, *others)))
    with pytest.raises(ArchiveDamaged, match="than 8"):
        whole(files, replace(ledger, ledger_id=8))
    path = damage(ledger, 6)
    with pytest.raises(ArchiveDamaged, match=f"{path} of ledger 7 "):
        whole(files, ledger)
    files.delete(first.path)
    with pytest.raises(ArchivedFileMissing, match=f"ledger 7: .*{first.path} "):
        whole(files, ledger)


@pytest.mark.parametrize("read", [whole, lambda files, ledger: rows(files, ledger, 0, 11)], ids=["whole", "entries"])
@pytest.mark.parametrize("closes", [False, True], ids=["stays open", "closes"])
@pytest.mark.parametrize("failing", ["open", "read", "seek", "tell"])
def test_what_fails_once_is_read_again_and_what_fails_twice_is_no_damage(
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[Files, ArchivedLedger], object],
    failing: str,
    closes: bool,
) -> None:
    """Whichever request it is, also if the file was read again before; and no file stays open."""
    monkeypatch.setattr("pyspark_bookie.archive.writing.ROW_GROUP_ENTRIES", GROUP)
    ledger = written(files, tmp_path, [os.urandom(100)] * 12)
    assert [file.entries for file in ledger.files] == [2 * GROUP, GROUP]
    sound = read(files, ledger)

    def unsteady(fails: Callable[[int], bool]) -> UnsteadyStore:
        store = UnsteadyStore(fails, failing, closes=closes)
        files.system = pafs.PyFileSystem(store)
        return store

    store = unsteady(lambda _: False)
    assert (read(files, ledger), store.all_closed()) == (sound, True)
    for broken in range(1, store.requests + 1):
        store = unsteady(lambda number, at=broken: number == at)
        assert (read(files, ledger), store.all_closed()) == (sound, True)
        store = unsteady(lambda number, at=broken: at <= number <= at + 1)
        with pytest.raises(ArchiveUnavailable, match="ledger 7: "):
            read(files, ledger)
        assert store.all_closed()
        store = unsteady(lambda number, at=broken: number in (1, at + 2))
        with suppress(ArchiveUnavailable):
            assert read(files, ledger) == sound
        assert store.all_closed()


@pytest.mark.parametrize("bit", [0x80, 0x01])
@pytest.mark.parametrize("name", [b"ledger_id", b"entry_id", b"length", b"value", b"lac"])
def test_a_flipped_bit_in_the_name_of_a_column_is_damage(
    files: Files, ledger: ArchivedLedger, name: bytes, bit: int
) -> None:
    """The footer has no checksum, and what is no text there is an error of its own."""
    path = Path(files.path(ledger.files[0].path))
    data = bytearray(path.read_bytes())
    data[data.index(name, footer(data))] ^= bit
    path.write_bytes(data)
    for read in (whole, lambda files, ledger: rows(files, ledger, 0, 29)):
        with pytest.raises(ArchiveDamaged, match=f"{path} of ledger 7 "):
            read(files, ledger)


def footer(data: bytes) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def test_no_flipped_bit_of_a_schema_makes_other_rows(files: Files, ledger: ArchivedLedger) -> None:
    path = Path(files.path(ledger.files[0].path))
    sound = path.read_bytes()
    begin = footer(sound)
    found: set[type] = set()
    for place in range(begin, sound.index(b"lac", begin) + 8):
        for bit in range(8):
            data = bytearray(sound)
            data[place] ^= 1 << bit
            path.write_bytes(data)
            try:
                assert rows(files, ledger, 0, 3) == expected(0, 3)
            except ArchiveDamaged as error:
                found.add(type(error))
    assert found == {ArchiveDamaged}


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.int64()], ids=str)
@pytest.mark.parametrize("name", ["lac", "more"])
@pytest.mark.parametrize("without", [[], ["lac"], ["entry_id"]], ids=str)
def test_columns_that_nobody_writes_are_damage(
    files: Files, ledger: ArchivedLedger, without: list[str], name: str, kind: pa.DataType
) -> None:
    """Of another type, of another name, or twice."""
    file = ledger.files[0]
    table = pq.read_table(files.path(file.path))
    table = table.drop_columns(without).append_column(name, table["lac"].cast(kind))
    pq.write_table(table, files.path(file.path), write_page_checksum=True, row_group_size=GROUP)
    other = replace(ledger, files=(replace(file, nbytes=files.size(file.path) or 0), *ledger.files[1:]))
    if (without, name, kind) == (["lac"], "lac", pa.int64()):  # as it was
        assert rows(files, other, 0, 3) == expected(0, 3)
    else:
        with pytest.raises(ArchiveDamaged, match="columns"):
            rows(files, other, 0, 3)


def test_files_of_older_versions_do_not_tell_the_last_add_confirmed(files: Files, ledger: ArchivedLedger) -> None:
    placed = []
    for file in ledger.files:
        table = pq.read_table(files.path(file.path)).drop_columns(["lac"])
        pq.write_table(table, files.path(file.path), write_page_checksum=True, row_group_size=GROUP)
        placed.append(replace(file, nbytes=files.size(file.path) or 0))
    older = replace(ledger, files=tuple(placed))
    found = list(read_entries(files, older, 2, 29))
    assert [value for batch in found for value in batch.column("value").to_pylist()] == PAYLOADS[2:]
    assert all("lac" not in batch.schema.names for batch in found)
