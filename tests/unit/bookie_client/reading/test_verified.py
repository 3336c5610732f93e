"""Verification of the entries of a batch: the same whatever the digest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.reading.verified import verify_packed, verify_run
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import DigestMismatch, ProtocolViolation
from bookie_protocol.wire.packed_entries import PackedEntries
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
