"""LAC and waiters of one ledger."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.ledgers.state import LAC_UNKNOWN, LacWaiter, LedgerState
from tests.support.frames import KEY
from tests.unit.bookie_pod.ledgers.waiters import Waiter


def waiter(previous: int, woken: list[tuple[int, bool]]) -> LacWaiter:
    return Waiter(previous, lambda newer: woken.append((previous, newer)))


def test_the_lac_only_grows_and_wakes_whom_it_passes() -> None:
    state, woken = LedgerState(1, KEY, 0), []
    state.heat({})
    waiters = [waiter(previous, woken) for previous in (4, 2, 7)]
    for one in waiters:
        state.add_waiter(one)
    assert state.hot_key is None
    state.raise_lac(2)
    assert woken == []
    state.raise_lac(5)
    state.raise_lac(1)
    assert state.lac == 5
    assert sorted(woken) == [(2, True), (4, True)]
    assert [one.waits for one in waiters] == [False, False, True]
    assert state.waiters is not None
    assert len(state.waiters) == 1


def test_release_wakes_everybody_once() -> None:
    state, woken = LedgerState(1, KEY, 0), []
    for previous in (1, 9):
        state.add_waiter(waiter(previous, woken))
    state.release_waiters()
    state.release_waiters()
    state.raise_lac(100)
    assert woken == [(1, False), (9, False)]


def test_a_removed_waiter_is_not_woken() -> None:
    state, woken = LedgerState(1, KEY, 0), []
    gone = waiter(1, woken)
    state.add_waiter(gone)
    state.remove_waiter(gone)
    state.remove_waiter(gone)
    state.release_waiters()
    assert woken == []


def test_who_never_waited_is_not_taken_away() -> None:
    state, woken = LedgerState(1, KEY, 0), []
    state.add_waiter(waiter(1, woken))
    state.remove_waiter(waiter(2, woken))
    assert state.waiters is not None
    assert len(state.waiters) == 1
    state.raise_lac(2)
    assert woken == [(1, True)]


def test_those_who_left_go_when_they_outnumber_the_others() -> None:
    state = LedgerState(1, KEY, 0)
    waiters = [Waiter(number) for number in range(40)]
    for one in waiters:
        state.add_waiter(one)
    sizes = []
    for one in waiters[:32]:
        state.remove_waiter(one)
        assert state.waiters is not None
        sizes.append(len(state.waiters._heap))
    assert sizes == [40] * 28 + [11] * 4, "when there are more than two for each that waits, and some"


def test_a_lac_that_passes_nobody_looks_at_one_and_who_leaves_leaves_nothing() -> None:
    class Counted(int):
        looks = 0

        def __ge__(self, other: object) -> bool:
            Counted.looks += 1
            return int(self) >= int(other)  # type: ignore[call-overload, no-any-return]

    state = LedgerState(1, KEY, 0)
    waiters = [Waiter(Counted(10_000 + number)) for number in range(10_000)]
    for one in waiters:
        state.add_waiter(one)
    Counted.looks = 0
    for lac in range(10_000):
        state.raise_lac(lac)
    assert Counted.looks <= 20_000
    for one in waiters[1:]:
        state.remove_waiter(one)
    assert state.waiters is not None
    assert len(state.waiters._heap) < 100
    state.remove_waiter(waiters[0])
    assert state.waiters is None


def test_learning_the_lac() -> None:
    state, woken = LedgerState(1, KEY, 0), []
    state.add_waiter(waiter(3, woken))
    assert (state.lac, state.lac_known) == (LAC_UNKNOWN, False)
    state.learn_lac(6)
    assert (state.lac, state.lac_known, woken) == (6, True, [(3, True)])
    state.learn_lac(4)
    assert state.lac == 6


@given(st.lists(st.tuples(st.integers(-1, 20), st.sampled_from(["wait", "lac", "release"])), max_size=60))
def test_each_waiter_is_woken_exactly_once(steps: list[tuple[int, str]]) -> None:
    state = LedgerState(1, KEY, 0)
    counts: list[int] = []
    expected: list[tuple[int, int]] = []  # waiter, previous: those that wait
    for number, step in steps:
        if step == "wait" and number >= state.lac:
            index = len(counts)
            counts.append(0)

            def wake(newer: bool, index: int = index) -> None:
                counts[index] += 1

            state.add_waiter(Waiter(number, wake))
            expected.append((index, number))
        elif step == "lac":
            state.raise_lac(number)
            expected = [(index, previous) for index, previous in expected if previous >= number]
        elif step == "release":
            state.release_waiters()
            expected = []
        assert {index for index, count in enumerate(counts) if count == 0} == {index for index, _ in expected}
        assert max(counts, default=0) <= 1
