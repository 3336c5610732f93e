"""What Kubernetes is told: alive from the first moment on and whatever others do, ready while clients can be served."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.config.sections.gc import DisksConfig
from bookie_pod.node import live_status
from bookie_pod.node.bookie import Bookie
from bookie_pod.node.live_status import LiveStatus
from bookie_pod.node.mode import BookieMode
from bookie_pod.node.registration import ServerStatus
from bookie_protocol.errors import StorageFault
from bookie_protocol.metadata_service.interface import Session
from bookie_protocol.metadata_service.service_info import BookieServiceInfo
from tests.support.bookie_process import free_port
from tests.support.http_answers import ask


@pytest.fixture
async def status() -> LiveStatus:
    return LiveStatus(asyncio.get_running_loop().create_future())


def registered(status: LiveStatus, as_what: ServerStatus) -> LiveStatus:
    registration: Any = SimpleNamespace(status=as_what, away_s=0.0)
    status.registration = registration
    return status


async def test_while_it_starts_it_is_alive_and_not_ready(status: LiveStatus) -> None:
    for phase in ("connecting to the metadata service", "opening the storage", "replaying journals"):
        status.enter(phase)
        assert (status.unhealthy_reason(), status.unready_reason()) == (None, phase)


@pytest.mark.parametrize("as_what", [ServerStatus.WRITABLE, ServerStatus.READ_ONLY])
async def test_registered_is_ready_read_only_too(status: LiveStatus, as_what: ServerStatus) -> None:
    status.running = True
    assert registered(status, as_what).unready_reason() is None


async def test_the_loss_of_the_metadata_service_is_no_reason_for_a_restart(status: LiveStatus) -> None:
    status.running = True
    registered(status, ServerStatus.UNREGISTERED)
    assert status.unhealthy_reason() is None
    assert status.unready_reason() == "not registered in the metadata service"
    registration: Any = status.registration
    registration.away_s = 40.0
    assert "40 s" in str(status.unready_reason())


async def test_a_port_that_does_not_listen_yet_and_a_thread_that_stands_still_make_it_unready(
    status: LiveStatus,
) -> None:
    status.running = True
    registered(status, ServerStatus.WRITABLE).opening = "the gRPC port is not served yet"
    assert status.unready_reason() == "the gRPC port is not served yet"
    status.opening = None
    status.slow_parts = lambda: ["the thread read-0 has made no progress for 300 s"]
    assert status.unready_reason() == "the thread read-0 has made no progress for 300 s"
    assert status.unhealthy_reason() is None


async def test_a_failure_that_ends_it_is(status: LiveStatus) -> None:
    status.fail(StorageFault("journal 0 failed: no space"))
    assert status.unhealthy_reason() == "journal 0 failed: no space"


async def test_decommission_that_is_undone_while_the_bookie_joins_leaves_it_writable(
    status: LiveStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[asyncio.Future[Any]] = []

    def run(work: Any) -> None:
        tasks.append(asyncio.ensure_future(work))

    gate: Any = SimpleNamespace(set_mode=lambda **_: None)
    mode = BookieMode(DisksConfig(), gate, run, status.fail)

    async def check() -> bool:
        if not tasks:
            mode.set_leaving(True)
        return mode.read_only

    async def unregister(*_: object, **__: object) -> None:
        mode.set_leaving(False)

    async def service_info(*_: object) -> BookieServiceInfo:
        return BookieServiceInfo(())

    monkeypatch.setattr(live_status, "Membership", lambda *_: SimpleNamespace(check=check))
    monkeypatch.setattr(live_status, "service_info", service_info)
    metadata: Any = SimpleNamespace(
        session=Session(1.0), bookies=SimpleNamespace(register=AsyncMock(), unregister=unregister)
    )
    own: Any = SimpleNamespace(cookie=SimpleNamespace(bookie_id="b:1"))
    unused: Any = SimpleNamespace(run=run)
    async with contextlib.AsyncExitStack() as undo:
        registration = await live_status.join_cluster(
            load_config(environ={}, overrides={"metadataServiceUri": "zk+null://127.0.0.1:1/ledgers"}),
            metadata=metadata,
            own=own,
            address=unused,
            http_port=None,
            mode=mode,
            status=status,
            tasks=unused,
            undo=undo,
        )
        await asyncio.gather(*tasks)
        assert not mode.read_only
        assert registration.status is ServerStatus.WRITABLE


async def test_probes_are_answered_before_there_is_a_metadata_service(tmp_path: Path) -> None:
    """As long as a start takes, whatever it waits for, nobody has a reason to kill it."""
    port = free_port()
    config = load_config(
        environ={},
        overrides={
            "metadataServiceUri": f"zk+null://127.0.0.1:{free_port()}/ledgers",
            "zkTimeout": "60000",
            "bookiePort": str(free_port()),
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "advertisedAddress": "127.0.0.1",
            "journalDirectories": str(tmp_path / "journal"),
            "ledgerDirectories": str(tmp_path / "ledgers"),
            "httpServerHost": "127.0.0.1",
            "httpServerPort": str(port),
            "grpcServerEnabled": "false",
        },
    )
    bookie = Bookie(config)
    starting = asyncio.create_task(bookie.start())
    try:
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(OSError):
                    if (await ask(port, "/healthz")).status == 200:
                        break
                await asyncio.sleep(0.02)
        ready = await ask(port, "/readyz")
        assert (ready.status, ready.body) == (503, "connecting to the metadata service")
        assert (await ask(port, "/api/v1/bookie/state")).json["running"] is False
        assert (await ask(port, "/api/v1/cluster/state")).status == 503
        assert not starting.done()
    finally:
        starting.cancel()
        await asyncio.wait({starting})
        await bookie.stop()
