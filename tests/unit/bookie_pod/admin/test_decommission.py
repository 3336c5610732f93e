"""Decommission, recovery of lost bookies, safety, cookies over HTTP: the words of Apache, and what is our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_protocol.admin_api.decommission import LedgerReason, RecoverState
from tests.unit.bookie_pod.admin.conftest import Served

CALLS = json.loads((Path(__file__).parents[3] / "golden" / "http-admin-api.json").read_text())["calls"]
RECORDED = [
    call
    for call in CALLS
    if call["request"] in ("PUT /api/v1/autorecovery/decommission", "PUT /api/v1/autorecovery/bookie")
]
APACHES = "autorecovery/decommission"


def test_there_are_recordings() -> None:
    assert len(RECORDED) == 2


@pytest.mark.parametrize("call", RECORDED, ids=lambda call: call["request"])
async def test_recordings_of_the_reference(served: Served, call: dict[str, str]) -> None:
    method, path = call["request"].split()
    answer = await served(path, method, call["requestBody"])
    assert (answer.status, answer.body) == (call["status"], call["answer"])


@pytest.mark.parametrize(
    ("members", "deletes"),
    [
        ({"bookie_src": "b:1"}, False),
        ({"bookie_src": "b:1", "delete_cookie": "true"}, True),
        ({"bookie_src": "b:1", "delete_cookie": "false"}, False),
        ({"bookie_src": "b:1", "delete_cookie": True}, True),
    ],
)
async def test_decommission_is_begun_in_apaches_words(
    served: Served, members: dict[str, object], deletes: bool
) -> None:
    answer = await served.put(APACHES, json.dumps(members))
    apaches, ours = answer.body.split("\n")
    assert (answer.status, apaches) == (200, "Success send decommission Bookie command b:1")
    assert "send the same to any other bookie" in ours
    assert ours.endswith("GET /api/v1/autorecovery/decommission/progress?bookie_id=b:1")
    assert served.admin.decommission.begun == [("b:1", deletes)]


async def test_what_is_no_request_begins_nothing(served: Served) -> None:
    for body, status, text in (
        ("{}", 404, "Request body not contains bookie_src."),
        ('{"bookie_src": "a/b"}', 400, "must be a bookie id"),
        ('{"bookie_src": 7}', 400, "must be a bookie id"),
        ('{"bookie_src": "b:1", "delete_cookie": "perhaps"}', 400, "must be true or false"),
        ("[]", 400, "Failed to deserialize"),
    ):
        answer = await served.put(APACHES, body)
        assert answer.status == status, body
        assert text in answer.body
    answer = await served.get(APACHES)
    assert (answer.status, answer.body) == (404, "Not found method. Should be PUT method")
    assert served.admin.decommission.begun == []


async def test_a_refusal_is_a_conflict_with_its_reason(served: Served) -> None:
    served.admin.decommission.refusal = "3 ledgers have no other writable bookie to go to"
    for path, body in (
        (APACHES, '{"bookie_src": "b:1"}'),
        (f"{APACHES}/undo", '{"bookie_src": "b:1"}'),
        ("autorecovery/bookie", '{"bookie_src": ["b:1"]}'),
    ):
        answer = await served.put(path, body)
        assert (answer.status, answer.line) == (409, served.admin.decommission.refusal)


async def test_plan_progress_and_undo(served: Served) -> None:
    plan = (await served.get(f"{APACHES}/plan?bookie_id=b:1")).json
    assert (plan["bookieId"], plan["freeBytes"], plan["warnings"]) == ("b:1", 5000, ["no auditor is elected"])
    state = (await served.get(f"{APACHES}/progress?bookie_id=b:1")).json
    assert (state["phase"], state["ledgersLeft"], state["secondsLeft"]) == ("draining", 4, 12.5)
    assert state["blockers"] == [{"ledgerId": 7, "reason": "why"}]
    none = await served.get(f"{APACHES}/progress?bookie_id=c:1")
    assert (none.status, none.json["type"]) == (404, "urn:podkeeper:problem:not-decommissioned")
    assert (await served.get(f"{APACHES}/progress")).status == 400
    undone = await served.put(f"{APACHES}/undo", '{"bookie_src": "b:1"}')
    assert undone.json == {"madeWritable": True}
    assert served.admin.decommission.undone == ["b:1"]


async def test_recovery_takes_all_bookies(served: Served) -> None:
    answer = await served.put("autorecovery/bookie", '{"bookie_src": ["b:1", "c:1"], "delete_cookie": true}')
    apaches, ours = answer.body.split("\n")
    assert (answer.status, apaches) == (200, "Success send recovery request command.")
    assert "send the same to any other bookie" in ours
    assert served.admin.decommission.recovered == [(("b:1", "c:1"), True)]
    empty = await served.put("autorecovery/bookie", '{"bookie_src": []}')
    assert (empty.status, empty.body) == (404, "Not found method. Should be PUT method")
    assert (await served.get("autorecovery/bookie/progress")).status == 404
    served.admin.decommission.recovery = RecoverState(["b:1"], False, "", 9, 1, 500, [LedgerReason(3, "gone")], [])
    state = (await served.get("autorecovery/bookie/progress")).json
    assert (state["ledgersRestored"], state["failed"]) == (9, [{"ledgerId": 3, "reason": "gone"}])


async def test_safety_and_replicas(served: Served) -> None:
    report = (await served.get("autorecovery/safety_check?bookies=b:1,%20c:1")).json
    assert (report["safe"], report["going"], report["noCopy"]) == (False, ["b:1", "c:1"], 1)
    assert report["ledgers"][0]["risk"] == "no copy"
    assert (await served.get("autorecovery/safety_check")).status == 400
    found = (await served.get("ledger/replicas?ledger_id=7")).json
    assert found["bookies"][0]["missing"] == {"count": 1, "runs": [[2, 2]]}
    assert (await served.get("ledger/replicas")).status == 400


async def test_cookies(served: Served) -> None:
    path = "/api/v1/bookie/cookie?bookie_id="
    assert (await served(f"{path}b:1")).body == "5\nbookieHost: ..."
    none = await served(f"{path}c:1")
    assert (none.status, none.json["type"]) == (404, "urn:podkeeper:problem:no-cookie")
    assert (await served(f"{path}c:1", "PUT", "5\n")).status == 404
    assert (await served(f"{path}c:1", "POST", "5\n")).status == 200
    assert served.admin.decommission.cookies["c:1"] == b"5\n"
    assert (await served(f"{path}c:1", "DELETE")).status == 200
    served.admin.decommission.refusal = "ledgers need it"
    assert (await served(f"{path}b:1", "DELETE")).status == 409
    assert (await served("/api/v1/bookie/cookie")).status == 400
