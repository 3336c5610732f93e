"""Verifying batches as a whole."""

import pytest

from bookie_protocol.digest import DigestType, digest_manager
from pyspark_bookie.jobs.replicas.deep import FINGERPRINT_SIZE, BatchVerifier, checksum

TYPES = list(DigestType)


def batch(digest, count=5, *, ledger_id=7, first=10, lac=3):
    return [
        digest.encode(ledger_id, first + place, lac, 100 * (place + 1), b"payload %d " % place * place)
        for place in range(count)
    ]


@pytest.mark.parametrize("kind", TYPES)
def test_a_good_batch(kind):
    digest = digest_manager(kind, b"pw")
    verifier = BatchVerifier(digest, 7)
    assert verifier.is_good(10, batch(digest))
    assert verifier.is_good(10, [])
    assert verifier.content(batch(digest)[2]) == (300, b"payload 2 " * 2)


@pytest.mark.parametrize("kind", TYPES)
def test_anything_that_differs_spoils_it(kind):
    digest = digest_manager(kind, b"pw")
    verifier, entries = BatchVerifier(digest, 7), batch(digest)
    assert not verifier.is_good(11, entries), "other entry ids"
    assert not BatchVerifier(digest, 8).is_good(10, entries), "another ledger"
    assert not verifier.is_good(10, [entries[1], entries[0], *entries[2:]]), "another order"
    assert not verifier.is_good(10, [*entries[:2], entries[2][:20], *entries[3:]]), "cut short"
    for place in range(len(entries[3])):
        broken = bytearray(entries[3])
        broken[place] ^= 0x10
        good = kind is DigestType.DUMMY and place >= 16
        assert verifier.is_good(10, [*entries[:3], bytes(broken), entries[4]]) is good, place


@pytest.mark.parametrize("kind", TYPES)
def test_fingerprints_tell_entries_apart(kind):
    digest = digest_manager(kind, b"pw")
    verifier, entries = BatchVerifier(digest, 7), batch(digest)
    prints = verifier.fingerprints(entries)
    assert len(prints) == FINGERPRINT_SIZE * len(entries)
    assert prints == b"".join(verifier.fingerprints([entry]) for entry in entries)
    other = digest.encode(7, 12, 3, 300, b"another payload")
    assert checksum([prints]) != checksum([verifier.fingerprints([*entries[:2], other, *entries[3:]])])
    assert checksum([prints]) == checksum([prints[:8], prints[8:]])
