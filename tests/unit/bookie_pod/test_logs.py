"""Structured logs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from bookie_operator import main
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


@pytest.mark.parametrize("configure", [logs.configure, main.configure], ids=["bookie", "operator"])
def test_a_traceback_for_people_shows_no_local_variables(configure: Callable[..., None], stream: io.StringIO) -> None:
    def fail(header: str) -> None:
        raise RuntimeError("a defect")

    configure("console", "info", stream)
    try:
        fail("-".join(("of", "a", "token")))
    except RuntimeError:
        structlog.get_logger().exception("failed")
    assert ("a defect" in stream.getvalue(), "of-a-token" in stream.getvalue()) == (True, False)


@pytest.mark.parametrize("configure", [logs.configure, main.configure], ids=["bookie", "operator"])
def test_lines_of_libraries_with_secrets_are_not_written(configure: Callable[..., None], stream: io.StringIO) -> None:
    configure("json", "debug", stream)
    logging.getLogger("kazoo.client").debug("Sending request(xid=%s): %s", -4, "Auth(auth='super:s3cret')")
    logging.getLogger("kubernetes.client.rest").debug("response body: %s", "s3cret")
    logging.getLogger("opentelemetry.util.re").warning("Header format invalid! %s", "x-api: s3cret")
    logging.getLogger("kazoo.client").warning("Connection dropped")
    assert [event["event"] for event in events(stream)] == ["Connection dropped"]


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


def test_a_library_writes_few_lines_and_how_many_were_left_out(stream: io.StringIO) -> None:
    clock = Clock()
    logs.configure("json", "info", stream)
    (handler,) = logging.getLogger().handlers
    handler._clock = clock  # type: ignore[attr-defined]
    for number in range(1000):
        logging.getLogger("grpc").error("Invalid encoding on %s", bytes([number % 256]) * 8000)
    logging.getLogger("kazoo").warning("connection lost")
    written = events(stream)
    assert [event["part"] for event in written] == ["grpc"] * MOST + ["kazoo"]
    assert max(len(event["event"]) for event in written) <= logs.MOST_CHARACTERS
    clock.now += PER_S
    logging.getLogger("grpc").error("once more")
    told, again = events(stream)[MOST + 1 :]
    assert (told["lines"], told["part"], again["event"]) == (1000 - MOST, "grpc", "once more")


def test_names_of_loggers_are_bounded(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    for number in range(3 * logs.MOST_LOGGERS):
        logging.getLogger(f"made.up.{number}").error("something")
    assert len(events(stream)) == logs.MOST_LOGGERS + MOST
