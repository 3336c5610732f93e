"""Which of several errors counts."""

import pytest

from bookie_client.reading.read_failure import may_pass, outcome_of, read_failure
from bookie_protocol.errors import (
    BookieUnavailable,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    StorageFault,
    TooManyRequests,
)


@pytest.mark.parametrize(
    ("errors", "counts"),
    [
        ([NoSuchEntry, NoSuchEntry], NoSuchEntry),
        ([NoSuchEntry, StorageFault], StorageFault),
        ([NoSuchEntry, BookieUnavailable], BookieUnavailable),
        ([BookieUnavailable, NoSuchEntry], BookieUnavailable),
        ([BookieUnavailable, DigestMismatch], DigestMismatch),
        ([BookieUnavailable, NoSuchLedger, TooManyRequests], TooManyRequests),
        ([DigestMismatch, NoSuchEntry, BookieUnavailable], DigestMismatch),
    ],
)
def test_no_such_entry_needs_everybody_to_say_so(errors, counts):
    said = {f"b{i}": error("x") for i, error in enumerate(errors)}
    assert type(outcome_of(said)) is counts


def test_the_failure_names_entry_and_replicas():
    failure = read_failure(3, 4, {"A": BookieUnavailable("refused"), "B": DigestMismatch("bits")})
    assert isinstance(failure, DigestMismatch)
    assert "entry 4 of ledger 3" in str(failure)
    assert "A: refused; B: bits" in str(failure)


@pytest.mark.parametrize(
    ("errors", "passes"),
    [
        ([DigestMismatch, DigestMismatch], False),
        ([DigestMismatch, NoSuchEntry], False),
        ([DigestMismatch], False),
        ([DigestMismatch, BookieUnavailable], True),
        ([TooManyRequests, DigestMismatch, NoSuchEntry], True),
        ([BookieUnavailable], True),
    ],
)
def test_waiting_helps_while_some_replica_was_not_heard(errors, passes):
    failure = read_failure(3, 4, {f"b{i}": error("x") for i, error in enumerate(errors)})
    assert may_pass(failure) is passes
