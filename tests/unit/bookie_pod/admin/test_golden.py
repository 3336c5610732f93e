"""Every recording of the reference's admin API that a bookie answers, against a server whose ports say what that
bookie knew: status and text must be the same, character by character."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from bookie_pod.admin.bookie import DiskFiles
from bookie_pod.server.status import NodeState
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.admin_api.bodies import decode
from bookie_protocol.admin_api.bookie import BookieSpace
from bookie_protocol.admin_api.cluster import ClusterInfo
from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.codec import decode_ledger_metadata
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from tests.support.fake_admin import gc_state
from tests.unit.bookie_pod.admin.conftest import Served

GOLDEN = Path(__file__).parents[3] / "golden"
CALLS = json.loads((GOLDEN / "http-admin-api.json").read_text())["calls"]
HERE = [call for call in CALLS if "/autorecovery/" not in call["request"] and call.get("note") is None]
LATER = [call for call in CALLS if "/autorecovery/" not in call["request"] and call.get("note") is not None]
BOOKIES = {f"127.0.0.1:{port}": "127.0.0.1" for port in (32700, 32703, 32701, 32702)}

CUT = "... (cut)"
"""Stands at the end of recordings that were too long."""
BETTER = {
    ("GET /api/v1/ledger/metadata?ledger_id=424242", None): 404,
    ("GET /api/v1/ledger/read?ledger_id=424242", None): 404,
    ("PUT /api/v1/bookie/gc/suspend_compaction", '{"suspendMajor": "true"}'): 400,
    ("PUT /api/v1/bookie/state/readonly", None): 400,
}
"""Where an exception escapes the reference's handler (500, no reason given), and the status here."""


def recorded(request: str) -> str:
    (answer,) = {call["answer"] for call in HERE if call["request"] == request}
    return str(answer)


def ledgers() -> dict[int, LedgerMetadata]:
    """The ledgers of the recorded cluster, from its metadata service where that was recorded too."""
    text = recorded("GET /api/v1/ledger/list?print_metadata=true&decode_meta=true&page=1")
    assert text.endswith(f'"127.0.0.1:32701"{CUT}')
    shown = json.loads(text.removesuffix(CUT) + '}, {"id": "127.0.0.1:32702"} ] } } }')
    stored = {
        int(match[1]): bytes.fromhex(znode["dataHex"])
        for znode in json.loads((GOLDEN / "znodes-four-bookies.json").read_text())["znodes"]
        if (match := re.fullmatch(r"/ledgers/00/0000/L(\d{4})", znode["path"]))
    }
    assert sorted(stored) == list(range(7))
    found = {}
    for key, view in shown.items():
        if (ledger_id := int(key)) in stored:
            ctime = view["ctime"] if view["ctime"] != -1 else None
            found[ledger_id] = decode_ledger_metadata(ledger_id, stored[ledger_id], ctime)
        else:
            found[ledger_id] = described(view)
    return found


def described(view: dict) -> LedgerMetadata:
    return LedgerMetadata(
        view["ledgerId"],
        view["ensembleSize"],
        view["writeQuorumSize"],
        view["ackQuorumSize"],
        {int(first): tuple(each["id"] for each in members) for first, members in view["allEnsembles"].items()},
        state=LedgerState(view["state"]),
        last_entry_id=view["lastEntryId"],
        length=view["length"],
        digest_type=DigestType[view["digestType"]],
        password=base64.b64decode(view["password"]),
        ctime=view["ctime"],
    )


@pytest.fixture
def as_recorded(served: Served) -> Served:
    """The ports say what the recorded bookie knew."""
    admin = served.admin
    admin.settings.values = json.loads(recorded("GET /api/v1/config/server_config"))
    info = json.loads(recorded("GET /api/v1/bookie/info"))
    admin.node.found_space = BookieSpace(info["freeSpace"], info["totalSpace"], 0.0)
    admin.node.found_marks = [LogMark(1795228224002, 479232)]
    admin.node.found_files = DiskFiles(["1a1fbf0ca02.txn"], ["0.log", "1.log"], [])
    admin.indexes.known = {"/data/bk/gmeta/b0/ledgers/current/locations": False}
    admin.cluster.writable = dict(BOOKIES)
    admin.cluster.spaces = dict.fromkeys(BOOKIES, BookieSpace(55527284736, 270553174016))
    admin.cluster.numbers = decode(recorded("GET /api/v1/bookie/cluster_info").encode(), ClusterInfo)
    admin.ledgers.ledgers = ledgers()
    started = 1795228222521
    admin.gc.collectors = [
        (
            "/data/bk/gmeta/b0/ledgers",
            gc_state(force_compacting=True, last_major_ms=started, last_minor_ms=started, last_index_ms=started),
        )
    ]
    return served


@pytest.fixture
def replaced_bytes(as_recorded: Served) -> None:
    """The payloads of the ledger that was read: bytes beyond ASCII came back as U+FFFD, any such byte will do."""
    texts = json.loads(recorded("GET /api/v1/ledger/read?ledger_id=4294967296&start_entry_id=0&end_entry_id=1"))
    as_recorded.admin.ledgers.payloads[4294967296] = [
        bytes(0xFF if character == "\ufffd" else ord(character) for character in text) for text in texts.values()
    ]


async def test_every_recorded_call_in_its_order(as_recorded: Served, replaced_bytes: None) -> None:
    served, seen = as_recorded, 0
    for call in HERE:
        if call["request"] == "PUT /api/v1/bookie/gc" and call["requestBody"]:
            served.admin.gc.force_pending = True
        method, path = call["request"].split(" ", 1)
        served.node.flags = served.admin.node.flags
        answer = await served(path, method, call["requestBody"])
        key = (call["request"], call["requestBody"])
        if key in BETTER:
            assert (answer.status, call["status"]) == (BETTER[key], 500)
            assert answer.body
            assert "Internal" not in answer.body
        else:
            text = expected(call)
            shown = answer.body[: len(text)] if call["answer"].endswith(CUT) else answer.body
            assert (answer.status, shown) == (call["status"], text), call["request"]
        seen += 1
    assert seen == len(HERE) > 50


def expected(call: dict) -> str:
    answer = call["answer"].removesuffix(CUT)
    if "list_disk_file" in call["request"]:
        # The reference counts the log files of its RocksDB among the entry logs.
        answer = answer.replace("000004.log\\t", "")
    return str(answer)


async def test_after_a_bookie_died_and_another_turned_read_only(as_recorded: Served) -> None:
    cluster = as_recorded.admin.cluster
    for call in LATER:
        if call["request"].endswith("cluster_info"):
            cluster.numbers = decode(call["answer"].encode(), ClusterInfo)
        elif call["request"].endswith("type=ro"):
            cluster.read_only = {"127.0.0.1:32703": "127.0.0.1"}
        answer = await as_recorded(call["request"].split(" ", 1)[1])
        assert (answer.status, answer.body) == (call["status"], call["answer"])
    assert len(LATER) == 2


async def test_the_mode_that_was_asked_for_is_what_the_port_was_told(as_recorded: Served) -> None:
    as_recorded.admin.node.flags = NodeState(True, False, False, True)
    assert (await as_recorded.put("bookie/state/readonly", '{"readOnly": true}')).json == {"readOnly": True}
    assert as_recorded.admin.node.flags.read_only
