"""Rebuilds of indexes over HTTP."""

from __future__ import annotations

import json

import pytest

from bookie_pod.storage.index_rebuild.state import RebuildOutcome, RebuildPhase, RebuildRequest, RebuildState
from bookie_protocol.errors import Refused
from tests.unit.bookie_pod.admin.conftest import Served

PATH = "/api/v1/bookie/index_rebuild"
STATE = RebuildState(
    "/data/ledgers/current",
    RebuildPhase.LOGS,
    RebuildOutcome.RUNNING,
    bytes_done=5,
    bytes_total=10,
    rows_changed=3,
    damages=["3.log at 5"],
    journal_damages=["1.txn at 6"],
    backups=["/data/ledgers/current/ledgers.BACKUP-1"],
)


async def test_state(served: Served) -> None:
    assert (await served.get("bookie/index_rebuild")).json == []
    served.admin.integrity.rebuilds = [STATE]
    (found,) = (await served.get("bookie/index_rebuild")).json
    assert found["directory"] == "/data/ledgers"
    assert (found["phase"], found["outcome"], found["changedRows"]) == ("entry logs", "running", 3)
    assert (found["bytesDone"], found["bytesTotal"]) == (5, 10)
    assert found["damages"] == ["3.log at 5", "1.txn at 6"]
    assert found["backups"] == ["/data/ledgers/current/ledgers.BACKUP-1"]


async def test_begin_and_stop(served: Served) -> None:
    assert (await served(PATH, "DELETE")).json == {"stopping": False}
    assert (await served.put("bookie/index_rebuild")).json == {"triggered": True}
    body = {"directories": ["/data/a/"], "ledgers": False, "acceptDamage": True}
    assert (await served(PATH, "PUT", body=json.dumps(body).encode())).json == {"triggered": False}
    assert served.admin.integrity.rebuild_requests == [
        RebuildRequest(),
        RebuildRequest(("/data/a/current",), True, False, True),
    ]
    assert (await served(PATH, "DELETE")).json == {"stopping": True}
    assert (await served(PATH, "POST")).status == 405


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"ledger": True}, "unknown field `ledger`; its members are directories, locations, ledgers, acceptDamage"),
        ({"ledgers": "no"}, "ledgers: expected `bool`, got `str`"),
        ({"ledgers": False, "locations": False}, "neither"),
        ({"directories": []}, "directories: expected `array` of length >= 1"),
        ({"directories": "/data"}, "directories: expected `array`, got `str`"),
    ],
)
async def test_a_wrong_body_begins_nothing(served: Served, body: dict[str, object], text: str) -> None:
    answer = await served(PATH, "PUT", body=json.dumps(body).encode())
    assert answer.status == 400
    assert text in answer.line
    assert served.admin.integrity.rebuild_requests == []


async def test_an_engine_without_databases_refuses(served: Served) -> None:
    served.admin.integrity.fault = Refused("only the databases of DbLedgerStorage")
    answer = await served.put("bookie/index_rebuild")
    assert answer.status == 409
    assert "DbLedgerStorage" in answer.line
