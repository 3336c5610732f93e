"""What the operator measures, and forgets with a cluster."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookie_operator.crds.cluster_status import Condition, Operation, OperationType
from bookie_operator.metrics import OperatorMetrics
from bookie_operator.running import serving
from tests.support.bookie_process import free_port
from tests.support.until import until

Sample = tuple[str, tuple[tuple[str, str], ...]]


def samples(metrics: OperatorMetrics) -> dict[Sample, float]:
    return {
        (sample.name.removeprefix("podkeeper_operator_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


OF = (("cluster", "c"), ("namespace", "n"))


def operation(step: str) -> Operation:
    return Operation(id="Rollout-1", type=OperationType.ROLLOUT, step=step)


def test_the_age_of_a_step_is_that_of_the_present_one() -> None:
    metrics = OperatorMetrics()
    metrics.operation("n", "c", operation("Stage"), 100.0, 130.0)
    metrics.operation("n", "c", operation("Stop"), 140.0, 141.0)
    ages = {key[1]: value for key, value in samples(metrics).items() if key[0] == "operation_step_age_seconds"}
    assert ages == {(*OF, ("step", "Stop"), ("type", "Rollout")): 1.0}
    metrics.operation("n", "c", None, 0.0, 150.0)
    assert not [key for key in samples(metrics) if key[0] == "operation_step_age_seconds"]


def test_a_condition_has_one_status() -> None:
    metrics = OperatorMetrics()
    for status in ("Unknown", "False", "True"):
        metrics.told("n", "c", [Condition(type="Ready", status=status, reason="R")])
    told = [key[1] for key in samples(metrics) if key[0] == "cluster_condition"]
    assert told == [(("cluster", "c"), ("condition", "Ready"), ("namespace", "n"), ("status", "True"))]


def test_nothing_is_left_of_a_cluster_that_is_gone() -> None:
    metrics = OperatorMetrics()
    metrics.passed("n", "c", 0.1, 5.0)
    metrics.failed("n", "c", "Unreachable")
    metrics.decided("n", "c", "Act", "ApplyObjects")
    metrics.operation("n", "c", operation("Stage"), 1.0, 2.0)
    metrics.told("n", "c", [Condition(type="Ready", status="True", reason="R")])
    assert [key for key in samples(metrics) if ("cluster", "c") in key[1]]
    metrics.forget("n", "c")
    assert not [key for key in samples(metrics) if ("cluster", "c") in key[1]]
    metrics.forget("n", "c")


async def test_health_is_about_the_loop_and_not_about_a_cluster() -> None:
    idle, ready = 0.0, False
    async with (
        serving(
            free_port(),
            OperatorMetrics(),
            idle_for=lambda: idle,
            leading=lambda: True,
            not_watched=lambda: "",
            not_ready=lambda: "" if ready else "not watching yet",
            limit_s=900.0,
        ) as port,
        aiohttp.ClientSession() as session,
    ):

        async def status(path: str) -> int:
            """The same over IPv4 and IPv6."""
            found = set()
            for host in ("127.0.0.1", "[::1]"):
                async with session.get(f"http://{host}:{port}{path}") as answer:
                    found.add(answer.status)
            (one,) = found
            return one

        assert (await status("/healthz"), await status("/readyz"), await status("/metrics")) == (200, 503, 200)
        idle, ready = 901.0, True
        assert (await status("/healthz"), await status("/readyz"), await status("/metrics")) == (503, 200, 200)


async def test_its_port_has_few_connections_however_many_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_operator.running.MAX_CONNECTIONS", 5)
    async with serving(
        free_port(),
        OperatorMetrics(),
        idle_for=lambda: 0.0,
        leading=lambda: True,
        not_watched=lambda: "",
        not_ready=lambda: "",
        limit_s=900.0,
    ) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        async with asyncio.timeout(5):
            for reader, _ in silent[:10]:
                assert await reader.read() == b"", "whoever has been here for longest goes"
        assert not any(reader.at_eof() for reader, _ in silent[15:])
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        for _, writer in silent:
            writer.close()


async def test_who_takes_no_answer_of_its_port_goes_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_operator.running.MAX_CONNECTIONS", 5)
    metrics = OperatorMetrics()
    monkeypatch.setattr(metrics, "render", lambda: bytes(8_000_000))
    held = []
    async with serving(
        free_port(),
        metrics,
        idle_for=lambda: 0.0,
        leading=lambda: True,
        not_watched=lambda: "",
        not_ready=lambda: "",
        limit_s=900.0,
    ) as port:
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
            held.append(writer)
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                assert answer.status == 200

        def open_here() -> int:
            own = psutil.Process().net_connections("tcp")
            return sum(each.status == "ESTABLISHED" and each.laddr.port == port for each in own)

        await until(lambda: open_here() <= 5)
        left_at = time.monotonic()
    assert time.monotonic() - left_at < 30, "nor does it hold up the end"
    for writer in held:
        writer.transport.abort()
