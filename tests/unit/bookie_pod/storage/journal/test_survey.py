"""What a survey calls sound, torn or damaged, and where a mark may stand; for replays see `test_replay`."""

from __future__ import annotations

import struct

import pytest

from bookie_pod.storage.journal import format as fmt
from bookie_pod.storage.journal import survey_checked
from bookie_pod.storage.journal.directory import journal_path
from bookie_pod.storage.journal.format import Checks, GroupCheck, crc32c
from bookie_pod.storage.journal.survey import may_start_at, read_folders, survey_journal
from bookie_pod.storage.journal.survey_checked import is_one_bit, with_one_bit_changed
from bookie_pod.storage.journal.surveyed_file import JournalSurvey
from bookie_protocol.errors import JournalDamaged, StorageFault
from tests.support.memory_files import MemoryFiles
from tests.unit.bookie_pod.storage.journal.contents import (
    checked_file,
    files_with,
    path_of,
    plain_file,
    record,
    zeroed,
)


def surveyed(data: bytes, start: int = 0, size: int = 4096) -> JournalSurvey:
    return survey_journal(files_with((9, data), size=size).open(path_of(9)), 9, start)


def with_length(data: bytes, offset: int, length: int) -> bytes:
    """The file with another length of the record at `offset`."""
    return data[:offset] + fmt.LENGTH.pack(length) + data[offset + 4 :]


def digested(entry_id: int, payload: bytes) -> bytes:
    """A record with an entry that carries its CRC32C."""
    head = struct.pack(">qqqq", 7, entry_id, entry_id - 1, len(payload))
    entry = head + fmt._CRC.pack(crc32c(payload, crc32c(head))) + payload
    return b"".join(fmt.entry_record(entry))


# --- without group checks: lengths -------------------------------------------------------------------------------


def body(ledger_id: int, entry_id: int, lac: int, size: int = 60) -> bytes:
    return fmt.LENGTH.pack(size) + struct.pack(">qqq", ledger_id, entry_id, lac).ljust(size, b"x")


SWALLOWED = 512 + 4 + 54
"""Where the second of two records begins, the first of which has 54 bytes."""


@pytest.mark.parametrize(
    ("inside", "likely"),
    [
        (body(7, 1, 0), True),
        (body(0, 1, 0), True),
        (body(7, 0, -1), True),
        (body(7, (1 << 40) - 1, 0), True),
        (fmt.LENGTH.pack(60) + struct.pack(">qqi", 7, fmt.KEY_ENTRY_ID, 40) + bytes(40), True),
        (b"".join(fmt.fence_record(7)) + body(7, 1, 0, 40), True),
        (body(7, 1, 0, 24) + body(7, 2, 1, 32), True),
        (body(7, 1, -2), False),
        (body(7, 0, 0), False),
        (body(7, 1, 1), False),
        (body(-1, 1, 0), False),
        (body(7, 1 << 40, 0), False),
        (body(7, -3, 0), False),
        (fmt.LENGTH.pack(60) + struct.pack(">qqi", 7, fmt.KEY_ENTRY_ID, 41) + bytes(40), False),
        (fmt.LENGTH.pack(16) + fmt.IDS.pack(7, 1) + body(7, 2, 1, 40), False),
        (b"".join(fmt.fence_record(7)) + body(7, 1, 0, 41)[:44], False),
        (b"".join(fmt.fence_record(7)) + body(7, 1, 0, 39) + b"x", False),
        (body(7, 1, 0, 61)[:64], False),
        (bytes(64), False),
    ],
)
def test_a_record_that_holds_likely_records_up_to_its_end_has_a_changed_length(inside: bytes, likely: bool) -> None:
    """Its length has one more bit than it had; what else an entry may hold is nobody's business."""
    data = with_length(plain_file(record(7, 0) + inside + record(7, 3)), 512, 54 | 64)
    assert len(inside) == 64
    found = surveyed(data)
    if likely:
        assert found.damage == f"a record has length 118, yet records follow at offset {SWALLOWED} inside it"
        assert (found.end, found.torn) == (512, False)
    else:
        assert (found.damage, found.end) == (None, 1024)


def test_an_entry_that_matches_its_checksum_may_hold_records() -> None:
    held = digested(0, b"p" * 16 + body(7, 1, 0))
    assert len(held) == 4 + 52 + 64
    assert surveyed(plain_file(held)).damage is None
    changed = surveyed(plain_file(held[:60] + b"!" + held[61:]))
    assert changed.damage == "a record has length 116, yet records follow at offset 568 inside it"


def test_a_record_that_reaches_over_the_padding_of_its_group_has_a_changed_length() -> None:
    data = plain_file(record(7, 0))
    longer = with_length(data, 512, 54 | 512)
    assert surveyed(longer).damage == f"a record has length 566, yet records follow at offset {SWALLOWED} inside it"
    for held in (longer + b"\0\1", longer[:600] + b"\1" + longer[601:]):
        damage = surveyed(held).damage
        assert damage is None or "inside it" not in damage


@pytest.mark.parametrize("gone", [16, 64, 128])
def test_a_length_of_which_one_bit_went_leads_nowhere_but_to_what_was_written(gone: int) -> None:
    """The group ends in its padding, but with the bit the record before the padding ends there."""
    last = b"".join(fmt.fence_record(7)) if gone == 16 else body(7, 1, 0, gone)
    data = plain_file(record(7, 0) + last)
    assert surveyed(data).damage is None
    found = surveyed(with_length(data, SWALLOWED, 0))
    assert found.damage == f"the length of the record at offset {SWALLOWED} is wrong: with {gone} it fits what follows"
    assert (found.end, found.torn) == (SWALLOWED, False)


def test_an_earlier_length_of_which_one_bit_went() -> None:
    long = body(7, 0, -1, 24)[4:] + bytes(94)
    data = plain_file(fmt.LENGTH.pack(118) + long)
    found = surveyed(with_length(data, 512, 54))
    assert found.damage == "the length of the record at offset 512 is wrong: with 118 it fits what follows"
    assert found.end == SWALLOWED


@pytest.mark.parametrize("size", [186, 4096])
@pytest.mark.parametrize("bit", [1 << 8, 1 << 20])
def test_a_length_in_a_file_without_padding_is_believed_if_the_entry_matches_its_checksum(size: int, bit: int) -> None:
    first, last = record(7, 0), digested(1, b"p" * 80)
    data = plain_file(first, last, version=4)
    assert len(data) == 186
    assert surveyed(data, size=size).damage is None
    found = surveyed(with_length(data, 66, 116 | bit), size=size)
    assert found.damage == "the length of the record at offset 66 is wrong: with 116 it fits what follows"
    unknown = with_length(data[:-1] + b"!", 66, 116 | bit)
    assert surveyed(unknown, size=size).damage is None, "it may have been torn"


@pytest.mark.parametrize(
    ("version", "message"),
    [(4, "its first record has length 0, yet more follows"), (6, "zero length word, yet records follow at offset ")],
)
def test_a_record_of_zeros_counts_as_a_length_of_zero(version: int, message: str) -> None:
    hollow = fmt.LENGTH.pack(100) + bytes(100)
    found = surveyed(plain_file(hollow + record(7, 1) + record(7, 2), version=version))
    assert found.damage is not None
    assert found.damage.startswith(message)
    assert found.end == found.header.length


@pytest.mark.parametrize(
    ("padding", "plain"),
    [
        (fmt.PADDING_HEAD.pack(fmt.PADDING_MARKER, 446) + bytes(446), True),
        (fmt.PADDING_HEAD.pack(fmt.PADDING_MARKER, 446 + 512) + bytes(446 + 512), True),
        (fmt.PADDING_HEAD.pack(fmt.PADDING_MARKER, 445) + bytes(445), False),
        (fmt.PADDING_HEAD.pack(fmt.PADDING_MARKER, 446) + b"\1" + bytes(445), False),
        (fmt.PADDING_HEAD.pack(fmt.PADDING_MARKER, 446) + bytes(445) + b"\1", False),
    ],
)
def test_a_padding_holds_zeros_and_ends_at_a_sector(padding: bytes, plain: bool) -> None:
    data = fmt.header_bytes(6) + record(7, 0) + padding
    found = surveyed(data + record(7, 1))
    if plain:
        assert (found.damage, found.end) == (None, len(data) + 58)
    else:
        assert found.damage == "a padding holds more than zeros, or does not end at a sector"
        assert found.end == SWALLOWED
    cut = surveyed(fmt.header_bytes(6) + record(7, 0) + padding[:4])
    assert (cut.damage, cut.torn) == (None, False)


# --- with group checks ------------------------------------------------------------------------------------------


def old_checked_file(*groups: bytes, tail: int = 0) -> bytes:
    """A file of an earlier release; each padding has `tail` bytes more than it needs."""
    data = fmt._HEADER.pack(fmt.MAGIC, 6).ljust(8) + fmt.OLD_CHECKS_MAGIC
    data = data.ljust(512, b"\0")
    for group in groups:
        start = len(data)
        data += group
        fields = fmt._OLD_CHECK_FIELDS.pack(fmt.OLD_CHECKS_MAGIC, start, start, crc32c(group))
        check = fields + fmt._CRC.pack(crc32c(fmt._CHECK_PLACE.pack(9, len(data)) + fields))
        length = fmt.padding_length(len(data), 512, inside=fmt.OLD_CHECK_LENGTH) + tail
        data += fmt.PADDING_HEAD.pack(fmt.PADDING_MARKER, length) + check.ljust(length, b"\0")
    return data


def test_a_file_with_the_group_checks_of_an_earlier_release() -> None:
    first, whole = old_checked_file(record(7, 0)), old_checked_file(record(7, 0), record(7, 1))
    found = surveyed(whole)
    assert found.header.checks is Checks.OLD
    assert (found.end, found.damage, found.torn, found.continues) == (len(whole), None, False, None)
    torn = surveyed(whole[: len(first) + 20])
    assert (torn.end, torn.damage, torn.torn) == (len(first), None, True)
    changed = surveyed(whole[:520] + b"!" + whole[521:])
    assert changed.end == 512
    assert changed.damage is not None
    file = files_with((9, whole), size=4096).open(path_of(9))
    near = [512, *range(560, 1010, 70), *range(1016, 1032, 4), *range(1100, 1520, 70), *range(1528, 1552, 4)]
    assert [at for at in near if may_start_at(file, 9, at)] == [
        512,
        len(first),
        len(whole),
        len(whole) + 4,
    ]


def test_what_such_a_check_does_not_cover_is_looked_at() -> None:
    """The length of the padding, and the zeros in it: a changed length would lead on somewhere else."""
    whole = old_checked_file(record(7, 0), record(7, 1))
    for changed in (whole[:-1] + b"\1", whole[:1200] + b"\1" + whole[1201:], old_checked_file(record(7, 0), tail=8)):
        assert surveyed(changed).damage is not None
    assert surveyed(whole[:1200] + b"\1" + whole[1201:]).end == 1024
    assert surveyed(old_checked_file(record(7, 0), tail=512)).damage is None


def test_an_empty_group_that_follows_another_group_than_it_says_is_damage() -> None:
    """What stands before it is whole, but is not what stood there."""
    data = checked_file(9, record(7, 0))
    for before in (512, 0):
        closing = GroupCheck(len(data), 512, before, 0).padding(9, len(data), 512)
        found = surveyed(data + closing)
        assert (found.damage is None) == (before == 512)
        assert found.end == len(data) + (512 if before == 512 else 0)
    assert found.damage == "its group matches its checksum and holds an impossible record"


@pytest.mark.parametrize("chunk", [48, 100, 512, 1 << 20])
def test_a_later_check_is_found_wherever_it_lies(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_checked, "CHUNK", chunk)
    for size in range(30, 200, 7):
        data = checked_file(9, record(7, 0), record(7, 1), record(7, 2, b"x" * size))
        found = surveyed(zeroed(data, 1030, 500))
        assert (found.end, found.damage) == (
            1024,
            "its group does not match its checksum, yet all below 1536 had been synced",
        )


def test_a_check_in_an_entry_does_not_hide_where_a_group_ends() -> None:
    """Be it a copy of a check, or only its first letters."""
    group = record(7, 0, fmt.CHECKS_MAGIC + checked_file(9, record(7, 1)))
    data = checked_file(9, group)
    stray = data[:-20] + fmt.CHECKS_MAGIC + data[-16:]
    for each in (data, stray):
        file = files_with((9, each), size=8192).open(path_of(9))
        assert survey_journal(file, 9).damage is None
        near = [512, *range(516, len(each), 61), *range(len(each) - 9, len(each) + 9)]
        assert [at for at in near if may_start_at(file, 9, at)] == [512, len(each), len(each) + 4]


@pytest.mark.parametrize("length", [1, 2, 40])
def test_the_difference_of_two_checksums_names_a_changed_bit(length: int) -> None:
    data = bytes(range(7, 7 + length))
    changed = list(with_one_bit_changed(data))
    assert len(set(changed)) == len(changed) == 8 * length
    for number, each in enumerate(changed):
        assert sum((a ^ b).bit_count() for a, b in zip(data, each, strict=True)) == 1
        difference = crc32c(data) ^ crc32c(each)
        byte = number // 8 + 1
        assert is_one_bit(difference, byte)
        assert is_one_bit(difference, byte + 3)
        assert not is_one_bit(difference, byte - 1)
    two = bytes([data[0] ^ 3]) + data[1:]
    assert not is_one_bit(crc32c(data) ^ crc32c(two), length)


# --- files in which nothing was written --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "blank", "end"),
    [
        (fmt.LENGTH.pack(16) + fmt.IDS.pack(7, 0), False, 20),
        (bytes(600) + b"x", False, 0),
        (b"BKL" + bytes(600) + b"x", False, 0),
        (b"BKL" + bytes(600), True, 0),
        (b"BKLH" + bytes(600), False, 0),
        (plain_file()[:8] + bytes(600), True, 512),
        (plain_file()[:8] + bytes(600) + b"x", False, 512),
        (plain_file(version=4) + bytes(600), True, 8),
        (fmt.checked_header_bytes(6, 9, 8)[:20], True, 0),
        (fmt.checked_header_bytes(6, 9, 8)[:20] + bytes(600) + b"x", False, 0),
    ],
)
def test_a_file_is_blank_that_holds_a_header_or_a_part_of_one_and_else_zeros(
    data: bytes, blank: bool, end: int
) -> None:
    found = surveyed(data)
    assert (found.blank, found.end) == (blank, end)
    assert (found.damage is None) == (blank or end > 0)
    assert found.is_emptied == (blank and end == 0)


# --- marks and tools ----------------------------------------------------------------------------------------------


def test_in_a_file_with_a_damaged_header_a_mark_stands_at_its_beginning_and_end_only() -> None:
    data = checked_file(9, record(7, 0))
    data = data[:20] + b"!!!!" + data[24:]
    assert [surveyed(data, start).damage is None for start in (0, 512, 4095, 4096)] == [False, False, False, True]
    file = files_with((9, data), size=4096).open(path_of(9))
    assert [at for at in (0, 1, 512, 4095, 4096, 4097) if may_start_at(file, 9, at)] == [0, 4096]


def two_folders() -> MemoryFiles:
    files = MemoryFiles()
    for folder, first in (("/a", 0), ("/b", 10)):
        files.makedirs(folder)
        for journal_id in (8, 9):
            entry_id = first + journal_id
            files.write_bytes(journal_path(folder, journal_id), plain_file(record(7, entry_id), record(8, entry_id)))
    return files


def test_the_records_of_all_folders_are_read_and_damage_is_told() -> None:
    files = two_folders()
    told: list[JournalDamaged] = []

    def read() -> list[tuple[int, int]]:
        return [(one.ledger_id, one.entry_id) for one in read_folders(files, ["/a", "/b"], told.append)]

    everything = [(ledger, entry) for entry in (8, 9, 18, 19) for ledger in (7, 8)]
    assert read() == everything
    assert told == []
    files.corrupt("/a/8.txn", 1024, struct.pack(">i", -5))
    files.corrupt("/b/9.txn", 7, b"\7")
    assert read() == [(7, 8), *everything[2:6]]
    assert ["/a/8.txn" in str(told[0]), "/b/9.txn" in str(told[1]), len(told)] == [True, True, 2]
    assert files.open_files == 0


@pytest.mark.parametrize("while_trimmed", [False, True])
def test_a_file_that_is_gone_is_passed_over_only_while_others_trim(while_trimmed: bool) -> None:
    files = two_folders()
    found = []
    reading = read_folders(files, ["/a", "/b"], lambda error: None, while_trimmed=while_trimmed)
    found.append(next(reading))
    files.unlink("/a/9.txn")
    if while_trimmed:
        found.extend(reading)
        assert [one.entry_id for one in found] == [8, 8, 18, 18, 19, 19]
    else:
        with pytest.raises(StorageFault, match=r"read .*/a/9\.txn"):
            found.extend(reading)
        assert [one.entry_id for one in found] == [8, 8]


def test_a_file_that_cannot_be_read_is_no_trimmed_one() -> None:
    files = two_folders()
    files.faults.fail("pread", path="/a/9")
    with pytest.raises(StorageFault, match=r"read .*/a/9\.txn"):
        list(read_folders(files, ["/a", "/b"], lambda error: None, while_trimmed=True))
    assert files.open_files == 0
