"""What a plan says, and what it would refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.autorecovery.decommission.plan import DecommissionPlan, Target, _judged, _Spares, make_plan
from bookie_pod.autorecovery.decommission.state import SHOWN_BLOCKERS, Form
from bookie_pod.autorecovery.decommission.store import DecommissionRequest, DecommissionStore
from bookie_protocol.errors import BookieUnavailable
from tests.support.decommission_rig import GOING, Rig, ledger


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        await made.store(ledger(1, (0, "012")), ledger(2, (0, "123")), ledger(3, (0, "012"), last=None))
        yield made


class Space:
    """A client that only tells free space; None: the bookie does not answer."""

    def __init__(self, **free: int | None) -> None:
        self._free = free

    async def bookie_info(self, bookie_id: str) -> Any:
        free = self._free.get(bookie_id.partition(":")[0], 10_000)
        if free is None:
            raise BookieUnavailable("no answer")
        return SimpleNamespace(free_bytes=free)


async def plan_of(rig: Rig, bookie_id: str = GOING, **free: int | None) -> DecommissionPlan:
    return await make_plan(Space(**free), rig.service, bookie_id)  # type: ignore[arg-type]


async def test_numbers(rig: Rig) -> None:
    await rig.service.auditor_election.elect("b1:1")
    plan = await plan_of(rig)
    assert (plan.presence, plan.form, plan.has_cookie, plan.under_way) == ("writable", Form.LIVE, True, None)
    assert (plan.ledgers_in_cluster, plan.ledgers, plan.open_ledgers, plan.nbytes) == (3, 2, 1, 1000)
    assert [target.bookie_id for target in plan.targets] == ["b1:1", "b2:1", "b3:1", "b4:1"]
    assert (plan.free_bytes, plan.largest_ensemble, plan.auditor) == (40_000, 3, "b1:1")
    assert (plan.refusals, plan.warnings) == ((), ())


async def test_a_ledger_on_all_bookies_has_no_spare(rig: Rig) -> None:
    whole = replace(ledger(9, (0, "012")), ensemble_size=5, ensembles={0: tuple(f"b{i}:1" for i in range(5))})
    await rig.store(whole)
    plan = await plan_of(rig)
    assert (plan.without_spare, plan.without_spare_count) == ((9,), 1)
    assert plan.refusals == ("1 ledgers have no other writable bookie to go to, such as 9: add a bookie",)
    assert any("there are ledgers on 5" in warning for warning in plan.warnings)


async def test_bookies_that_leave_too_are_no_targets(rig: Rig) -> None:
    for bookie in ("b3:1", "b4:1"):
        await DecommissionStore(rig.service).begin(DecommissionRequest(bookie, "host"))
    plan = await plan_of(rig)
    assert [target.bookie_id for target in plan.targets] == ["b1:1", "b2:1"]
    assert plan.without_spare == (1, 3)


async def test_space(rig: Rig) -> None:
    plan = await plan_of(rig, b1=300, b2=300, b3=300, b4=100)
    assert plan.refusals == ("1000 bytes are to be copied, and the others have 1000 bytes free",)
    plan = await plan_of(rig, b1=300, b2=None)
    assert plan.refusals == ()
    assert "b2:1 did not report their free space" in plan.warnings


async def test_trouble_elsewhere_is_told(rig: Rig) -> None:
    await rig.stop("b4:1")
    await rig.service.under_replication.mark(1, ["b4:1"], ctime_ms=1)
    await rig.service.under_replication.mark(2, ["b4:1"], ctime_ms=1)
    await rig.service.under_replication.disable()
    plan = await plan_of(rig)
    assert (plan.under_replicated, plan.needing, plan.other_lost) == (2, (1,), ("b4:1",))
    said = "; ".join(plan.warnings)
    for words in ("1 ledgers on it are under-replicated", "other bookies are down: b4:1", "auto-recovery is disabled"):
        assert words in said


async def test_a_bookie_that_nobody_knows(rig: Rig) -> None:
    plan = await plan_of(rig, "b7:1")
    assert plan.refusals[0].startswith("this bookie is unknown")
    assert (plan.presence, plan.form, plan.ledgers) == ("not registered", Form.STOPPED, 0)


FINE = DecommissionPlan(
    bookie_id=GOING,
    presence="writable",
    form=Form.LIVE,
    has_cookie=True,
    under_way=None,
    ledgers_in_cluster=9,
    ledgers=3,
    open_ledgers=0,
    nbytes=10,
    targets=(Target("b1:1", 5), Target("b2:1", 6)),
    largest_ensemble=2,
    without_spare=(),
    without_spare_count=0,
    auto_recovery_enabled=True,
    auditor="b1:1",
    ledgers_locked=0,
    under_replicated=0,
    needing=(),
    needing_count=0,
    other_lost=(),
)


@pytest.mark.parametrize(
    ("change", "refusals", "warnings"),
    [
        ({}, [], []),
        ({"targets": (Target("b1:1", 5), Target("b2:1", 5))}, ["10 bytes are to be copied"], []),
        ({"targets": (Target("b1:1", 0), Target("b2:1", 0)), "ledgers": 0}, [], []),
        ({"targets": (Target("b1:1", None), Target("b2:1", 0))}, [], ["b1:1 did not report their free space"]),
        ({"largest_ensemble": 3}, [], ["2 writable bookies are left, and there are ledgers on 3"]),
        (
            {"without_spare": (7, 1, 2, 3, 4, 5), "without_spare_count": 6},
            ["6 ledgers have no other writable bookie to go to, such as 7, 1, 2, 3, 4: add a bookie"],
            [],
        ),
        ({"needing": (4,), "needing_count": 1}, [], ["1 ledgers on it are under-replicated, such as 4:"]),
        ({"other_lost": ("b3:1", "b4:1")}, [], ["other bookies are down: b3:1, b4:1"]),
        ({"auto_recovery_enabled": False, "auditor": None}, [], ["auto-recovery is disabled"]),
        ({"auditor": None}, [], ["no auditor is elected"]),
    ],
)
def test_what_speaks_against_it(change: dict[str, Any], refusals: list[str], warnings: list[str]) -> None:
    judged = _judged(replace(FINE, **change), is_known=True)
    for found, expected in ((judged.refusals, refusals), (judged.warnings, warnings)):
        assert len(found) == len(expected), found
        assert all(text.startswith(words) for text, words in zip(found, expected, strict=True)), found


async def test_every_reason_to_know_a_bookie_counts(rig: Rig) -> None:
    """A cookie, a registration, or a ledger that names it."""
    assert not (await plan_of(rig)).refusals
    await rig.stop(GOING)
    await rig.service.cookies.delete(GOING)
    stopped = await plan_of(rig)
    assert (stopped.presence, stopped.form, stopped.has_cookie, stopped.refusals) == (
        "not registered",
        Form.STOPPED,
        False,
        (),
    )
    await DecommissionStore(rig.service).begin(DecommissionRequest(GOING, "host"))
    assert (await plan_of(rig)).under_way is not None
    lock = await rig.service.under_replication.lock(2)
    assert (await plan_of(rig)).ledgers_locked == 1
    await rig.service.under_replication.release(lock)


def test_ledgers_without_a_spare_are_counted_once_each_and_the_first_are_named() -> None:
    spares = _Spares(GOING, frozenset({GOING, "b1:1", "b2:1"}))
    spares.look(ledger(0, (0, "013")))  # b2 can take it
    spares.look(ledger(0, (0, "123")))  # nobody has to
    for ledger_id in range(1, SHOWN_BLOCKERS + 3):
        spares.look(ledger(ledger_id, (0, "012"), (5, "201")))
    assert spares.count == SHOWN_BLOCKERS + 2
    assert spares.first == list(range(1, SHOWN_BLOCKERS + 1))
