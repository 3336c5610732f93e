"""What is moved of a ledger by a client, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bookie_client import patience
from bookie_client.replication.closing import close_checked
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.replicator import CopyProgress, ProgressListener, ReplicationResult
from bookie_pod.autorecovery.decommission import moving
from bookie_pod.autorecovery.decommission.moving import ClientMover
from bookie_protocol.errors import (
    BookieUnavailable,
    LedgerStateUnknown,
    PodkeeperError,
    RecoveryFailed,
    TooManyRequests,
)
from bookie_protocol.versioned import LedgerLife
from tests.support.auditor_rig import ledger
from tests.unit.bookie_client.replication.cluster import PASSWORD, ReplicationCluster, life_of, payload


class Replicator:
    """Copies what it is told, and tells so in two parts; `unfilled`: by the first entry of a fragment."""

    def __init__(self) -> None:
        self.copied: list[tuple[int, dict[int, str], dict[str, str], int | None]] = []
        self.unfilled: dict[int, dict[int, str]] = {}
        self.told_last = 100

    async def replicate(
        self,
        fragment: Fragment,
        bad: Mapping[int, str],
        *,
        excluded: Mapping[str, str],
        session_id: int,
        progress: ProgressListener,
    ) -> ReplicationResult:
        self.copied.append((fragment.first_entry, dict(bad), dict(excluded), session_id))
        for nbytes in (30, 30, self.told_last):
            progress(CopyProgress(fragment.ledger_id, fragment.first_entry, 1, 1, nbytes))
        return ReplicationResult(fragment.ensemble, 1, 100, self.unfilled.get(fragment.first_entry, {}))


@pytest.fixture
def mover() -> tuple[ClientMover, Replicator]:
    replicator, made = Replicator(), ClientMover.__new__(ClientMover)
    its: Any = replicator
    made._replicator = its
    return made, replicator


async def test_fragments_that_name_the_bookies_are_copied_and_told(mover: tuple[ClientMover, Replicator]) -> None:
    made, replicator = mover
    told: list[int] = []
    metadata = ledger(1, (0, "012"), (3, "123"), (6, "301"), last=9)
    assert await made.move(metadata, ["b0:1", "b3:1"], 77, told.append) == ""
    excluded = dict.fromkeys(("b0:1", "b3:1"), "it is being drained")
    assert replicator.copied == [
        (0, {0: "b0:1"}, excluded, 77),
        (3, {2: "b3:1"}, excluded, 77),
        (6, {0: "b3:1", 1: "b0:1"}, excluded, 77),
    ]
    assert told == [30, 70] * 3


async def test_what_was_not_told_at_the_end_is_told_then(mover: tuple[ClientMover, Replicator]) -> None:
    made, replicator = mover
    replicator.told_last = 80
    told: list[int] = []
    await made.move(ledger(1, (0, "012")), ["b0:1"], 77, told.append)
    assert told == [30, 50, 20]


async def test_the_end_of_a_ledger_that_is_written_is_left_out(
    mover: tuple[ClientMover, Replicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bookies are looked at before anything is copied that shows their losses."""
    made, replicator = mover
    looked: list[tuple[object, int]] = []

    async def mark_losses(client: object, checker: object, ledger_id: int, bookies: frozenset[str]) -> None:
        looked.append((bookies, len(replicator.copied)))

    anything: Any = None
    made._client = made._checker = anything
    monkeypatch.setattr(moving, "mark_losses", mark_losses)
    metadata = ledger(1, (0, "012"), (5, "021"), last=None)
    assert await made.move(metadata, ["b2:1", "b0:1"], 77, lambda nbytes: None) == (
        "OPEN: its last segment names b0:1, b2:1"
    )
    assert [first for first, *_ in replicator.copied] == [0]
    assert looked == [({"b0:1", "b2:1"}, 0)]
    assert await made.move(metadata, ["b4:1"], 77, lambda nbytes: None) == ""
    assert len(looked) == 1


async def test_copies_without_a_place_are_told(mover: tuple[ClientMover, Replicator]) -> None:
    made, replicator = mover
    replicator.unfilled = {0: {0: "no spare", 1: "none there either"}}
    metadata = ledger(1, (0, "012"), (5, "034"))
    assert await made.move(metadata, ["b0:1"], 77, lambda nbytes: None) == "no spare; none there either"
    assert [first for first, *_ in replicator.copied] == [0, 5]


async def test_a_ledgers_end_is_found_by_a_check(
    mover: tuple[ClientMover, Replicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = mover
    closed: list[tuple[object, ...]] = []

    async def close(*given: object) -> None:
        closed.append(given)

    checker: Any = "a checker"
    client: Any = "a client"
    made._checker, made._client = checker, client
    monkeypatch.setattr(moving, "close_checked", close)
    life = LedgerLife(5, 7, 9)
    await made.recover(life)
    assert closed == [("a client", "a checker", life)]


@pytest.mark.parametrize("answer", [TooManyRequests, LedgerStateUnknown, None], ids=["busy", "in limbo", "silent"])
async def test_an_end_that_bookies_may_tell_later_is_no_lasting_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: type[PodkeeperError] | None
) -> None:
    monkeypatch.setattr(patience, "HEARD_SECONDS", 0.0)
    async with ReplicationCluster(tmp_path, model=True) as models, models.of(*"abcd", read_timeout=0.3) as client:
        open_ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        await open_ledger.append(payload(0))
        leaving, *others = open_ledger.metadata.last_ensemble
        await models.lose(client, leaving)
        for bookie in others:
            models.bookies[bookie].silent = answer is None
            models.model(bookie).fail_reads = answer
        with pytest.raises(BookieUnavailable):
            await ClientMover(client).recover(await life_of(client, open_ledger.ledger_id))


async def test_stopping_bookies_that_never_tell_ends_the_wait(tmp_path: Path) -> None:
    """As the message of the wait says. The drain gives the ledger up then, if its loss was accepted."""
    async with ReplicationCluster(tmp_path, model=True) as models, models.of(*"abcd", read_timeout=0.3) as client:
        open_ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        await open_ledger.append(payload(0))
        leaving, second, _ = open_ledger.metadata.last_ensemble
        await models.lose(client, leaving)
        models.model(second).fail_reads = LedgerStateUnknown
        with pytest.raises(BookieUnavailable, match="stop"):
            await ClientMover(client).recover(await life_of(client, open_ledger.ledger_id))
        await models.lose(client, second)
        with pytest.raises(RecoveryFailed):
            await ClientMover(client).recover(await life_of(client, open_ledger.ledger_id))


async def test_an_end_that_bookies_tell_again_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They did not tell while the ledger was closed, and do when they are asked afterwards."""
    monkeypatch.setattr(patience, "HEARD_SECONDS", 0.0)
    async with ReplicationCluster(tmp_path, model=True) as models, models.of(*"abcd", read_timeout=0.3) as client:
        open_ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        await open_ledger.append(payload(0))
        leaving, *others = open_ledger.metadata.last_ensemble
        await models.lose(client, leaving)
        for bookie in others:
            models.model(bookie).fail_reads = LedgerStateUnknown

        async def close(*given: Any) -> None:
            try:
                await close_checked(*given)
            finally:
                for bookie in others:
                    models.model(bookie).fail_reads = None

        monkeypatch.setattr(moving, "close_checked", close)
        await ClientMover(client).recover(await life_of(client, open_ledger.ledger_id))
        assert (await client.metadata(open_ledger.ledger_id)).last_entry_id == 0
