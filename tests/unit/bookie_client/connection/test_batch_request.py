"""A batch read of one bookie: told once or never, and what a hang-up means."""

import asyncio

import pytest

from bookie_client.connection.operations import BatchRequest, BookieOperations
from bookie_client.connection.request import Answer, BookieInfo
from bookie_protocol.errors import BadVersion, ConnectionLost, NoSuchEntry, ProtocolViolation
from tests.support.packed import packed

ENTRIES = packed([b"entry"])


class Asked:
    def __init__(self, *proven):
        self.told = []
        self.proven = set(proven)
        self.request = BatchRequest("b1", 7, 3, self.proven, lambda *outcome: self.told.append(outcome))


def test_entries_are_told_once_and_prove_the_bookie():
    asked = Asked()
    assert asked.request.is_wanted
    asked.request.take(Answer(b"", None, detail=ENTRIES))
    asked.request.failed(NoSuchEntry("late"))
    assert (asked.told, asked.proven, asked.request.is_wanted) == ([("b1", ENTRIES)], {"b1"}, False)


@pytest.mark.parametrize("detail", [None, BookieInfo(1, 1), packed([])])
def test_an_answer_without_entries_is_none(detail):
    asked = Asked()
    asked.request.take(Answer(b"", None, b"of a single read", detail=detail))
    ((_, error),) = asked.told
    assert isinstance(error, ProtocolViolation)
    assert not asked.proven


def test_a_hang_up_means_that_batches_are_unknown_unless_one_was_served():
    lost = ConnectionLost("bookie b1: connection closed")
    first, later = Asked(), Asked("b1")
    first.request.failed(lost)
    later.request.failed(lost)
    ((_, error),) = first.told
    assert isinstance(error, BadVersion)
    assert "bookie b1 hung up on a batch read" in str(error)
    assert error.__cause__ is lost
    assert later.told == [("b1", lost)]


def test_nothing_is_told_once_it_was_given_up():
    asked = Asked()
    asked.request.abandon()
    assert not asked.request.is_wanted
    asked.request.take(Answer(b"", None, detail=ENTRIES))
    asked.request.failed(NoSuchEntry("late"))
    assert asked.told == []


def test_it_says_what_was_asked():
    assert Asked().request.describe() == "the batch read from entry 3 of ledger 7"


async def test_an_answer_in_the_turn_in_which_who_waits_is_cancelled():
    """The connection must not hear of it."""
    sent = []

    class Operations(BookieOperations):
        def __init__(self):
            pass

        def send_batch_read(self, bookie, ledger_id, first_entry_id, max_count, max_bytes, done, *, step=1):
            sent.append(BatchRequest(bookie, ledger_id, first_entry_id, set(), done))
            return sent[0]

    waiting = asyncio.create_task(Operations().batch_read("b1", 7, 0, 10, 0))
    await asyncio.sleep(0)
    waiting.cancel()
    sent[0].take(Answer(b"", None, detail=ENTRIES))
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert not sent[0].is_wanted
