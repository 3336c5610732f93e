"""What the answers of an ensemble make of a ledger's last add confirmed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bookie_client.connection.answers import LacAnswer
from bookie_client.reading.lac import last_confirmed_of, read_last_confirmed, try_read_last_confirmed
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import CouldNotTell, NoSuchEntry, PodkeeperError, StorageFault
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


def context(*answers):
    """A client whose bookies A, B and C answer so."""

    async def read_lac(bookie, ledger_id):
        answer = answers[ABC.index(bookie)]
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
    ],
)
async def test_the_highest_that_anybody_knows_counts_once_enough_have_told(answers, lac):
    """Of three, two must have told what they have; an explicit LAC alone is a hint on top."""
    assert await read_last_confirmed(context(*answers), OPEN, DIGEST) == lac


@pytest.mark.parametrize(
    "answers", [(explicit_only(6), explicit_only(6), last(5, 4)), (explicit_only(6), SILENT, NOTHING)]
)
async def test_who_could_not_tell_its_last_entry_is_unknown_whatever_explicit_lac_it_has(answers):
    """It may hold entries behind that, which say that more is confirmed."""
    with pytest.raises(CouldNotTell, match="ledger 7: its last add confirmed cannot be told"):
        await read_last_confirmed(context(*answers), OPEN, DIGEST)


async def test_trying_takes_a_hint_for_news():
    answers = context(NOTHING, explicit_only(6), SILENT)
    assert await try_read_last_confirmed(answers, OPEN, DIGEST, 5) == 6
    assert await try_read_last_confirmed(answers, OPEN, DIGEST, 6) == 6


async def test_one_bookie_alone():
    answers = context(explicit_only(6), NOTHING, SILENT)
    assert await last_confirmed_of(answers, "A", 7, DIGEST) == 6
    assert await last_confirmed_of(answers, "B", 7, DIGEST) == -1
    with pytest.raises(StorageFault):
        await last_confirmed_of(answers, "C", 7, DIGEST)
