"""The scrubber's metrics have the reference's names."""

from __future__ import annotations

from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import ScrubMetrics
from tests.support.scrub_rig import ScrubRig


def test_what_a_pass_exports() -> None:
    registry = Registry()
    instruments = ScrubMetrics(registry)
    rig = ScrubRig()
    rig.write([1], 4)
    path, position = rig.place(1, 2)
    rig.storage.close()
    rig.open(instruments)
    rig.flip(path, position + 60)
    rig.run()
    instruments.ran(12.0, True)
    instruments.repaired(1)
    instruments.bind_levels(damages={"ENTRY": lambda: 1}, last_pass_ms=lambda: rig.now, running=lambda: False)
    lines = registry.render().splitlines()
    assert "scrubber_detectedScrubErrors 1" in lines
    assert "scrubber_detectedFatalScrubErrors 0" in lines
    assert "scrubber_SCRUBBED_ENTRIES 8" in lines, "once in its log, once through the index"
    assert "scrubber_REPAIRED_ENTRIES 1" in lines
    assert 'scrubber_runTime_count{success="true"} 1' in lines
    assert 'scrubber_DAMAGES{kind="ENTRY"} 1' in lines
    rig.storage.close()
