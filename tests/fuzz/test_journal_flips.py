"""Journals in which one bit changed or one sector was lost: what follows is handed out as before, or it is refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from bookie_pod.storage.journal import JournalBatch
from bookie_pod.storage.journal import format as fmt
from bookie_protocol.errors import JournalDamaged, JournalMissing
from tests.support.journal_rig import DIRECTORY, JournalRig, replayed, small_options
from tests.support.memory_files import MemoryFiles

Event = tuple[str, int, int, bytes]
SECTOR = 512
CHECKED = ["6", "6 old", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("5", "6 wide"))]
PLAIN = ["6 plain", "5 plain", "4", "3", "2", "1"]


def an_entry(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """With the digest that most clients use."""
    head = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(payload))
    return head + struct.pack(">I", fmt.crc32c(payload, fmt.crc32c(head))) + payload


def groups(rng: random.Random, version: int) -> list[list[list[bytes]]]:
    """Entries of equal and of other sizes, with zeros in them, and what else the version knows."""
    made: list[list[list[bytes]]] = []
    entry_id = 0
    for size in (28, 28, 60, 500):
        records = []
        for _ in range(rng.randint(1, 3)):
            payload = rng.choice([bytes(size), rng.randbytes(size), rng.randbytes(size // 2).ljust(size, b"\0")])
            records.append(fmt.entry_record(an_entry(7, entry_id, payload)))
            entry_id += 1
        made.append(records)
    if version >= fmt.FIRST_VERSION_WITH_KEYS:
        made[0].insert(0, fmt.key_record(7, b"k" * 20))
    if version >= fmt.FIRST_VERSION_WITH_FENCES:
        made[2].insert(1, fmt.fence_record(8))
    if version >= fmt.FIRST_VERSION_WITH_EXPLICIT_LAC:
        made[1].append(fmt.explicit_lac_record(7, bytes(20)))
    return made


def as_earlier_releases_wrote_it(journal_id: int, data: bytes) -> bytes:
    """The same groups, with the checks that had no length and no predecessor."""
    made = data[:8] + b"PKGC" + bytes(500)
    start = at = 512
    while at + 8 <= len(data) and (length := struct.unpack_from(">i", data, at)[0]):
        if length != fmt.PADDING_MARKER:
            at += 4 + length
            continue
        records, inside = data[start:at], struct.unpack_from(">i", data, at + 4)[0]
        fields = struct.pack(">4sqqI", b"PKGC", start, start, fmt.crc32c(records))
        own = fmt.crc32c(struct.pack(">qq", journal_id, at) + fields)
        made += records + data[at : at + 8] + (fields + struct.pack(">I", own)).ljust(inside, b"\0")
        start = at = at + 8 + inside
    return made.ljust(len(data), b"\0")


def journal(kind: str, rng: random.Random, *, closed: bool) -> tuple[str, bytes]:
    """Path and bytes of a file; one that was not closed is that of a process that was killed."""
    version = int(kind[0])
    options = small_options(
        format_version=max(4, version),
        group_checks="plain" not in kind,
        alignment_size_bytes=2048 if "wide" in kind else 512,
        pre_alloc_size_bytes=4096,
    )
    with JournalRig(options=options) as rig:
        for group in groups(rng, version):
            rig.add(JournalBatch.of(*group))
        (name,) = rig.journals()
        path = f"{DIRECTORY}/{name}"
        data = rig.files.read_bytes(path)
    if closed:
        data = rig.files.read_bytes(path)
    if version < 4:
        data = (b"" if version == 1 else b"BKLG" + version.to_bytes(4, "big")) + data[8:]
    if "old" in kind:
        data = as_earlier_releases_wrote_it(int(name.split(".")[0], 16), data)
    return path, data


def replay(path: str, data: bytes) -> list[Event] | None:
    """What is handed out; None if it was refused."""
    files = MemoryFiles()
    files.makedirs(DIRECTORY)
    files.write_bytes(path, data)
    try:
        return replayed(files)[0].events
    except (JournalDamaged, JournalMissing):
        return None


def flips(data: bytes, bits: int) -> Iterator[bytes]:
    """With so many bits of each byte changed, one at a time; of long runs of zeros only now and then one."""
    for at in range(len(data)):
        if not any(data[max(0, at - 4) : at + 5]) and at % 61:
            continue
        for bit in range(at, at + bits):
            yield data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]


BITS = pytest.mark.parametrize("bits", [2, pytest.param(8, marks=pytest.mark.slow)], ids=["two bits", "all bits"])


@BITS
@pytest.mark.parametrize("kind", CHECKED)
def test_no_changed_bit_of_a_checked_journal_is_passed_over(kind: str, bits: int) -> None:
    """Of one whose process was killed: nothing vouches for its last group."""
    path, data = journal(kind, random.Random(kind), closed=False)
    before = replay(path, data)
    assert before
    refused = 0
    for changed in flips(data, bits):
        after = replay(path, changed)
        refused += after is None
        assert after in (None, before)
    assert refused > bits * 300


@BITS
@pytest.mark.parametrize("kind", PLAIN)
def test_a_changed_bit_of_a_plain_journal_changes_one_record_at_most(kind: str, bits: int) -> None:
    """Nothing says what the bytes of a record were, but no other record is lost or invented with it."""
    path, data = journal(kind, random.Random(kind), closed=False)
    before = replay(path, data)
    assert before
    for changed in flips(data, bits):
        after = replay(path, changed)
        if after is not None:
            assert len(before) - 1 <= len(after) <= len(before)
            assert len(set(before) - set(after)) <= 1, "each other record is there"
            assert len(set(after) - set(before)) <= 1


@pytest.mark.parametrize("kind", CHECKED)
def test_no_lost_sector_of_a_closed_checked_journal_is_passed_over(kind: str) -> None:
    path, data = journal(kind, random.Random(kind), closed=True)
    before = replay(path, data)
    for at in range(0, len(data), SECTOR):
        assert replay(path, data[:at] + bytes(SECTOR) + data[at + SECTOR :]) in (None, before)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_any_damage_of_one_place(seed: int) -> None:
    """A few bytes anywhere, or one sector. What reaches from the last group into its check looks as a write that was
    interrupted does, and ends the replay."""
    rng = random.Random(seed)
    kind = rng.choice(["5", "6", "6 wide", "6 old"])
    path, data = journal(kind, rng, closed=True)
    before = replay(path, data)
    for _ in range(500):
        length = rng.choice([1, 2, 4, 8, SECTOR])
        at = rng.randrange(len(data) // length) * length
        changed = data[:at] + rng.choice([bytes(length), rng.randbytes(length)]) + data[at + length :]
        assert replay(path, changed[: len(data)]) in (None, before)
