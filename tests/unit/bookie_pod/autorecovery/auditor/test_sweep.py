"""A pass over all ledgers: second looks, the cursor, and that another auditor ends with the same counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor import sweep
from bookie_pod.autorecovery.auditor.ledgers_check import LedgersCheck
from bookie_pod.autorecovery.auditor.placement_check import PlacementCheck, count_overdue
from bookie_pod.autorecovery.auditor.replicas_check import ReplicasCheck
from bookie_pod.autorecovery.auditor.sweep import Cursor, LedgerCheck, Look, Suspect, Sweep
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable
from bookie_protocol.metadata_service.findings import Finding, Reason
from bookie_protocol.metadata_service.under_replication import UnderreplicatedLedger
from tests.support.auditor_rig import AuditorRig, ledger
from tests.support.virtual_loop import on_a_virtual_clock

LEDGERS = 40


class SaidCheck:
    """Suspects some ledgers, confirms some of these, finds some locked for a while."""

    def __init__(
        self, suspicious: set[int], confirmed: set[int], locked: Mapping[int, int], dies_at: int | None
    ) -> None:
        self.suspicious = suspicious
        self.confirmed = confirmed
        self.locked = Counter(locked)
        self.dies_at = dies_at
        self.looks: list[int] = []
        self.second_looks: list[int] = []
        self.marked: set[int] = set()

    async def look(self, ledger_id: int) -> Look:
        await asyncio.sleep(0)
        if ledger_id == self.dies_at:
            raise MetadataUnavailable("the test says so")
        self.looks.append(ledger_id)
        suspects = frozenset({(0, "b")}) if ledger_id in self.suspicious else frozenset[Suspect]()
        return Look({"ledgers": 1, "suspicious": len(suspects)}, suspects)

    async def look_again(self, ledger_id: int, suspects: frozenset[Suspect]) -> Look:
        assert suspects == {(0, "b")}
        self.second_looks.append(ledger_id)
        if self.locked[ledger_id] > 0:
            self.locked[ledger_id] -= 1
            return Look({"must_not_count": 1}, later=True)
        if ledger_id in self.confirmed:
            self.marked.add(ledger_id)
            return Look({"marked": 1})
        return Look({"withdrawn": 1})

    async def finish(self) -> Mapping[str, int]:
        return {"finished": 1}


async def ids(first: int) -> AsyncGenerator[int, None]:
    for ledger_id in range(first, LEDGERS):
        yield ledger_id


def a_sweep(check: SaidCheck, enabled: asyncio.Event | None = None, second_look_s: float = 0.0) -> Sweep:
    if enabled is None:
        enabled = asyncio.Event()
        enabled.set()

    async def save(cursor: Cursor) -> None:
        return None

    return Sweep(ids, check, save, enabled, window=4, second_look_s=second_look_s)


SETS = st.sets(st.integers(0, LEDGERS - 1))


@given(
    SETS,
    SETS,
    st.dictionaries(st.integers(0, LEDGERS - 1), st.integers(0, 3)),
    st.integers(0, LEDGERS),
    st.floats(0, 0.002),
)
def test_a_pass_in_two_parts_counts_what_one_pass_counts(suspicious, confirmed, locked, dies_at, second_look_s) -> None:
    async def run() -> None:
        whole = SaidCheck(suspicious, confirmed, locked, None)
        expected = await a_sweep(whole, second_look_s=second_look_s).run(Cursor())
        assert sorted(whole.looks) == list(range(LEDGERS))
        assert whole.marked == suspicious & confirmed
        first = SaidCheck(suspicious, confirmed, locked, dies_at)
        begun = a_sweep(first, second_look_s=second_look_s)
        if dies_at < LEDGERS:
            with pytest.raises(MetadataUnavailable):
                await begun.run(Cursor())
        else:
            await begun.run(Cursor())
        second = SaidCheck(suspicious, confirmed, locked, None)
        assert await a_sweep(second, second_look_s=second_look_s).run(begun.cursor) == expected
        assert first.marked | second.marked == whole.marked
        assert begun.cursor.next_ledger <= dies_at

    asyncio.run(run())


async def test_counts_of_one_pass() -> None:
    check = SaidCheck({1, 2, 3}, {2}, {3: 2}, None)
    counts = await a_sweep(check).run(Cursor())
    assert counts == {"ledgers": LEDGERS, "suspicious": 3, "marked": 1, "withdrawn": 2, "finished": 1}
    assert check.second_looks.count(3) == 3


async def test_a_ledger_that_stays_locked_is_given_up() -> None:
    check = SaidCheck({5}, {5}, {5: 1000}, None)
    counts = await a_sweep(check).run(Cursor())
    assert counts["locked"] == 1
    assert check.second_looks == [5] * sweep.MAX_LOOKS


async def test_second_looks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "MAX_PENDING", 3)
    check = SaidCheck(set(range(LEDGERS)), set(), {}, None)
    running = a_sweep(check, second_look_s=0.01)
    most = 0
    original = check.look

    async def look(ledger_id: int) -> Look:
        nonlocal most
        most = max(most, len(running._pending))
        return await original(ledger_id)

    check.look = look  # type: ignore[method-assign]
    await running.run(Cursor())
    assert 1 <= most <= 3


async def test_no_ledger_is_begun_while_auto_recovery_is_disabled() -> None:
    enabled = asyncio.Event()
    check = SaidCheck({1}, {1}, {}, None)
    running = asyncio.create_task(a_sweep(check, enabled).run(Cursor()))
    await asyncio.sleep(0.02)
    assert check.looks == []
    enabled.set()
    await running
    assert check.marked == {1}


def test_second_looks_come_when_they_are_due_and_the_cursor_is_stored_now_and_then() -> None:
    """On a virtual clock; a look takes a second."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        looks: list[tuple[str, int, float]] = []
        saved: list[tuple[float, Cursor]] = []
        check = SaidCheck({0, 3}, {3}, {3: 1}, None)
        look, look_again = check.look, check.look_again

        async def slow(ledger_id: int) -> Look:
            looks.append(("look", ledger_id, loop.time()))
            await asyncio.sleep(1)
            return await look(ledger_id)

        async def again(ledger_id: int, suspects: frozenset[Suspect]) -> Look:
            looks.append(("again", ledger_id, loop.time()))
            return await look_again(ledger_id, suspects)

        async def save(cursor: Cursor) -> None:
            saved.append((loop.time(), cursor))

        check.look, check.look_again = slow, again  # type: ignore[method-assign]
        enabled = asyncio.Event()
        enabled.set()
        running = Sweep(ids, check, save, enabled, window=1, second_look_s=10.0)
        counts = await running.run(Cursor())
        assert [(ledger_id, at) for what, ledger_id, at in looks if what == "again"] == [
            (0, 11.0),
            (3, 14.0),
            (3, 24.0),
        ]
        assert counts == {"ledgers": LEDGERS, "suspicious": 2, "marked": 1, "withdrawn": 1, "finished": 1}
        assert [at for at, _ in saved] == [sweep.SAVE_SECONDS, 2 * sweep.SAVE_SECONDS]
        first, second = (cursor for _, cursor in saved)
        assert first == Cursor(3, {"ledgers": 3, "suspicious": 1, "withdrawn": 1}), "of all below the second look"
        assert second == Cursor(30, {"ledgers": 30, "suspicious": 2, "marked": 1, "withdrawn": 1})
        assert running.cursor.next_ledger == LEDGERS
        assert running.counts == {name: count for name, count in counts.items() if name != "finished"}

    on_a_virtual_clock(run())


def test_second_looks_wait_for_auto_recovery_too() -> None:
    async def run() -> None:
        check, enabled = SaidCheck({LEDGERS - 1}, set(), {}, None), asyncio.Event()
        enabled.set()
        running = asyncio.create_task(a_sweep(check, enabled, second_look_s=5.0).run(Cursor()))
        await asyncio.sleep(1)
        enabled.clear()
        await asyncio.sleep(10)
        assert check.second_looks == []
        enabled.set()
        await running
        assert check.second_looks == [LEDGERS - 1]

    on_a_virtual_clock(run())


# --- what the checks say of ledgers that they cannot look at ------------------------------------------------

NOBODY: Any = None
"""Who is not asked."""
UNPACED = ReplicationThrottle()


@pytest.mark.parametrize(
    ("made", "second_looks"),
    [
        (
            lambda rig: LedgersCheck(rig.checker, NOBODY, NOBODY, NOBODY, UNPACED),
            [{"deleted": 1}, {"could_not_tell": 1}],
        ),
        (
            lambda rig: PlacementCheck(
                rig.service.ledgers, rig.placement, NOBODY, UNPACED, NOBODY, NOBODY, Random(1), NOBODY
            ),
            [{}, {}],
        ),
        (
            lambda rig: ReplicasCheck(
                rig.service, rig.lists, rig._end, NOBODY, NOBODY, metadata_pace=UNPACED, pace=UNPACED, marks=True
            ),
            [{"deleted": 1}, {"could_not_tell": 1}],
        ),
    ],
    ids=["ledgers", "placement", "replicas"],
)
async def test_no_check_ends_at_a_ledger_that_is_gone_or_cannot_be_read(
    rig: AuditorRig, made: Callable[[AuditorRig], LedgerCheck], second_looks: list[dict[str, int]]
) -> None:
    await rig.store(ledger(2, (0, "012")))
    await rig.damage(2)
    check = made(rig)
    assert await check.look(1) == Look({"deleted": 1})
    assert await check.look(2) == Look({"ledgers": 1, "could_not_tell": 1})
    assert [
        (await check.look_again(each, frozenset({(0, Finding("b0:1", Reason.MISSING))}))).counts for each in (1, 2)
    ] == second_looks


async def test_marks_behind_one_that_cannot_be_read_are_not_counted() -> None:
    async def marks() -> AsyncGenerator[UnderreplicatedLedger, None]:
        yield UnderreplicatedLedger(1, (), ctime_ms=1)
        raise MetadataDamaged("no mark")

    assert await count_overdue(marks(), 60_002, 60) == 1
    assert await count_overdue(marks(), 60_001, 60) == 0
    assert await count_overdue(marks(), 60_002, 0) == 0
