"""What upkeep is at, as the watch sees it: a pass that hangs stays at one step, one that goes slowly on purpose does
not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.storage.gc.collection_pass import COMPACTING_INDEX
from bookie_pod.storage.gc.throttle import CollectionStopped, ScrubPace
from bookie_pod.storage.integrity.scrub import Scrubber
from tests.support.gc_rig import FAST, GcRig
from tests.support.until import until_true


@contextmanager
def running(work: Callable[[], object]) -> Iterator[None]:
    def run() -> None:
        try:
            work()
        except CollectionStopped:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive()


class Hang:
    """A call that ends when it is let go."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *_: object, **__: object) -> Any:
        self.begun.set()
        assert self.go_on.wait(10)
        raise CollectionStopped


def moves(step: Callable[[], object]) -> bool:
    """Whether it becomes another one, in a moment."""
    before, until = step(), time.monotonic() + 0.1
    while time.monotonic() < until:
        if step() != before:
            return True
        time.sleep(0.001)
    return False


@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_a_collection_that_hangs_stays_at_its_step(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, hang = GcRig(engine=engine), Hang()
    rig.write([1, 2], 3)
    assert rig.gc.step() == ("gc-0", None)
    monkeypatch.setattr(rig.logs, "ledgers_map", hang)
    with running(rig.gc.run_pass):
        assert hang.begun.wait(10)
        assert rig.gc.step()[1] is not None
        assert not moves(rig.gc.step)
        monkeypatch.undo()
        rig.gc.begin_stop()
        hang.go_on.set()
    assert rig.gc.step() == ("gc-0", None)


def test_a_collection_that_is_slow_on_purpose_moves_on() -> None:
    rig = GcRig(replace(FAST, compaction_rate_by_bytes=1))
    rig.write([1], 3)
    rig.write([1, 2], 30, size=2000, first=3)
    rig.delete(2)
    with running(lambda: rig.force()):
        until_true(lambda: rig.gc.step()[1] is not None, 10)
        before = rig.gc.step()
        until_true(lambda: rig.gc.step() != before, 10)
        assert rig.gc.step()[1] is not None
        rig.gc.begin_stop()


def test_the_compaction_of_an_index_tells_nothing_until_its_end() -> None:
    rig = GcRig()
    rig.gc._reclaimer.phase = COMPACTING_INDEX
    assert rig.gc.step() == ("gc-0", None)


def test_a_scrub_that_hangs_stays_at_its_step_and_one_that_is_paced_moves_on() -> None:
    stopped, hang, paced = threading.Event(), Hang(), threading.Event()
    pace = ScrubPace(stopped, entries_per_second=1, bytes_per_second=0)

    def run() -> bool:
        with suppress(CollectionStopped):
            hang()
        paced.set()
        while True:
            pace.pay(1, 1)

    part: Any = SimpleNamespace(run=run, is_interrupted=False, register=(), position=SimpleNamespace(completed_ms=0))
    scrubber = Scrubber([part], stopped, interval_s=0, turns=lambda: pace.turns)
    assert scrubber.step() is None
    with running(scrubber.run_pass):
        assert hang.begun.wait(10)
        assert scrubber.step() is not None
        assert not moves(scrubber.step)
        hang.go_on.set()
        assert paced.wait(10)
        before = scrubber.step()
        until_true(lambda: scrubber.step() != before, 10)
        stopped.set()
    assert scrubber.step() is None
