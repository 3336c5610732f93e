"""The scrubber and the data-integrity check over HTTP."""

from __future__ import annotations

from bookie_pod.node.integrity.full_check import DataIntegrityState
from bookie_pod.storage.integrity.entry_check import ScrubCounts
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.scrub import ScrubState
from bookie_pod.storage.integrity.scrub_part import PartState, ScrubPhase
from tests.unit.bookie_pod.admin.conftest import Served

COUNTS = ScrubCounts(entries=5, digests=4, restored=1, logs=2, journals=0, rows=9, faults=1)
PART = PartState("/data/ledgers/current", ScrubPhase.INDEX, 7, 3, 10, 1_000, 500, COUNTS, ("no",))
DAMAGES = (
    Damage(DamageKind.LOG, "3.log at 0: its header", file_id=3, found_ms=40),
    Damage(DamageKind.ENTRY, "digest", file_id=3, ledger_id=0, entry_id=0, location=3 << 32 | 1028, found_ms=50),
    Damage(DamageKind.INDEX, "row", ledger_id=8, found_ms=60),
)


async def test_state(served: Served) -> None:
    served.admin.integrity.scrub = ScrubState(True, True, None, (PART,), DAMAGES, 12)
    assert (await served.get("bookie/scrub")).json == {
        "enabled": True,
        "running": True,
        "nextPassTime": None,
        "damages": 3,
        "damagesNotKept": 12,
        "directories": [
            {
                "directory": "/data/ledgers",
                "phase": "index",
                "passNumber": 7,
                "done": 3,
                "total": 10,
                "startedTime": 1_000,
                "completedTime": 500,
                "entries": 5,
                "digests": 4,
                "rows": 9,
                "restoredRows": 1,
                "entryLogs": 2,
                "journals": 0,
                "errors": ["no"],
            }
        ],
    }


async def test_a_request_begins_one_pass(served: Served) -> None:
    assert (await served.put("bookie/scrub")).json == {"triggered": True}
    assert (await served.put("bookie/scrub")).json == {"triggered": False}
    assert served.admin.integrity.requests == 2
    refused = await served("/api/v1/bookie/scrub", "POST")
    assert (refused.status, served.admin.integrity.requests) == (405, 2)


async def test_every_kind_of_damage(served: Served) -> None:
    served.admin.integrity.scrub = ScrubState(False, False, 9, (), DAMAGES, 0)
    found = (await served.get("bookie/scrub/damages")).json
    assert [(each["kind"], each["fileId"], each["ledgerId"], each["entryId"], each["foundTime"]) for each in found] == [
        ("entry log", 3, None, None, 40),
        ("entry", 3, 0, 0, 50),
        ("index", None, 8, None, 60),
    ]
    assert found[0]["detail"] == "3.log at 0: its header"


async def test_the_check_of_what_was_lost(served: Served) -> None:
    off = (await served.get("bookie/data_integrity")).json
    assert (off["enabled"], off["needed"]) == (False, False)
    served.admin.integrity.check = DataIntegrityState(True, True, 7, 3, 10, 2, 300, 1, "bookie-1 does not answer")
    assert (await served.get("bookie/data_integrity")).json == {
        "enabled": True,
        "needed": True,
        "running": True,
        "ledgersChecked": 10,
        "ledgersFailed": 2,
        "ledgersRecovered": 1,
        "entriesCopied": 300,
        "lastError": "bookie-1 does not answer",
        "inLimbo": 7,
    }
