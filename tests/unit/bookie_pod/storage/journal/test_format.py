"""Bytes of journal files: worked examples, files of the reference implementation, padding by properties."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.journal import LogMark
from bookie_pod.storage.journal import format as fmt
from bookie_pod.storage.journal.format import Checks, RecordKind
from bookie_pod.storage.journal.reader import FileWindow, RecordWalk
from bookie_pod.storage.journal.survey import read_records, survey_journal
from tests.support.journal_rig import replayed
from tests.support.memory_files import MemoryFiles

GOLDEN = Path(__file__).parents[4] / "golden"
DISKS = ["disk-db", "disk-sorted", "disk-interleaved"]
KEY = bytes.fromhex("e793cbc379107648537183605cd361d3bb789a39")
ENTRY = bytes.fromhex(
    "00000000000000070000000000000003000000000000000200000000000000 14e985707468656c6c6f".replace(" ", "")
)


def test_header_of_each_version_written() -> None:
    assert fmt.header_bytes(6) == b"BKLG\0\0\0\6" + bytes(504)
    assert fmt.header_bytes(5) == b"BKLG\0\0\0\5" + bytes(504)
    assert fmt.header_bytes(4) == b"BKLG\0\0\0\4"
    checked = fmt.checked_header_bytes(6, 9, 8)
    assert checked.startswith(b"BKLG\0\0\0\6PKG2\0\0\0\0\0\0\0\x08")
    assert checked[24:] == bytes(488)
    with pytest.raises(ValueError, match="version 3"):
        fmt.header_bytes(3)
    with pytest.raises(ValueError, match=r"version 4 .*padding"):
        fmt.checked_header_bytes(4, 9, 8)


@pytest.mark.parametrize("version", [4, 5, 6])
def test_a_header_reads_back(version: int) -> None:
    written = fmt.header_bytes(version)
    assert fmt.parse_header(written[:24], 9) == fmt.JournalHeader(version)
    assert fmt.parse_header(written[:24], 9).length == len(written)
    if version > 4:
        old = written[:8] + b"PKGC" + written[12:24]
        assert fmt.parse_header(old, 9) == fmt.JournalHeader(version, Checks.OLD)


@given(
    st.sampled_from([5, 6]),
    st.integers(0, 1 << 62),
    st.one_of(st.just(fmt.NO_FILE), st.integers(0, 1 << 62)),
    st.integers(0, 24 * 8 - 1),
)
def test_a_checked_header_is_of_its_file_and_whole(version: int, journal_id: int, previous: int, bit: int) -> None:
    start = fmt.checked_header_bytes(version, journal_id, previous)[:24]
    assert fmt.parse_header(start, journal_id) == fmt.JournalHeader(version, Checks.CHAINED, previous)
    with pytest.raises(ValueError, match="checksum"):
        fmt.parse_header(start, journal_id + 1)
    changed = (int.from_bytes(start) ^ 1 << bit).to_bytes(24)
    with pytest.raises(ValueError):
        fmt.parse_header(changed, journal_id)


@pytest.mark.parametrize(("version", "length"), [(2, 8), (3, 8), (4, 8), (5, 512), (6, 512)])
def test_first_record_of_each_version(version: int, length: int) -> None:
    assert fmt.parse_header(b"BKLG" + version.to_bytes(4, "big"), 9).length == length


@pytest.mark.parametrize("start", [b"", b"BKLG\0\0", b"XXLG\0\0\0\1", bytes(12)])
def test_no_magic_means_version_1(start: bytes) -> None:
    assert (fmt.parse_header(start, 9).version, fmt.parse_header(start, 9).length) == (1, 0)


@pytest.mark.parametrize("version", [0, 1, 7, -1])
def test_other_versions_are_refused(version: int) -> None:
    with pytest.raises(ValueError, match=f"version is {version},"):
        fmt.parse_header(b"BKLG" + version.to_bytes(4, "big", signed=True), 9)


def test_what_stands_behind_the_version_has_to_agree_with_it() -> None:
    with pytest.raises(ValueError, match="empty"):
        fmt.parse_header(b"BKLG\0\0\0\6" + fmt.RECORD_HEAD.pack(16, 7, -0x2000), 9)
    with pytest.raises(ValueError, match="group"):
        fmt.parse_header(b"BKLG\0\0\0\4PKGC" + bytes(12), 9)


def test_records_of_the_worked_example() -> None:
    assert b"".join(fmt.key_record(7, KEY)).hex() == "000000280000000000000007fffffffffffff00000000014" + KEY.hex()
    assert b"".join(fmt.entry_record(ENTRY)) == bytes.fromhex("00000029") + ENTRY
    assert b"".join(fmt.fence_record(7)).hex() == "000000100000000000000007ffffffffffffe000"
    packet = bytes.fromhex("000000000000000700000000000000039640a704")
    lac = b"".join(fmt.explicit_lac_record(7, packet))
    assert lac.hex() == "000000280000000000000007ffffffffffff800000000014" + packet.hex()


def test_a_file_of_the_worked_example() -> None:
    data = fmt.header_bytes(6)
    for record in (fmt.key_record(7, KEY), fmt.entry_record(ENTRY)):
        data += b"".join(record)
    assert len(data) == 601
    data += fmt.padding(len(data), 512)
    assert data[601:] == bytes.fromhex("ffffff000000019f") + bytes(415)
    assert len(data) == 1024


@pytest.mark.parametrize(("rest", "length"), [(423, 415), (9, 1), (8, 0), (7, 511), (5, 509), (1, 505), (512, -1)])
def test_padding_lengths_of_the_reference(rest: int, length: int) -> None:
    assert fmt.padding_length(1024 - rest, 512) == length


@given(
    position=st.integers(0, 1 << 40),
    alignment=st.integers(1, 16).map(lambda n: n * 512),
    inside=st.sampled_from([0, fmt.CHECK_LENGTH]),
)
def test_padding_always_ends_aligned(position: int, alignment: int, inside: int) -> None:
    length = fmt.padding_length(position, alignment, inside=inside)
    if length < 0:
        assert position % alignment == 0
        assert inside == 0
    else:
        assert (position + 8 + length) % alignment == 0
        assert inside <= length < alignment + 8 + inside


@given(
    st.builds(
        fmt.GroupCheck,
        st.integers(0, 1 << 62),
        st.integers(0, 1 << 62),
        st.integers(0, 1 << 62),
        st.integers(0, (1 << 32) - 1),
    ),
    st.integers(0, 1 << 62),
    st.integers(0, 1 << 40),
    st.integers(0, 44 * 8 - 1),
)
def test_a_group_check_reads_back_at_its_place_only(
    check: fmt.GroupCheck, journal_id: int, position: int, bit: int
) -> None:
    def parsed(data: bytes, journal_id: int, position: int) -> fmt.GroupCheck | None:
        return fmt.parse_group_check(data, Checks.CHAINED, journal_id, position)

    data = check.padding(journal_id, position, 512)
    assert parsed(data, journal_id, position) == check
    assert parsed(data, journal_id, position + 512) is None
    assert parsed(data, journal_id + 1, position) is None
    assert parsed(data[:43], journal_id, position) is None
    changed = (int.from_bytes(data[:44]) ^ 1 << bit).to_bytes(44)
    assert parsed(changed, journal_id, position) is None, "marker and length are covered as well"


def test_kinds() -> None:
    kinds = [fmt.kind_of(entry_id) for entry_id in (0, 1 << 62, -0x1000, -0x2000, -0x4000, -0x8000, -1)]
    assert kinds == [
        RecordKind.ENTRY,
        RecordKind.ENTRY,
        RecordKind.KEY,
        RecordKind.FENCE,
        RecordKind.FORCE,
        RecordKind.EXPLICIT_LAC,
        RecordKind.UNKNOWN,
    ]


def test_explicit_lacs_are_left_out() -> None:
    entry, fence = b"".join(fmt.entry_record(ENTRY)), b"".join(fmt.fence_record(7))
    lac = b"".join(fmt.explicit_lac_record(7, bytes(20)))
    assert fmt.without_explicit_lacs(lac + entry + lac + fence + lac) == entry + fence
    assert fmt.without_explicit_lacs(b"") == b""


@pytest.mark.parametrize("body", [bytes(19), bytes(16) + b"\0\0\0\1", bytes(16) + b"\xff\xff\xff\xff" + bytes(9)])
def test_inner_lengths_that_cannot_be(body: bytes) -> None:
    with pytest.raises(ValueError):
        fmt.tail_of_special_record(body)


@pytest.mark.parametrize("disk", DISKS)
def test_the_journal_of_the_reference(disk: str) -> None:
    description = json.loads((GOLDEN / disk / "description.json").read_text())
    expected = description["journal"]["journal-0.txn"]
    file = PosixFiles().open(str(GOLDEN / disk / "journal-0.txn"))
    found: list[dict[str, object]] = []
    for step in RecordWalk(FileWindow(file, file.size()), 6, 512):
        if step.is_padding:
            found.append({"offset": step.offset, "kind": "padding", "padLen": step.length})
            continue
        kind = fmt.kind_of(step.entry_id)
        record: dict[str, object] = {
            "offset": step.offset,
            "length": step.length,
            "kind": kind.value,
            "ledgerId": step.ledger_id,
        }
        if kind is RecordKind.ENTRY:
            record["entryId"] = step.entry_id
        else:
            record["body"] = file.pread(step.length - 16, step.body_offset + 16).hex()
        found.append(record)
    survey = survey_journal(file, 0)
    records = list(read_records(file, 0))
    file.close()
    assert found == expected
    assert not survey.torn
    assert survey.damage is None
    assert survey.end == found[-1]["offset"] + 8 + found[-1]["padLen"]  # type: ignore[operator]
    assert [record.offset for record in records] == [r["offset"] for r in expected if r["kind"] != "padding"]


@pytest.mark.parametrize("disk", DISKS)
def test_replay_of_the_reference_journal_from_its_marks(disk: str) -> None:
    description = json.loads((GOLDEN / disk / "description.json").read_text())
    name = description["files"][f"{disk}/journal-0.txn"]["originalName"]
    files = MemoryFiles()
    files.makedirs("/journal/current")
    data = (GOLDEN / disk / "journal-0.txn").read_bytes()
    files.write_bytes(f"/journal/current/{name}", data.ljust(16 * 1024 * 1024, b"\0"))
    whole, end = replayed(files)
    records = [r for r in description["journal"]["journal-0.txn"] if r["kind"] != "padding"]
    assert len(whole.events) == len(records)
    for which in ("lastMark", "lastMark.running"):
        mark = LogMark.from_bytes((GOLDEN / disk / which).read_bytes())
        assert mark is not None
        if mark.journal_id:
            assert f"{mark.journal_id:x}.txn" == name
        rest, again = replayed(files, mark)
        assert len(rest.events) == sum(r["offset"] >= mark.offset for r in records)
        assert again == max(end, mark)
    assert replayed(files, end)[0].events == []
