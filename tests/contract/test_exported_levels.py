"""What the parts of a bookie count by themselves is exported."""

from __future__ import annotations

import re
from pathlib import Path

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_protocol.errors import V2Code
from tests.support.frames import v2_code, v2_read
from tests.support.served_bookie import RawClient, ServedBookie
from tests.support.until import until


def counted(bookie: ServedBookie, name: str) -> list[str]:
    """Values of a counter, one for each of its series."""
    text = bookie.registry.render()
    assert f"# TYPE {name} counter" in text
    return re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)


async def test_damaged_reads_and_connection_errors(tmp_path: Path) -> None:
    settings = {"ledgerDirectories": f"{tmp_path}/one,{tmp_path}/two"}
    async with ServedBookie(tmp_path, settings) as bookie:
        storage = bookie.side.storage
        assert isinstance(storage, DbLedgerStorage)
        assert counted(bookie, "bookie_entrylog_damaged_reads") == ["0", "0"]
        storage.directories[1].logs.stats.damaged_reads += 1
        assert counted(bookie, "bookie_entrylog_damaged_reads") == ["0", "1"]
        assert counted(bookie, "bookkeeper_server_CONNECTION_ERRORS") == ["0"]
        async with await RawClient.connect(bookie.port) as client:
            client.send(b"\xff\xff\xff\xff")
            await until(lambda: counted(bookie, "bookkeeper_server_CONNECTION_ERRORS") == ["1"])


async def test_connections_beyond_the_limit_are_closed_and_others_go_on(tmp_path: Path) -> None:
    async with ServedBookie(tmp_path, {"maxConnections": "2"}) as bookie:
        async with await RawClient.connect(bookie.port) as first, await RawClient.connect(bookie.port) as second:
            for client in (first, second):
                assert v2_code(await client.ask(v2_read(1, 0))) == V2Code.ENOLEDGER
            async with await RawClient.connect(bookie.port) as third:
                assert await third.closed()
            assert counted(bookie, "bookkeeper_server_CONNECTIONS_REFUSED") == ["1"]
            assert v2_code(await first.ask(v2_read(1, 0))) == V2Code.ENOLEDGER
        async with await RawClient.connect(bookie.port) as fourth:
            await until(lambda: len(bookie.server.clients.connections) == 1)
            assert v2_code(await fourth.ask(v2_read(1, 0))) == V2Code.ENOLEDGER
