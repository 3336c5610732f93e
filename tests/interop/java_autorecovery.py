"""The reference's auto-recovery process, and the configuration that it shares with its shell."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.interop.cluster import Cluster
from tests.support.bookie_process import free_port
from tests.support.java import BOOKKEEPER_OPTIONS, find_java, short_lived


def tool_configuration(cluster: Cluster, folder: Path) -> Path:
    file = folder / "tool.conf"
    file.write_text(
        f"metadataServiceUri={cluster.metadata_uri}\nbookiePort={free_port()}\nallowLoopback=true\n"
        "advertisedAddress=127.0.0.1\nhttpServerEnabled=false\nzkTimeout=6000\n"
        "openLedgerRereplicationGracePeriod=1000\nrwRereplicateBackoffMs=500\n"
        # By default a ledger that was not repaired at once stays locked for five minutes.
        "lockReleaseOfFailedLedgerGracePeriod=5000\n"
        f"journalDirectories={folder}/journal\nledgerDirectories={folder}/ledgers\n"
    )
    return file


async def start_daemon(class_path: str, configuration: Path, folder: Path) -> asyncio.subprocess.Process:
    """The reference's auto-recovery: auditor and worker."""
    command = [find_java(), "-Xmx256m", *short_lived(class_path), *BOOKKEEPER_OPTIONS, "-cp", class_path]
    command += ["org.apache.bookkeeper.replication.AutoRecoveryMain", "--conf", str(configuration)]
    with (folder / "daemon.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=asyncio.subprocess.STDOUT
        )
