"""One periodic check on a virtual clock: when it runs, what it takes up, and what it records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from itertools import pairwise
from typing import Any

import pytest

from bookie_pod.autorecovery.auditor.periodic import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MAX_AGE_MS,
    POLL_SECONDS,
    CheckParts,
    PeriodicCheck,
)
from bookie_pod.autorecovery.auditor.runs import AuditRecords, Check, Finished, Running, Runs
from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_pod.autorecovery.auditor.sweep import Look, Suspect
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable
from bookie_protocol.metadata_service.interface import LedgerRange
from bookie_protocol.metadata_service.under_replication import AuditorCheck
from tests.support.memory_records import MemoryRecords
from tests.support.virtual_loop import on_a_virtual_clock

NOW_MS = 1_700_000_000_000
LEDGERS = 4
INTERVAL_S = 1000


class Cluster:
    """Metadata of some ledgers, times of complete runs, and a check that looks at each for a second."""

    def __init__(self) -> None:
        self.memory = MemoryRecords()
        service: Any = self
        self.kept = AuditRecords(service)
        self.times: dict[AuditorCheck, int] = {}
        self.time_is_damaged = False
        self.under_replication = self
        self.ledgers = self
        self.clock = Clock(lambda: NOW_MS)
        self.enabled = asyncio.Event()
        self.enabled.set()
        self.looks: list[tuple[float, int]] = []
        self.fails_at: int | None = None
        self.defect: Exception = MetadataUnavailable("no answer")
        self.ran: list[tuple[Check, float, bool]] = []
        self.finished: list[Mapping[str, int]] = []
        self.skipped = 0

    def records(self, kind: str) -> object:
        return self.memory.of(kind)

    async def check_time(self, node: AuditorCheck) -> int | None:
        if self.time_is_damaged:
            raise MetadataDamaged("no time")
        return self.times.get(node)

    async def set_check_time(self, node: AuditorCheck, time_ms: int) -> None:
        self.times[node] = time_ms

    async def ranges(self) -> AsyncGenerator[LedgerRange, None]:
        yield LedgerRange(0, LEDGERS - 1, tuple(range(LEDGERS)))

    # --- the check

    async def look(self, ledger_id: int) -> Look:
        self.looks.append((self.now, ledger_id))
        if ledger_id == self.fails_at:
            raise self.defect
        await asyncio.sleep(1)
        return Look({"ledgers": 1})

    async def look_again(self, ledger_id: int, suspects: frozenset[Suspect]) -> Look:
        raise AssertionError("nothing is suspected")

    async def finish(self) -> Mapping[str, int]:
        return {"finished": 1}

    # --- its metrics

    def check_skipped(self) -> None:
        self.skipped += 1

    def check_ran(self, check: Check, milliseconds: float, success: bool) -> None:
        self.ran.append((check, milliseconds, success))

    def check_finished(self, check: Check, counts: Mapping[str, int]) -> None:
        self.finished.append(dict(counts))

    # --- the test's side

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def check(self, interval_s: int = INTERVAL_S, window: int = 1) -> PeriodicCheck:
        service: Any = self
        metrics: Any = self
        parts = CheckParts(service, self.kept, self.clock, self.enabled, asyncio.Lock(), metrics, "a1", 1.0)
        return PeriodicCheck(Check.LEDGERS, interval_s, window, lambda: self, parts)

    @property
    def begun(self) -> list[float]:
        """When passes looked at their first ledger."""
        return [at for at, ledger_id in self.looks if ledger_id == 0]


def with_a_cluster(main: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await main(Cluster())

    on_a_virtual_clock(run())


def begin(check: PeriodicCheck) -> asyncio.Task[None]:
    return asyncio.create_task(check.run())


def test_it_runs_at_once_and_then_an_interval_after_each_end() -> None:
    async def main(cluster: Cluster) -> None:
        check = cluster.check()
        begin(check)
        await asyncio.sleep(2.5)
        assert (check.is_running, check.progress.next_ledger, check.progress.counts) == (True, 2, {"ledgers": 2})
        running = check.runs.running
        assert running == Running(NOW_MS, 0, 0, {}, None)
        await asyncio.sleep(2)
        assert (check.is_running, check.progress.next_ledger, check.next_ms) == (
            False,
            0,
            NOW_MS + 4000 + INTERVAL_S * 1000,
        )
        last = Finished(NOW_MS, NOW_MS + 4000, 4000, {"ledgers": LEDGERS, "finished": 1}, None)
        assert check.runs == Runs("a1", None, last, None) == await cluster.kept.read(Check.LEDGERS)
        assert cluster.times == {AuditorCheck.ALL_LEDGERS: NOW_MS + 4000}
        assert (cluster.ran, cluster.finished) == ([(Check.LEDGERS, 4000, True)], [last.counts])
        await asyncio.sleep(2 * INTERVAL_S)
        assert cluster.begun == [0, INTERVAL_S + 4]

    with_a_cluster(main)


def test_one_without_an_interval_runs_when_somebody_asks_and_once() -> None:
    async def main(cluster: Cluster) -> None:
        check = cluster.check(interval_s=0)
        begin(check)
        await asyncio.sleep(500)
        assert (cluster.looks, check.next_ms) == ([], None)
        await cluster.kept.request(Check.LEDGERS, 5)
        await asyncio.sleep(500)
        assert cluster.begun == [500]
        assert check.runs.last is not None
        assert check.runs.last.request_ms == 5
        await cluster.kept.request(Check.LEDGERS, 3)  # by a clock that is behind: another one, too
        await asyncio.sleep(500)
        assert cluster.begun == [500, 1000]

    with_a_cluster(main)


def test_a_time_that_was_reset_is_met_by_the_next_look() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.times[AuditorCheck.ALL_LEDGERS] = NOW_MS
        begin(cluster.check())
        await asyncio.sleep(POLL_SECONDS + 10)
        del cluster.times[AuditorCheck.ALL_LEDGERS]
        await asyncio.sleep(POLL_SECONDS)
        assert cluster.begun == [2 * POLL_SECONDS]

    with_a_cluster(main)


def test_a_time_that_cannot_be_read_counts_as_never() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.time_is_damaged = True
        begin(cluster.check())
        await asyncio.sleep(1)
        assert cluster.begun == [0]

    with_a_cluster(main)


def test_while_auto_recovery_is_disabled_it_waits_and_looks_anew() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.enabled.clear()
        check = cluster.check()
        begin(check)
        await asyncio.sleep(300)
        assert (cluster.looks, cluster.skipped, check.is_running) == ([], 1, False)
        cluster.times[AuditorCheck.ALL_LEDGERS] = NOW_MS + 300_000  # another auditor was faster
        cluster.enabled.set()
        await asyncio.sleep(100)
        assert (cluster.looks, cluster.skipped) == ([], 1)
        await asyncio.sleep(INTERVAL_S)
        assert cluster.begun == [300 + INTERVAL_S]

    with_a_cluster(main)


def test_a_failure_is_recorded_and_tried_again_ever_more_rarely_where_it_was() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.fails_at = 2
        check = cluster.check()
        begin(check)
        await asyncio.sleep(1 + FIRST_PAUSE)
        failure = check.runs.failure
        assert failure is not None
        assert (failure.at_ms, failure.reason) == (NOW_MS + 2000, "no answer")
        assert check.runs.running == Running(NOW_MS, 2, 2000, {"ledgers": 2}, None)
        assert cluster.ran == [(Check.LEDGERS, 2000, False)]
        await asyncio.sleep(1000)
        tries = [at for at, ledger_id in cluster.looks if ledger_id == 2]
        pauses = [later - earlier for earlier, later in pairwise(tries)]
        assert pauses == [5, 10, 20, 40, 80, 160, LONGEST_PAUSE, LONGEST_PAUSE]
        cluster.fails_at = None
        await asyncio.sleep(LONGEST_PAUSE)
        last = check.runs.last
        assert last is not None
        assert (last.counts, last.started_ms, last.active_ms) == ({"ledgers": LEDGERS, "finished": 1}, NOW_MS, 4000)
        assert (check.runs.failure, check.runs.running) == (None, None)
        assert len(cluster.begun) == 1, "what was done is not done again"
        cluster.fails_at = 0
        await asyncio.sleep(INTERVAL_S + 2 * FIRST_PAUSE)
        first, second = cluster.begun[1:3]
        assert second - first == FIRST_PAUSE, "the pauses begin anew"

    with_a_cluster(main)


def test_a_defect_of_ours_ends_it() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.fails_at, cluster.defect = 1, ZeroDivisionError()
        check = cluster.check()
        with pytest.raises(ZeroDivisionError):
            await check.run()
        assert cluster.ran == [(Check.LEDGERS, 1000, False)]
        assert not check.is_running

    with_a_cluster(main)


@pytest.mark.parametrize(
    ("started_ms", "request_ms", "requested_ms", "taken_up"),
    [
        (NOW_MS - MAX_AGE_MS + 1, None, None, True),
        (NOW_MS - MAX_AGE_MS, None, None, False),
        (NOW_MS - 10, None, 7, False),
        (NOW_MS - 10, 7, 7, True),
        (NOW_MS - 10, 7, 8, False),
    ],
)
def test_what_another_auditor_left_is_taken_up_unless_it_is_too_old(
    started_ms: int, request_ms: int | None, requested_ms: int | None, taken_up: bool
) -> None:
    async def main(cluster: Cluster) -> None:
        running = Running(started_ms, 3, 500, {"ledgers": 3}, request_ms)
        await cluster.kept.write(Check.LEDGERS, Runs("a0", running))
        if requested_ms is not None:
            await cluster.kept.request(Check.LEDGERS, requested_ms)
        check = cluster.check()
        begin(check)
        await asyncio.sleep(10)
        assert [ledger_id for _, ledger_id in cluster.looks] == ([3] if taken_up else [0, 1, 2, 3])
        last = check.runs.last
        assert last is not None
        assert last.counts["ledgers"] == LEDGERS
        assert (last.started_ms, last.active_ms) == ((started_ms, 1500) if taken_up else (NOW_MS, 4000))
        assert last.request_ms == requested_ms

    with_a_cluster(main)


def test_one_that_is_off_is_not_taken_up() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.kept.write(Check.LEDGERS, Runs("a0", Running(NOW_MS, 3, 500, {"ledgers": 3})))
        begin(cluster.check(interval_s=0))
        await asyncio.sleep(10)
        assert cluster.looks == []

    with_a_cluster(main)


def test_one_that_is_not_due_is_taken_up_if_it_was_not_ended() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.times[AuditorCheck.ALL_LEDGERS] = NOW_MS - 10
        await cluster.kept.write(Check.LEDGERS, Runs("a0", Running(NOW_MS, 3, 500, {"ledgers": 3})))
        begin(cluster.check())
        await asyncio.sleep(10)
        assert [ledger_id for _, ledger_id in cluster.looks] == [3]

    with_a_cluster(main)


def test_passes_take_turns() -> None:
    async def main(cluster: Cluster) -> None:
        check = cluster.check()
        async with check._parts.turn:
            begin(check)
            await asyncio.sleep(100)
            assert cluster.looks == []
        await asyncio.sleep(1)
        assert cluster.begun == [100]

    with_a_cluster(main)


def test_requests_that_cannot_be_followed_are_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(cluster: Cluster) -> None:
        watch, followed = cluster.kept.watch_request, list[float]()

        def refuses(check: Check) -> Any:
            followed.append(cluster.now)
            if len(followed) == 1:
                raise MetadataUnavailable("no answer")
            return watch(check)

        monkeypatch.setattr(cluster.kept, "watch_request", refuses)
        cluster.times[AuditorCheck.ALL_LEDGERS] = NOW_MS
        running = begin(cluster.check())
        await asyncio.sleep(POLL_SECONDS + 10)
        assert followed == [0, POLL_SECONDS]
        await cluster.kept.request(Check.LEDGERS, 5)
        await asyncio.sleep(1)
        assert cluster.begun == [POLL_SECONDS + 10]
        running.cancel()
        await asyncio.wait([running])
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    with_a_cluster(main)


def test_the_audit_of_bookies_has_no_pass_of_this_kind() -> None:
    assert {check: check.node for check in Check} == {
        Check.BOOKIES: None,
        Check.LEDGERS: AuditorCheck.ALL_LEDGERS,
        Check.PLACEMENT: AuditorCheck.PLACEMENT_POLICY,
        Check.REPLICAS: AuditorCheck.REPLICAS,
    }
