"""How long a failing ledger is left alone."""

from __future__ import annotations

from bookie_pod.autorecovery.worker.backoff import SHORTEST_S, Backoff, Failures


def test_delays_double_up_to_the_full_one() -> None:
    backoff = Backoff(320.0)
    assert [backoff.failed(7) for _ in range(8)] == [10, 20, 40, 80, 160, 320, 320, 320]
    assert backoff.failures(7).count == 8
    assert backoff.failed(8) == 10


def test_success_begins_anew() -> None:
    backoff = Backoff(320.0)
    backoff.failed(7)
    backoff.failed(7)
    backoff.failed(7, "no spare", (3,))
    assert backoff.failures(7) == Failures(3, "no spare", (3,))
    backoff.succeeded(7)
    backoff.succeeded(8)
    assert backoff.failures(7) == Failures(0)
    assert backoff.failed(7) == 10


def test_no_delay_is_a_hot_loop() -> None:
    assert Backoff(0.0).failed(7) == SHORTEST_S


def test_the_oldest_failures_are_forgotten() -> None:
    backoff = Backoff(320.0, remembered=2, explained=2)
    for ledger_id in (1, 2, 1, 3):
        backoff.failed(ledger_id)
    assert [backoff.failures(ledger_id).count for ledger_id in (1, 2, 3)] == [2, 0, 1]


def test_reasons_are_forgotten_before_counts() -> None:
    backoff = Backoff(320.0, remembered=3, explained=1)
    for ledger_id in (1, 2):
        backoff.failed(ledger_id, "no spare", (7,))
    assert backoff.failures(1) == Failures(1)
    assert backoff.failures(2) == Failures(1, "no spare", (7,))
    assert backoff.failed(1) == 20


def test_delays_grow_however_many_ledgers_fail_in_turn() -> None:
    backoff = Backoff(320.0)
    for _ in range(5):
        for ledger_id in range(10_000):
            backoff.failed(ledger_id)
    assert {backoff.failed(ledger_id) for ledger_id in range(10_000)} == {320.0}
