"""What the answers of an ensemble make of a ledger's last add confirmed.

Coverage and the LAC vote, for every subset of bookies that answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import combinations, permutations, product
from types import SimpleNamespace

import pytest

from bookie_client.connection.request import LacAnswer
from bookie_client.distribution import Quorums
from bookie_client.reading.lac import (
    LacVote,
    LastEntry,
    VoteOutcome,
    is_covered,
    last_confirmed_of,
    read_last_confirmed,
    try_read_last_confirmed,
)
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import (
    BookieTimeout,
    BookieUnavailable,
    ConnectionLost,
    CouldNotTell,
    DigestMismatch,
    LedgerStateUnknown,
    MetadataNotFound,
    NoSuchEntry,
    NoSuchLedger,
    PodkeeperError,
    StorageFault,
    TooManyRequests,
    Unauthorized,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata

ABC = ("A", "B", "C")
OPEN = LedgerMetadata(7, 3, 3, 2, {0: ABC}, digest_type=DigestType.CRC32C, password=b"")
DIGEST = digest_manager(DigestType.CRC32C, b"")
SILENT = StorageFault("cannot tell")
NOTHING = NoSuchEntry("has none")


def last(entry_id, lac):
    """A bookie that serves its last entry."""
    return LacAnswer(None, DIGEST.encode(7, entry_id, lac, 10, b"payload"))


def explicit_only(lac):
    """One that has an explicit LAC, and could not tell its last entry."""
    return LacAnswer(DIGEST.encode_lac(7, lac), None, complete=False)


def spoilt(data):
    """Bytes that their digest does not fit."""
    return data[:-1] + bytes((data[-1] ^ 1,))


DAMAGED = LacAnswer(None, spoilt(last(9, 8).last_entry))
DAMAGED_PACKET = spoilt(DIGEST.encode_lac(7, 9))


def context(*answers):
    """A client whose bookies A, B and C answer so; None: never."""

    async def read_lac(bookie, ledger_id):
        answer = answers[ABC.index(bookie)]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, PodkeeperError):
            raise answer
        return answer

    return SimpleNamespace(options=SimpleNamespace(protocol_version=3), operations=SimpleNamespace(read_lac=read_lac))


@pytest.mark.parametrize(
    ("answers", "lac"),
    [
        ((last(5, 4), NOTHING, SILENT), 4),
        ((explicit_only(6), last(5, 4), NOTHING), 6),
        ((last(5, 4), last(6, 5), SILENT), 5),
        ((explicit_only(2), last(5, 4), last(6, 5)), 5),
        ((DAMAGED, last(5, 4), NOTHING), 4),
        ((LacAnswer(DAMAGED_PACKET, last(5, 4).last_entry), NOTHING, SILENT), 4),
        ((LacAnswer(DAMAGED_PACKET, None), last(5, 4), NOTHING), 4),
        ((last(5, 4), None, NOTHING), 4),
    ],
)
async def test_the_highest_that_anybody_knows_counts_once_enough_have_told(answers, lac):
    """Of three, two must have told what they have; an explicit LAC alone is a hint on top."""
    async with asyncio.timeout(5):
        assert await read_last_confirmed(context(*answers), OPEN, DIGEST) == lac


@pytest.mark.parametrize("answers", list(permutations([last(9, 8), NOTHING, SILENT])))
async def test_where_all_are_heard_the_first_answers_decide_nothing(answers):
    """An emptied bookie of a ledger whose entries each bookie acknowledged covers the vote alone."""
    each_copy = replace(OPEN, ack_quorum_size=3)
    assert await read_last_confirmed(context(*answers), each_copy, DIGEST, hears_all=True) == 8
    with pytest.raises(StorageFault):
        await read_last_confirmed(context(SILENT, SILENT, SILENT), each_copy, DIGEST, hears_all=True)


@pytest.mark.parametrize(
    "answers", [(explicit_only(6), explicit_only(6), last(5, 4)), (explicit_only(6), SILENT, NOTHING)]
)
async def test_who_could_not_tell_its_last_entry_is_unknown_whatever_explicit_lac_it_has(answers):
    """It may hold entries behind that, which say that more is confirmed."""
    with pytest.raises(CouldNotTell, match=r"ledger 7: .*confirmed"):
        await read_last_confirmed(context(*answers), OPEN, DIGEST)


async def test_trying_takes_a_hint_for_news():
    answers = context(NOTHING, explicit_only(6), SILENT)
    assert await try_read_last_confirmed(answers, OPEN, DIGEST, 5) == 6
    assert await try_read_last_confirmed(answers, OPEN, DIGEST, 6) == 6


async def test_trying_ends_with_the_first_news_or_refusal():
    refusal = Unauthorized("another password")
    async with asyncio.timeout(5):
        assert await try_read_last_confirmed(context(last(5, 4), None, refusal), OPEN, DIGEST, 3) == 4
        for answers in ((NOTHING, refusal, None), (last(5, 4), NOTHING, refusal)):
            with pytest.raises(Unauthorized):
                await try_read_last_confirmed(context(*answers), OPEN, DIGEST, 4)
        with pytest.raises(Unauthorized):
            await read_last_confirmed(context(refusal, None, None), OPEN, DIGEST)


async def test_one_bookie_alone():
    answers = context(explicit_only(6), NOTHING, SILENT)
    assert await last_confirmed_of(answers, "A", 7, DIGEST) == 6
    assert await last_confirmed_of(answers, "B", 7, DIGEST) == -1
    with pytest.raises(StorageFault):
        await last_confirmed_of(answers, "C", 7, DIGEST)
    for damaged in (DAMAGED, LacAnswer(DAMAGED_PACKET, None)):
        with pytest.raises(DigestMismatch):
            await last_confirmed_of(context(damaged), "A", 7, DIGEST)


ALL_QUORUMS = [(e, w, a) for e in range(1, 7) for w in range(1, e + 1) for a in range(1, w + 1)]


def subsets(size):
    return [set(chosen) for count in range(size + 1) for chosen in combinations(range(size), count)]


def served_last(entry_id, lac, length=0, payload_size=0):
    return LastEntry(entry_id, lac, length, payload_size)


@pytest.mark.parametrize(
    ("quorums", "tolerated"),
    [
        ((3, 2, 2), [{0}, {1}, {2}]),
        ((3, 3, 2), [{0}, {1}, {2}]),
        ((3, 3, 3), [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}]),
        ((3, 2, 1), []),
        ((2, 2, 1), []),
        ((5, 3, 2), [{0}, {1}, {2}, {3}, {4}]),
        ((6, 3, 2), [{0}, {1}, {2}, {3}, {4}, {5}, {0, 3}, {1, 4}, {2, 5}]),
        (
            (6, 2, 2),
            [{i} for i in range(6)]
            + [set(c) for n in (2, 3) for c in combinations(range(6), n) if not any((x + 1) % 6 in c for x in c)],
        ),
        ((5, 5, 3), [set(c) for n in (1, 2) for c in combinations(range(5), n)]),
    ],
)
def test_exactly_the_unknown_positions_of_the_reference_table_are_tolerated(quorums, tolerated):
    size = quorums[0]
    covered = [set(range(size)) - known for known in subsets(size) if is_covered(Quorums(*quorums), known)]
    assert sorted(map(sorted, covered)) == sorted(map(sorted, [set(), *tolerated]))


@pytest.mark.parametrize("quorums", ALL_QUORUMS)
def test_covered_means_that_no_ack_quorum_is_unknown_and_that_enough_are_fenced_in_every_write_set(quorums):
    striping = Quorums(*quorums)
    for known in subsets(striping.ensemble):
        ack_quorums = [
            set(chosen)
            for entry in range(striping.ensemble)
            for chosen in combinations(striping.write_set(entry), striping.ack)
        ]
        every_ack_quorum_is_met = all(chosen & known for chosen in ack_quorums)
        enough_in_every_write_set = all(
            len(known.intersection(striping.write_set(entry))) >= striping.write - striping.ack + 1
            for entry in range(striping.ensemble)
        )
        assert is_covered(striping, known) == every_ack_quorum_is_met == enough_in_every_write_set


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 2, 1), (5, 3, 2)])
def test_the_vote_succeeds_for_exactly_the_covered_subsets_in_any_order(quorums):
    striping = Quorums(*quorums)
    orders = list(permutations(range(striping.ensemble)))[:: max(1, len(quorums) * 7 % 5)]
    for known in subsets(striping.ensemble):
        for order in orders[:60]:
            vote = LacVote(striping)
            for position in order:
                if position in known:
                    vote.served(position, served_last(position + 1, position))
                else:
                    vote.failed(position, BookieTimeout("silent"))
            expected = VoteOutcome.COVERED if is_covered(striping, known) else VoteOutcome.FAILED
            assert vote.outcome is expected, (known, order)


ANSWERS = {
    "entry": lambda vote, p: vote.served(p, served_last(7, 6)),
    "older": lambda vote, p: vote.served(p, served_last(5, 4)),
    "no entry": lambda vote, p: vote.failed(p, NoSuchEntry("x")),
    "no ledger": lambda vote, p: vote.failed(p, NoSuchLedger("x")),
    "silent": lambda vote, p: vote.failed(p, BookieTimeout("x")),
    "limbo": lambda vote, p: vote.failed(p, LedgerStateUnknown("x")),
    "fault": lambda vote, p: vote.failed(p, StorageFault("x")),
    "damaged": lambda vote, p: vote.damaged(p, DigestMismatch("x")),
    "refused": lambda vote, p: vote.failed(p, Unauthorized("x")),
}
KNOWN = {"entry", "older", "no entry", "no ledger", "damaged"}
VALID = KNOWN - {"damaged"}


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 1)])
def test_every_combination_of_answers(quorums):
    striping = Quorums(*quorums)
    for said in product(ANSWERS, repeat=striping.ensemble):
        vote = LacVote(striping)
        decided_at = None
        for position, kind in enumerate(said):
            ANSWERS[kind](vote, position)
            if decided_at is None and vote.outcome is not VoteOutcome.OPEN:
                decided_at = position
        heard = said[: decided_at + 1]
        known = {p for p, kind in enumerate(heard) if kind in KNOWN}
        if "refused" in heard:
            assert vote.outcome is VoteOutcome.FAILED
            assert isinstance(vote.error, Unauthorized)
        elif is_covered(striping, known) and VALID.intersection(heard):
            assert vote.outcome is VoteOutcome.COVERED
            assert vote.lac == max([6 if k == "entry" else 4 if k == "older" else -1 for k in heard])
        else:
            assert (vote.outcome, decided_at) == (VoteOutcome.FAILED, striping.ensemble - 1)


def test_it_is_decided_as_soon_as_it_can_be():
    vote = LacVote(Quorums(3, 3, 3))
    vote.served(1, served_last(4, 3))
    assert (vote.outcome, vote.lac) == (VoteOutcome.COVERED, 3)
    vote.served(0, served_last(9, 8))
    assert vote.lac == 3


def test_damaged_answers_alone_decide_nothing_though_their_bookies_are_fenced():
    vote = LacVote(Quorums(3, 3, 2))
    vote.damaged(0, DigestMismatch("x"))
    vote.damaged(1, DigestMismatch("x"))
    assert vote.outcome is VoteOutcome.OPEN
    vote.failed(2, NoSuchEntry("x"))
    assert (vote.outcome, vote.lac) == (VoteOutcome.COVERED, -1)


def test_a_valid_answer_counts_although_the_one_that_completes_the_cover_is_damaged():
    vote = LacVote(Quorums(3, 3, 2))
    vote.served(0, served_last(5, 4))
    vote.damaged(1, DigestMismatch("x"))
    assert (vote.outcome, vote.lac) == (VoteOutcome.COVERED, 4)


def test_a_position_answers_once():
    vote = LacVote(Quorums(3, 3, 2))
    vote.failed(0, BookieTimeout("x"))
    vote.served(0, served_last(5, 4))
    vote.served(1, None)
    assert (vote.outcome, vote.lac) == (VoteOutcome.OPEN, -1)


@pytest.mark.parametrize("kind", [BookieUnavailable, ConnectionLost, TooManyRequests, MetadataNotFound])
def test_only_a_bookies_own_word_is_a_negative(kind):
    vote = LacVote(Quorums(1, 1, 1))
    vote.failed(0, kind("x"))
    assert vote.outcome is VoteOutcome.FAILED


def test_the_last_error_stands_for_all_unless_the_password_was_refused():
    vote = LacVote(Quorums(3, 3, 3))
    vote.failed(2, StorageFault("x"))
    vote.failed(0, BookieTimeout("x"))
    vote.failed(1, ConnectionLost("x"))
    assert isinstance(vote.error, ConnectionLost)
    vote = LacVote(Quorums(3, 3, 3))
    vote.failed(2, Unauthorized("x"))
    assert isinstance(vote.error, Unauthorized)


def test_explicit_lacs_count_and_a_hint_leaves_its_position_unknown():
    vote = LacVote(Quorums(2, 2, 1))
    vote.served(0, served_last(5, 4), explicit_lac=5)
    assert vote.lac == 5
    vote.hinted(1, 9, StorageFault("no last entry"))
    assert (vote.outcome, vote.lac) == (VoteOutcome.FAILED, 9)
    vote.hinted(1, 12, StorageFault("once more"))
    vote.hinted(2, 12, StorageFault("of nobody"))
    assert (vote.lac, str(vote.error)) == (9, "no last entry")


def test_lengths_that_last_entries_tell():
    digest = digest_manager(DigestType.CRC32C, b"")
    entry = LastEntry.of(digest, 3, digest.encode(3, 7, 6, 100, b"x" * 30))
    assert entry == (7, 6, 100, 30)
    vote = LacVote(Quorums(3, 3, 2))
    vote.served(0, entry)
    vote.served(1, served_last(4, 3, 50, 10))
    assert (vote.exact_length(6), vote.exact_length(7), vote.exact_length(4), vote.exact_length(-1)) == (70, 100, 50, 0)
    assert vote.exact_length(5) is None
    assert vote.length_heard == 100
    with pytest.raises(DigestMismatch):
        LastEntry.of(digest, 4, digest.encode(3, 7, 6, 100, b"x"))
