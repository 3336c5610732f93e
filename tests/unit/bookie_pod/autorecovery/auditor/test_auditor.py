"""A candidate: when it stands for election, how its term begins and ends, and what it tells; on a virtual clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.autorecovery.auditor import auditor as module
from bookie_pod.autorecovery.auditor.auditor import LOOK_SECONDS, RESIGN_SECONDS, SHARE, Auditor, Levels
from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_pod.metrics.registry import Registry
from bookie_protocol.errors import MetadataUnavailable
from tests.support.auditor_rig import QUIET
from tests.support.virtual_loop import virtually


class Election:
    """Gives the vote when it is told to, and says who has it."""

    def __init__(self) -> None:
        self.stood: list[float] = []
        self.elected = False
        self.auditor: str | None = None
        self.term = "v1"
        self.vote = asyncio.Event()
        """Set: lost."""
        self.resigned: list[float] = []
        self.resign_takes = 0.0
        self.fails_to_resign = False
        self.lost_says: Exception | None = None

    async def elect(self, bookie_id: str) -> Election:
        self.stood.append(asyncio.get_running_loop().time())
        if not self.elected:
            raise MetadataUnavailable("no answer")
        self.auditor = bookie_id
        self.vote.clear()
        return self

    async def current_auditor(self) -> str | None:
        return self.auditor

    async def lost(self) -> None:
        await self.vote.wait()
        if self.lost_says is not None:
            raise self.lost_says

    async def resign(self) -> None:
        await asyncio.sleep(self.resign_takes)
        self.resigned.append(asyncio.get_running_loop().time())
        if self.fails_to_resign:
            raise MetadataUnavailable("no answer")


class Marks:
    """What the under-replication tree says."""

    def __init__(self) -> None:
        self.enabled = True
        self.marked = 7
        self.counted: list[float] = []
        self.count_takes = 0.0
        self.down: set[str] = set()

    async def is_enabled(self) -> bool:
        if "is_enabled" in self.down:
            raise MetadataUnavailable("no answer")
        return self.enabled

    async def count(self) -> int:
        self.counted.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.count_takes)
        if "count" in self.down:
            raise MetadataUnavailable("no answer")
        return self.marked


class FakeTerm:
    """Works until it is told to break."""

    made: list[FakeTerm]

    def __init__(self, *parts: object) -> None:
        FakeTerm.made.append(self)
        self.parts = parts
        self.breaks = asyncio.Event()
        self.ended = False
        self.lost_bookies = SimpleNamespace(membership=SimpleNamespace(delay_s=60))
        self.marker = SimpleNamespace(deferred=3)
        self.withdrawals = SimpleNamespace(withdrawn=4)

    async def run(self) -> None:
        try:
            await self.breaks.wait()
            raise ZeroDivisionError
        finally:
            self.ended = True

    def absent(self) -> tuple[str, ...]:
        return ("somebody",)

    def check_statuses(self) -> tuple[str, ...]:
        return ("a check",)


class Cluster:
    def __init__(self) -> None:
        self.auditor_election = Election()
        self.under_replication = Marks()
        self.decommissions = SimpleNamespace(names=self._names)
        self.cookies = None
        self.registry = Registry()

    def records(self, kind: str) -> object:
        return self.decommissions

    async def _names(self) -> frozenset[str]:
        return frozenset()

    def candidate(self) -> Auditor:
        service: Any = self
        return Auditor(
            service,
            None,  # type: ignore[arg-type]
            QUIET,
            AuditorInstruments(self.registry, embedded=False),
            bookie_id="b0:1",
            clock=lambda: Clock(lambda: 1_000_000),
            sources=None,
        )


@pytest.fixture(autouse=True)
def terms(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTerm.made = []
    monkeypatch.setattr(module, "Term", FakeTerm)
    monkeypatch.setattr(module, "sources_of", lambda client, config: ("sources", client, config))


@virtually
async def test_who_cannot_stand_tries_again_ever_more_rarely() -> None:
    cluster = Cluster()
    election = cluster.auditor_election
    running = asyncio.create_task(cluster.candidate().run())
    await asyncio.sleep(100)
    assert election.stood == [0, 1, 3, 7, 15, 31, 61, 91]
    election.elected = True
    await asyncio.sleep(25)  # elected at 121
    election.vote.set()
    await asyncio.sleep(0.1)
    election.elected = False
    await asyncio.sleep(10)
    assert election.stood[8:] == [121, 126, 128, 132]
    running.cancel()
    await asyncio.wait([running])


@virtually
async def test_a_term_ends_with_its_vote_which_is_taken_back_behind_it() -> None:
    cluster = Cluster()
    election = cluster.auditor_election
    election.elected = True
    auditor = cluster.candidate()
    running = asyncio.create_task(auditor.run())
    assert not auditor.is_auditor
    await asyncio.sleep(5)
    (term,) = FakeTerm.made
    assert auditor.is_auditor
    assert term.parts[1] == ("sources", None, QUIET)
    assert not term.ended
    election.resign_takes = 0.5
    election.vote.set()
    await asyncio.sleep(0.1)
    assert (term.ended, auditor.is_auditor, auditor.status().elected_ms, election.resigned) == (
        True,
        False,
        None,
        [],
    )
    await asyncio.sleep(0.5)
    assert election.resigned == [5.5]
    await asyncio.sleep(1)
    assert (len(FakeTerm.made), auditor.is_auditor, election.stood) == (2, True, [0, 6.5])
    running.cancel()
    await asyncio.wait([running])
    assert (FakeTerm.made[1].ended, auditor.is_auditor) == (True, False)
    assert len(election.resigned) == 2


@pytest.mark.parametrize("how", ["fails", "hangs"])
@virtually
async def test_a_vote_that_cannot_be_taken_back_holds_nobody_up(how: str) -> None:
    cluster = Cluster()
    election = cluster.auditor_election
    election.elected = True
    running = asyncio.create_task(cluster.candidate().run())
    await asyncio.sleep(1)
    election.fails_to_resign, election.resign_takes = (True, 0.0) if how == "fails" else (False, 60.0)
    election.vote.set()
    await asyncio.sleep(10)
    assert election.stood == [0, 1 + 1 + (RESIGN_SECONDS if how == "hangs" else 0)]
    election.resign_takes = 0.0
    running.cancel()
    await asyncio.wait([running])


@virtually
async def test_a_vote_that_cannot_be_followed_is_stood_for_again() -> None:
    cluster = Cluster()
    election = cluster.auditor_election
    election.elected, election.lost_says = True, MetadataUnavailable("no answer")
    running = asyncio.create_task(cluster.candidate().run())
    await asyncio.sleep(1)
    election.vote.set()
    await asyncio.sleep(2)
    assert (len(FakeTerm.made), len(election.resigned)) == (2, 1)
    running.cancel()
    await asyncio.wait([running])


@virtually
async def test_a_defect_of_the_term_is_one_of_the_candidate() -> None:
    cluster = Cluster()
    cluster.auditor_election.elected = True
    running = asyncio.create_task(cluster.candidate().run())
    await asyncio.sleep(1)
    FakeTerm.made[0].breaks.set()
    with pytest.raises(ExceptionGroup) as raised:
        await running
    assert raised.group_contains(ZeroDivisionError)
    assert len(cluster.auditor_election.resigned) == 1


@virtually
async def test_what_a_candidate_tells_before_and_in_its_term() -> None:
    cluster = Cluster()
    election = cluster.auditor_election
    auditor = cluster.candidate()
    status = auditor.status()
    assert (status.is_auditor, status.auditor_id, status.elected_ms) == (False, None, None)
    assert (status.is_enabled, status.marked_ledgers, status.lost_bookie_recovery_delay_s) == (None, None, None)
    assert (status.absent, status.checks, status.deferred_marks, status.withdrawn_marks) == ((), (), 0, 0)
    election.auditor = "another"
    running = asyncio.create_task(auditor.run())
    await asyncio.sleep(0.5)
    status = auditor.status()
    assert (status.auditor_id, status.is_enabled, status.marked_ledgers) == ("another", True, None)
    election.elected, cluster.under_replication.enabled = True, False
    await asyncio.sleep(LOOK_SECONDS)
    status = auditor.status()
    assert (status.is_auditor, status.auditor_id, status.elected_ms) == (True, "b0:1", 1_000_000)
    assert (status.is_enabled, status.marked_ledgers) == (False, 7)
    assert (status.lost_bookie_recovery_delay_s, status.deferred_marks, status.withdrawn_marks) == (60, 3, 4)
    assert (status.absent, status.checks) == (("somebody",), ("a check",))
    running.cancel()
    await asyncio.wait([running])


def levels(cluster: Cluster, is_auditor: Callable[[], bool]) -> Levels:
    service: Any = cluster
    return Levels(service, is_auditor)


def shown(found: Levels) -> list[float | None]:
    return [None if math.isnan(each) else each for each in (found.marked, found.disabled, found.no_auditor)]


@virtually
async def test_levels_that_nobody_can_tell_are_none() -> None:
    cluster, is_auditor = Cluster(), True
    marks = cluster.under_replication
    found = levels(cluster, lambda: is_auditor)
    assert shown(found) == [None, None, None]
    await found.look()
    assert shown(found) == [7, 0, 1]
    cluster.auditor_election.auditor, marks.enabled = "b0:1", False
    await found.look()
    assert (shown(found), found.auditor_id) == ([7, 1, 0], "b0:1")
    marks.down = {"count"}
    await asyncio.sleep(1)
    await found.look()
    assert shown(found) == [None, 1, 0]
    marks.down = {"is_enabled"}
    await found.look()
    assert shown(found) == [None, None, None]
    marks.down = set()
    await found.look()
    assert shown(found) == [7, 1, 0]
    is_auditor = False
    await found.look()
    assert shown(found) == [None, 1, 0]


@virtually
async def test_marks_are_counted_the_more_rarely_the_longer_it_takes() -> None:
    cluster = Cluster()
    marks = cluster.under_replication
    marks.count_takes = 3.0
    running = asyncio.create_task(levels(cluster, lambda: True).run())
    await asyncio.sleep(200)
    assert marks.counted == [0, 63, 126, 189]
    assert SHARE == 20
    running.cancel()
    await asyncio.wait([running])


@virtually
async def test_a_count_is_due_when_its_share_of_time_has_passed() -> None:
    cluster = Cluster()
    marks = cluster.under_replication
    marks.count_takes = 1.0
    found = levels(cluster, lambda: True)
    await found.look()
    await asyncio.sleep(SHARE - 0.5)
    await found.look()
    assert len(marks.counted) == 1
    await asyncio.sleep(0.5)
    await found.look()
    assert len(marks.counted) == 2
