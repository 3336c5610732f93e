"""The decision about one entry, for every order of every combination of answers."""

from itertools import permutations, product

import pytest

from bookie_client.distribution import Quorums
from bookie_client.recovery.forward_read import EntryVote, Verdict
from bookie_protocol.errors import (
    BookieTimeout,
    BookieUnavailable,
    ConnectionLost,
    DigestMismatch,
    LedgerStateUnknown,
    MetadataNotFound,
    NoSuchEntry,
    NoSuchLedger,
    StorageFault,
    TooManyRequests,
)

NEGATIVES = [NoSuchEntry, NoSuchLedger]
UNKNOWNS = [
    BookieTimeout,
    BookieUnavailable,
    ConnectionLost,
    DigestMismatch,
    LedgerStateUnknown,
    MetadataNotFound,
    StorageFault,
    TooManyRequests,
]


def vote_of(quorums, answers, order=None):
    names = tuple("abcde"[: quorums[1]])
    vote = EntryVote(Quorums(*quorums), names)
    for place in order or range(len(names)):
        answer = answers[place]
        if answer is None:
            vote.found(names[place])
        else:
            vote.failed(names[place], answer("x"))
    return vote


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 1), (5, 5, 3), (4, 3, 1), (1, 1, 1)])
def test_every_combination_in_every_order(quorums):
    needed = quorums[1] - quorums[2] + 1
    for answers in product([None, NoSuchEntry, BookieTimeout], repeat=quorums[1]):
        for order in list(permutations(range(quorums[1])))[:24]:
            verdict = vote_of(quorums, answers, order).verdict
            in_turn = [answers[place] for place in order]
            found_at = in_turn.index(None) if None in in_turn else len(order)
            negatives = [i for i, answer in enumerate(in_turn) if answer is NoSuchEntry]
            refused_at = negatives[needed - 1] if len(negatives) >= needed else len(order)
            if found_at < refused_at:
                assert verdict is Verdict.FOUND
            elif refused_at < len(order):
                assert verdict is Verdict.NOT_FOUND
            else:
                assert verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("unknown", UNKNOWNS)
@pytest.mark.parametrize("negative", NEGATIVES)
def test_the_example_of_three_copies_and_an_ack_quorum_of_two(negative, unknown):
    """One found: part of the ledger. Two "no" and one unknown: the end. One "no" and two unknown: nobody knows."""
    for order in permutations(range(3)):
        assert vote_of((3, 3, 2), [None, unknown, unknown], order).verdict is Verdict.FOUND
        assert vote_of((3, 3, 2), [negative, negative, unknown], order).verdict is Verdict.NOT_FOUND
        assert vote_of((3, 3, 2), [negative, unknown, unknown], order).verdict is Verdict.UNKNOWN
        assert vote_of((3, 3, 2), [unknown, unknown, unknown], order).verdict is Verdict.UNKNOWN
        assert vote_of((3, 3, 2), [None, negative, unknown], order).verdict is Verdict.FOUND


@pytest.mark.parametrize(("quorums", "negatives"), [((2, 2, 2), 1), ((3, 3, 2), 2), ((3, 3, 3), 1), ((2, 2, 1), 2)])
def test_how_many_negatives_end_a_ledger(quorums, negatives):
    names = tuple("abc"[: quorums[1]])
    vote = EntryVote(Quorums(*quorums), names)
    for count, name in enumerate(names, 1):
        assert (vote.verdict is Verdict.NOT_FOUND) == (count > negatives)
        vote.failed(name, NoSuchEntry("x"))
    assert vote.verdict is Verdict.NOT_FOUND


def test_a_bookie_answers_once_and_strangers_never():
    vote = EntryVote(Quorums(3, 3, 2), ("a", "b", "c"))
    vote.failed("a", NoSuchEntry("x"))
    vote.failed("a", NoSuchEntry("x"))
    vote.failed("z", NoSuchEntry("x"))
    assert vote.verdict is Verdict.OPEN
    vote.failed("b", NoSuchLedger("x"))
    assert vote.verdict is Verdict.NOT_FOUND
    vote.found("c")
    assert vote.verdict is Verdict.NOT_FOUND
    assert list(vote.errors) == ["a", "b"]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 1), (5, 5, 3)])
def test_where_all_are_heard_any_copy_wins(quorums):
    """And where none has a copy, those that are silent decide nothing more than elsewhere."""
    needed = quorums[1] - quorums[2] + 1
    names = "abcde"[: quorums[1]]
    for answers in product([None, NoSuchEntry, BookieTimeout], repeat=quorums[1]):
        for order in list(permutations(range(quorums[1])))[:24]:
            vote = EntryVote(Quorums(*quorums), tuple(names), hears_all=True)
            for count, place in enumerate(order, 1):
                if (answer := answers[place]) is None:
                    vote.found(names[place])
                    assert vote.verdict is Verdict.FOUND
                    break
                vote.failed(names[place], answer("x"))
                assert (vote.verdict is Verdict.OPEN) == (count < quorums[1])
            else:
                is_end = answers.count(NoSuchEntry) >= needed
                assert vote.verdict is (Verdict.NOT_FOUND if is_end else Verdict.UNKNOWN)
