"""Records of our own beside the reference's nodes: its shell and its formatting do not stumble over them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.interop.cluster import Cluster
from tests.interop.java_autorecovery import tool_configuration
from tests.support.java_bookie import java_shell

IDS = (0, 3, 12_345, 2**31 + 5, 2**40)


@pytest.fixture
def empty(make_cluster) -> Cluster:
    """A cluster of the reference's making, without bookies."""
    return make_cluster()


@pytest.fixture
async def service(empty: Cluster) -> AsyncIterator[MetadataService]:
    opened = await open_metadata_service(empty.metadata_uri)
    for ledger_id in IDS:
        await opened.ledgers.create(
            LedgerMetadata(ledger_id, 1, 1, 1, {0: ("10.0.0.1:3181",)}, digest_type=DigestType.CRC32C, password=b"")
        )
    await opened.records("decommission").create("10.0.0.1:3181", b'{"phase": "draining"}')
    yield opened
    await opened.close()


@pytest.fixture
def configuration(empty: Cluster, tmp_path: Path) -> Path:
    return tool_configuration(empty, tmp_path)


async def test_the_shell_lists_formats_and_reads_as_if_they_were_not_there(
    empty: Cluster, service: MetadataService, class_path: str, configuration: Path
) -> None:
    async def shell(*arguments: str) -> str:
        return await asyncio.to_thread(java_shell, class_path, configuration, *arguments)

    said = await shell("listledgers")
    assert {int(number) for number in re.findall(r"ListLedgersCommand - .*\bledgerId=(\d+)", said)} == set(IDS), said
    said = await shell("listunderreplicated", "-onlydisplayledgercount")
    assert "Under replicated ledger count count=0" in said, said
    assert "2147483653" in await shell("ledgermetadata", "-ledgerid", str(2**31 + 5))
    records = service.records("decommission")
    assert await records.names() == {"10.0.0.1:3181"}
    before = await service.cluster.instance_id()
    await shell("metaformat", "-nonInteractive", "-force")
    assert await service.cluster.instance_id() != before
    assert [ledger_id async for found in service.ledgers.ranges() for ledger_id in found.ids] == []
    assert (await records.read("10.0.0.1:3181")).value == b'{"phase": "draining"}'  # not the reference's: left alone

    # Its removal of a cluster stops at nodes that it does not know, with nothing changed: ours removes them.
    instance = await service.cluster.instance_id()
    assert instance is not None
    root = "/" + empty.metadata_uri.split("/", 3)[3]
    with pytest.raises(RuntimeError, match="podkeeper"):
        await shell("nukeexistingcluster", "-zkledgersrootpath", root, "-instanceid", instance)
    assert (await records.read("10.0.0.1:3181")).value == b'{"phase": "draining"}'
    await service.cluster.nuke(instance_id=instance)
    assert not await service.cluster.exists()
