"""One term of an auditor: how it begins, what it follows, and what it tells; on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_client.replication.check import CheckOptions
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor import term
from bookie_pod.autorecovery.auditor.bookie_audit import AuditResult
from bookie_pod.autorecovery.auditor.periodic import CheckMetrics
from bookie_pod.autorecovery.auditor.runs import Check
from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_pod.autorecovery.auditor.term import PAUSE_SECONDS, Sources, Term, sources_of
from tests.support.auditor_rig import QUIET
from tests.support.virtual_loop import virtually
from tests.unit.bookie_pod.autorecovery.auditor.audited_cluster import NOW_MS, Cluster


def a_term(cluster: Cluster) -> Term:
    service: Any = cluster
    nobody: Any = None
    sources = Sources(nobody, nobody, nobody, nobody, nobody, nobody)
    return Term(service, sources, QUIET, _Instruments(), cluster.clock, Random(1), "a1", "v1")  # type: ignore[arg-type]


class _Instruments:
    """Whatever is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values, **named: self.told.append((name, *values, named))


@pytest.mark.parametrize(
    ("settings", "reads", "throttled"),
    [
        ({"checker_reads_in_flight": 5}, 5, (None, None)),
        ({"checker_reads_in_flight": 0}, 7, (None, None)),
        ({"checker_reads_in_flight": -1}, 7, (None, None)),
        ({"auditor_reads_per_second": 3, "auditor_read_bytes_per_second": 4000}, 7, (4000, 3)),
    ],
)
def test_what_an_auditor_reads_is_bounded(
    settings: dict[str, int], reads: int, throttled: tuple[int | None, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[object, object]] = []
    throttles: list[tuple[object, object]] = []

    def throttle(nbytes: int | None, operations: int | None) -> ReplicationThrottle:
        throttles.append((nbytes, operations))
        return ReplicationThrottle()

    monkeypatch.setattr(term, "LedgerChecker", lambda client, options: made.append((client, options)) or len(made))
    monkeypatch.setattr(term, "ReplicationThrottle", throttle)
    client: Any = SimpleNamespace(
        operations=SimpleNamespace(entries_of_ledger="lists"), placement="policy", cluster_view="view"
    )
    fixed = {"auditor_max_concurrent_opens": 7, "auditor_verification_percentage": 12}
    config = replace(QUIET, **{"checker_reads_in_flight": 0, "auditor_read_bytes_per_second": 0, **fixed, **settings})
    sources = sources_of(client, config)
    assert sources == Sources(1, 2, "lists", sources.ask_end, "policy", "view")  # type: ignore[arg-type]
    (_, thorough), (_, short) = made
    assert isinstance(thorough, CheckOptions)
    assert isinstance(short, CheckOptions)
    assert (thorough.max_reads, thorough.verification_percentage, short.verification_percentage) == (reads, 12, 0)
    assert throttles == [throttled] * 2


@virtually
async def test_a_term_that_cannot_begin_begins_later() -> None:
    cluster = Cluster()
    cluster.down = {"initialize"}
    made = a_term(cluster)
    beginning = asyncio.create_task(made._prepare())
    await asyncio.sleep(PAUSE_SECONDS + 1)
    assert not beginning.done()
    cluster.down = set()
    await asyncio.sleep(PAUSE_SECONDS)
    assert beginning.done()
    assert cluster.now == 2 * PAUSE_SECONDS + 1


@virtually
async def test_a_term_follows_whether_auto_recovery_is_enabled() -> None:
    cluster = Cluster()
    made = a_term(cluster)
    cluster.down = {"watch enabled"}
    following = asyncio.create_task(made._follow_enabled())
    await asyncio.sleep(1)
    assert not made.enabled.is_set()
    cluster.down = set()
    await asyncio.sleep(PAUSE_SECONDS)
    assert made.enabled.is_set()
    for is_on in (False, True):
        cluster.is_on = is_on
        cluster.change("enabled")
        await asyncio.sleep(0.1)
        assert made.enabled.is_set() is is_on
    following.cancel()


@virtually
async def test_a_term_tells_who_is_absent_and_how_its_checks_are() -> None:
    cluster = Cluster()
    made = a_term(cluster)
    membership = made.lost_bookies.membership
    membership.observe(frozenset({"a"}), NOW_MS)
    membership.restore({"b": NOW_MS - 1000, "c": NOW_MS - 500})
    membership.delay_s = 1
    (b, c) = made.absent()
    assert (b.bookie_id, b.since_ms, b.lost_at_ms, b.is_lost, b.is_audited) == (
        "b",
        NOW_MS - 1000,
        NOW_MS,
        True,
        False,
    )
    assert (c.bookie_id, c.is_lost) == ("c", False)
    statuses = made.check_statuses()
    assert [each.check for each in statuses] == list(Check)
    assert not any(each.is_running or each.next_ledger is not None or each.counts for each in statuses)
    made.lost_bookies.running = AuditResult(ledgers=3)
    bookies = made.check_statuses()[0]
    assert (bookies.is_running, bookies.counts["ledgers"]) == (True, 3)
    made._came_back({"b": 5})
    assert made.withdrawals._wake.is_set()


@virtually
async def test_what_is_counted_is_handed_on() -> None:
    instruments = _Instruments()
    metrics = CheckMetrics(instruments, Clock(lambda: NOW_MS))  # type: ignore[arg-type]
    metrics.audit_ran(5.0, None)
    metrics.audit_ran(6.0, AuditResult(marked=2, marked_bytes=30, publish_ms=4.0))
    metrics.check_ran(Check.LEDGERS, 7.0, True)
    metrics.check_finished(Check.LEDGERS, {"ledgers": 1})
    assert instruments.told == [
        ("audited", 5.0, {"success": False}),
        ("audited", 6.0, {"success": True, "marked": 2, "nbytes": 30, "publish_ms": 4.0}),
        ("check_finished", "bookies", NOW_MS, {}, {}),
        ("check_ran", "ledgers", 7.0, {"success": True}),
        ("check_finished", "ledgers", NOW_MS, {"ledgers": 1}, {}),
    ]
