"""`bookie cluster health-check`, on a metadata store in a folder: bookies are registered, some of them run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bookie_client import Client
from bookie_pod.cli.cluster.health import show_health
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.local_clusters import LocalCluster, announced
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.model_bookie import ModelBookie, ModelBookieServer

Capture = pytest.CaptureFixture[str]
URI = "embedded://127.0.0.1:1/ledgers"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[MetadataService]:
    service = await open_metadata_service(str(tmp_path / "metadata"))
    await service.cluster.initialize()
    yield service
    await service.close()


async def register(service: MetadataService, bookie: str, port: int, group: BookieGroup = BookieGroup.WRITABLE) -> None:
    await service.cookies.create(bookie, b"4\n")
    endpoint = Endpoint("bookie", "127.0.0.1", port, BOOKIE_RPC)
    await service.bookies.register(bookie, group, BookieServiceInfo((endpoint,), {}))


@asynccontextmanager
async def answering(bookie: str) -> AsyncIterator[int]:
    """A bookie that answers at this port."""
    server = ModelBookieServer(ModelBookie(bookie))
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop()


async def health(service: MetadataService, needed: int, capsys: Capture) -> tuple[int, list[str], list[str]]:
    """The exit code, the kinds of the problems, and their texts."""
    async with Client(service) as client:
        code = await show_health(Cluster(client, service), URI, needed, as_json=True)
    problems = json.loads(capsys.readouterr().out)["problems"]
    return code, [each["kind"] for each in problems], [each["text"] for each in problems]


async def test_healthy_cluster(service: MetadataService, capsys: Capture) -> None:
    async with answering("b1") as port:
        await register(service, "b1", port)
        assert await health(service, 1, capsys) == (0, [], [])
        code, kinds, _ = await health(service, 2, capsys)
    assert (code, kinds) == (13, ["too-few-bookies", "no-auditor"])


async def test_bookies_that_are_down_or_read_only_or_do_not_answer(service: MetadataService, capsys: Capture) -> None:
    await service.cookies.create("down", b"4\n")
    async with answering("read-only") as port:
        await register(service, "read-only", port, BookieGroup.READ_ONLY)
        await register(service, "silent", 1)
        code, kinds, _ = await health(service, 1, capsys)
    assert (code, kinds) == (13, ["bookie-down", "bookie-read-only", "bookie-unreachable", "no-auditor"])


async def test_ledgers_that_lack_copies_while_nothing_heals(service: MetadataService, capsys: Capture) -> None:
    await service.under_replication.mark(7, ["b9"], ctime_ms=None)
    await service.under_replication.disable()
    code, kinds, _ = await health(service, 0, capsys)
    assert (code, kinds) == (13, ["under-replicated", "auto-recovery-disabled"])


async def test_last_words_of_a_bookie_on_this_machine_are_told(
    service: MetadataService, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    await service.cookies.create("b1", b"4\n")
    (tmp_path / "b1").mkdir()
    (tmp_path / "b1" / "bookie.log").write_text("{}\nbookie: /data/journal: No space left on device\n")
    with announced(LocalCluster(URI, str(tmp_path), ())):
        _, _, (told, *_) = await health(service, 0, capsys)
    assert "No space left on device" in told
