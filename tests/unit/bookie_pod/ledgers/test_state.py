"""LAC and waiters of one ledger."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.ledgers.state import LAC_UNKNOWN, LacWaiter, LedgerState
from tests.support.frames import KEY


class Timer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def waiter(previous: int, woken: list[tuple[int, bool]]) -> LacWaiter:
    made = LacWaiter(previous, lambda newer: woken.append((previous, newer)))
    made.timer = Timer()  # type: ignore[assignment]
    return made


def test_the_lac_only_grows_and_wakes_whom_it_passes() -> None:
    state, woken = LedgerState(1, KEY, 0), []
    state.hot_key = KEY
    waiters = [waiter(previous, woken) for previous in (4, 2, 7)]
    for one in waiters:
        state.add_waiter(one)
    assert state.hot_key is None
    state.raise_lac(2)
    assert woken == []
    state.raise_lac(5)
    state.raise_lac(1)
    assert state.lac == 5
    assert woken == [(4, True), (2, True)]
    assert [one.timer.cancelled for one in waiters] == [True, True, False]  # type: ignore[union-attr]
    assert state.waiters == [waiters[2]]


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

            state.add_waiter(LacWaiter(number, wake))
            expected.append((index, number))
        elif step == "lac":
            state.raise_lac(number)
            expected = [(index, previous) for index, previous in expected if previous >= number]
        elif step == "release":
            state.release_waiters()
            expected = []
        assert {index for index, count in enumerate(counts) if count == 0} == {index for index, _ in expected}
        assert max(counts, default=0) <= 1
