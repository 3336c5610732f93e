"""The scrubber and garbage collection on one storage."""

from __future__ import annotations

from bookie_pod.storage.integrity.quarantine import Damage, DamageKind, QuarantineRegister
from tests.support.gc_rig import GcRig


def test_damaged_logs_are_kept_until_the_damage_is_gone() -> None:
    rig = GcRig()
    rig.write([1], 3)
    rig.write([2], 3)
    rig.write([3], 3)
    first, second, _ = (log_id for log_id in rig.logs.log_ids() if rig.logs.is_flushed(log_id))
    register = QuarantineRegister([Damage(DamageKind.ENTRY, "broken", first, 1, 0, (first << 32) | 1028)])
    rig.gc.excluded = register.held_logs
    rig.delete(1, 2)
    rig.gc.run_pass()
    assert rig.logs.exists(first)
    assert not rig.logs.exists(second)
    assert first not in [each.log_id for each in rig.gc.usages()]
    reason = rig.gc.report(first).reason
    assert "the scrubber found damage in it (broken)" in reason
    assert "PUT /api/v1/bookie/scrub" in reason
    assert (rig.gc.state().held, rig.gc.state().quarantined) == ({first: "broken"}, {})
    unmeasured = rig.gc.forecast().unmeasured
    register.end_pass(1)
    assert rig.gc.state().held == {}
    assert rig.gc.report(first).reason == "not looked at yet: the next pass will"
    assert rig.gc.forecast().unmeasured == unmeasured + 1
    rig.gc.run_pass()
    assert not rig.logs.exists(first)
    rig.storage.close()
