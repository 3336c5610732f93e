"""The scrubber and garbage collection on one storage."""

from __future__ import annotations

import threading

import pytest

from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.integrity.entry_check import ReadCheck
from bookie_pod.storage.integrity.ledger_scrub import LedgerScrub
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind, QuarantineRegister
from bookie_protocol.errors import EntryDamaged, NotThere
from tests.support.gc_rig import GcRig
from tests.support.scrub_rig import FixedDigests, signed
from tests.support.storage_engine import MemoryBookie, put


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


def test_what_a_scrub_has_put_back_behind_the_rest_of_a_power_cut_proves_nothing_to_collection() -> None:
    rig = GcRig(bookie=MemoryBookie.without_read_cache())
    put(rig.storage, *(signed(ledger_id, entry_id) for ledger_id in (2, 3) for entry_id in range(5)))
    log_id = rig.write([2], 1, first=5)
    rig.metadata.ledgers[3] = None
    rig.restart()
    rig.forget_map(log_id)
    rig.flip(log_id, split_location(rig.parts.location_of(3, 3))[1] + 60)
    for torn in (3, 4):
        rig.drop_row(3, torn)
    pace = ScrubPace(threading.Event(), entries_per_second=0, bytes_per_second=0)
    folder = rig.bookie.directories[0]
    scrub = LedgerScrub(rig.parts, rig.bookie.files, folder, pace, FixedDigests(), now_ms=lambda: rig.now)
    scrub.run()
    assert [each for each in scrub.register.damages() if each.ledger_id == 3] == []
    assert split_location(rig.parts.location_of(3, 4))[0] == log_id
    rig.delete(2)
    assert rig.force().logs_compacted == 1
    assert rig.storage.read(3, 4) == signed(3, 4)
    with pytest.raises(NotThere):
        rig.storage.read(3, 3)
    rig.storage.close()


def test_an_entry_of_which_nobody_can_tell_keeps_its_log() -> None:
    rig = GcRig(bookie=MemoryBookie.without_read_cache())
    put(rig.storage, *(signed(ledger_id, entry_id) for ledger_id in (1, 2) for entry_id in range(5)))
    log_id = rig.write([2], 1, first=5)
    rig.metadata.ledgers[1] = None
    rig.restart()
    rig.forget_map(log_id)
    rig.flip(log_id, split_location(rig.parts.location_of(1, 4))[1] + 60)
    rig.drop_row(1, 4)
    rig.logs.check_with(ReadCheck(FixedDigests(None), lambda damage, asked: None))
    rig.delete(2)
    result = rig.force()
    assert (result.logs_compacted, rig.logs.exists(log_id)) == (0, True)
    assert rig.gc.state().quarantined == {}, "it will be tried again"
    rig.logs.check_with(ReadCheck(FixedDigests(), lambda damage, asked: None))
    assert rig.force().logs_compacted == 1
    with pytest.raises(NotThere):
        rig.storage.read(1, 4)
    rig.storage.close()


@pytest.mark.parametrize("torn", [3, 4])
def test_what_a_power_cut_has_left_at_the_end_of_a_log_is_not_copied(torn: int) -> None:
    rig = GcRig(bookie=MemoryBookie.without_read_cache())
    put(rig.storage, *(signed(ledger_id, entry_id) for ledger_id in (1, 2) for entry_id in range(5)))
    log_id = rig.write([2], 1, first=5)
    rig.metadata.ledgers[1] = None
    rig.restart()
    rig.forget_map(log_id)
    rig.flip(log_id, split_location(rig.parts.location_of(1, torn))[1] + 60)
    rig.drop_row(1, torn)
    rig.logs.check_with(ReadCheck(FixedDigests(), lambda damage, asked: None))
    rig.delete(2)
    assert rig.force().logs_compacted == 1
    assert not rig.logs.exists(log_id)
    assert rig.storage.read(1, 2) == signed(1, 2)
    with pytest.raises(EntryDamaged if torn == 3 else NotThere):  # behind the third is one that was acknowledged
        rig.storage.read(1, torn)
    rig.storage.close()
