"""The location index is rewritten now and then: when, how often, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bookie_pod.metrics.gc import GcMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.state_file import GcStateFile
from bookie_protocol.errors import StorageFault
from tests.support.gc_rig import FAST, GcRig

INTERVAL = 60_000
"""Milliseconds."""


class _Delay(Random):
    """Says which part of the spread each interval gets; asserts that the spread is one interval."""

    def __init__(self, *delays: int) -> None:
        super().__init__()
        self._delays = list(delays)

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        assert (start, stop) == (INTERVAL, None)
        return self._delays.pop(0)


class Rewritten:
    """A rig that notes when its index was rewritten. `delays`: the random part of each interval."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, interval_s: int, *delays: int) -> None:
        self.rig = rig = GcRig()
        self.at: list[int] = []
        self.fault: StorageFault | None = None
        self._registry = Registry()
        rig.gc = GarbageCollector(
            rig.parts,
            rig.metadata,
            GcStateFile(rig.bookie.files, rig.bookie.directories[0]),
            replace(FAST, entry_location_compaction_interval_s=interval_s),
            metrics=GcMetrics(self._registry, None),
            now_ms=lambda: rig.now,
            random=_Delay(*delays),
        )
        self._begin = rig.now
        self._plain = rig.locations.compact
        monkeypatch.setattr(rig.locations, "compact", self._compact)

    def _compact(self) -> None:
        if self.fault is not None:
            raise self.fault
        self._plain()
        self.at.append(self.rig.now - self._begin)

    def pass_at(self, ms: int) -> list[str]:
        """A pass so long after the begin; its errors."""
        self.rig.now = self._begin + ms
        return self.rig.gc.run_pass().errors

    @property
    def told(self) -> tuple[int, int]:
        """The state's counter and when it was rewritten last, after the begin."""
        state = self.rig.gc.state()
        return state.index_count, state.last_index_ms - self._begin

    @property
    def counted(self) -> str:
        (line,) = [
            line
            for line in self._registry.render().splitlines()
            if line.startswith("bookie_ENTRY_LOCATION_COMPACTION_TOTAL ")
        ]
        return line.split()[-1]


def test_after_the_interval_and_a_random_part_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = Rewritten(monkeypatch, INTERVAL // 1000, 20_000, 0, INTERVAL - 1)
    rewritten.rig.write([1, 2], 3)
    for ms in (0, INTERVAL, INTERVAL + 19_999):
        rewritten.pass_at(ms)
    assert (rewritten.at, rewritten.told, rewritten.counted) == ([], (0, 0), "0")
    for ms in (80_000, 80_001, 139_999):
        assert rewritten.pass_at(ms) == []
    assert (rewritten.at, rewritten.told, rewritten.counted) == ([80_000], (1, 80_000), "1")
    rewritten.pass_at(140_000)
    assert (rewritten.at[1:], rewritten.told, rewritten.counted) == ([140_000], (2, 140_000), "2")
    rewritten.pass_at(140_000 + 2 * INTERVAL - 2)  # the delay is the longest there is
    assert len(rewritten.at) == 2
    assert len(rewritten.rig.readable(1)) == 3


def test_one_that_fails_is_tried_again_by_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = Rewritten(monkeypatch, INTERVAL // 1000, 0, 0)
    rewritten.fault = StorageFault("no room")
    assert rewritten.pass_at(INTERVAL) == ["compacting the location index: no room"]
    assert (rewritten.told, rewritten.counted) == ((0, 0), "0")
    rewritten.fault = None
    assert rewritten.pass_at(INTERVAL + 1) == []
    assert (rewritten.at, rewritten.told) == ([INTERVAL + 1], (1, INTERVAL + 1))


@pytest.mark.parametrize("interval_s", [0, -1])
def test_switched_off(monkeypatch: pytest.MonkeyPatch, interval_s: int) -> None:
    rewritten = Rewritten(monkeypatch, interval_s)
    rewritten.pass_at(10 * 365 * 86_400_000)
    assert (rewritten.at, rewritten.told) == ([], (0, 0))
