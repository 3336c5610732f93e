"""The bookie itself, its cluster and its configuration, over HTTP."""

from __future__ import annotations

import pytest

from bookie_pod.admin.bookie import DiskFiles
from bookie_pod.admin.cluster import readable
from bookie_pod.server.status import NodeState
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.errors import BadRequest, InvalidCookie, StorageFault
from tests.unit.bookie_pod.admin.conftest import Served


async def test_nothing_is_sane_that_takes_no_writes(served: Served) -> None:
    node = served.admin.node
    node.sane = False
    assert (await served.get("bookie/sanity")).json == {"passed": False, "readOnly": False}
    node.sane, node.flags = True, NodeState(True, True, False, True)
    assert (await served.get("bookie/sanity")).json == {"passed": False, "readOnly": True}


@pytest.mark.parametrize("body", ["{}", '{"readOnly": "true"}', '{"readOnly": null}', "[]", "true"])
async def test_a_mode_must_be_named(served: Served, body: str) -> None:
    assert (await served.put("bookie/state/readonly", body)).status == 400
    assert not served.admin.node.flags.read_only


async def test_a_mode_that_the_configuration_forbids(served: Served) -> None:
    served.admin.node.fault = BadRequest("readOnlyModeEnabled=false")
    answer = await served.put("bookie/state/readonly", '{"readOnly": true}')
    assert (answer.status, answer.body) == (400, "readOnlyModeEnabled=false")


async def test_one_mark_per_journal(served: Served) -> None:
    served.admin.node.found_marks = [LogMark(16, 1), LogMark(31, 2)]
    assert (await served.get("bookie/last_log_mark")).json == {
        "LastLogMark: Journal Id - 16(10.txn)": "Pos - 1",
        "LastLogMark: Journal Id - 31(1f.txn)": "Pos - 2",
    }


async def test_files_of_one_kind(served: Served) -> None:
    served.admin.node.found_files = DiskFiles(["10.txn"], ["0.log"], ["1.idx", "2.idx"])
    assert (await served.get("bookie/list_disk_file?file_type=index")).json == {"index files": "1.idx\t2.idx\t"}
    assert list((await served.get("bookie/list_disk_file")).json) == ["index files", "journal files", "entrylog files"]
    assert (await served.get("bookie/list_disk_file?file_type=all")).status == 400


async def test_faults_of_disks_and_cookies(served: Served) -> None:
    node = served.admin.node
    node.fault = StorageFault("cannot read the space of /data:\nInput/output error")
    answer = await served.get("bookie/info")
    assert (answer.status, answer.body) == (503, "cannot read the space of /data: Input/output error")
    node.fault = InvalidCookie("the disk is another bookie's")
    assert (await served.put("bookie/expand_storage")).status == 409


async def test_bookies_and_their_hosts(served: Served) -> None:
    served.admin.cluster.writable = {"b1": "host-1", "b2": "host-2"}
    assert (await served.get("bookie/list_bookies")).json == {"b1": None, "b2": None}
    assert (await served.get("bookie/list_bookies?print_hostnames=true")).json == {"b1": "host-1", "b2": "host-2"}
    assert (await served.get("bookie/list_bookies?type=ro")).body == "{ }"
    assert (await served.get("bookie/list_bookies?type=all")).status == 400
    assert (await served.get("bookie/list_bookie_info")).status == 404


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, ""),
        (999, ""),
        (1000, "(1KB)"),
        (1500, "(1.5KB)"),
        (999_999, "(999.999KB)"),
        (1_000_999, "(1MB)"),
        (55_527_284_736, "(55.527GB)"),
        (1_082_212_696_064, "(1.082TB)"),
        (5_000_000_000_000_000, "(5000TB)"),
    ],
)
def test_sizes_are_truncated_to_three_decimals(nbytes: int, text: str) -> None:
    assert readable(nbytes) == text


async def test_settings(served: Served) -> None:
    answer = await served.put("config/server_config", '{"a": 1, "b": true, "c": "x", "d": 0.5}')
    assert (answer.status, answer.body) == (200, "Success set server config.")
    assert (await served.get("config/server_config")).json == {"a": "1", "b": "true", "c": "x", "d": "0.5"}
    assert (await served.put("config/server_config", '{"unknown": "1"}')).body == "unknown configuration key unknown"
    for bad in ('{"a": null}', '{"a": []}', '{"a": {}}', "[]"):
        assert (await served.put("config/server_config", bad)).status == 400
