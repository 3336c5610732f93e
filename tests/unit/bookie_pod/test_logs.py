"""Structured logs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from bookie_pod import logs
from bookie_pod.logs import MOST, PER_S, FewLines
from tests.support.clock import Clock


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_json_object_per_event(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    logs.logger("journal", index=0).warning("slow sync", ms=1500, path=io)
    (event,) = events(stream)
    assert event["event"] == "slow sync"
    assert (event["part"], event["index"], event["ms"], event["level"]) == ("journal", 0, 1500, "warning")
    assert event["timestamp"].endswith("Z")


def test_an_exception_stays_on_its_line(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logs.logger("x").exception("failed")
    (event,) = events(stream)
    assert "ValueError: broken" in event["exception"]


def test_levels(stream: io.StringIO) -> None:
    logs.configure("json", "warning", stream)
    log = logs.logger("x")
    log.debug("a")
    log.info("b")
    log.error("c")
    assert [event["event"] for event in events(stream)] == ["c"]


def test_console(stream: io.StringIO) -> None:
    logs.configure("console", "info", stream)
    logs.logger("x").info("started", port=3181)
    assert "started" in stream.getvalue()
    assert "port=3181" in stream.getvalue()


def test_libraries_end_up_in_the_same_stream(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    logging.getLogger("kazoo.client").info("chatter")
    logging.getLogger("kazoo.client").warning("connection lost to %s", "zk-1")
    (event,) = events(stream)
    assert (event["part"], event["event"], event["level"]) == ("kazoo.client", "connection lost to zk-1", "warning")


class Gone(io.StringIO):
    """A stream whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_reader_that_is_gone_costs_lines_and_nothing_else(log_format: str) -> None:
    stream = Gone()
    logs.configure(log_format, stream=stream)
    for _ in range(2):
        logs.logger("part").error("something happened", why="x")
        logging.getLogger("library").warning("something")
        stream.close()


def test_a_value_that_cannot_be_shown_costs_its_line_alone() -> None:
    stream = io.StringIO()
    logs.configure("json", stream=stream)
    logs.logger("part").error("something happened", value=Unshowable())
    logs.logger("part").error("another thing")
    first, second = stream.getvalue().splitlines()
    assert first == "error: something happened (its fields cannot be shown: RuntimeError)"
    assert json.loads(second)["event"] == "another thing"


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
