"""Auto-recovery over HTTP: the reference's recorded answers, and what is our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_protocol.admin_api.autorecovery import AutoRecoveryProcessState, CheckRun, CheckSummary, WorkerState
from bookie_protocol.errors import MetadataUnavailable, Refused
from tests.unit.bookie_pod.admin.conftest import Served

GOLDEN = Path(__file__).parents[3] / "golden"
OTHERS = ("autorecovery/bookie", "autorecovery/decommission")
CALLS = [
    call
    for call in json.loads((GOLDEN / "http-admin-api.json").read_text())["calls"]
    if "/autorecovery/" in call["request"] and not call["request"].endswith(OTHERS)
]


async def test_every_recorded_call_in_its_order(served: Served) -> None:
    port = served.admin.auto_recovery
    port.auditor_id, port.delay_s = "127.0.0.1:32700", 0
    for call in CALLS:
        if call.get("note") is not None:  # a bookie is dead by now
            ids = [6, 5, 3, 0, 1, 4294967298, 4294967299, 4294967296]
            port.marked = dict.fromkeys(ids, ("127.0.0.1:32702",))
        method, path = call["request"].split(" ", 1)
        answer = await served(path, method, call["requestBody"])
        assert (answer.status, answer.body) == (call["status"], call["answer"]), call["request"]
    assert len(CALLS) == 16
    assert port.triggered == 1


async def test_marks_are_chosen_by_the_bookies_they_name(served: Served) -> None:
    served.admin.auto_recovery.marked = {1: ("a", "b"), 2: ("b",), 3: ()}
    assert (await served.get("autorecovery/list_under_replicated_ledger?missingreplica=a")).json == [1]
    assert (await served.get("autorecovery/list_under_replicated_ledger?excludingmissingreplica=a")).json == [2, 3]
    both = "missingreplica=b&excludingmissingreplica=a&printmissingreplica="
    assert (await served.get(f"autorecovery/list_under_replicated_ledger?{both}")).json == {"2": ["b"]}
    assert (await served.get("autorecovery/list_under_replicated_ledger?missingreplica=c")).status == 404


async def test_without_auditor_and_delay(served: Served) -> None:
    assert (await served.get("autorecovery/who_is_auditor")).status == 404
    assert (await served.get("autorecovery/lost_bookie_recovery_delay")).status == 404
    served.admin.auto_recovery.refusal = Refused("there is no auditor")
    answer = await served.put("autorecovery/trigger_audit")
    assert (answer.status, answer.body) == (404, "there is no auditor")
    served.admin.auto_recovery.refusal = MetadataUnavailable("no answer")
    assert (await served.put("autorecovery/trigger_audit")).status == 503


@pytest.mark.parametrize(
    ("body", "status"),
    [("{}", 404), ('{"delay_seconds": -1}', 400), ('{"delay_seconds": "5"}', 400), ("nonsense", 400)],
)
async def test_a_delay_that_is_none(served: Served, body: str, status: int) -> None:
    assert (await served.put("autorecovery/lost_bookie_recovery_delay", body)).status == status
    assert served.admin.auto_recovery.delay_s is None


async def test_checks_are_shown_and_asked_for(served: Served) -> None:
    running = CheckRun(5, None, 7, 1234, {"ledgers": 3})
    served.admin.auto_recovery.summaries = [CheckSummary("ledgers", "b1", running, None, None, 4, "no answer", 9)]
    (shown,) = (await served.get("autorecovery/checks")).json
    assert shown["running"] == {
        "startedTime": 5,
        "finishedTime": None,
        "activeMs": 7,
        "nextLedger": 1234,
        "counts": {"ledgers": 3},
    }
    assert shown["failure"] == "no answer"
    assert (await served.put("autorecovery/checks", '{"checks": ["replicas", "ledgers"]}')).status == 200
    assert served.admin.auto_recovery.forced == ["ledgers", "replicas"]
    for body in (None, "{}", '{"checks": []}', '{"checks": ["bookies"]}', '{"checks": [{}]}', '{"checks": "ledgers"}'):
        assert (await served.put("autorecovery/checks", body)).status == 400
    assert served.admin.auto_recovery.forced == ["ledgers", "replicas"]


async def test_returned_bookies_are_to_be_looked_at(served: Served) -> None:
    path = "autorecovery/returned_bookies"
    assert (await served.put(path, '{"bookies": ["b:1", "a:1"]}')).status == 200
    assert served.admin.auto_recovery.returned == ["b:1", "a:1"]
    for body in (None, "{}", '{"bookies": []}', '{"bookies": ["a/b"]}', '{"bookies": "a:1"}'):
        assert (await served.put(path, body)).status == 400
    assert served.admin.auto_recovery.returned == ["b:1", "a:1"]


async def test_this_process(served: Served) -> None:
    assert (await served.get("autorecovery/process")).status == 404
    worker = WorkerState(True, [], 1, 2, 3, 4, 5, 6.5)
    served.admin.auto_recovery.process = AutoRecoveryProcessState(
        "b1", True, 5, True, None, 60, 7, 0, 0, [], ["ledgers"], {"ledgers": None}, worker
    )
    shown = (await served.get("autorecovery/process")).json
    assert (shown["isAuditor"], shown["markedLedgers"], shown["worker"]["bytesPerSecond"]) == (True, 7, 6.5)
