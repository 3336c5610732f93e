"""Mutated journals: replay hands records out or raises `JournalDamaged`; no other error, no huge allocation."""

from __future__ import annotations

import random
import struct
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie_pod.storage.journal import JournalBatch, LogMark, read_records
from bookie_pod.storage.journal import format as fmt
from bookie_protocol.errors import JournalDamaged
from tests.support.journal_rig import DIRECTORY, JournalRig, an_entry, replayed, small_options
from tests.support.memory_files import MemoryFiles

PATH = f"{DIRECTORY}/9.txn"
INTERESTING = [0, 1, 15, 16, 17, -1, -0x100, -0x1000, 0x7FFFFFFF, -0x80000000, 0x7FFFFFF0, 512, 1 << 20]


def journal(rng: random.Random, version: int, checks: bool) -> bytes:
    """A sound file with every kind of record."""
    files = MemoryFiles()
    files.makedirs(DIRECTORY)
    files.write_bytes(f"{DIRECTORY}/8.txn", b"")
    with JournalRig(files, small_options(format_version=version, group_checks=checks)) as rig:
        for number in range(rng.randint(1, 8)):
            records = [fmt.key_record(7, bytes(20))] if rng.random() < 0.3 else []
            records += [
                fmt.entry_record(an_entry(rng.randrange(3), number * 10 + i, rng.randbytes(rng.randrange(900))))
                for i in range(rng.randint(1, 4))
            ]
            records += [fmt.fence_record(7), fmt.explicit_lac_record(7, bytes(20))] if rng.random() < 0.3 else []
            rig.add(JournalBatch.of(*records))
        return files.read_bytes(PATH)


SEED_FILES = [
    journal(random.Random(f"{version} {checks}"), version, checks)
    for version in (4, 5, 6)
    for checks in (False, True)
    for _ in range(2)
]
for old in (1, 2, 3):
    SEED_FILES.append((b"" if old == 1 else b"BKLG" + old.to_bytes(4, "big")) + SEED_FILES[0][8:4000])


def mutated(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(changed) or 1)
        match rng.randrange(7):
            case 0 if changed:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at : at + 4] = struct.pack(">i", rng.choice(INTERESTING))
            case 2:
                sector = at // 512 * 512
                changed[sector : sector + 512] = bytes(512)
            case 3:
                del changed[at:]
            case 4:
                other = rng.randrange(len(changed) + 1)
                changed[at : at + 512] = changed[other : other + 512]
            case 5:
                changed[at:at] = rng.randbytes(rng.randrange(20))
            case _:
                changed[at : at + 64] = rng.randbytes(64)
    return bytes(changed)


def replay(data: bytes, mark: LogMark, skip: bool) -> None:
    files = MemoryFiles()
    files.makedirs(DIRECTORY)
    files.write_bytes(PATH, data)
    try:
        found, end = replayed(files, mark, skip=skip)
    except JournalDamaged as error:
        told = str(error)
    else:
        told = ""
    if told:
        assert f"{PATH} is damaged at offset " in told or f"{PATH} is damaged, or its last mark is" in told
        assert not skip
        return
    assert replayed(files, end)[0].events == []
    total = sum(len(body) for _, _, _, body in found.events)
    assert total <= len(data)
    file = files.open(PATH)
    tooled = 0
    with suppress(JournalDamaged):
        for _ in read_records(file, 9):
            tooled += 1
    assert tooled >= len(found.events)


@pytest.mark.parametrize("seed", range(400))
def test_mutated_files(seed: int) -> None:
    rng = random.Random(seed)
    data = mutated(rng.choice(SEED_FILES), rng)
    mark = rng.choice([LogMark(), LogMark(), LogMark(9, 512), LogMark(9, rng.randrange(len(data) + 100))])
    replay(data, mark, rng.random() < 0.5)


@settings(max_examples=300, deadline=None)
@given(
    header=st.sampled_from([b"", b"BKLG\0\0\0\2", fmt.header_bytes(6), fmt.checked_header_bytes(6, 9, fmt.NO_FILE)]),
    words=st.lists(
        st.one_of(st.binary(max_size=40), st.sampled_from(INTERESTING).map(lambda n: struct.pack(">i", n))),
        max_size=30,
    ),
    skip=st.booleans(),
)
def test_any_bytes(header: bytes, words: list[bytes], skip: bool) -> None:
    replay(header + b"".join(words), LogMark(), skip)


@pytest.mark.parametrize("data", SEED_FILES)
@pytest.mark.parametrize("length", [0x7FFFFFFF, 0x7FFF0000, 1 << 24])
def test_an_absurd_length_allocates_nothing_of_the_kind(data: bytes, length: int) -> None:
    header = fmt.parse_header(data[:24], 9)
    data = data[: header.length] + struct.pack(">i", length) + data[header.length + 4 :]
    tracemalloc.start()
    try:
        replay(data, LogMark(), skip=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20


@pytest.mark.parametrize("seed", range(60))
def test_one_changed_byte_in_a_closed_checked_journal_is_never_passed_over(seed: int) -> None:
    """Whatever byte changes, replay refuses or hands the same out: nothing is left out or altered silently."""
    rng = random.Random(seed)
    files = MemoryFiles()
    with JournalRig(files) as rig:
        rig.add(JournalBatch.of(*[fmt.entry_record(an_entry(7, i, rng.randbytes(300))) for i in range(5)]))
        rig.add(JournalBatch.of(fmt.entry_record(an_entry(7, 5, rng.randbytes(300)))))
        end = rig.journal.last_mark().offset
    (name,) = rig.journals()
    path = f"{DIRECTORY}/{name}"
    before = replayed(files)[0].events
    at = rng.randrange(512, end)
    byte = files.read_bytes(path)[at]
    files.corrupt(path, at, bytes([byte ^ rng.randint(1, 255)]))
    try:
        after = replayed(files)[0].events
    except JournalDamaged:
        return
    assert after == before, "only bytes that mean nothing may change unseen"
