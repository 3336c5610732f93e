"""The bookie that leaves its cluster: the commands that it leaves by, the ledgers that it holds, and where it stands.

A drain begins with a fourth of the `--rate` that it is given, and these here end before it is faster.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

from bookie_client import Client
from bookie_client.reading.maintenance import replicas
from bookie_pod.node.standalone.cluster import StandaloneCluster
from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import BookieGroup
from tests.support import warm
from tests.support.warm import WarmChild

GOING = "bookie-2"
PASSWORD = b"x"


class Command:
    """`bookie cluster ...` as a process."""

    def __init__(self, process: WarmChild) -> None:
        self.process = process

    @classmethod
    async def start(cls, cluster: StandaloneCluster, *arguments: str) -> Command:
        return cls(await warm.start(warm.BOOKIE, ["cluster", *arguments, "--metadata", cluster.metadata_service_uri]))

    async def end(self, code: int | None = 0, seconds: float = 90.0) -> tuple[str, str]:
        """What it printed to its outputs."""
        async with asyncio.timeout(seconds):
            out, err = await self.process.communicate()
        if code is not None:
            assert self.process.returncode == code, err.decode()
        return out.decode(), err.decode()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.communicate()


async def run(cluster: StandaloneCluster, *arguments: str, code: int = 0) -> str:
    return (await (await Command.start(cluster, *arguments)).end(code))[0]


async def write(client: Client, count: int, entries: int = 100, *, close: bool = True, ensemble: int = 3) -> list[int]:
    """Ledgers of so many entries each."""
    made = []
    for _ in range(count):
        ledger = await client.create(ensemble=ensemble, write_quorum=3 if ensemble == 3 else 2, password=PASSWORD)
        await ledger.append_many([b"entry %d" % i + bytes(500) for i in range(entries)])
        if close:
            await ledger.close()
        made.append(ledger.ledger_id)
    return made


async def idle_ledger(client: Client) -> int:
    """One that names the bookie and is left open; its writer does nothing more."""
    while True:
        (ledger_id,) = await write(client, 1, close=False)
        if GOING in (await client.metadata(ledger_id)).last_ensemble:
            return ledger_id


async def only_copies(client: Client, count: int) -> dict[int, str]:
    """So many closed ledgers of which the bookie holds the only copy, and their metadata as text."""
    made: dict[int, str] = {}
    while len(made) < count:
        async with client.create(ensemble=1, write_quorum=1, ack_quorum=1, password=PASSWORD) as ledger:
            await ledger.append_many([b"entry %d" % i + bytes(500) for i in range(100)])
        metadata = await client.metadata(ledger.ledger_id)
        if metadata.last_ensemble == (GOING,):
            made[ledger.ledger_id] = str(metadata)
        else:
            await client.delete(ledger.ledger_id)
    return made


async def check_all(cluster: StandaloneCluster, gone: str) -> int:
    """Every ledger, every entry, every replica; returns the number of entries."""
    entries = 0
    async with Client(cluster.metadata_service_uri) as client:
        async for ledger_id in client.list():
            metadata = await client.metadata(ledger_id)
            assert gone not in metadata.all_bookies(), ledger_id
            assert await cluster.metadata.under_replication.read(ledger_id) is None
            metadata = await client.recover(ledger_id, password=None)  # what its writer left open gets its end
            async with client.open(ledger_id, password=None) as reader:
                for bookie in metadata.all_bookies():
                    async with aclosing(replicas(reader).scan(bookie, 0, reader.last_add_confirmed)) as answers:
                        async for answer in answers:
                            assert answer.error is None, (ledger_id, bookie, answer)
                entries += reader.last_add_confirmed + 1
    return entries


async def phase(cluster: StandaloneCluster) -> str | None:
    try:
        return str(json.loads((await cluster.metadata.records("decommission").read(GOING)).value)["phase"])
    except MetadataNotFound:
        return None


async def until_phase(cluster: StandaloneCluster, *wanted: str | None) -> None:
    async with asyncio.timeout(60):
        while await phase(cluster) not in wanted:  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.02)


async def mode(cluster: StandaloneCluster, bookie: str = GOING) -> str:
    for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY):
        if await cluster.metadata.bookies.is_registered(bookie, group):
            return group.value
    return "down"


async def until_mode(cluster: StandaloneCluster, wanted: str) -> None:
    async with asyncio.timeout(60):
        while await mode(cluster) != wanted:  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.05)


async def has_cookie(cluster: StandaloneCluster) -> bool:
    return GOING in (await cluster.metadata.bookies.list(BookieGroup.ALL)).bookies


async def check_gone(cluster: StandaloneCluster) -> None:
    assert not await has_cookie(cluster)
    assert await phase(cluster) is None
    record = json.loads((await cluster.metadata.records("decommissioned").read(GOING)).value)
    assert record["phase"] == "done"
