"""What the parts of a bookie count by themselves is exported."""

from __future__ import annotations

import re
from pathlib import Path

from bookie_pod.storage.engines.db import DbLedgerStorage
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
