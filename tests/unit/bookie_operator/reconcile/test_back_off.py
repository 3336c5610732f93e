"""When an action that failed is tried again."""

from __future__ import annotations

import itertools

from bookie_operator.reconcile.back_off import MOST_S, BackOff

KEY = ("storage", "demo")


def test_tries_are_further_apart_with_each_failure_up_to_a_bound() -> None:
    tried = BackOff()
    waits = [tried.failed(KEY, "act", "no", 1000.0, needs_person=False).not_before - 1000.0 for _ in range(12)]
    assert all(later >= earlier for earlier, later in itertools.pairwise(waits[:6]))
    assert MOST_S <= waits[-1] <= 1.2 * MOST_S
    assert tried.waiting(KEY, "act", 1000.0) is not None
    assert tried.waiting(KEY, "another", 1000.0) is None


def test_a_clock_that_is_set_back_makes_nobody_wait_for_an_hour() -> None:
    tried = BackOff()
    tried.failed(KEY, "act", "no", 10_000.0, needs_person=False)
    assert tried.waiting(KEY, "act", 10_000.0) is not None
    assert tried.waiting(KEY, "act", 10_000.0 - 3600.0) is None


def test_what_was_refused_is_kept_apart_from_what_is_done_beside_it() -> None:
    tried = BackOff()
    tried.failed(KEY, "refused", "no", 1000.0, needs_person=True)
    tried.failed(KEY, "broken", "later", 1000.0, needs_person=False)
    tried.done(KEY, "another")
    assert [(one.action, one.message) for one in tried.refused(KEY, 1000.0)] == [("refused", "no")]
    assert tried.refused(KEY, 1002.0) == ()
    assert tried.failed(KEY, "refused", "no", 1002.0, needs_person=True).count == 2
    tried.done(KEY, "refused")
    assert tried.refused(KEY, 1002.0) == ()
    assert tried.waiting(KEY, "broken", 1000.0) is not None
    tried.forget(KEY)
    assert tried.waiting(KEY, "broken", 1000.0) is None


def test_so_many_are_kept_and_no_more() -> None:
    tried = BackOff()
    for number in range(100):
        tried.failed(KEY, number, "no", 1000.0, needs_person=True)
    assert [one.action for one in tried.refused(KEY, 1000.0)] == list(range(84, 100))
