"""What follows from failures, slowness and overload, on a clock of its own."""

from collections import Counter
from random import Random

import pytest

from bookie_client.connection.health import UNKNOWN_READ_SECONDS, BookieHealth
from bookie_client.connection.latency import LatencyEstimate
from bookie_client.options import ClientOptions
from bookie_protocol.errors import (
    BadRequest,
    BookieReadOnly,
    BookieTimeout,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    StorageFault,
    TooManyRequests,
)
from tests.support.clock import Clock


class Rig:
    def __init__(self, seed=1, **options):
        self.clock = Clock()
        self.health = BookieHealth(ClientOptions(**options), self.clock, Random(seed))

    def errors(self, bookie, count, error=StorageFault):
        for _ in range(count):
            self.health.record(bookie).refused(error, was_read=False)

    def reads(self, bookie, *seconds):
        for each in seconds:
            self.health.record(bookie).read_took(each, self.clock.now)


# --- quarantine -------------------------------------------------------------------------------------------


def test_too_many_errors_within_the_interval_and_for_how_long():
    rig = Rig(quarantine_errors=10, quarantine_interval=60.0, quarantine_time=300.0)
    rig.errors("a", 9)
    assert rig.health.quarantined() == frozenset()
    rig.errors("a", 1)
    rig.errors("b", 9)
    assert rig.health.quarantined() == {"a"}
    rig.clock.now += 299.9
    assert rig.health.quarantined() == {"a"}
    rig.clock.now += 0.2
    assert rig.health.quarantined() == frozenset()


def test_one_stall_is_one_event_however_many_requests_time_out():
    rig = Rig(add_timeout=5.0)
    for stall in range(3):
        assert rig.health.quarantined() == frozenset(), stall
        rig.errors("a", 300, BookieTimeout)
        rig.clock.now += 2.0
        rig.errors("a", 10_000, BookieTimeout)
        rig.clock.now += 6.0
    assert rig.health.quarantined() == {"a"}


def test_bookie_counts_as_unreachable_while_a_connection_is_stalled():
    rig, connection = Rig(), object()
    rig.health.record("a").stalled.add(connection)
    assert rig.health.failed_lately() == {"a"}
    rig.health.record("a").stalled.discard(connection)
    assert rig.health.failed_lately() == frozenset()


def test_errors_of_another_interval_do_not_count():
    rig = Rig(quarantine_errors=10, quarantine_interval=60.0)
    rig.errors("a", 9)
    rig.clock.now += 60.0
    rig.errors("a", 9)
    assert rig.health.quarantined() == frozenset()


@pytest.mark.parametrize("error", [NoSuchEntry, NoSuchLedger, LedgerFenced, BookieReadOnly])
def test_errors_that_say_nothing_against_the_bookie(error):
    rig = Rig(quarantine_errors=1)
    rig.health.record("a").refused(error, was_read=True)
    assert rig.health.quarantined() == rig.health.slow() == frozenset()


@pytest.mark.parametrize("error", [StorageFault, TooManyRequests, BookieTimeout])
def test_errors_that_do(error):
    rig = Rig(quarantine_errors=1)
    rig.errors("a", 1, error)
    assert rig.health.quarantined() == {"a"}


def test_the_ratio_decides_which_clients_take_part_once_in_an_interval():
    def takes_part(seed):
        rig = Rig(seed, quarantine_errors=5, quarantine_ratio=0.3)
        rig.errors("a", 100)
        return bool(rig.health.quarantined())

    taking_part = sum(map(takes_part, range(200)))
    assert 40 < taking_part < 80


def test_the_ratios_ends():
    for ratio, expected in ((0.0, frozenset()), (1.0, frozenset({"a"}))):
        rig = Rig(quarantine_errors=5, quarantine_ratio=ratio)
        rig.errors("a", 5)
        assert rig.health.quarantined() == expected


def test_a_quarantine_can_be_ended_and_switched_off():
    rig = Rig(quarantine_errors=5)
    rig.errors("a", 5)
    rig.health.release("a")
    assert rig.health.quarantined() == frozenset()
    rig.errors("a", 5)
    assert rig.health.quarantined() == {"a"}
    off = Rig(quarantine_errors=5, quarantine=False)
    off.errors("a", 50)
    assert off.health.quarantined() == frozenset()


def test_connection_failures_count_only_if_asked_for():
    for counted in (False, True):
        rig = Rig(quarantine_errors=2, quarantine_connection_errors=counted)
        for _ in range(2):
            rig.health.record("a").connection_failed(5.0)
        assert bool(rig.health.quarantined()) == counted


@pytest.mark.parametrize(
    "options",
    [{"quarantine_ratio": 1.1}, {"quarantine_ratio": -0.1}, {"quarantine_errors": 0}, {"channels_per_bookie": 0}],
)
def test_options_that_make_no_sense(options):
    with pytest.raises(BadRequest, match=next(iter(options))):
        ClientOptions(**options)


# --- failures and slowness --------------------------------------------------------------------------------


def test_failed_lately_ends_with_time_or_a_connection():
    rig = Rig()
    for bookie in ("a", "b"):
        rig.health.record(bookie).connection_failed(5.0)
    assert rig.health.failed_lately() == {"a", "b"}
    rig.health.record("b").connected(type("Connection", (), {"outstanding": 3})())
    assert rig.health.failed_lately() == {"a"}
    assert rig.health.outstanding("b") == 3
    assert rig.health.outstanding("nobody") == 0
    rig.clock.now += 5.0
    assert rig.health.failed_lately() == frozenset()


def test_a_failed_read_and_an_overtaken_one_make_slow_for_a_while():
    rig = Rig(failure_history=60.0)
    rig.health.record("a").refused(StorageFault, was_read=True)
    rig.health.record("b").refused(StorageFault, was_read=False)
    rig.health.mark_slow("c")
    assert rig.health.slow() == {"a", "c"}
    rig.clock.now += 60.0
    assert rig.health.slow() == frozenset()


def test_far_slower_than_the_peers():
    rig = Rig()
    rig.reads("a", *[0.005] * 20)
    assert rig.health.slow() == frozenset()
    rig.reads("b", *[0.1] * 20)
    assert rig.health.slow() == {"b"}
    rig.reads("c", *[0.006] * 20)
    assert rig.health.slow() == {"b"}
    # It is not asked any more, so nothing new is measured: after a while it gets another chance.
    rig.clock.now += 60.0
    assert rig.health.slow() == frozenset()


def test_small_differences_are_not_slow():
    rig = Rig()
    rig.reads("a", *[0.0001] * 20)
    rig.reads("b", *[0.005] * 20)
    assert rig.health.slow() == frozenset()


# --- expectation ------------------------------------------------------------------------------------------


def test_the_expectation_follows_what_is_measured():
    rig = Rig()
    assert rig.health.expected_read_seconds("a") == UNKNOWN_READ_SECONDS
    rig.reads("a", *[0.010] * 100)
    assert rig.health.expected_read_seconds("a") == pytest.approx(0.010, rel=0.01)
    assert rig.health.expected_read_seconds("b") == rig.health.expected_read_seconds("a")
    rig.reads("a", *[0.030] * 100)
    assert rig.health.expected_read_seconds("a") == pytest.approx(0.030, rel=0.01)


def test_the_expectation_covers_nearly_all_reads_of_an_unsteady_bookie():
    rig = Rig()
    random = Random(2)
    covered = 0
    for _ in range(2000):
        seconds = random.uniform(0.001, 0.02)
        covered += seconds <= rig.health.expected_read_seconds("a")
        rig.reads("a", seconds)
    assert covered > 1980


def test_the_expectation_never_exceeds_the_time_out():
    rig = Rig(read_timeout=1.0)
    rig.reads("a", 50.0)
    assert rig.health.expected_read_seconds("a") == 1.0
    assert rig.health.expected_read_seconds("b") == 1.0


@pytest.mark.parametrize("many", [100, 1000])
def test_a_read_costs_what_its_replicas_do_however_many_bookies_there_are(many, monkeypatch):
    rig = Rig()
    for at in range(many):
        rig.reads(f"bookie-{at}", 0.001)
    looked_at = Counter()
    is_measured = LatencyEstimate.is_measured

    def counted(estimate, now):
        looked_at["records"] += 1
        return is_measured(estimate, now)

    monkeypatch.setattr(LatencyEstimate, "is_measured", counted)
    for _ in range(1000):
        rig.health.troubles(["bookie-0", "bookie-1", "nobody"])
        rig.health.expected_read_seconds("nobody")
        rig.clock.now += 1e-6
    assert looked_at["records"] <= 1000 + many


def test_among_many_bookies_a_slow_one_is_found_as_well():
    rig = Rig()
    for at in range(100):
        rig.reads(f"bookie-{at}", 0.001)
    assert rig.health.troubles(["bookie-7"]).slow == frozenset()
    rig.reads("bookie-7", *[1.0] * 20)
    rig.clock.now += 0.01
    assert rig.health.troubles(["bookie-7", "bookie-8"]) == (frozenset(), frozenset(), {"bookie-7"})
