"""Whoever wants to fill the log gets a few lines, and the number of the others."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from bookie_pod.few_lines import MOST, PER_S, FewLines
from tests.support.clock import Clock


def test_a_few_lines_and_how_many_were_left_out() -> None:
    clock = Clock()
    lines = FewLines(structlog.get_logger(), clock=clock)
    with capture_logs() as logs:
        for number in range(1000):
            (lines.warning if number % 2 else lines.error)("no frame", number=number)
            lines.look()
        assert [line["number"] for line in logs] == list(range(MOST))
        clock.now += PER_S
        lines.look()
        lines.look()
        lines.warning("no frame", number=1000)
    assert logs[MOST]["lines"] == 1000 - MOST
    assert logs[MOST + 1 :] == [{"event": "no frame", "number": 1000, "log_level": "warning"}]


def test_nothing_is_said_where_nothing_was_left_out() -> None:
    clock = Clock()
    lines = FewLines(structlog.get_logger(), clock=clock)
    with capture_logs() as logs:
        lines.warning("no frame")
        clock.now += PER_S
        lines.look()
    assert len(logs) == 1
