"""Garbage collection over HTTP: force, hold back, ask."""

from __future__ import annotations

import pytest

from bookie_pod.admin.gc import read_log_id
from bookie_pod.storage.gc.log_usage import LogUsage
from bookie_pod.storage.gc.reports import LogReport, PassResult
from bookie_pod.storage.gc.schedule import Compaction
from bookie_protocol.errors import BadRequest
from tests.support.fake_admin import gc_state
from tests.unit.bookie_pod.admin.conftest import Served


@pytest.mark.parametrize(
    ("body", "suspended", "forced"),
    [
        (None, (False, False), (None, None)),
        (" ", (True, True), (None, None)),
        ('{"forceMajor": true}', (False, False), (True, True)),
        ('{"forceMajor": true}', (True, True), (True, False)),
        ('{"forceMajor": false}', (True, False), (False, True)),
        ('{"forceMinor": "TRUE"}', (True, False), (False, True)),
        ("{}", (True, True), (False, False)),
        ('{"forceMajor": "yes", "forceMinor": true}', (False, False), (False, True)),
    ],
)
async def test_what_is_forced(
    served: Served, body: str | None, suspended: tuple[bool, bool], forced: tuple[bool | None, bool | None]
) -> None:
    gc = served.admin.gc
    gc.major_suspended, gc.minor_suspended = suspended
    answer = await served.put("bookie/gc", body)
    assert (answer.status, answer.json) == (200, "Triggered GC on BookieServer: 127.0.0.1:32700")
    assert gc.forced == [forced]


@pytest.mark.parametrize("body", ["not json", "[]", "[" * 100_000, b"\xff\xfe", "true", "1" * 5000])
async def test_a_body_that_is_no_object_forces_nothing(served: Served, body: str | bytes) -> None:
    answer = await served.put("bookie/gc", body)
    assert answer.status == 400
    assert "Failed to deserialize" in answer.body
    assert served.admin.gc.forced == []


@pytest.mark.parametrize("verb", ["suspend", "resume"])
async def test_one_kind_of_compaction(served: Served, verb: str) -> None:
    gc, suspends = served.admin.gc, verb == "suspend"
    gc.major_suspended = gc.minor_suspended = not suspends
    answer = await served.put(f"bookie/gc/{verb}_compaction", f'{{"{verb}Minor": true, "{verb}Major": false}}')
    assert answer.json == (
        f"{verb.capitalize()} minorGC on BookieServer: Bookie Server listening on 127.0.0.1:32700"
        " with id 127.0.0.1:32700"
    )
    assert (gc.minor_suspended, gc.major_suspended) == (suspends, not suspends)
    assert (await served.put(f"bookie/gc/{verb}_compaction", f'{{"{verb}Major": 1}}')).status == 400


async def test_deletions_are_allowed_by_number_or_for_older_metadata(served: Served) -> None:
    served.admin.gc.collectors = [("/data", gc_state(deletions_held="6 of 10 ledgers", ledgers_waiting=6))]
    answer = await served.put("bookie/gc/deletions", '{"ledgers": 6}')
    assert answer.json[0]["deletionsHeld"] == "6 of 10 ledgers"
    assert answer.json[0]["ledgersAwaitingDeletion"] == 6
    await served.put("bookie/gc/deletions", '{"olderMetadata": true}')
    assert served.admin.gc.allowed == [(6, False), (0, True)]
    for refused in ("{}", '{"ledgers": 0}', '{"ledgers": -1}', '{"ledgers": "6"}', '{"ledgers": true}', "[]"):
        assert (await served.put("bookie/gc/deletions", refused)).status == 400
    assert len(served.admin.gc.allowed) == 2


async def test_details_have_the_fields_and_types_of_the_reference(served: Served) -> None:
    served.admin.gc.collectors = [
        ("/a", gc_state(force_compacting=True, major_compacting=True, last_major_ms=7, major_count=2)),
        ("/b", gc_state(minor_compacting=True, last_minor_ms=9, minor_count=3, last_index_ms=5, index_count=1)),
    ]
    first, second = (await served.get("bookie/gc_details")).json
    assert first == {
        "forceCompacting": True,
        "majorCompacting": True,
        "minorCompacting": False,
        "lastMajorCompactionTime": 7,
        "lastMinorCompactionTime": 0,
        "lastEntryLocationCompactionTime": 0,
        "majorCompactionCounter": 2,
        "minorCompactionCounter": 0,
        "entryLocationCompactionCounter": 0,
    }
    assert (second["minorCompacting"], second["minorCompactionCounter"]) == (True, 3)
    assert (second["lastEntryLocationCompactionTime"], second["entryLocationCompactionCounter"]) == (5, 1)


async def test_progress_tells_the_phase_and_the_last_pass(served: Served) -> None:
    done = PassResult(1, 2, 3, 4000, Compaction.MAJOR, ["entry log 3.log: no space"])
    served.admin.gc.collectors = [
        ("/data/ledgers", gc_state(phase="measuring entry logs", done=4, total=9, last_pass=done, minor_suspended=True))
    ]
    assert (await served.get("bookie/gc/progress")).json == [
        {
            "directory": "/data/ledgers",
            "phase": "measuring entry logs",
            "done": 4,
            "total": 9,
            "forceCompacting": False,
            "majorSuspended": False,
            "minorSuspended": True,
            "lastPass": {
                "ledgersDeleted": 1,
                "logsDeleted": 2,
                "logsCompacted": 3,
                "reclaimedBytes": 4000,
                "compaction": "major",
                "errors": ["entry log 3.log: no space"],
            },
            "deletionsHeld": None,
            "ledgersAwaitingDeletion": 0,
        }
    ]


@pytest.mark.parametrize(
    ("text", "log_id"),
    [("31", 31), ("1f", 31), ("1F", 31), ("0x1f", 31), ("1f.log", 31), ("31.log", 0x31), ("0x31", 0x31), ("0", 0)],
)
def test_names_and_ids_of_entry_logs(text: str, log_id: int) -> None:
    assert read_log_id(text) == log_id


@pytest.mark.parametrize("text", ["", ".log", "0x", "-1", "1g", "1f.LOG", "../1f.log", "٣", "1" * 17, "0x1f.log.log"])
def test_what_names_no_entry_log(text: str) -> None:
    with pytest.raises(BadRequest, match="entryLog="):
        read_log_id(text)


async def test_why_a_log_is_still_there(served: Served) -> None:
    usage = LogUsage(31, total=1000, remaining=250, ledgers=2, in_doubt=50)
    served.admin.gc.log_reports = {
        31: LogReport(31, "/data/ledgers/current/1f.log", 1100, usage, [(7, 200), (9, 50)], "because", 90),
        32: LogReport(32, "/data/ledgers/current/20.log", 5, None, None, "not looked at yet", 0),
    }
    assert (await served.get("bookie/gc/why?entryLog=1f.log")).json == [
        {
            "directory": "/data/ledgers",
            "entryLog": "1f.log",
            "entryLogId": 31,
            "path": "/data/ledgers/current/1f.log",
            "size": 1100,
            "usage": 0.25,
            "liveBytes": 250,
            "inDoubtBytes": 50,
            "owners": [{"ledgerId": 7, "bytes": 200}, {"ledgerId": 9, "bytes": 50}],
            "reason": "because",
            "ageSeconds": 90,
        }
    ]
    (unknown,) = (await served.get("bookie/gc/why?entryLog=32")).json
    assert (unknown["usage"], unknown["owners"], unknown["liveBytes"]) == (None, None, None)
    missing = await served.get("bookie/gc/why?entryLog=33")
    assert (missing.status, missing.line) == (404, "there is no entry log 21.log (id 33) here")
    assert (await served.get("bookie/gc/why")).status == 400
    assert (await served.get("bookie/gc/why?entryLog=zz")).status == 400


async def test_forecast(served: Served) -> None:
    (found,) = (await served.get("bookie/gc/forecast")).json
    assert [each["fromPercent"] for each in found["usage"]] == list(range(0, 100, 10))
    assert found["usage"][3] == {
        "fromPercent": 30,
        "toPercent": 40,
        "logs": 3,
        "totalBytes": 3000,
        "reclaimableBytes": 70,
        "oldestAgeSeconds": 300_000,
    }
    assert found["minor"] == {
        "threshold": 0.2,
        "logs": 2,
        "rewrittenBytes": 300,
        "reclaimableBytes": 700,
        "dueInSeconds": 60,
    }
    assert found["major"]["dueInSeconds"] is None


async def test_quarantine(served: Served) -> None:
    assert (await served.get("bookie/gc/quarantine")).body == "[ ]"
    served.admin.gc.collectors = [
        ("/a", gc_state(quarantined={255: "at 4711: no record", 3: "at 1: torn"}, held={4: "at 9: digest", 3: "at 2"}))
    ]
    found = (await served.get("bookie/gc/quarantine")).json
    assert [(each["entryLog"], each["entryLogId"], each["detail"], each["foundBy"]) for each in found] == [
        ("3.log", 3, "at 1: torn", "gc"),
        ("4.log", 4, "at 9: digest", "scrub"),
        ("ff.log", 255, "at 4711: no record", "gc"),
    ]


async def test_chosen_location_indexes(served: Served) -> None:
    indexes = served.admin.indexes
    indexes.known = {"/a/locations": True, "/b/locations": False}
    assert (await served.get("bookie/entry_location_compact")).json == indexes.known
    body = '{"entryLocationRocksDBCompact": true, "entryLocations": " /a/locations,/b/locations "}'
    answer = await served.put("bookie/entry_location_compact", body)
    assert answer.json == (
        "Triggered entry Location RocksDB /a/locations,/b/locations compact on bookie:127.0.0.1:32700"
    )
    assert indexes.compacted == [["/a/locations", "/b/locations"]]
    unknown = body.replace("/b", "/c")
    assert (await served.put("bookie/entry_location_compact", unknown)).status == 400
    assert (await served.put("bookie/entry_location_compact", "no")).status == 400
    assert len(indexes.compacted) == 1
