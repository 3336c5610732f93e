"""Verification of the entries of a batch: the same whatever the digest."""

from __future__ import annotations

import subprocess
import sys

import numpy  # noqa: F401 - loaded, as after some batches
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.reading.verified import even_crc32c_batch, verify_packed, verify_run
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import DigestMismatch, ProtocolViolation
from bookie_protocol.wire.v2 import PackedEntries
from tests.support.packed import packed

LEDGER = 7


ALIKE = st.integers(0, 60).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=12)
)
"""Payloads of one size."""


@pytest.mark.parametrize("digest_type", list(DigestType))
@given(
    payloads=ALIKE | st.lists(st.binary(max_size=60), min_size=1, max_size=12),
    first=st.integers(0, 2**40),
    spoilt=st.dictionaries(st.integers(0, 11), st.sampled_from(["cut", "ledger", "entry", "payload", "bit"])),
    most=st.integers(1, 13),
)
def test_each_entry_is_good_or_told_to_be_damaged(digest_type, payloads, first, spoilt, most):
    digest = digest_manager(digest_type, b"secret")
    entries = []
    for place, payload in enumerate(payloads):
        how = spoilt.get(place)
        ledger_id, entry_id = LEDGER + (how == "ledger"), first + place + (how == "entry")
        entry = digest.encode(ledger_id, entry_id, entry_id - 1, 1000 + place, payload)
        if how == "cut":
            entry = entry[: digest.overhead - 1]
        if how == "payload":
            entry += b"?"
        if how == "bit":
            entry = entry[:-1] + bytes((entry[-1] ^ 4,))
        entries.append(entry)
    verified = verify_run(digest, LEDGER, first, entries)
    at_once, expected = (
        verify_packed(digest, LEDGER, first, packed(entries), most),
        verify_run(digest, LEDGER, first, entries[:most]),
    )
    assert (list(at_once.entries), at_once.nbytes) == (expected.entries, expected.nbytes)
    assert {place: str(error) for place, error in at_once.damaged.items()} == {
        place: str(error) for place, error in expected.damaged.items()
    }
    nothing_checked = digest_type is DigestType.DUMMY
    bad = {
        place
        for place, how in spoilt.items()
        if place < len(payloads) and not (how in ("payload", "bit") and nothing_checked)
    }
    assert set(verified.damaged) == bad
    assert all(isinstance(error, DigestMismatch) for error in verified.damaged.values())
    assert len(verified.entries) == len(payloads)
    for place, (entry, payload) in enumerate(zip(verified.entries, payloads, strict=True)):
        if place in bad:
            assert (entry.entry_id, entry.payload) == (first + place, b"")
        elif spoilt.get(place) not in ("payload", "bit"):
            assert entry == (LEDGER, first + place, 1000 + place, payload, first + place - 1)
    assert verified.nbytes == sum(len(entry.payload) for entry in verified.entries)


@pytest.mark.parametrize("digest_type", list(DigestType))
@pytest.mark.parametrize("cut", [1, 3, 30, 60])
def test_an_answer_that_ends_too_early_is_no_answer(digest_type, cut):
    digest = digest_manager(digest_type, b"secret")
    body = packed([digest.encode(LEDGER, place, place - 1, 10, b"payload" * 10) for place in range(3)]).body
    with pytest.raises(ProtocolViolation):
        verify_packed(digest, LEDGER, 0, PackedEntries(body[:-cut], 3), 10)


FIRST = 1000
DIGEST = digest_manager(DigestType.CRC32C, b"")
CHECKSUM_AT = 32


def entries_of(payloads, first=FIRST, ledger_id=LEDGER):
    return [
        bytearray(DIGEST.encode(ledger_id, entry_id, entry_id - 1, 10 * (entry_id - first), payload))
        for entry_id, payload in enumerate(payloads, first)
    ]


def verified_together(entries, most):
    return even_crc32c_batch(LEDGER, FIRST, packed(entries), most)


ALIKE_RUNS = st.tuples(st.integers(0, 31), st.integers(32, 300), st.randoms(use_true_random=False)).map(
    lambda drawn: [drawn[2].randbytes(drawn[0]) for _ in range(drawn[1])]
)


@given(payloads=ALIKE_RUNS)
def test_good_ones_are_what_they_are_one_by_one(payloads):
    entries = entries_of(payloads)
    batch = verified_together(entries, len(entries))
    assert list(batch) == verify_run(DIGEST, LEDGER, FIRST, list(map(bytes, entries))).entries
    assert [bytes(payload) for payload in batch.payloads()] == payloads


@pytest.mark.parametrize("size", [1024, 2012])
def test_as_long_as_they_may_be(size):
    entries = entries_of([bytes((number,)) * size for number in range(100)])
    assert list(verified_together(entries, 100)) == verify_run(DIGEST, LEDGER, FIRST, list(map(bytes, entries))).entries


@given(
    payloads=ALIKE_RUNS,
    places=st.lists(st.integers(0, 299), min_size=1, max_size=4),
    at=st.integers(0, 66),
    bit=st.integers(0, 7),
)
def test_no_wrong_bit_is_overlooked(payloads, places, at, bit):
    """Wherever it is, and when the same one is wrong in several entries."""
    entries = entries_of(payloads)
    for place in {place % len(entries) for place in places}:
        entries[place][at % len(entries[place])] ^= 1 << bit
    assert verified_together(entries, len(entries)) is None
    assert verify_packed(DIGEST, LEDGER, FIRST, packed(list(map(bytes, entries))), len(entries)).damaged


@pytest.mark.parametrize("distance", [1, 127, 128])
@pytest.mark.parametrize("part", ["checksum", "payload", "whole"])
def test_none_stands_for_another(part, distance):
    entries = entries_of([number.to_bytes(8) for number in range(300)])
    parts = {
        "checksum": slice(CHECKSUM_AT, CHECKSUM_AT + 4),
        "payload": slice(CHECKSUM_AT + 4, None),
        "whole": slice(None),
    }
    one, other = entries[5], entries[5 + distance]
    one[parts[part]], other[parts[part]] = other[parts[part]], one[parts[part]]
    assert verified_together(entries, 300) is None


@pytest.mark.parametrize(
    "entries",
    [
        entries_of([b"four"] * 40, ledger_id=LEDGER + 1),
        entries_of([b"four"] * 40, first=FIRST + 1),
        entries_of([b"four"] * 20) + entries_of([b"four"] * 20),
        entries_of([b"four"] * 39 + [b"three"]),
        entries_of([b"four"] * 20 + [b"seven"] + [b"one"] + [b"four"] * 18),
    ],
    ids=["another ledger", "an id further", "ids again", "another size at the end", "two sizes that add up"],
)
def test_what_is_not_even_or_not_asked_for_is_left_to_others(entries):
    assert verified_together(entries, 40) is None


def test_only_as_many_as_are_asked_for_are_looked_at():
    entries = entries_of([b"four"] * 60)
    entries[45][-1] ^= 1
    assert len(verified_together(entries, 45)) == 45
    assert verified_together(entries, 46) is None


@pytest.mark.parametrize("cut", [1, 4, 30, 43])
def test_an_answer_that_ends_within_an_entry_is_left_to_others(cut):
    whole = packed(entries_of([b"four"] * 60))
    short = PackedEntries(whole.body[:-cut], whole.start)
    assert even_crc32c_batch(LEDGER, FIRST, short, 60) is None
    with pytest.raises(ProtocolViolation):
        verify_packed(DIGEST, LEDGER, FIRST, short, 60)


@pytest.mark.parametrize(
    "body", [b"", b"\0\0", b"\0\0\0\x23" + bytes(35), b"\xff\xff\xff\xff" + bytes(99), bytes(4000)]
)
def test_bytes_that_are_no_entries(body):
    assert even_crc32c_batch(LEDGER, FIRST, PackedEntries(body), 60) is None


def test_the_last_ids_that_there_are():
    first = 2**63 - 40
    entries = entries_of([b"four"] * 40, first=first)
    assert len(even_crc32c_batch(LEDGER, first, packed(entries), 40)) == 40


@pytest.mark.parametrize(("count", "size"), [(31, 4), (40, 2013)])
def test_few_or_long_ones_are_left_to_others(count, size):
    assert verified_together(entries_of([bytes(size)] * count), count) is None


SHORT_LIVED = """
import sys
from bookie_client.reading.verified import even_crc32c_batch
from bookie_protocol.digest import DigestType, digest_manager
from tests.support.packed import packed

digest = digest_manager(DigestType.CRC32C, b"")
answer = packed([digest.encode(7, entry_id, entry_id - 1, 0, b"four") for entry_id in range(40)])
for batches in range(1, 40):
    if even_crc32c_batch(7, 0, answer, 40) is not None:
        break
    assert "numpy" not in sys.modules
print(batches)
"""


def test_the_array_library_is_loaded_when_some_batches_have_come():
    done = subprocess.run([sys.executable, "-c", SHORT_LIVED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "33\n"


def test_a_few_batches_load_no_array_library(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setattr("bookie_client.reading.verified._batches", iter([1, 32]))
    for _ in range(2):
        assert verified_together(entries_of([b"four"] * 40), 40) is None
        assert "numpy" not in sys.modules


def test_where_the_array_library_cannot_be_loaded_each_digest_is_looked_at(monkeypatch):
    entries = entries_of([b"four"] * 40)
    monkeypatch.setitem(sys.modules, "numpy", None)  # importing it raises ImportError
    assert verified_together(entries, 40) is None
    verified = verify_packed(DIGEST, LEDGER, FIRST, packed(entries), 40)
    assert (len(verified.entries), verified.damaged) == (40, {})
