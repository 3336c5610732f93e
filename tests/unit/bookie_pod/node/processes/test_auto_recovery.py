"""When a process of auto-recovery waits, and when it ends to be started anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.node.identity.cookies import Cookie, format_cookie
from bookie_pod.node.metadata import open_metadata
from bookie_pod.node.processes import service as service_module
from bookie_pod.node.processes.auto_recovery import AutoRecoveryProcess, name_of_process
from bookie_pod.node.processes.service import SessionNotRenewed
from bookie_pod.node.processes.watch import PartEnded
from bookie_protocol.errors import ExitCode, InvalidConfiguration, MetadataUnavailable, ServerStartFailed
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.bookie_process import free_port
from tests.support.http_answers import ask
from tests.support.until import until

QUIET = {"httpServerEnabled": "false", "prometheusStatsHttpEnable": "false", "zkTimeout": "2000"}

OF_THE_CLUSTER = {
    "cluster/state": 200,
    "autorecovery/decommission/proof?bookie_id=b:1": 200,
    "autorecovery/decommission/plan?bookie_id=b:1": 200,
    "autorecovery/decommission/progress?bookie_id=b:1": 404,
    "autorecovery/safety_check?bookies=b:1": 200,
    "autorecovery/lost_bookie_recovery_delay": 200,
    "bookie/list_bookies?type=ro": 200,
    "bookie/cluster_info": 200,
    "bookie/cookie?bookie_id=b:1": 200,
    "bookie/info": 404,
    "config/server_config": 404,
}
"""What is asked of it, and the status of the answer: nothing of a bookie."""


class Watched:
    """In place of what runs: its session does not come back, or a part of it does not."""

    gone: str | None = None

    async def watch(self) -> str:
        return self.gone or "no connection to the metadata service for 61 s"

    def dead(self) -> str | None:
        return self.gone


class Session:
    def __init__(self, state: SessionState) -> None:
        self.state = state


class Service:
    """As much of a metadata service as is asked for."""

    def __init__(self, state: SessionState = SessionState.EXPIRED) -> None:
        self.session = Session(state)
        self.cluster = self
        self.closed = False

    async def exists(self) -> bool:
        return True

    async def close(self) -> None:
        self.closed = True


def process_with(monkeypatch: pytest.MonkeyPatch, service: Service, opened: Service | None) -> AutoRecoveryProcess:
    """`opened`: the service as a new connection sees it; None: it takes none."""

    async def open_metadata(config: object, uri: str) -> Service:
        if opened is None:
            raise MetadataUnavailable("nobody answers")
        return opened

    monkeypatch.setattr(service_module, "open_metadata", open_metadata)
    monkeypatch.setattr(service_module, "PROBE_PAUSE_S", 0.01)
    process = AutoRecoveryProcess(load_config(environ={}, overrides={**QUIET, "metadataServiceUri": "zk://nowhere/l"}))
    process._metadata, process._running = service, Watched()  # type: ignore[assignment]
    return process


async def test_it_ends_when_others_get_a_session_and_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Service(SessionState.CONNECTED)
    process = process_with(monkeypatch, Service(), opened)
    with pytest.raises(SessionNotRenewed, match="61 s") as caught:
        await process._serve()
    assert caught.value.exit_code is ExitCode.METADATA_SESSION_EXPIRED
    assert opened.closed


async def test_it_ends_when_nobody_begins_a_part_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no probe looks at it, it would do nothing for ever."""
    process = process_with(monkeypatch, Service(SessionState.CONNECTED), None)
    process._running.gone = "the auditor is dead: it was cancelled"  # type: ignore[union-attr]
    with pytest.raises(PartEnded):
        await process._serve()


@pytest.mark.parametrize("case", ["nobody gets one", "it came back meanwhile"])
async def test_else_it_waits(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    mine = Service(SessionState.EXPIRED if case == "nobody gets one" else SessionState.CONNECTED)
    process = process_with(monkeypatch, mine, None if case == "nobody gets one" else Service())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await process._serve()


async def test_from_start_to_stop(tmp_path: Path) -> None:
    owner = await EmbeddedOwner.open(str(tmp_path))
    server = EmbeddedMetadataServer(owner, "127.0.0.1", 0)
    await server.start()
    try:
        config = load_config(environ={}, overrides={**QUIET, "metadataServiceUri": server.uri()})
        with pytest.raises(ServerStartFailed, match="at embedded://"):
            await AutoRecoveryProcess(config).run()
        service = await open_metadata(config.metadata, server.uri())
        await service.cluster.initialize()
        process = AutoRecoveryProcess(config)
        assert process.unready_reason() == "starting"
        running = asyncio.create_task(process.run())
        await until(lambda: process.unready_reason() is None, 20)
        async with asyncio.timeout(10):
            while await service.auditor_election.current_auditor() is None:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        assert process.unhealthy_reason() is None
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        assert await service.auditor_election.current_auditor() is None
        assert process.unready_reason() == "stopping"
        await service.close()
    finally:
        await server.stop()
        await owner.close()


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[MetadataService, int]]:
    """A process that is ready, on a cluster without bookies: the metadata service, and the process's HTTP port."""
    owner = await EmbeddedOwner.open(str(folder))
    server = EmbeddedMetadataServer(owner, "127.0.0.1", 0)
    await server.start()
    port = free_port()
    keys = {
        "metadataServiceUri": server.uri(),
        "zkTimeout": "4000",
        "httpServerHost": "127.0.0.1",
        "httpServerPort": str(port),
    }
    config = load_config(environ={}, overrides=keys)
    try:
        service = await open_metadata(config.metadata, server.uri())
        await service.cluster.initialize()
        process = AutoRecoveryProcess(config)
        running = asyncio.create_task(process.run())
        await until(lambda: process.unready_reason() is None, 20)
        yield service, port
        running.cancel()
        await asyncio.wait({running})
        await service.close()
    finally:
        await server.stop()
        await owner.close()


async def test_it_serves_what_is_about_the_cluster(tmp_path: Path) -> None:
    """While every bookie is down, facts come from here."""
    async with serving(tmp_path) as (service, port):
        await service.cookies.create("b:1", b"of a bookie that is down")
        found = {path: await ask(port, f"/api/v1/{path}") for path in OF_THE_CLUSTER}
        assert {path: answer.status for path, answer in found.items()} == OF_THE_CLUSTER
        state = found["cluster/state"].json
        instance_id = await service.cluster.instance_id()
        assert (state["instanceId"], state["writable"], state["cookies"]) == (instance_id, [], ["b:1"])
        proof = found["autorecovery/decommission/proof?bookie_id=b:1"].json
        assert (proof["ledgers"], proof["marks"], proof["registered"]) == (0, 0, False)
        assert found["bookie/cookie?bookie_id=b:1"].body == "of a bookie that is down"
        assert (await ask(port, "/api/v1/bookie/cookie?bookie_id=b:1", "DELETE")).status == 200
        assert (await ask(port, "/api/v1/cluster/state")).json["cookies"] == []


async def test_settings_of_the_cluster_are_changed_through_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, port):
        base, marks = "/api/v1/autorecovery", service.under_replication

        async def listed(query: str = "") -> object:
            answer = await ask(port, f"{base}/list_under_replicated_ledger{query}")
            return answer.json if answer.status == 200 else answer.status

        assert (await ask(port, f"{base}/status?enabled=false", "PUT")).json == {"enabled": False}
        assert not await marks.is_enabled()
        assert (await ask(port, f"{base}/status")).json == {"enabled": False}
        for ledger_id, lost in ((7, ("b:1", "c:1")), (8, ("c:1",)), (9, ())):
            await marks.lock(ledger_id)  # its worker leaves them alone, whenever it hears that it may not work
            await marks.mark(ledger_id, lost, ctime_ms=1)
        assert await listed() == [7, 8, 9]
        assert await listed("?missingreplica=c:1") == [7, 8]
        assert await listed("?missingreplica=c:1&excludingmissingreplica=b:1") == [8]
        assert await listed("?excludingmissingreplica=c:1") == [9]
        assert await listed("?missingreplica=d:1") == 404
        assert await listed("?printmissingreplica=true") == {"7": ["b:1", "c:1"], "8": ["c:1"], "9": []}
        assert await listed("?printmissingreplica=true&missingreplica=b:1") == {"7": ["b:1", "c:1"]}
        for ledger_id in (7, 8, 9):
            await marks.unmark(ledger_id)
        assert await listed() == 404
        body = json.dumps({"delay_seconds": 1234})
        assert (await ask(port, f"{base}/lost_bookie_recovery_delay", "PUT", body)).status == 200
        assert await marks.lost_bookie_recovery_delay() == 1234
        assert (await ask(port, f"{base}/lost_bookie_recovery_delay")).body.endswith(": 1234")
        assert (await ask(port, f"{base}/status?enabled=true", "PUT")).json == {"enabled": True}
        assert await marks.is_enabled()


async def test_cookies_are_stored_through_it(tmp_path: Path) -> None:
    first, second, other = (
        format_cookie(Cookie(bookie_id, journal, "1\t/l", instance_id="i"))
        for bookie_id, journal in (("b:1", "/j"), ("b:1", "/j2"), ("c:1", "/j"))
    )
    async with serving(tmp_path) as (service, port):

        async def put(method: str, cookie: bytes) -> int:
            return (await ask(port, "/api/v1/bookie/cookie?bookie_id=b:1", method, cookie)).status

        async def stored() -> bytes:
            return (await service.cookies.read("b:1")).value

        assert await put("PUT", first) == 404
        assert await put("POST", other) == 400
        assert (await ask(port, "/api/v1/bookie/cookie?bookie_id=b:1")).status == 404
        assert await put("POST", first) == 200
        assert await stored() == first
        assert await put("POST", second) == 409
        assert await stored() == first
        assert await put("PUT", second) == 200
        assert await stored() == second
        assert await put("PUT", other) == 400
        assert await stored() == second


async def test_without_a_metadata_service() -> None:
    with pytest.raises(InvalidConfiguration, match="metadataServiceUri is"):
        await AutoRecoveryProcess(load_config(environ={}, overrides=QUIET)).run()


def test_its_name_is_one_that_javas_tools_can_read() -> None:
    keys = {"advertisedAddress": "recovery-0.example", "bookiePort": "3333"}
    assert name_of_process(load_config(environ={}, overrides=keys)) == "recovery-0.example:3333"
