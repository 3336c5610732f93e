"""What the attacks are judged by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.hostile import AFTER_S, BACK_MB, BETWEEN_S, GATEWAY_MB, LATE_S, LOG_KB_S, P99_S, Row, p99

AT_ITS_BOUNDS = Row(
    "a",
    128,
    p99=P99_S,
    at_rest=100.0,
    peak=256.0,
    after=100.0 + BACK_MB,
    beside=2.0 * GATEWAY_MB,
    probes=9,
    seconds=6 + AFTER_S,
    log_kb=LOG_KB_S * (6 + AFTER_S),
)


def test_a_row_at_its_bounds_is_within_them() -> None:
    assert AT_ITS_BOUNDS.beyond() == []


@pytest.mark.parametrize(
    "beyond",
    [
        {"p99": 1.01 * P99_S},
        {"idle_p99": P99_S, "p99": 1.01 * P99_S},
        {"peak": 257.0},
        {"after": 101.0 + BACK_MB},
        {"beside": 1.0 + 2 * GATEWAY_MB},
        {"log_kb": 1.1 * AT_ITS_BOUNDS.log_kb},
        {"noes": 1},
        {"failures": 1},
        {"ended": True},
    ],
)
def test_each_bound_is_judged(beyond: dict[str, float]) -> None:
    assert len(replace(AT_ITS_BOUNDS, **beyond).beyond()) == 1  # type: ignore[arg-type]


def test_one_request_that_hangs_stands_for_those_that_it_kept_waiting() -> None:
    assert p99([0.001] * 1000) == pytest.approx(0.001)
    assert p99([0.001] * 1000 + [20 * BETWEEN_S]) > 9 * BETWEEN_S
    assert p99([]) == LATE_S
