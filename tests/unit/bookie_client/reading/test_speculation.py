"""When the next replica is asked although the one before may still answer."""

from math import inf

import pytest

from bookie_client.options import ClientOptions
from bookie_client.reading.speculation import LEAST_ADAPTIVE_DELAY, SpeculationPolicy, Speculator
from bookie_protocol.errors import BadRequest


class Timers:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now = 0.0
        self.set = []
        self.cancelled = 0

    def time(self):
        return self.now

    def call_at(self, when, callback):
        timer = Timer(self, when, callback)
        self.set.append(timer)
        return timer

    def advance(self, to):
        while self.set and min(timer.when for timer in self.set) <= to:
            timer = min(self.set, key=lambda timer: timer.when)
            self.set.remove(timer)
            self.now = max(self.now, timer.when)
            timer.callback()
        self.now = to


class Timer:
    def __init__(self, timers, when, callback):
        self.timers, self.when, self.callback = timers, when, callback

    def cancel(self):
        self.timers.set.remove(self)
        self.timers.cancelled += 1


class Reads:
    def __init__(self, due, again=inf):
        self.due, self.again, self.looks = due, again, []

    def speculate(self, now, alive):
        self.looks.append((now, alive))
        self.due = now + self.again


def policy(**options):
    return SpeculationPolicy.of(ClientOptions(**options))


def test_an_adaptive_delay_follows_what_is_expected_within_bounds():
    adaptive = policy()
    assert adaptive.first_delay(0.2) == pytest.approx(0.6)
    assert adaptive.first_delay(0.0001) == LEAST_ADAPTIVE_DELAY
    assert adaptive.first_delay(100) == 2.0
    assert not adaptive.is_off


def test_a_configured_delay_is_taken_as_it_is():
    configured = policy(first_speculative_read_timeout=0.3, max_speculative_read_timeout=1.0)
    assert configured.first_delay(0.0001) == 0.3
    assert [configured.next_delay(delay) for delay in (0.3, 0.6, 1.0)] == [0.6, 1.0, 1.0]
    assert policy(first_speculative_read_timeout=9.0).first_delay(0) == 2.0
    assert policy(speculative_read_backoff_multiplier=3.0).next_delay(0.1) == pytest.approx(0.3)
    assert policy(first_speculative_read_timeout=0).is_off


@pytest.mark.parametrize(
    "options", [{"first_speculative_read_timeout": -1}, {"speculative_read_backoff_multiplier": 0.5}]
)
def test_nonsense_is_refused(options):
    with pytest.raises(BadRequest, match=next(iter(options))):
        ClientOptions(**options)


def test_reads_are_looked_after_when_due_and_one_timer_serves_all():
    timers, first, second = Timers(), Reads(1.0, again=2.0), Reads(1.5)
    speculator = Speculator(timers, {})
    speculator.watch(first)
    speculator.watch(second)
    assert len(timers.set) == 1
    timers.advance(0.99)
    assert first.looks == []
    timers.advance(10.0)
    assert [now for now, _ in first.looks] == [1.0, 3.0, 5.0, 7.0, 9.0]
    assert [now for now, _ in second.looks] == [1.5]
    speculator.forget(first)
    timers.advance(20.0)
    assert timers.set == []


def test_an_earlier_read_moves_the_timer():
    timers, late, early = Timers(), Reads(2.0), Reads(0.5)
    speculator = Speculator(timers, {})
    speculator.watch(late)
    speculator.watch(early)
    assert [timer.when for timer in timers.set] == [0.5]
    assert timers.cancelled == 1
    timers.advance(2.0)
    assert [now for now, _ in early.looks + late.looks] == [0.5, 2.0]


def test_who_answered_since_the_last_look_counts_as_alive():
    timers, reads, served = Timers(), Reads(1.0, again=1.0), {"A": 5, "B": 1}
    speculator = Speculator(timers, served)
    speculator.watch(reads)
    served["A"] += 1
    timers.advance(1.0)
    served["B"] += 1
    timers.advance(2.0)
    timers.advance(3.0)
    assert [alive for _, alive in reads.looks] == [{"A"}, {"B"}, set()]


def test_nothing_is_set_after_stop_nor_for_reads_that_are_never_due():
    timers, reads = Timers(), Reads(1.0)
    speculator = Speculator(timers, {})
    speculator.watch(Reads(inf))
    assert timers.set == []
    speculator.watch(reads)
    speculator.stop()
    assert timers.set == []
    timers.advance(5.0)
    assert reads.looks == []


def test_nothing_is_looked_at_once_all_have_ended():
    timers, reads = Timers(), Reads(1.0)
    speculator = Speculator(timers, {})
    speculator.watch(reads)
    speculator.forget(reads)
    timers.advance(2.0)
    assert (reads.looks, timers.set) == ([], [])
    speculator.watch(Reads(2.5))
    assert [timer.when for timer in timers.set] == [2.5]


def test_who_answered_since_the_first_began_to_wait_is_alive_for_all():
    timers, served, first, second = Timers(), {"A": 3, "B": 5}, Reads(1.0), Reads(1.0)
    speculator = Speculator(timers, served)
    speculator.watch(first)
    served["A"] = 4
    speculator.watch(second)
    timers.advance(1.0)
    assert first.looks == second.looks == [(1.0, frozenset("A"))]
    later = Reads(2.0)
    speculator.forget(first)
    speculator.forget(second)
    served["B"] = 6
    speculator.watch(later)
    timers.advance(2.0)
    assert later.looks == [(2.0, frozenset())], "what was answered before it waited does not count"


def test_what_was_stopped_is_forgotten_though_others_come_later():
    timers, before, later = Timers(), Reads(1.0), Reads(6.0)
    speculator = Speculator(timers, {})
    speculator.watch(before)
    speculator.stop()
    assert timers.set == []
    speculator.watch(later)
    timers.advance(6.0)
    assert (before.looks, len(later.looks)) == ([], 1)
