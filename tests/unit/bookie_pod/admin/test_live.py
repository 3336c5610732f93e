"""The admin API of a live bookie: what it says is so, and what it is told happens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie_client import Client
from bookie_client.replication.fragments import fragments
from bookie_client.replication.replicator import FragmentReplicator
from bookie_client.streams import StreamPosition, Streams, StreamSettings
from bookie_pod.admin.gc import Collectors
from bookie_pod.node.bookie import Bookie
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.entry import ENTRY_PREFIX, NO_LAC
from bookie_protocol.errors import NotEnoughBookies
from bookie_protocol.metadata_service.embedded import processes
from bookie_protocol.metadata_service.embedded.processes import this_boot
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from tests.support.http_answers import HttpAnswer, ask
from tests.support.live_bookie import live_bookie
from tests.support.served_bookie import ServedBookie
from tests.support.until import until

SETTINGS = {
    "logSizeLimit": "1048576",
    "compactionRateByBytes": "100000000",
    "gcOverreplicatedLedgerWaitTime": "-1",
    "localScrubRateLimit": "0",
}


class Live:
    def __init__(self, bookie: Bookie, client: Client, work: Path) -> None:
        self.bookie = bookie
        self.client = client
        self.work = work

    async def get(self, path: str) -> HttpAnswer:
        return await ask(self.bookie.config.http.server_port, f"/api/v1/{path}")

    async def put(self, path: str, body: str | None = None) -> HttpAnswer:
        return await ask(self.bookie.config.http.server_port, f"/api/v1/{path}", "PUT", body)

    async def gauges(self, prefix: str) -> dict[str, float]:
        """Metrics by their names without the prefix; those with several labels may be of any."""
        body = (await ask(self.bookie.config.http.server_port, "/metrics")).body
        lines = [line.split() for line in body.splitlines() if line.startswith(prefix)]
        return {line[0].partition("{")[0].removeprefix(prefix): float(line[1]) for line in lines if len(line) == 2}

    async def write(self, entries: int, size: int = 1000) -> int:
        async with self.client.create(ensemble=1, write_quorum=1, ack_quorum=1, password=b"pw") as ledger:
            await ledger.append_many([number.to_bytes(4) + bytes(size) for number in range(entries)])
        return ledger.ledger_id

    async def collected(self) -> None:
        """One forced pass, waited for."""
        (gc,) = (room for room in (self.bookie._admin() or {}).values() if isinstance(room, Collectors))
        before = [state.last_pass for _, state in gc.states()]
        assert (await self.put("bookie/gc")).status == 200
        async with asyncio.timeout(30):
            while True:
                states = [state for _, state in gc.states()]
                done = all(state.last_pass is not old for state, old in zip(states, before, strict=True))
                if done and (await self.get("bookie/gc")).json["is_in_force_gc"] == "false":
                    return
                await asyncio.sleep(0.02)


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_bookie(tmp_path, SETTINGS) as bookie, Client(bookie._metadata) as client:
        yield Live(bookie, client, tmp_path)


async def test_file_systems_of_two_machines_differ_though_their_numbers_are_the_same(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XFS numbers them by devices: the second disk of each machine has the same number."""
    told = []
    for boot in ("a", "b"):
        (tmp_path / boot).write_text(f"{boot}\n")
        monkeypatch.setattr(processes, "_BOOT_ID", str(tmp_path / boot))
        told.append(set((await live.get("bookie/info?fullest=true")).json["fileSystems"]))
    assert all(told) or not os.statvfs(live.work).f_fsid
    assert not told[0] & told[1]


async def test_what_it_says_about_itself(live: Live) -> None:
    bookie_id = live.bookie.bookie_id
    assert (await live.get("bookie/sanity")).json == {"passed": True, "readOnly": False}
    assert (await live.get("ledger/list")).json == {}  # the sanity test leaves nothing
    info = (await live.get("bookie/info")).json
    assert 0 < info["freeSpace"] < info["totalSpace"]
    told = (await live.get("bookie/info?fullest=true")).json
    assert told["fullestUsedPercent"] == pytest.approx(100 - 100 * info["freeSpace"] / info["totalSpace"], abs=1)
    logs = [path.stat().st_size for path in live.work.rglob("*.log") if path.parent.name == "current"]
    assert told["entryLogBytes"] == sum(logs)
    ids = {os.statvfs(live.work).f_fsid} - {0}
    assert told["fileSystems"] == [f"{this_boot()}/{each:x}" for each in ids]
    assert (await live.get("bookie/list_bookies?print_hostnames=true")).json == {bookie_id: "127.0.0.1"}
    space = (await live.get("bookie/list_bookie_info")).json
    assert list(space) == [bookie_id, "ClusterInfo: "]
    assert f"Total: {info['totalSpace']}(" in space[bookie_id]
    files = (await live.get("bookie/list_disk_file")).json
    journals = [path.name for path in (live.work / "journal" / "current").glob("*.txn")]
    assert files["journal files"] == "".join(f"{name}\t" for name in sorted(journals))
    ((mark, _),) = (await live.get("bookie/last_log_mark")).json.items()
    assert mark.endswith(f"({journals[0]})")
    assert (await live.get("bookie/cluster_info")).json == {
        "auditorElected": False,
        "auditorId": "",
        "clusterUnderReplicated": False,
        "ledgerReplicationEnabled": True,
        "totalBookiesCount": 1,
        "writableBookiesCount": 1,
        "readonlyBookiesCount": 0,
        "unavailableBookiesCount": 0,
    }


async def test_the_mode_is_announced_when_the_answer_comes(live: Live) -> None:
    registry = live.bookie._metadata.bookies
    assert (await live.put("bookie/state/readonly", '{"readOnly": true}')).json == {"readOnly": True}
    assert (await registry.list(BookieGroup.READ_ONLY)).bookies == {live.bookie.bookie_id}
    assert (await live.get("bookie/sanity")).json == {"passed": False, "readOnly": True}
    with pytest.raises(NotEnoughBookies):
        await live.write(1)
    assert (await live.put("bookie/state/readonly", '{"readOnly": false}')).json == {"readOnly": False}
    assert (await registry.list(BookieGroup.WRITABLE)).bookies == {live.bookie.bookie_id}


async def test_before_a_stop_it_takes_no_writes_and_has_flushed(live: Live) -> None:
    registry = live.bookie._metadata.bookies
    await live.write(5)
    (position,) = (int(text.removeprefix("Pos - ")) for text in (await live.get("bookie/last_log_mark")).json.values())
    assert (await live.put("bookie/drain_clients")).json == {"readOnly": True}
    assert (await registry.list(BookieGroup.READ_ONLY)).bookies == {live.bookie.bookie_id}
    assert (await registry.list(BookieGroup.WRITABLE)).bookies == frozenset()
    with pytest.raises(NotEnoughBookies):
        await live.write(1)
    # What the mark says is what a replay would begin with: everything is in the entry logs.
    mark = LogMark.from_bytes((live.work / "ledgers" / "current" / "lastMark").read_bytes())
    assert mark.offset >= position > 0
    assert (await live.put("bookie/drain_clients")).json == {"readOnly": True}
    assert (await live.put("bookie/state/readonly", '{"readOnly": false}')).json == {"readOnly": False}
    await live.write(1)


async def test_ledgers(live: Live) -> None:
    ledger_id = await live.write(5, size=0)
    assert list((await live.get("ledger/list")).json) == [str(ledger_id)]
    view = (await live.get(f"ledger/metadata?ledger_id={ledger_id}")).json[str(ledger_id)]
    assert (view["state"], view["lastEntryId"], view["length"]) == ("CLOSED", 4, 20)
    entries = (await live.get(f"ledger/read?ledger_id={ledger_id}&start_entry_id=1&end_entry_id=99")).json
    assert entries == {str(number): f"\0\0\0{chr(number)}" for number in range(1, 5)}
    assert (await live.get(f"ledger/read?ledger_id={ledger_id}&start_entry_id=99")).json == {}
    assert (await live.get("ledger/read?ledger_id=424242")).status == 404


async def test_why_a_log_stays_and_that_it_goes(live: Live) -> None:
    kept, dead = await live.write(400), await live.write(700)
    await live.write(1100)  # rotates the log that holds both
    await live.bookie.flush()
    (log,) = (await live.get("bookie/gc/why?entryLog=0.log")).json
    # Before any pass: read from the log itself.
    assert log["usage"] is None
    assert {each["ledgerId"] for each in log["owners"]} >= {kept, dead}
    assert log["path"] == str(live.work / "ledgers" / "current" / "0.log")
    await live.collected()
    await live.client.delete(dead)
    await live.put("bookie/gc", '{"forceMajor": false, "forceMinor": false}')
    async with asyncio.timeout(30):
        while dead in {each["ledgerId"] for each in log["owners"] or ()}:
            await asyncio.sleep(0.02)
            (log,) = (await live.get("bookie/gc/why?entryLog=0x0")).json
    async with asyncio.timeout(30):
        forecast = (await live.get("bookie/gc/forecast")).json[0]
        while forecast["major"]["logs"] == 0:
            await asyncio.sleep(0.02)
            forecast = (await live.get("bookie/gc/forecast")).json[0]
    assert forecast["major"]["reclaimableBytes"] > 600_000
    assert sum(each["logs"] for each in forecast["usage"]) >= 1
    (log,) = (await live.get("bookie/gc/why?entryLog=0.log")).json
    assert "major compaction takes it" in log["reason"]
    assert 0 < log["usage"] < 0.8
    await live.collected()
    assert (await live.get("bookie/gc/why?entryLog=0.log")).status == 404
    (details,) = (await live.get("bookie/gc_details")).json
    assert details["majorCompactionCounter"] >= 1
    (progress,) = (await live.get("bookie/gc/progress")).json
    assert progress["phase"] == "waiting"
    assert progress["lastPass"]["compaction"] == "major"
    entries = (await live.get(f"ledger/read?ledger_id={kept}&page=1")).json
    assert len(entries) == 401


async def test_rates_and_thresholds_change_at_once(live: Live) -> None:
    body = '{"compactionRateByBytes": 1234, "majorCompactionThreshold": "0.55", "gcWaitTime": "777"}'
    assert (await live.put("config/server_config", body)).status == 200
    (collector,) = live.bookie.upkeep.collection.collectors
    assert (collector.options.compaction_rate, collector._rate.rate) == (1234, 1234)
    assert (collector.schedule.major.threshold, collector.options.wait_time_ms) == (0.55, 777)
    shown = (await live.get("config/server_config")).json
    assert (shown["gcWaitTime"], shown["logSizeLimit"]) == ("777", "1048576")
    answer = await live.put("config/server_config", '{"gcWaitTime": "0", "gcWaitTme": "5"}')
    assert answer.status == 400
    assert "gcWaitTime=0: must be at least 1" in answer.body
    assert "did you mean gcWaitTime?" in answer.body
    assert "--set" not in answer.body
    assert collector.options.wait_time_ms == 777


async def test_storage_is_not_expanded_where_ledgers_would_be_lost(live: Live) -> None:
    assert (await live.put("bookie/expand_storage")).body == "Success expand storage"
    more = f"{live.work}/ledgers,{live.work}/more"
    assert (await live.put("config/server_config", f'{{"ledgerDirectories": "{more}"}}')).status == 200
    answer = await live.put("bookie/expand_storage")
    assert answer.status == 409
    assert "number of ledger directories" in answer.body
    assert not (live.work / "more").exists()


async def test_storage_of_the_other_engines_grows(tmp_path: Path) -> None:
    settings = {"ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage"}
    async with live_bookie(tmp_path, settings) as bookie, Client(bookie._metadata) as client:
        live = Live(bookie, client, tmp_path)
        assert (await live.get("bookie/entry_location_compact")).json == {}
        more = f"{tmp_path}/ledgers,{tmp_path}/more"
        assert (await live.put("config/server_config", f'{{"ledgerDirectories": "{more}"}}')).status == 200
        assert (await live.put("bookie/expand_storage")).status == 200
        assert (tmp_path / "more" / "current" / "VERSION").exists()
        await live.write(3)
        await bookie.flush()
        assert (await live.get("bookie/list_disk_file?file_type=index")).json["index files"].endswith(".idx\t")
        (states,) = (await live.get("bookie/gc/progress")).json
        assert states["directory"] == f"{tmp_path}/ledgers"


async def test_an_index_is_compacted(live: Live) -> None:
    await live.write(50)
    path = f"{live.work}/ledgers/current/locations"
    assert (await live.get("bookie/entry_location_compact")).json == {path: False}
    body = f'{{"entryLocationRocksDBCompact": true, "entryLocations": "{path}"}}'
    assert (await live.put("bookie/entry_location_compact", body)).status == 200
    async with asyncio.timeout(20):
        running = {path: True}
        while running[path]:
            running = (await live.get("bookie/entry_location_compact")).json


async def _moved_elsewhere(live: Live, ledger_id: int) -> None:
    """As re-replication or a decommission leaves it: another bookie has the copy of this one."""
    ledgers = live.bookie._metadata.ledgers
    found = await ledgers.read(ledger_id)
    await ledgers.write(replace(found.value, ensembles={0: ("127.0.0.1:1",)}), found.identity)


async def test_a_ledger_that_lives_elsewhere_goes_by_itself(tmp_path: Path) -> None:
    """One whose copy is on another bookie does; one that names a bookie which is not there stays."""
    settings = SETTINGS | {"gcWaitTime": "20", "gcOverreplicatedLedgerWaitTime": "50"}
    async with live_bookie(tmp_path, settings) as bookie, Client(bookie._metadata) as client:
        live = Live(bookie, client, tmp_path)
        kept, moved, torso = [await live.write(3) for _ in range(3)]
        (collector,) = bookie.upkeep.collection.collectors
        assert set(collector._storage.ledger_ids()) == {kept, moved, torso}
        await _moved_elsewhere(live, torso)
        other = ServedBookie(tmp_path / "other")
        await other.start()
        endpoint = Endpoint("bookie", "127.0.0.1", other.port, BOOKIE_RPC)
        await bookie._metadata.bookies.register("other", BookieGroup.WRITABLE, BookieServiceInfo((endpoint,)))
        await until(lambda: "other" in client.bookies.known_writable)
        (fragment,) = fragments(moved, await client.metadata(moved), -1)
        lock = await bookie._metadata.under_replication.lock(moved)
        await FragmentReplicator(client).replicate(fragment, {0: fragment.ensemble[0]}, session_id=lock.session_id)
        assert moved in collector._storage.ledger_ids(), "nobody collects what somebody holds the lock of"
        await bookie._metadata.under_replication.release(lock)
        async with asyncio.timeout(60):
            levels = await live.gauges("bookie_")
            while levels["ACTIVE_LEDGER_TOTAL"] == 3:
                await asyncio.sleep(0.02)
                levels = await live.gauges("bookie_")
        await live.collected()  # the pass that did it has ended, and another one took nothing more
        assert set(collector._storage.ledger_ids()) == {kept, torso}
        assert (await live.gauges("bookie_"))["DELETED_LEDGER_TOTAL"] == 1
        assert (await bookie._metadata.ledgers.read(moved)).value.ensembles == {0: ("other",)}
        await other.stop()


@pytest.mark.parametrize("wait", ["-1", "3600000"], ids=["never", "in an hour"])
async def test_a_ledger_that_lives_elsewhere_stays_until_its_time(tmp_path: Path, wait: str) -> None:
    settings = SETTINGS | {"gcOverreplicatedLedgerWaitTime": wait}
    async with live_bookie(tmp_path, settings) as bookie, Client(bookie._metadata) as client:
        live = Live(bookie, client, tmp_path)
        moved = await live.write(3)
        await _moved_elsewhere(live, moved)
        for _ in range(2):
            await live.collected()
        (collector,) = bookie.upkeep.collection.collectors
        assert set(collector._storage.ledger_ids()) == {moved}


@pytest.mark.parametrize(
    ("key", "wanted", "reason"),
    [("forceReadOnlyBookie", "false", "forceReadOnlyBookie=true"), ("readOnlyModeEnabled", "true", "forbids")],
)
async def test_modes_that_the_configuration_forbids(tmp_path: Path, key: str, wanted: str, reason: str) -> None:
    async with live_bookie(tmp_path, {key: str(key.startswith("force")).lower()}) as bookie:
        port = bookie.config.http.server_port
        before = bookie.status.state().read_only
        answer = await ask(port, "/api/v1/bookie/state/readonly", "PUT", f'{{"readOnly": {wanted}}}')
        assert answer.status == 400
        assert reason in answer.body
        assert bookie.status.state().read_only is before


async def test_a_scrub_by_request_and_what_it_finds(live: Live) -> None:
    ledger_id = await live.write(1500)
    await live.bookie.flush()
    await live.write(1500)
    await live.bookie.flush()

    async def scrubbed() -> dict[str, Any]:
        before = (await live.get("bookie/scrub")).json
        assert (await live.put("bookie/scrub")).json == {"triggered": True}
        async with asyncio.timeout(60):
            while True:
                now = (await live.get("bookie/scrub")).json
                ends = [
                    new["completedTime"] > old["completedTime"]
                    for new, old in zip(now["directories"], before["directories"], strict=True)
                ]
                if all(ends) and not now["running"]:
                    return dict(now)
                await asyncio.sleep(0.02)

    sound = await scrubbed()
    directories = {each["directory"]: each for each in sound["directories"]}
    ledgers = directories[str(live.work / "ledgers")]
    assert ledgers["entries"] > 0
    assert ledgers["rows"] == 3000
    assert (sound["damages"], (await live.get("bookie/scrub/damages")).json) == (0, [])
    first = live.work / "ledgers" / "current" / "0.log"
    with first.open("r+b") as file:
        header = ENTRY_PREFIX.pack(ledger_id, 0, NO_LAC)
        file.seek(first.read_bytes().index(header) + 500)
        file.write(b"\xff" * 8)
    found = await scrubbed()
    assert found["damages"] == 1
    (damage,) = (await live.get("bookie/scrub/damages")).json
    assert (damage["kind"], damage["ledgerId"], damage["entryId"]) == ("entry", ledger_id, 0)
    # Garbage collection leaves that log alone, and says so.
    await live.collected()
    (held,) = (await live.get("bookie/gc/quarantine")).json
    assert (held["entryLog"], held["foundBy"], held["detail"]) == ("0.log", "scrub", damage["detail"])
    (why,) = (await live.get("bookie/gc/why?entryLog=0.log")).json
    assert why["reason"].startswith(f"held: the scrubber found damage in it ({damage['detail']})")
    assert (await live.get("bookie/data_integrity")).json["enabled"] is False
    assert (await live.gauges("bookie_"))["LEDGERS_IN_LIMBO"] == 0


async def test_age_and_progress_of_garbage_collection_are_gauges(live: Live) -> None:
    assert (await live.gauges("bookie_"))["OLDEST_ENTRY_LOG_AGE_SECONDS"] == 0  # there is none
    await live.write(3000)
    await live.bookie.flush()
    await live.collected()
    log = live.work / "ledgers" / "current" / "0.log"
    then = log.stat().st_mtime - 5000
    os.utime(log, (then, then))
    found = await live.gauges("bookie_")
    assert 5000 <= found["OLDEST_ENTRY_LOG_AGE_SECONDS"] < 5100
    assert 0 <= found["SECONDS_SINCE_GC_PASS"] < 60
    assert found["LAST_GC_PASS_ERRORS"] == 0


async def test_what_is_bounded_is_a_gauge_with_its_bound(live: Live) -> None:
    before = await live.gauges("bookkeeper_server_")
    ledger_id = await live.write(10)
    after = await live.gauges("bookkeeper_server_")
    assert live.bookie._server.context.operations.ledgers.states.keys() >= {ledger_id}
    assert after["LEDGER_STATES"] == before["LEDGER_STATES"] + 1 <= after["LEDGER_STATES_MAX"]
    assert after["CONNECTIONS"] >= 1  # the client's
    for name in ("LONG_POLLS_WAITING", "ADD_ENTRY_BLOCKED_BYTES"):
        assert after[name] == 0 < after[f"{name}_MAX"]
    assert (after["HIGH_PRIORITY_READS_BLOCKED"], after["LONG_POLL_READS_BLOCKED"]) == (0, 0)


async def test_its_load_and_its_place_in_the_cluster(live: Live) -> None:
    before = (await live.get("bookie/load")).json
    await live.write(20)
    after = (await live.get("bookie/load")).json
    assert after["adds"] - before["adds"] == 20
    assert after["writtenBytes"] - before["writtenBytes"] >= 20_000
    assert after["clockSeconds"] > before["clockSeconds"]
    assert 0 < after["writeCacheBytes"] <= after["writeCacheMaxBytes"]
    assert after["readCacheMaxBytes"] > 0
    assert after["ledgers"] == 1
    assert 0 < after["freeSpace"] < after["totalSpace"]
    (known,) = (await live.get("cluster/bookies")).json
    assert known["bookieId"] == after["bookieId"] == live.bookie.bookie_id
    assert (known["registration"], known["hasCookie"], known["leaving"]) == ("writable", True, False)
    assert known["adminUrl"] == f"http://127.0.0.1:{live.bookie.config.http.server_port}"


async def test_streams_and_how_far_their_consumers_lag(live: Live) -> None:
    streams = Streams(live.client)
    settings = StreamSettings(ensemble=1, write_quorum=1, ack_quorum=1, max_ledger_entries=10, min_ledger_seconds=0)
    for name in ("orders", "payments"):
        await streams.create(name, settings)
    async with streams.writer("orders") as writer:
        await asyncio.gather(*(writer.append(b"x") for _ in range(25)))
    manifest = await streams.manifest("orders")
    await streams.move_cursor("orders", "billing", StreamPosition(manifest.ledgers[0].ledger_id, 4))
    first = (await live.get("stream/list?limit=1")).json
    assert [each["name"] for each in first["streams"]] == ["orders"]
    assert (first["total"], first["next"]) == (2, "orders")
    (orders,) = first["streams"]
    assert [(each["cursorId"], each["lag"]) for each in orders["cursors"]] == [("billing", 21)]
    rest = (await live.get("stream/list?after=orders")).json
    assert ([each["name"] for each in rest["streams"]], rest["next"]) == (["payments"], None)
    one = (await live.get("stream?name=orders")).json
    assert [each["ledgerId"] for each in one["listed"]] == [each.ledger_id for each in reversed(manifest.ledgers)]
    assert (await live.get("stream?name=nowhere")).status == 404
