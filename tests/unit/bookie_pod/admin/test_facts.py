"""Facts for an operator over HTTP: their members, and that what cannot be read is an error and no number."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable
from tests.support.fake_facts import FACTS
from tests.unit.bookie_pod.admin.conftest import Served

MOST_LOSSES = 16_384
"""What the operator lets count, together."""
PROOF = "autorecovery/decommission/proof?bookie_id="


async def test_the_state_of_the_cluster(served: Served) -> None:
    answer = await served.get("cluster/state")
    assert (answer.status, answer.json) == (
        200,
        {
            "instanceId": "i-1",
            "writable": ["a:1", "b:1"],
            "readOnly": ["c:1"],
            "cookies": ["a:1", "b:1", "c:1", "d:1"],
            "underReplicated": 7,
            "auditor": "a:1",
            "lastAuditMs": 1_700_000_000_000,
            "autorecoveryEnabled": True,
            "lostBookieRecoveryDelaySeconds": 300,
            "unrecoverable": 0,
            "unchecked": ["c:1"],
        },
    )


async def test_what_nobody_did_yet_is_null(served: Served) -> None:
    served.admin.facts.found = replace(FACTS, auditor=None, last_audit_ms=None, unrecoverable=None)
    found = (await served.get("cluster/state")).json
    assert (found["auditor"], found["lastAuditMs"], found["unrecoverable"]) == (None, None, None)


async def test_a_proof(served: Served) -> None:
    answer = await served.get(PROOF + "d:1")
    assert answer.status == 200
    assert {name: answer.json[name] for name in ("bookieId", "ledgers", "marks", "registered", "instanceId")} == {
        "bookieId": "d:1",
        "ledgers": 0,
        "marks": 0,
        "registered": False,
        "instanceId": "i-1",
    }
    assert answer.json["acceptedLosses"] == 0
    assert (answer.json["auditor"], answer.json["lastAuditMs"]) == ("a:1", 1_700_000_000_000)


@pytest.mark.parametrize("path", ["cluster/state", PROOF + "d:1"])
@pytest.mark.parametrize("fault", [MetadataUnavailable("no session"), MetadataDamaged("ledger 7 cannot be read")])
async def test_what_cannot_be_read_is_an_error(served: Served, path: str, fault: Exception) -> None:
    served.admin.facts.fault = fault
    answer = await served.get(path)
    assert (answer.status, answer.line) == (503, str(fault))


async def test_a_proof_is_about_a_bookie(served: Served) -> None:
    assert (await served.get("autorecovery/decommission/proof")).status == 400
    assert (await served.get(PROOF + "a/b")).status == 400
    assert served.admin.facts.asked == []


async def test_as_many_accepted_losses_as_an_operator_tells_are_handed_on(served: Served) -> None:
    losses = range(2**63 - MOST_LOSSES, 2**63)
    listed = ",".join(map(str, losses))
    proof, cookie = "/api/v1/autorecovery/decommission/proof", "/api/v1/bookie/cookie?bookie_id=b:1"
    assert (await served(proof, "POST", json.dumps({"bookie_id": "d:1", "accept_loss": listed}))).status == 200
    assert served.admin.facts.asked == [("d:1", set(losses))]
    drain = json.dumps({"bookie_src": "b:1", "delete_cookie": False, "accept_loss": listed})
    assert (await served.put("autorecovery/decommission", drain)).status == 200
    assert (await served(cookie, "DELETE", json.dumps({"accept_loss": listed}))).status == 200
    assert served.admin.decommission.losses == [set(losses)] * 2


async def test_losses_that_were_accepted_are_handed_on(served: Served) -> None:
    assert (await served.get(PROOF + "d:1&accept_loss=7,9")).status == 200
    assert served.admin.facts.asked == [("d:1", {7, 9})]
    assert (await served.put("autorecovery/decommission", '{"bookie_src": "b:1", "accept_loss": "7, 9"}')).status == 200
    assert (await served("/api/v1/bookie/cookie?bookie_id=b:1&accept_loss=8", "DELETE")).status == 200
    assert served.admin.decommission.losses == [{7, 9}, {8}]
    body = '{"bookie_id": "d:1", "accept_loss": "7,9"}'
    assert (await served("/api/v1/autorecovery/decommission/proof", "POST", body)).status == 200
    assert served.admin.facts.asked == [("d:1", {7, 9}), ("d:1", {7, 9})]


@pytest.mark.parametrize("text", ["seven", "7,", "-1", "7;9", "9" * 20])
async def test_what_names_no_ledgers_is_refused(served: Served, text: str) -> None:
    assert (await served.get(f"{PROOF}d:1&accept_loss={text}")).status == 400
    body = json.dumps({"bookie_src": "b:1", "accept_loss": text})
    assert (await served.put("autorecovery/decommission", body)).status == 400
    assert (await served("/api/v1/bookie/cookie?bookie_id=b:1&accept_loss=" + text, "DELETE")).status == 400
    assert (served.admin.facts.asked, served.admin.decommission.begun) == ([], [])
    assert "b:1" in served.admin.decommission.cookies
