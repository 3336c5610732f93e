"""The metadata of ledgers that our client writes: byte for byte as the reference does, and read by its shell."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import accumulate
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bookie_client import Client
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import NoSuchLedger
from bookie_protocol.ledger_metadata.codec import decode_ledger_metadata
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.interop.java_autorecovery import tool_configuration
from tests.interop.java_client import PASSWORD, payload
from tests.support.java_bookie import java_shell

GOLDEN = {
    node["path"]: node
    for node in json.loads((Path(__file__).parents[1] / "golden" / "znodes-four-bookies.json").read_text())["znodes"]
    if "/L000" in node["path"]
}
BOOKIE = re.compile(rb"127\.0\.0\.1:\d{5}")
CREATION_TOKEN = 0x60
"""Tag of the last field, which is random: field 12, a varint."""


@pytest.fixture
def zookeeper_client(zookeeper):
    client = KazooClient(zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def shell(class_path, cluster, tmp_path):
    file = tool_configuration(cluster, tmp_path)

    async def run(*arguments):
        return await asyncio.to_thread(java_shell, class_path, file, *arguments)

    return run


# --- bytes ---------------------------------------------------------------------------------------------------------


def body_of(data: bytes) -> bytes:
    """Format 3 without its length and without the creation token."""
    first, newline, rest = data.partition(b"\n")
    assert first == b"BookieMetadataFormatVersion\t3"
    length, body = rest[0], rest[1:]
    if length >= 0x80:
        length, body = length & 0x7F | rest[1] << 7, rest[2:]
    assert newline
    assert len(body) == length
    token = body.rindex(CREATION_TOKEN)
    assert all(byte >= 0x80 for byte in body[token + 1 : -1])
    assert body[-1] < 0x80
    return body[:token]


@pytest.mark.parametrize("path", GOLDEN)
async def test_the_same_ledger_gives_the_same_bytes(cluster, zookeeper_client, path):
    golden = bytes.fromhex(GOLDEN[path]["dataHex"])
    wanted = decode_ledger_metadata(0, golden)
    service = await open_metadata_service(cluster.metadata_uri, ledger_metadata_version=wanted.format_version)
    async with Client(service) as client:
        ledger = await client.create(
            ensemble=wanted.ensemble_size,
            write_quorum=wanted.write_quorum_size,
            ack_quorum=wanted.ack_quorum_size,
            digest=wanted.digest_type or DigestType.CRC32C,
            password=wanted.password or b"",
            metadata=wanted.custom_metadata,
        )
        if wanted.last_entry_id >= 0:
            sizes = [wanted.length - wanted.last_entry_id] + [1] * wanted.last_entry_id
            await ledger.append_many(bytes(size) for size in sizes)
        if GOLDEN[path]["version"] == 2:
            await client.recover(ledger.ledger_id, password=wanted.password)
        elif wanted.is_closed:
            await ledger.close()
        ensemble = iter(ledger.metadata.last_ensemble)
    await service.close()
    expected = BOOKIE.sub(lambda _: next(ensemble).encode(), golden)
    root = cluster.root
    data, stat = zookeeper_client.get(f"{root}/00/{ledger.ledger_id // 10_000:04}/L{ledger.ledger_id % 10_000:04}")
    assert stat.version == GOLDEN[path]["version"]
    if wanted.format_version == 3:
        data, expected = body_of(data), body_of(expected)
    assert data == expected


# --- the shell -----------------------------------------------------------------------------------------------------


async def test_the_shell_reads_lists_dumps_restores_and_deletes_our_ledgers(cluster, zookeeper_client, shell, tmp_path):
    custom = {"application": b"podkeeper"}
    async with Client(cluster.metadata_uri) as client:
        async with client.create(write_quorum=3, password=PASSWORD, metadata=custom) as ledger:
            one = ledger.ledger_id
            await ledger.append_many(payload(one, i) for i in range(20))
        stored = await client.metadata(one)
        still_open = await client.create(write_quorum=3, password=PASSWORD)
        dump = tmp_path / "dump"

        said, listed, entries, bookies, _ = await asyncio.gather(
            shell("ledgermetadata", "-ledgerid", str(one)),
            shell("listledgers", "-meta"),
            shell("readledger", "-ledgerid", str(one)),
            shell("listbookies", "-rw"),
            shell("ledgermetadata", "-ledgerid", str(one), "-dumptofile", str(dump)),
        )
        for word in (
            "state=CLOSED",
            f"length={stored.length}",
            "lastEntryId=19",
            "digestType=CRC32C",
            "ensembleSize=3, writeQuorumSize=3, ackQuorumSize=2",
            "[" + ", ".join(stored.last_ensemble) + "]",
            "application",
        ):
            assert word in said, said
        ids = {int(number) for number in re.findall(r"ListLedgersCommand - .*\bledgerId=(\d+)", listed)}
        assert ids == {each async for each in client.list()}
        assert {one, still_open.ledger_id} <= ids
        lengths = [int(length) for length in re.findall(rf"Entry ledgerId={one} entryId=\d+ entrySize=(\d+)", entries)]
        assert lengths == list(
            accumulate(len(payload(one, i)) for i in range(20))
        )  # of the ledger, whatever it is called
        for bookie in stored.last_ensemble:
            assert bookie in bookies

        # Java's copy of the metadata is ours again when it comes back from Java.
        await client.delete(one)
        with pytest.raises(NoSuchLedger):
            await client.open(one, password=PASSWORD)
        await shell("ledgermetadata", "-ledgerid", str(one), "-restorefromfile", str(dump))
        restored = await client.metadata(one)
        assert (restored.state, restored.last_entry_id) == (LedgerState.CLOSED, 19)
        assert (restored.length, restored.ensembles) == (stored.length, stored.ensembles)
        assert restored.custom_metadata == custom
        async with client.open(one, password=PASSWORD) as reader:
            assert [e.payload async for e in reader.entries()] == [payload(one, i) for i in range(20)]
        await shell("deleteledger", "-ledgerid", str(one), "-force")
        with pytest.raises(NoSuchLedger):
            await client.metadata(one)
